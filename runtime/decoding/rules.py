"""Whisper's logit rules, one function each, in openai-whisper's order (`whisper/decoding.py`).

Each rule takes the raw logits of all tokens, f32[n_vocab], and the tokens sampled so far in the window, and sets the
logits of tokens that may not follow to -inf. Rules depend on the prefix, so a row is filtered with its own prefix.

Order: penalties for repetition (faster-whisper's) and for length (transformers'), both off by default; blank at the
beginning; suppressed tokens; timestamps in pairs; timestamps never decreasing; a timestamp first (and an early one);
and last, a timestamp when all timestamps together are likelier than any text. Ids after the timestamps, which only
fine-tunes have, are no timestamps.

The module also lists the tokens that are never written: non-speech symbols and ids that the user names. The list that
-1 stands for is computed from the vocabulary, as in openai-whisper and faster-whisper, because fine-tunes often leave
the checkpoint's list empty.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import NDArray

from ..text.phrases import Tree
from ..text.special import TokenLayout
from ..text.tokenizer import Encoder, Tokenizer

_SYMBOLS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]", "{{", "}}"),
    *("♪♪", "♪♪♪"),
)

# Music signs may be several tokens; then their first one goes, which other signs of that block share.
_MUSIC = tuple("♩♪♫♬♭♮♯")


def suppressed_tokens(asked: Sequence[int] | None, model_list: Sequence[int]) -> list[int]:
    """Return the ids asked for, with `model_list` in place of -1. None and () ask for none."""
    ids = [token for token in asked or () if token >= 0]
    return [*ids, *model_list] if -1 in (asked or ()) else ids


@functools.lru_cache(maxsize=2)  # a whole vocabulary takes milliseconds, which a short recording would notice
def non_speech_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the sorted ids of signs that nobody speaks (`whisper/tokenizer.py: non_speech_tokens`).

    A hyphen or an apostrophe is kept within words and goes at the beginning of one.
    """
    texts = [space + symbol for symbol in (*_SYMBOLS, *_MUSIC) for space in ("", " ")]
    encode = _encoder_of([*texts, " -", " '"], tokenizer).encode
    found = {encode(" -")[0], encode(" '")[0]}
    for text in texts:
        ids = encode(text)
        if len(ids) == 1 or text.strip() in _MUSIC:
            found.add(ids[0])
    return tuple(sorted(found))


def _encoder_of(texts: Sequence[str], tokenizer: Tokenizer) -> Encoder:
    """An encoder for these texts alone: an index of the whole vocabulary takes megabytes."""
    parts = set()
    for data in (text.encode() for text in texts):
        parts |= {data[i:j] for i in range(len(data)) for j in range(i + 1, len(data) + 1)}
    texts_below_eot = tokenizer.ranks[: tokenizer.special.eot]
    ranks = {token: id_ for id_, token in enumerate(texts_below_eot) if token in parts}
    return Encoder(ranks, tokenizer.pattern)


Logits = NDArray[np.float32]
Ids = NDArray[np.intp]
_NEVER = np.float32(-np.inf)
_CERTAIN = 1e30  # a logit far above all others, with room to be divided by a temperature
_ROUNDING = 0.01  # more than float32 adds to the logarithm of a sum of a vocabulary


def penalise_repetition(logits: Logits, sampled: Sequence[int], penalty: float) -> None:
    """Divide positive logits of this window's tokens by `penalty` and multiply negative ones.

    As CTranslate2's RepetitionPenalty: once for each token, however often it came; the prompt does not count.
    """
    ids = np.array(sorted(set(sampled)), dtype=np.intp)
    logits[ids] = np.where(logits[ids] < 0, logits[ids] * np.float32(penalty), logits[ids] / np.float32(penalty))


def no_repeated_ngram(logits: Logits, sampled: Sequence[int], size: int) -> None:
    """Forbid tokens that would complete a run of `size` ids that this window already has (CTranslate2)."""
    last = tuple(sampled[len(sampled) - size + 1 :])
    for i in range(len(sampled) - size + 1):
        if tuple(sampled[i : i + size - 1]) == last:
            logits[sampled[i + size - 1]] = _NEVER


def hasten_end(logits: Logits, sampled: Sequence[int], layout: TokenLayout, decay: tuple[float, float]) -> None:
    """Raise the logit of the end by |logit| (factor ** n - 1), n tokens behind the first `start`.

    decay: (start, factor). As transformers' ExponentialDecayLengthPenalty, by each row's own prefix; Whisper-Medusa's
    code takes one length for all rows of a pass.
    """
    start, factor = decay
    n_behind = len(sampled) - start
    end = float(logits[layout.eot])
    if n_behind > 0 and math.isfinite(end):
        try:
            risen = end + abs(end) * (factor**n_behind - 1)
        except OverflowError:
            risen = _CERTAIN if end else end
        logits[layout.eot] = np.float32(min(risen, _CERTAIN))


def favour(logits: Logits, sampled: Sequence[int], phrases: Tree, weight: float) -> None:
    """Add `weight` to tokens that go on with a phrase that the text has begun, from its second token on.

    A first token gets nothing: words that only begin like a phrase would be heard everywhere.
    """
    following: set[int] = set()
    for begin, token in enumerate(sampled):
        if token in phrases.branches:
            node = phrases.behind(sampled[begin:])
            following.update(node.branches if node is not None else ())
    if following:
        logits[list(following)] += np.float32(weight)


def allow_only(
    logits: Logits, sampled: Sequence[int], layout: TokenLayout, sentences: Tree, *, timestamps: bool
) -> float:
    """Forbid text that goes on with no sentence; behind one the text may end, or another follow: with `timestamps`
    behind a time.

    Returns the logarithm of the probability that is left, to which log-probabilities are scaled: so a text that the
    model would not have written stays unlikely, and silence is noticed. A prefix of no sentence ends at once.
    """
    nodes = [sentences]
    for token in sampled:
        if layout.is_timestamp(token):
            nodes = [sentences]
            continue
        nodes = [node.branches[token] for node in nodes if token in node.branches]
        if not timestamps and any(layout.eot in node.branches for node in nodes):
            nodes.append(sentences)
    allowed = [token for node in nodes for token in node.branches]
    peak = logits.max()
    whole = np.exp(logits - peak).sum(dtype=np.float32)
    kept = np.full_like(logits, _NEVER)
    if not nodes or sentences in nodes or layout.eot in allowed:
        allowed.append(layout.eot)
        times = slice(layout.timestamp_begin, layout.timestamp_begin + layout.n_timestamps * timestamps)
        kept[times] = logits[times]
    kept[allowed] = logits[allowed]
    if not np.isfinite(kept.max()):
        kept[layout.eot] = peak  # other rules forbid all of the sentence
    logits[:] = kept
    return float(np.log(np.exp(kept - peak).sum(dtype=np.float32) / whole))


def timestamps_in_pairs(logits: Logits, sampled: Sequence[int], layout: TokenLayout) -> None:
    """Forbid timestamps after a pair of them, and text after a lone one, which its partner or the end follows.

    The very first timestamp counts as the second of a pair, as in openai-whisper.
    """
    begin, end = layout.timestamp_begin, layout.timestamp_begin + layout.n_timestamps
    if sampled and begin <= sampled[-1] < end:
        if len(sampled) < 2 or begin <= sampled[-2] < end:
            logits[begin:end] = _NEVER
        else:
            logits[: layout.eot] = _NEVER


def timestamps_never_decrease(logits: Logits, sampled: Sequence[int], layout: TokenLayout) -> None:
    """Forbid timestamps up to the last one; the partner of a lone timestamp may repeat it."""
    begin, end = layout.timestamp_begin, layout.timestamp_begin + layout.n_timestamps
    for n_behind, token in enumerate(reversed(sampled)):
        if begin <= token < end:
            may_repeat = n_behind == 0 and len(sampled) >= 2 and not begin <= sampled[-2] < end
            logits[begin : token if may_repeat else token + 1] = _NEVER
            return


def initial_timestamp(
    logits: Logits, sampled: Sequence[int], layout: TokenLayout, max_initial_timestamp_index: int | None
) -> None:
    """Forbid a first token but timestamps, at most `max_initial_timestamp_index` steps into the window (None: any)."""
    if sampled:
        return
    _forbid_all_but_timestamps(logits, layout)
    if max_initial_timestamp_index is not None:
        logits[layout.timestamp_begin + max_initial_timestamp_index + 1 :] = _NEVER


def prefer_timestamps(logits: Logits, sampled: Sequence[int], layout: TokenLayout) -> None:
    """Forbid all else when the timestamps' summed probability is above that of the likeliest other token.

    openai-whisper compares log-probabilities; the normaliser is the same on both sides, so raw logits do.
    """
    begin, end = layout.timestamp_begin, layout.timestamp_begin + layout.n_timestamps
    timestamps = logits[begin:end]
    if timestamps.size == 0:
        return
    peak = timestamps[timestamps.argmax()]  # quicker than max
    if not math.isfinite(peak):
        return
    likeliest = int(logits.argmax())
    if begin <= likeliest < end:
        other = max(logits[:begin].max(), logits[end:].max(initial=_NEVER))
    else:
        other = logits[likeliest]
        # The logarithm of their sum exceeds the largest logit by the logarithm of their number at most.
        if float(peak) + math.log(timestamps.size) + _ROUNDING < other:
            return
    summed = peak + np.log(np.exp(timestamps - peak).sum(dtype=np.float32))
    if summed > other:
        _forbid_all_but_timestamps(logits, layout)


def _forbid_all_but_timestamps(logits: Logits, layout: TokenLayout) -> None:
    logits[: layout.timestamp_begin] = _NEVER
    logits[layout.timestamp_begin + layout.n_timestamps :] = _NEVER


@dataclass(frozen=True, eq=False)
class RuleSet:
    """The rules of one window. A penalty of 1, a size of 0 and None are off.

    space_ids: the encoding of a single space; suppressed: the bundle's list, to which the control tokens that
    openai-whisper never samples are added whether or not the list has them; timestamps: False for the prompt with
    <|notimestamps|>, where openai-whisper has no rules of time; begun: the beginning of the text, which ends the
    prompt, as CTranslate2 takes a prefix; bias: phrases that are likelier by `bias_weight`; only: the sentences that
    may be written. Both may change the text.
    """

    layout: TokenLayout
    _: KW_ONLY
    space_ids: Collection[int]
    suppressed: Collection[int]
    timestamps: bool
    max_initial_timestamp_index: int | None
    suppress_blank: bool = True
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    length_decay: tuple[float, float] | None = None
    begun: tuple[int, ...] = ()
    bias: Tree | None = None
    bias_weight: float = 0.0
    only: Tree | None = None

    @functools.cached_property
    def _blank_ids(self) -> Ids:
        """What a text may not begin with: a lone space or the end (`SuppressBlank`)."""
        return _ids([*self.space_ids, self.layout.eot] if self.suppress_blank else [], self.layout)

    @functools.cached_property
    def _suppressed_ids(self) -> Ids:
        """What is never said: non-speech symbols, control tokens (`SuppressTokens`) and, where timestamps are sampled,
        <|notimestamps|> (first lines of `ApplyTimestampRules`)."""
        return _ids([*self.suppressed, *self.layout.never_sampled(timestamps=self.timestamps)], self.layout)

    @functools.cached_property
    def forbidden(self) -> frozenset[int]:
        """What is never said, as a set."""
        return frozenset(self._suppressed_ids.tolist())

    def apply(self, logits: Logits, sampled: Sequence[int]) -> float:
        """Apply all rules in order, in place, to the logits of all tokens, f32[n_vocab].

        `sampled` is the prefix without the prompt, so its beginning is openai-whisper's `sample_begin`.
        Returns what to add to log-probabilities of the row: below 0 only where `only` forbids.
        """
        left = 0.0
        layout = self.layout
        if self.begun:
            sampled = [*self.begun, *sampled]
        if layout.other_ends:
            # The end has the likeliest logit of all ids that end a text; the others are never sampled.
            logits[layout.eot] = max(logits[layout.eot], *(logits[id_] for id_ in layout.other_ends))
        if self.repetition_penalty != 1.0 and sampled:
            penalise_repetition(logits, sampled, self.repetition_penalty)
        if self.no_repeat_ngram_size:
            no_repeated_ngram(logits, sampled, self.no_repeat_ngram_size)
        if self.length_decay is not None:
            hasten_end(logits, sampled, layout, self.length_decay)
        if self.bias is not None:
            favour(logits, sampled, self.bias, self.bias_weight)
        if not sampled:
            logits[self._blank_ids] = _NEVER
        logits[self._suppressed_ids] = _NEVER
        if self.only is not None:
            left = allow_only(logits, sampled, layout, self.only, timestamps=self.timestamps)
        if self.timestamps:
            timestamps_in_pairs(logits, sampled, layout)
            timestamps_never_decrease(logits, sampled, layout)
            initial_timestamp(logits, sampled, layout, self.max_initial_timestamp_index)
            prefer_timestamps(logits, sampled, layout)
        return left


def _ids(tokens: Iterable[int], layout: TokenLayout) -> Ids:
    return np.array(sorted({token for token in tokens if 0 <= token < layout.n_vocab}), dtype=np.intp)
