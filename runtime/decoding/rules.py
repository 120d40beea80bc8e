"""Whisper's logit rules, one function each, in openai-whisper's order (`whisper/decoding.py`, algorithms 2.2).

Every rule takes the raw logits of all choices (`choices`: tokens, or groups of tokens that no rule tells apart) and the
tokens sampled so far in this window, and sets what may not follow to -inf. Rules depend on the prefix, so the decode
loop applies them to each row with that row's own prefix.

Order: penalties for repetition (faster-whisper's) and for length (transformers'), both off by default, blank at the
beginning, suppressed tokens, <|notimestamps|>, timestamps in pairs, timestamps never decreasing, a timestamp first (and
an early one), and last: a timestamp when all timestamps together are likelier than any text.

A timestamp is an id that the layout calls one; ids after the timestamps, which only fine-tunes have, are not.
Does not know: engines, drafts, text, where a window lies in the audio.

The tokens that are never written: the model's own list of non-speech symbols, and what the user asks for.

openai-whisper's and faster-whisper's -1 stands for a list that they compute from the vocabulary; so does this module,
and does not trust a checkpoint's list, which fine-tunes often leave empty. The `hf` preset uses the checkpoint's list,
as transformers does.
Does not know: logits, what other rules forbid.

What a row of logits offers to choose from: tokens that neither the model nor a rule tells apart are one choice.

Where each token has a row of its own in the decoder's vocabulary, each token is a choice. In a compact vocabulary
(`token_rows`) most tokens share one row, so they always have the same logit; those of them that every rule treats alike
are one choice, which weighs as much in a sum as it has tokens. Deciding among two thousand choices instead of fifty
thousand tokens takes a fifth of the time and finds the same: the first of the likeliest choices stands for the first
of the likeliest tokens.

Choices are numbered in the order of their first tokens and none spans two parts of the vocabulary, so what is a slice
of tokens is a slice of choices. Timestamps are a choice each: rules of time tell all of them apart. Log-probabilities
over a compact vocabulary may differ in the last bit from those of the same model without one, because sums have other
terms; drafters, precisions and passes see no difference.

Does not know: what rules forbid, only which tokens they name.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..bundle.token_rows import TokenRows
from ..text.special import SpecialTokens
from ..text.tokenizer import Encoder, Tokenizer

__all__ = [
    "ChoiceRow",
    "Choices",
    "Filter",
    "Logits",
    "RuleSet",
    "build_rules",
    "hasten_end",
    "initial_timestamp",
    "no_repeated_ngram",
    "no_timestamps_token",
    "non_speech_tokens",
    "penalise_repetition",
    "prefer_timestamps",
    "suppress_blank",
    "suppress_tokens",
    "suppressed_tokens",
    "timestamps_in_pairs",
    "timestamps_never_decrease",
]

_SYMBOLS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]", "{{", "}}"),
    *("♪♪", "♪♪♪"),
)

# Music signs may be several tokens; then their first one goes, which other signs of that block share.
_MUSIC = tuple("♩♪♫♬♭♮♯")
_found: weakref.WeakKeyDictionary[Tokenizer, list[int]] = weakref.WeakKeyDictionary()


def suppressed_tokens(asked: Sequence[int] | None, model_list: Sequence[int]) -> list[int]:
    """The ids asked for, with `model_list` in the place of -1. None and () ask for none."""
    ids = [token for token in asked or () if token >= 0]
    return [*ids, *model_list] if -1 in (asked or ()) else ids


def non_speech_tokens(tokenizer: Tokenizer) -> list[int]:
    """Ids of brackets, notes and other signs that nobody speaks, sorted (`whisper/tokenizer.py: non_speech_tokens`).

    A hyphen or an apostrophe is kept within words and goes at the beginning of one.
    """
    # Looking through a whole vocabulary takes milliseconds, which a short recording would notice.
    if tokenizer not in _found:
        _found[tokenizer] = _find_non_speech(tokenizer)
    return list(_found[tokenizer])


def _find_non_speech(tokenizer: Tokenizer) -> list[int]:
    texts = [space + symbol for symbol in (*_SYMBOLS, *_MUSIC) for space in ("", " ")]
    encode = _encoder_of([*texts, " -", " '"], tokenizer).encode
    found = {encode(" -")[0], encode(" '")[0]}
    for text in texts:
        ids = encode(text)
        if len(ids) == 1 or text.strip() in _MUSIC:
            found.add(ids[0])
    return sorted(found)


def _encoder_of(texts: Sequence[str], tokenizer: Tokenizer) -> Encoder:
    """An encoder for these texts alone: the whole vocabulary's index takes megabytes that nothing else may need."""
    parts = set()
    for data in (text.encode() for text in texts):
        parts |= {data[i:j] for i in range(len(data)) for j in range(i + 1, len(data) + 1)}
    texts_below_eot = tokenizer.ranks[: tokenizer.special.eot]
    return Encoder({token: id_ for id_, token in enumerate(texts_below_eot) if token in parts})


class Choices:
    """The choices of a vocabulary; see the module.

    rows: which tokens share a row, by default none. apart: the ids that a rule tells from others, for each such rule;
    None where a rule may name any token, so that each has to be a choice.
    eot, no_timestamps, timestamp_begin, timestamp_end: as in `layout`, but numbers of choices; counts: the tokens of
    each choice, float32 [n], None where it is always one.
    """

    counts: NDArray[np.float32] | None = None

    def __init__(
        self,
        layout: SpecialTokens,
        rows: TokenRows | None = None,
        apart: Iterable[Sequence[int]] | None = (),
    ) -> None:
        self.layout = layout
        self._rows = rows or TokenRows(layout.n_vocab)
        self._first: list[int] | None = None
        if self._rows.is_compact and apart is not None:
            self._group(apart)
        self.eot, self.no_timestamps, self.timestamp_begin = (
            self.of(token) for token in (layout.eot, layout.no_timestamps, layout.timestamp_begin)
        )
        self.timestamp_end = self.timestamp_begin + layout.n_timestamps

    def _group(self, apart: Iterable[Sequence[int]]) -> None:
        layout, ids = self.layout, np.arange(self._rows.n_vocab)
        kinds = np.zeros(len(ids), np.int64)
        kinds[layout.eot] = 1
        kinds[layout.eot + 1 : layout.timestamp_begin] = 2
        kinds[layout.timestamp_end :] = 3
        n_kinds = 4
        for named in apart:
            kinds[np.array(named, np.intp)] += n_kinds
            n_kinds *= 2
        keys = np.asarray(self._rows.of(ids)) * n_kinds + kinds
        begin, end = layout.timestamp_begin, layout.timestamp_end
        n_keys = self._rows.n_rows * n_kinds
        keys[begin:end] = n_keys + np.arange(end - begin)
        first = np.full(n_keys + end - begin, -1, np.int64)
        first[keys[::-1]] = ids[::-1]  # of several writes the last one stays, which is the lowest id's
        tokens = np.sort(first[first >= 0])
        first[keys[tokens]] = np.arange(len(tokens))
        self._of = first[keys]
        self._first = tokens.tolist()
        self._source = np.asarray(self._rows.of(tokens))
        self.counts = np.bincount(self._of).astype(np.float32)

    def is_timestamp(self, token: int) -> bool:
        """Whether a token, not a choice, is a timestamp."""
        return self.layout.is_timestamp(token)

    def of(self, token: int) -> int:
        """The choice of a token."""
        return token if self._first is None else int(self._of[token])

    def token(self, choice: int) -> int:
        """The first token of a choice."""
        return choice if self._first is None else self._first[choice]

    def logits(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of the choices, from a row of the decoder's; the row itself where both are the same."""
        if self._first is not None:
            found: NDArray[np.float32] = row.take(self._source)
            return found
        return self._rows.of_tokens(row)

    def of_tokens(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """The values of all tokens, [n_vocab], from those of choices; the same array where both are the same."""
        if self._first is None:
            return values
        found: NDArray[np.float32] = values.take(self._of)
        return found

    def numbers(self, tokens: NDArray[np.intp]) -> NDArray[np.intp]:
        """The choices of some tokens, sorted, each once."""
        return tokens if self._first is None else np.unique(self._of[tokens])


class ChoiceRow(NamedTuple):
    """A row that was decided by: filtered logits, float32 [n] of `choices`."""

    logits: NDArray[np.float32]
    choices: Choices


Logits = NDArray[np.float32]
Ids = NDArray[np.intp]
_NEVER = np.float32(-np.inf)
_CERTAIN = 1e30  # a logit far above all others, with room to be divided by a temperature
_ROUNDING = 0.01  # more than float32 adds to the logarithm of a sum of a vocabulary


def penalise_repetition(logits: Logits, sampled: Sequence[int], penalty: float) -> None:
    """Make tokens of this window less likely to come again: a positive logit is divided, a negative one multiplied.

    As CTranslate2's RepetitionPenalty: once for each token, however often it came; the prompt does not count. Each
    token has to be a choice, here and in the next rule.
    """
    ids = np.array(sorted(set(sampled)), dtype=np.intp)
    logits[ids] = np.where(logits[ids] < 0, logits[ids] * np.float32(penalty), logits[ids] / np.float32(penalty))


def no_repeated_ngram(logits: Logits, sampled: Sequence[int], size: int) -> None:
    """Forbid the token that would complete a run of `size` ids which this window already has (CTranslate2)."""
    last = tuple(sampled[len(sampled) - size + 1 :])
    for i in range(len(sampled) - size + 1):
        if tuple(sampled[i : i + size - 1]) == last:
            logits[sampled[i + size - 1]] = _NEVER


def hasten_end(logits: Logits, sampled: Sequence[int], choices: Choices, decay: tuple[float, float]) -> None:
    """Behind `start` tokens make the end likelier with each: its logit rises by |logit| (factor ** n - 1).

    decay: (start, factor). As transformers' ExponentialDecayLengthPenalty, by each row's own prefix: Whisper-Medusa's
    code takes one length for all rows of a pass (algorithms 1.4).
    """
    start, factor = decay
    n_behind = len(sampled) - start
    end = float(logits[choices.eot])
    if n_behind > 0 and math.isfinite(end):
        try:
            risen = end + abs(end) * (factor**n_behind - 1)
        except OverflowError:
            risen = _CERTAIN if end else end
        logits[choices.eot] = np.float32(min(risen, _CERTAIN))


def suppress_blank(logits: Logits, sampled: Sequence[int], blank: Ids) -> None:
    """Forbid an empty beginning: a lone space or the end of the text as first token (`SuppressBlank`)."""
    if not sampled:
        logits[blank] = _NEVER


def suppress_tokens(logits: Logits, sampled: Sequence[int], suppressed: Ids) -> None:
    """Forbid the fixed list: non-speech symbols and control tokens (`SuppressTokens`)."""
    logits[suppressed] = _NEVER


def no_timestamps_token(logits: Logits, sampled: Sequence[int], choices: Choices) -> None:
    """Forbid <|notimestamps|>, which only a prompt may carry (first lines of `ApplyTimestampRules`)."""
    logits[choices.no_timestamps] = _NEVER


def timestamps_in_pairs(logits: Logits, sampled: Sequence[int], choices: Choices) -> None:
    """After a pair of timestamps comes text; after a lone one comes its partner or the end.

    The very first timestamp counts as the second of a pair, as in openai-whisper.
    """
    if _ends_with_timestamp(sampled, choices):
        if _closes_pair(sampled, choices):
            logits[choices.timestamp_begin : choices.timestamp_end] = _NEVER
        else:
            logits[: choices.eot] = _NEVER


def timestamps_never_decrease(logits: Logits, sampled: Sequence[int], choices: Choices) -> None:
    """A timestamp is later than the last one; the partner of a lone timestamp may repeat it."""
    for token in reversed(sampled):
        if choices.is_timestamp(token):
            break
    else:
        return
    last = choices.of(token)
    may_repeat = _ends_with_timestamp(sampled, choices) and not _closes_pair(sampled, choices)
    logits[choices.timestamp_begin : last if may_repeat else last + 1] = _NEVER


def initial_timestamp(
    logits: Logits, sampled: Sequence[int], choices: Choices, max_initial_timestamp_index: int | None
) -> None:
    """The first token is a timestamp, at most `max_initial_timestamp_index` steps into the window (None: any)."""
    if sampled:
        return
    _forbid_all_but_timestamps(logits, choices)
    if max_initial_timestamp_index is not None:
        logits[choices.timestamp_begin + max_initial_timestamp_index + 1 :] = _NEVER


def prefer_timestamps(logits: Logits, sampled: Sequence[int], choices: Choices) -> None:
    """Forbid all else when the timestamps' summed probability is above that of the likeliest other token.

    openai-whisper compares log-probabilities; the normaliser is the same on both sides, so raw logits do.
    """
    begin, end = choices.timestamp_begin, choices.timestamp_end
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
        # Together they can be likelier than the likeliest of them by the logarithm of their number at most.
        if float(peak) + math.log(timestamps.size) + _ROUNDING < other:
            return
    summed = peak + np.log(np.exp(timestamps - peak).sum(dtype=np.float32))
    if summed > other:
        _forbid_all_but_timestamps(logits, choices)


def _forbid_all_but_timestamps(logits: Logits, choices: Choices) -> None:
    logits[: choices.timestamp_begin] = _NEVER
    logits[choices.timestamp_end :] = _NEVER


def _ends_with_timestamp(sampled: Sequence[int], choices: Choices) -> bool:
    return len(sampled) >= 1 and choices.is_timestamp(sampled[-1])


def _closes_pair(sampled: Sequence[int], choices: Choices) -> bool:
    return len(sampled) < 2 or choices.is_timestamp(sampled[-2])


@dataclass(frozen=True, kw_only=True, eq=False)
class RuleSet:
    """The rules of one window. Build it with `build_rules`.

    blank_ids, suppressed_ids: sorted token ids below `n_vocab`; `timestamps` is False for the prompt with
    <|notimestamps|>, where openai-whisper has no rules of time. `sampled` never holds the prompt, nor a prefix that is
    part of it, so "the beginning" is openai-whisper's `sample_begin`.
    """

    layout: SpecialTokens
    blank_ids: Ids
    suppressed_ids: Ids
    timestamps: bool
    max_initial_timestamp_index: int | None
    forbidden: frozenset[int]
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    length_decay: tuple[float, float] | None = None

    def over(self, rows: TokenRows) -> Filter:
        """The rules over the logits of a model whose tokens have these rows."""
        named: tuple[tuple[int, ...], ...] | None = None
        if self.repetition_penalty == 1.0 and not self.no_repeat_ngram_size:
            named = tuple(self.blank_ids.tolist()), tuple(self.suppressed_ids.tolist()), (self.layout.no_timestamps,)
        return Filter(self, _choices(self.layout, rows, named))

    def apply(self, logits: Logits, sampled: Sequence[int]) -> None:
        """Apply all rules in order, in place, to the logits of all tokens, f32[n_vocab]; `sampled`: their prefix."""
        Filter(self, Choices(self.layout)).apply(logits, sampled)


@functools.lru_cache(maxsize=4)  # grouping takes half a millisecond; a model's files have the same rules, mostly
def _choices(layout: SpecialTokens, rows: TokenRows, apart: tuple[tuple[int, ...], ...] | None) -> Choices:
    return Choices(layout, rows, apart)


class Filter:
    """A RuleSet over one model's logits: `choices` are what it decides among."""

    def __init__(self, rules: RuleSet, choices: Choices) -> None:
        self._rules, self.choices = rules, choices
        self._blank, self._suppressed = choices.numbers(rules.blank_ids), choices.numbers(rules.suppressed_ids)

    def filtered(self, row: Logits, sampled: Sequence[int]) -> Logits:
        """The logits of the choices behind `sampled`, from the model's `row` f32[n_rows], which may be used up."""
        logits = self.choices.logits(row)
        self.apply(logits, sampled)
        return logits

    def apply(self, logits: Logits, sampled: Sequence[int]) -> None:
        """Apply all rules in order, in place, to the logits of the choices; `sampled`: their prefix."""
        rules, choices = self._rules, self.choices
        if rules.repetition_penalty != 1.0 and sampled:
            penalise_repetition(logits, sampled, rules.repetition_penalty)
        if rules.no_repeat_ngram_size:
            no_repeated_ngram(logits, sampled, rules.no_repeat_ngram_size)
        if rules.length_decay is not None:
            hasten_end(logits, sampled, choices, rules.length_decay)
        suppress_blank(logits, sampled, self._blank)
        suppress_tokens(logits, sampled, self._suppressed)
        if rules.timestamps:
            no_timestamps_token(logits, sampled, choices)
            timestamps_in_pairs(logits, sampled, choices)
            timestamps_never_decrease(logits, sampled, choices)
            initial_timestamp(logits, sampled, choices, rules.max_initial_timestamp_index)
            prefer_timestamps(logits, sampled, choices)


def build_rules(
    layout: SpecialTokens,
    *,
    space_ids: Iterable[int],
    suppressed: Iterable[int],
    timestamps: bool,
    max_initial_timestamp_index: int | None,
    suppress_blank: bool = True,
    repetition_penalty: float = 1.0,
    no_repeat_ngram_size: int = 0,
    length_decay: tuple[float, float] | None = None,
) -> RuleSet:
    """The rules of a window. A penalty of 1, a size of 0 and a decay of None are off.

    `space_ids` is the encoding of a single space; `suppressed` the bundle's list, to which the control tokens that
    openai-whisper never samples are added whether or not the list has them.
    """
    control = (
        layout.transcribe,
        layout.translate,
        layout.sot,
        layout.sot_prev,
        layout.sot_lm,
        layout.no_speech,
    )
    suppressed_ids = _ids([*suppressed, *(token for token in control if token is not None)], layout.n_vocab)
    forbidden = frozenset(suppressed_ids.tolist())
    return RuleSet(
        layout=layout,
        blank_ids=_ids([*space_ids, layout.eot] if suppress_blank else [], layout.n_vocab),
        suppressed_ids=suppressed_ids,
        timestamps=timestamps,
        max_initial_timestamp_index=max_initial_timestamp_index,
        forbidden=forbidden | {layout.no_timestamps} if timestamps else forbidden,
        repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        length_decay=length_decay,
    )


def _ids(tokens: Iterable[int], n_vocab: int) -> Ids:
    return np.array(sorted({token for token in tokens if 0 <= token < n_vocab}), dtype=np.intp)
