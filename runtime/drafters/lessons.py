"""What a window has to teach a draft: its rows beside the target's, wherever it had the right text before it.

`Notes` are taken while a window is drafted and checked. When its text is known, each row behind a right beginning is a
`Lesson`: what the draft thought, what the target said, and, where one token of the draft is one of the target, what the
target thought. All behind the first wrong token was said to another text, and teaches nothing. `LessonBook` keeps the
latest lessons within a budget of bytes. Does not know: models, how anything is learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.decoding.choices import ChoiceRow, Choices

__all__ = ["Lesson", "LessonBook", "Likeliest", "Notes", "Speller", "likeliest"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

N_SLOTS = 16
_N_DRAFT, _N_TARGET = 8, 7  # and the label
_FARTHEST = 10.0  # below the likeliest, in logits: what is further down counts as this
_MAX_LESSONS = 2048


@dataclass(frozen=True)
class Likeliest:
    """The likeliest tokens of a row: ids i64 [n] and their log-probabilities f32 [n]; rest: of all others together."""

    ids: Ids
    logp: Floats
    rest: float


def likeliest(row: Floats, n: int, peak: float | None = None) -> Likeliest:
    """Of a filtered row of logits f32 [n_vocab], at most `n`; `peak` is its largest where that is known."""
    peak = float(row.max()) if peak is None else peak
    near = np.flatnonzero(row > peak - _FARTHEST)
    logits = row[near]
    weights = np.exp(logits - np.float32(peak))
    whole = float(weights.sum(dtype=np.float64)) + math.exp(-_FARTHEST)
    if len(near) > n:
        best = np.argpartition(logits, len(near) - n)[len(near) - n :]
        near, logits, weights = near[best], logits[best], weights[best]
    rest = max(1 - float(weights.sum(dtype=np.float64)) / whole, math.exp(-_FARTHEST) / whole)
    logp = logits - np.float32(peak + math.log(whole))
    return Likeliest(near.astype(np.int64), logp, math.log(rest))


def _tokens(found: Likeliest, choices: Choices) -> Likeliest:
    """The first token of each choice in its place."""
    return replace(found, ids=np.array([choices.token(id_) for id_ in found.ids.tolist()], np.int64))


class Speller(Protocol):
    """The part of a translation that lessons need."""

    def spelt(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """The target's text in the draft's ids, and for each the index of the target's token that it alone stands for,
        -1 where there is none."""

    def counterparts(self, ids: Ids) -> Ids:
        """The draft's ids that alone mean the same as those of the target, -1 for none."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """One place, in the draft's ids.

    hidden f32 [n_state]: the draft's row; label: what the target said, said: what the draft said; mine i64 [n]: the
    draft's likeliest; whole: the logarithm of the summed exponentials of all its logits; target: the target's
    likeliest, None where the two cannot be compared.
    """

    hidden: Floats
    label: int
    said: int
    mine: Ids
    whole: float
    target: Likeliest | None

    def slots(self) -> Ids:
        """The tokens that are looked at, each once, the label first."""
        theirs = () if self.target is None else self.target.ids.tolist()
        found = dict.fromkeys((self.label, *theirs[:_N_TARGET], *self.mine.tolist()))
        return np.array(list(found)[:N_SLOTS], np.int64)


@dataclass
class _Draft:
    before: Sequence[int]  # the draft's ids of the text so far
    n_sampled: int
    said: list[int] = field(default_factory=list)
    steps: list[tuple[Floats, Ids, float]] = field(default_factory=list)


class _Step(NamedTuple):
    """One of a draft whose verdict is not known: most teach nothing, and are not looked at."""

    choice: int
    row: ChoiceRow
    hidden: Floats


class Notes:
    """Of one window. The calls come in the order draft, step (any number), verdict, and again."""

    def __init__(self) -> None:
        self._drafts: list[_Draft] = []
        self._open: list[_Step] = []  # of the last draft
        self._targets: dict[int, Likeliest] = {}
        self._is_ended = False

    def draft(self, before: Sequence[int], n_sampled: int) -> None:
        """A draft begins behind `n_sampled` tokens of the target, which are `before` in the draft's ids."""
        self._look(before)
        self._drafts.append(_Draft(before, n_sampled))

    def step(self, choice: int, row: ChoiceRow, hidden: Floats) -> None:
        """The draft says `choice`, out of the filtered row and the hidden row, which are copied.

        What stands for many tokens counts once: nothing teaches it, and its drift is no error.
        """
        self._drafts[-1].said.append(row.choices.token(choice))
        self._open.append(_Step(choice, row._replace(logits=row.logits.copy()), hidden.copy()))

    def verdict(self, n_sampled: int, rows: Sequence[ChoiceRow], *, ended: bool) -> None:
        """The target decided its tokens from index `n_sampled` on by these filtered rows; `ended`: the last ends."""
        for i, row in enumerate(rows):
            self._targets[n_sampled + i] = _tokens(likeliest(row.logits, _N_TARGET), row.choices)
        self._is_ended = ended

    def lessons(self, tokens: Sequence[int], eot: tuple[int, int], speller: Speller) -> list[Lesson]:
        """What is to be learned when the window's text is `tokens`; `eot`: the target's end of text, the draft's."""
        ids, places = speller.spelt(tokens)
        if self._is_ended:
            ids, places = [*ids, eot[1]], [*places, len(tokens)]
        self._look(ids)
        found = []
        for draft in self._drafts:
            start = len(draft.before)
            if ids[:start] != list(draft.before):
                continue
            for i, (hidden, mine, whole) in enumerate(draft.steps):
                if start + i >= len(ids):
                    break
                label = ids[start + i]
                target = self._comparable(places[start + i], speller)
                found.append(Lesson(hidden, label, draft.said[i], mine, whole, target))
                if draft.said[i] != label:
                    break
        return found

    def _look(self, ids: Sequence[int]) -> None:
        """Look at the steps of the last draft up to its first wrong one, now that the text is `ids`."""
        if not self._open:
            return
        draft = self._drafts[-1]
        pairs = zip(draft.said, ids[len(draft.before) :], strict=False)
        n_right = next((i for i, (said, right) in enumerate(pairs) if said != right), len(draft.said))
        for choice, (logits, choices), hidden in self._open[: n_right + 1]:
            peak = whole = float(logits[choice])
            if math.isfinite(peak):
                whole += math.log(float(np.exp(logits - np.float32(peak)).sum(dtype=np.float64)))
            near = _tokens(likeliest(logits, _N_DRAFT, peak), choices)
            draft.steps.append((hidden, near.ids, whole))
        self._open.clear()

    def _comparable(self, place: int, speller: Speller) -> Likeliest | None:
        target = self._targets.get(place) if place >= 0 else None
        if target is None:
            return None
        ids = speller.counterparts(target.ids)
        known = ids >= 0
        lost = float(np.exp(target.logp[~known]).sum()) + math.exp(target.rest)
        order = np.argsort(-target.logp[known], kind="stable")
        return Likeliest(ids[known][order], target.logp[known][order], math.log(min(lost, 1.0)))


class LessonBook:
    """The latest lessons, as arrays within `budget_bytes`; see `adapter.Batch` for what they hold."""

    def __init__(self, n_state: int, budget_bytes: int) -> None:
        n_bytes = 4 * n_state + N_SLOTS * (4 + 4 + 1) + 3 * 4 + 1 + 8
        n = max(1, min(budget_bytes // n_bytes, _MAX_LESSONS))
        self.hidden = np.zeros((n, n_state), np.float32)
        self.ids = np.zeros((n, N_SLOTS), np.int32)
        self.logp = np.zeros((n, N_SLOTS), np.float32)
        self.used = np.zeros((n, N_SLOTS), np.bool_)
        self.rest, self.logp_rest = np.zeros(n, np.float32), np.zeros(n, np.float32)
        self.direct = np.zeros(n, np.bool_)
        self.n_taken = 0

    def __len__(self) -> int:
        return min(self.n_taken, len(self.rest))

    @property
    def size_bytes(self) -> int:
        """Of all arrays, whether they are full or not."""
        arrays = (self.hidden, self.ids, self.logp, self.used, self.rest, self.logp_rest, self.direct)
        return sum(array.nbytes for array in arrays)

    def put(self, lesson: Lesson, ids: Ids, rest: float) -> None:
        """A lesson at its `slots`, in the place of the oldest; rest: log of the draft's other exponentials summed."""
        at, n = self.n_taken % len(self.rest), len(ids)
        self.n_taken += 1
        self.hidden[at], self.rest[at] = lesson.hidden, rest
        self.ids[at], self.used[at] = 0, False
        self.ids[at, :n], self.used[at, :n] = ids, True
        self.direct[at] = lesson.target is not None
        if lesson.target is None:
            return
        known = dict(zip(lesson.target.ids.tolist(), lesson.target.logp.tolist(), strict=True))
        floor = max(known.values(), default=0.0) - _FARTHEST
        logp = [max(known.get(id_, floor), floor) for id_ in ids.tolist()]
        self.logp[at, :n], self.logp_rest[at] = logp, max(lesson.target.rest, floor)
