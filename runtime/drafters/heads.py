"""Drafts from heads on the decoder's last hidden row: Whisper-Medusa, multi-token prediction (algorithms 1.4, 1.5).

The pass that verifies one draft gives the hidden row that the next is made from: head i guesses the token i + 1 places
behind the one that the row itself decided. So an iteration is one pass of the decoder, and one of the heads' own small
graph, on one row. Behind the prompt there is no row to guess from: there the token is tried with which most texts
began, often a time of 0, as a row that a prompt of odd length has to spare. How long a draft is, and whether second
choices beside it are worth a tree, is `gate`'s decision; where the heads' own time has not paid in the last windows,
windows pass without them (`payoff`).

Does not know: the target's engine, text, which kind of heads they are.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.decoding.costs import CostTable
from specedge.runtime.drafters import DraftChain, DraftContext, DraftTree, Verdict, WindowContext
from specedge.runtime.drafters.head_tree import HeadTrees
from specedge.runtime.drafters.payoff import Payoff
from specedge.runtime.drafters.prices import Prices

__all__ = ["Guessing", "HeadsDrafter"]

_CHOICES = 4
_MAX_HEADS = 20
_FIRST_PRICE = 0.15  # of asking the heads, in passes of one row, until it was measured
_N_KEPT = 15  # times of asking
_MOST_OPENINGS = 4  # votes, so that texts may come to begin otherwise
_NOTHING = DraftChain([])


class Guessing(Protocol):
    """The part of `heads_pass.HeadsPass` that is needed."""

    n_heads: int

    def begin(self, features: NDArray[np.float32], n_heard: int, /) -> None: ...

    def guess(
        self, hidden: NDArray[np.float32], n_choices: int, /
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...


class HeadsDrafter:
    """See the module.

    name: of the kind of heads; costs: the target's T(k); n_heads: the most that are used, the first ones; n_choices: of
    each head that are looked at, 1 for chains only; gated: False drafts whatever the heads give, as a tree of all the
    paths that a pass can verify, which shows the fewest passes and not the least time; weighs: False asks the heads
    whatever that takes here, and lets only rows decide.
    """

    def __init__(
        self,
        name: str,
        heads: Guessing,
        costs: CostTable,
        *,
        n_heads: int = _MAX_HEADS,
        n_choices: int = _CHOICES,
        gated: bool = True,
        weighs: bool = True,
    ) -> None:
        self.name = name
        self._heads: Guessing | None = heads
        self._n_heads, self._n_choices = n_heads, n_choices
        self._trees = HeadTrees(costs, gated=gated)
        prices = Prices(costs, draft_cost=_FIRST_PRICE, window_cost=0.0)
        self._payoff = Payoff(prices) if gated and weighs else None
        self._window: WindowContext | None = None
        self._is_silent, self._is_first = False, True  # silent for the rest of the window
        self._n_drafted_rows: int | None = None  # of the pass under way; None where the heads were not asked
        self._n_plain = 0  # passes of one row since the heads were asked last
        self._opening: int | None = None  # the token that most texts began with
        self._n_openings = 0  # of them beyond the others, and not more than `_MOST_OPENINGS`
        self._is_opening = False
        self._proposed_at = 0.0
        self._asked_s = deque[float](maxlen=_N_KEPT)

    @property
    def reads_hidden(self) -> bool:
        """Whether the next window's rows are wanted: to keep them takes time too."""
        return self._payoff is None or self._payoff.is_due

    def begin(self, window: WindowContext) -> None:
        """A new text: nothing of it has been seen."""
        self._window = window
        self._is_silent = self._payoff is not None and not self._payoff.begin()
        self._is_first, self._n_plain, self._n_drafted_rows, self._is_opening = True, 0, None, False
        if self._heads is not None:
            encoded = _encoded(window.features)
            self._heads.begin(encoded, window.n_heard(len(encoded)))

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """What the heads see behind the last decided token, as far as that is expected to pay."""
        window, heads, hidden, payoff = self._window, self._heads, context.hidden, self._payoff
        self._n_drafted_rows = None
        self._is_opening = not context.sampled
        n_pending = len(context.prompt) + len(context.sampled) - context.position
        if n_pending > 1 and self._is_opening and self._opening is not None and window is not None and budget:
            self._n_plain = 0
            return self._trees.opening(self._opening, n_pending)
        if self._is_silent:
            return _NOTHING
        self._proposed_at = started = time.perf_counter()
        if window is None or heads is None or hidden is None or not len(hidden) or n_pending != 1:
            self._n_plain = 0
            return _NOTHING
        if payoff is not None and payoff.wants_plain:
            self._n_plain += 1
            return _NOTHING
        self._n_plain = 0
        draft = self._draft(window, heads, hidden, budget)
        self._n_drafted_rows, self._proposed_at = self._trees.n_rows - n_pending, time.perf_counter()
        spent_s = self._proposed_at - started
        if payoff is not None and self._is_first:  # the block hears the window then
            payoff.heard(max(0.0, spent_s - self._usual_s))
        elif payoff is not None:
            self._asked_s.append(spent_s)
        self._is_first = False
        return draft

    def observe(self, verdict: Verdict) -> None:
        """Hold the heads to what came of their guesses, and see what the target's pass took."""
        if self._is_opening:
            self._see_opening(verdict.accepted[0] if verdict.n_accepted else verdict.token)
        elif self._is_silent:
            return
        self._trees.learn(verdict)
        if self._payoff is None or self._is_silent:
            return
        spent_s = verdict.pass_s or time.perf_counter() - self._proposed_at
        if self._n_drafted_rows is not None:
            self._payoff.passed(
                spent_s,
                draft_s=self._usual_s,
                n_pending=1,
                n_drafted=self._n_drafted_rows,
                n_accepted=len(verdict.nodes),
                n_run=verdict.n_rows,
            )
            self._is_silent = self._payoff.is_lost
        elif self._n_plain:
            self._payoff.plain(spent_s, verdict.n_rows or 1)

    def end(self, tokens: tuple[int, ...]) -> None:
        """Heads do not learn; whether they pay is seen."""
        if self._payoff is not None:
            self._payoff.end(len(tokens))

    def guess(self, hidden: NDArray[np.float32], n_choices: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """What the heads that are used see behind the last of the rows, for a beam that believes them unverified."""
        if self._heads is None:
            raise RuntimeError("the heads were let go")
        ids, probs = self._heads.guess(hidden, n_choices)
        return ids[: self._n_heads], probs[: self._n_heads]

    def close(self) -> None:
        """Let the heads go; from then on there are no drafts."""
        self._heads = self._window = None

    def _see_opening(self, token: int) -> None:
        """A text began with `token`: a vote for the one that most of them begin with (Boyer and Moore)."""
        if self._n_openings == 0:
            self._opening = token
        vote = 1 if token == self._opening else -1
        self._n_openings = min(self._n_openings + vote, _MOST_OPENINGS)

    @property
    def _usual_s(self) -> float:
        """Seconds that asking the heads usually takes: one time may have been held up by anything."""
        return statistics.median(self._asked_s) if self._asked_s else 0.0

    def _draft(self, window: WindowContext, heads: Guessing, hidden: NDArray[np.float32], budget: int) -> DraftTree:
        n_choices = min(self._n_choices, window.n_vocab) if self._trees.most_paths(window.n_paths) > 1 else 1
        ids, probs = heads.guess(hidden, n_choices)
        n = self._n_heads
        return self._trees.grow(ids[:n], probs[:n], window.n_paths, budget)


def _encoded(features: Any) -> NDArray[np.float32]:
    """The encoder's output of a window."""
    hidden: NDArray[np.float32] = features.hidden
    return hidden
