"""Lookahead: how many tokens a draft model drafts before its target is asked.

    cost        while the next token is expected to save what it takes both models; the default
    N           always so many, a number
    rule        one more after a pass with over 0.8 of the drafts accepted, one fewer after under 0.3 (Chheda, eq. 6)
    adaptive    until a head that learns what the target accepts expects a refusal (OmniDraft)
    joint       the same, where the head learns as often as a draft that learns, from what is new

Each of them is asked how many at most (`limit`), then after every token whether to go on (`goes_on`), then how many of
them to verify (`worth`), and told what came of it (`learn`). With `cost`, `adaptive` and `joint` drafts are made where
they pay; with the others, always.

All but the first two are of papers, and found by name (`papers.lookahead`).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from ...decoding.payoff import Guesses
from ...device import CostTable
from ...registered import find, names

LOOKAHEADS = ("cost", *names("lookahead"))
WEIGHED = ("cost", "adaptive", "joint")  # drafts are made where they pay; by the others, always
_LONGEST = 16
_USUAL = 0.75  # what a draft says of a token that it has not drafted yet
_N_TIMES, _ENOUGH = 15, 5  # times of drafting a token: of a median, and before the first guess is given up
Signs = NDArray[np.float32]
_NO_SIGNS: Sequence[Signs] = ()


class DraftCost:
    """What drafting one token takes, in plain passes of the target: `first` until a plain pass was measured.

    plain_s: the time of a plain pass, seconds, infinite where it is not known.
    """

    def __init__(self, first: float) -> None:
        self.value = first
        self.plain_s = math.inf
        self._seconds = deque[float](maxlen=_N_TIMES)

    def saw(self, seconds: float) -> None:
        """One token was drafted in this time."""
        self._seconds.append(seconds)
        if len(self._seconds) >= _ENOUGH and math.isfinite(self.plain_s):
            self.value = statistics.median(self._seconds) / self.plain_s


class Lookahead:
    """A policy; this one drafts always `n_draft` tokens. Raises UsageError for fewer than 1.

    wants_signs: whether `signs` are asked for, the features of each token's row.
    """

    wants_signs = False

    def __init__(self, n_draft: int) -> None:
        if n_draft < 1:
            raise UsageError(f"lookahead: got {n_draft}, expected 1 or more")
        self._n_draft = n_draft

    def limit(self) -> int:
        """Return the most tokens to draft now."""
        return self._n_draft

    def signs(self, row: Signs, probability: float, hidden: Signs, *, is_timestamp: bool) -> Signs:
        """Features, here none, of a token: its filtered row f32[n_vocab], its probability, the hidden row f32[n]."""
        return np.empty(0, np.float32)

    def goes_on(self, confidences: Sequence[float], signs: Sequence[Signs] = _NO_SIGNS) -> bool:
        """Whether to draft another token behind those drafted with these probabilities, one at least."""
        return True

    def worth(self, confidences: Sequence[float]) -> int:
        """How many of the tokens drafted with these probabilities to verify."""
        return len(confidences)

    def learn(
        self, confidences: Sequence[float], n_accepted: int, *, refused: bool, signs: Sequence[Signs] = _NO_SIGNS
    ) -> None:
        """The first `n_accepted` of a draft came true; `refused`: the one after them did not."""

    def share(self, n_texts: int, n_rows: int) -> None:
        """See `Drafter.share`."""

    def end(self) -> None:
        """A window is over."""

    def train(self) -> None:
        """The draft has learned a little: what predicts its acceptance may learn too."""


class CostOptimal(Lookahead):
    """The next token must be expected to save what it costs. Probabilities are calibrated by what came true."""

    def __init__(self, rows: CostTable, cost: DraftCost) -> None:
        super().__init__(_LONGEST)
        self._cost, self._guesses = cost, Guesses(rows)

    def share(self, n_texts: int, n_rows: int) -> None:
        """Price rows as they are beside others."""
        self._guesses.share(n_texts, n_rows)

    def goes_on(self, confidences: Sequence[float], signs: Sequence[Signs] = _NO_SIGNS) -> bool:
        """Whether the next token is worth a pass of the draft and a row of the target, as far as can be said."""
        rows, n = self._guesses.costs, len(confidences)
        reached = math.prod(self._believed([*confidences, _USUAL]))
        return reached > self._cost.value + rows.cost(n + 2) - rows.cost(n + 1)

    def worth(self, confidences: Sequence[float]) -> int:
        """As many as pay for their rows: what drafting them took is spent."""
        return self._guesses.costs.best_chain(self._believed(confidences))[0]

    def learn(
        self, confidences: Sequence[float], n_accepted: int, *, refused: bool, signs: Sequence[Signs] = _NO_SIGNS
    ) -> None:
        """Calibrate the draft's probabilities by what came true."""
        for depth, confidence in enumerate(confidences[: n_accepted + refused]):
            self._guesses.count(confidence, "draft", accepted=depth < n_accepted)

    def _believed(self, confidences: Sequence[float]) -> list[float]:
        return [self._guesses.believed(one, "draft") for one in confidences]


def make_lookahead(said: str, rows: CostTable, cost: DraftCost) -> Lookahead:
    """Make the policy called `said`: one of LOOKAHEADS, or a number. `rows` is the target's T(k). Raises UsageError."""
    if said == "cost":
        return CostOptimal(rows, cost)
    if said in names("lookahead"):
        made: Lookahead = find("lookahead", said)(rows, cost)
        return made
    if not (said.isascii() and said.isdecimal() and 1 <= int(said) <= 64):
        raise UsageError(f"lookahead: got {said!r}, expected {', '.join(LOOKAHEADS)} or a number from 1 to 64")
    return Lookahead(int(said))
