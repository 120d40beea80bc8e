"""Whisper's logit rules, one function each, in openai-whisper's order (`whisper/decoding.py`, algorithms 2.2).

Every rule takes the raw logits of all choices (`choices`: tokens, or groups of tokens that no rule tells apart) and the
tokens sampled so far in this window, and sets what may not follow to -inf. Rules depend on the prefix, so the decode
loop applies them to each row with that row's own prefix.

Order: penalties for repetition (faster-whisper's) and for length (transformers'), both off by default, blank at the
beginning, suppressed tokens, <|notimestamps|>, timestamps in pairs, timestamps never decreasing, a timestamp first (and
an early one), and last: a timestamp when all timestamps together are likelier than any text.

A timestamp is an id that the layout calls one; ids after the timestamps, which only fine-tunes have, are not.
Does not know: engines, drafts, text, where a window lies in the audio.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.token_rows import TokenRows
from specedge.runtime.decoding.choices import Choices
from specedge.runtime.text.special import SpecialTokens

__all__ = [
    "Filter",
    "Logits",
    "RuleSet",
    "build_rules",
    "hasten_end",
    "initial_timestamp",
    "no_repeated_ngram",
    "no_timestamps_token",
    "penalise_repetition",
    "prefer_timestamps",
    "suppress_blank",
    "suppress_tokens",
    "timestamps_in_pairs",
    "timestamps_never_decrease",
]

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
