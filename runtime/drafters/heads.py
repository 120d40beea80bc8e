"""Drafts from heads on the decoder's last hidden row: Whisper-Medusa, multi-token prediction (algorithms 1.4, 1.5).

The pass that verifies one draft gives the hidden row that the next is made from: head i guesses the token i + 1 places
behind the one that the row itself decided. So an iteration is one pass of the decoder, and one of the heads' own small
graph, on one row. How long a draft is, and whether second choices beside it are worth a tree, is `gate`'s decision;
where the heads' own time has not paid lately they are asked ever more seldom.

Does not know: the target's engine, text, which kind of heads they are.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.decoding.costs import CostTable
from specedge.runtime.drafters import DraftChain, DraftContext, DraftTree, Verdict, WindowContext
from specedge.runtime.drafters.head_tree import HeadTrees
from specedge.runtime.drafters.prices import Prices

__all__ = ["Guessing", "HeadsDrafter"]

_CHOICES = 4
_MAX_HEADS = 20
_FIRST_PRICE = 0.15  # of asking the heads, in passes of one row, until it was measured
_FADE = 0.9
_SPREAD = 0.2  # of what is owed, paid by each draft
_TOLERANCE = 1.0  # passes of one row that may be lost before the heads are asked less often
_FIRST_SILENCE, _LONGEST_SILENCE = 8, 128


class Guessing(Protocol):
    """The part of `heads_pass.HeadsPass` that is needed."""

    n_heads: int

    def begin(self, features: NDArray[np.float32], /) -> None: ...

    def guess(
        self, hidden: NDArray[np.float32], n_choices: int, /
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...


class HeadsDrafter:
    """See the module.

    name: of the kind of heads; costs: the target's T(k); n_heads: the most that are used, the first ones; n_choices: of
    each head that are looked at, 1 for chains only; gated: False drafts whatever the heads give, as a tree of all the
    paths that a pass can verify, which shows the fewest passes and not the least time.
    """

    reads_hidden = True

    def __init__(
        self,
        name: str,
        heads: Guessing,
        costs: CostTable,
        *,
        n_heads: int = _MAX_HEADS,
        n_choices: int = _CHOICES,
        gated: bool = True,
    ) -> None:
        self.name = name
        self._heads: Guessing | None = heads
        self._costs, self._n_heads, self._n_choices, self._gated = costs, n_heads, n_choices, gated
        self._trees = HeadTrees(costs, gated=gated)
        self._prices = Prices(costs, draft_cost=_FIRST_PRICE, window_cost=0.0)
        self._window: WindowContext | None = None
        self._balance, self._silence, self._n_silent = 0.0, _FIRST_SILENCE, 0
        self._asked = False
        self._n_rows, self._proposed_at, self._owed = 1, 0.0, 0.0

    def begin(self, window: WindowContext) -> None:
        """A new text: nothing of it has been seen."""
        self._window = window
        if self._heads is not None:
            self._heads.begin(_encoded(window.features))

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """What the heads see behind the last decided token, as far as that is expected to pay."""
        window, heads, hidden = self._window, self._heads, context.hidden
        n_pending = len(context.prompt) + len(context.sampled) - context.position
        self._n_rows, self._asked = n_pending, False
        draft: DraftTree = DraftChain([])
        started = time.perf_counter()
        if window is not None and heads is not None and hidden is not None and len(hidden) and n_pending == 1:
            if not self._gated or self._is_time():
                self._asked = True
                draft = self._draft(window, heads, hidden, budget)
                self._n_rows = self._trees.n_rows
        self._proposed_at = time.perf_counter()
        if self._asked:
            self._saw_draft(self._proposed_at - started)
        return draft

    def observe(self, verdict: Verdict) -> None:
        """Hold the heads to what came of their guesses, and see what the target's pass took."""
        self._prices.saw_pass(time.perf_counter() - self._proposed_at, self._n_rows)
        self._trees.learn(verdict)
        if self._asked:
            saved = len(verdict.nodes) - (self._costs.cost(self._n_rows + self._n_rows % 2) - self._costs.cost(1))
            is_trial = self._balance <= -_TOLERANCE  # one draft that has to show that another window would pay
            due = self._owed * (1.0 if is_trial else _SPREAD)
            self._owed -= due
            self._book(saved - self._prices.draft_cost - due)

    def end(self, tokens: tuple[int, ...]) -> None:
        """Nothing: heads do not learn."""

    def close(self) -> None:
        """Let the heads go; from then on there are no drafts."""
        self._heads = self._window = None

    def _draft(self, window: WindowContext, heads: Guessing, hidden: NDArray[np.float32], budget: int) -> DraftTree:
        n_choices = min(self._n_choices, window.n_vocab) if window.n_paths > 1 else 1
        ids, probs = heads.guess(hidden, n_choices)
        n = self._n_heads
        return self._trees.grow(ids[:n], probs[:n], window.n_paths, budget)

    def _saw_draft(self, seconds: float) -> None:
        """A draft took this time; what a window's first one takes longer, where the block hears it, all of them owe."""
        self._prices.saw_draft(seconds)
        if self._prices.pass_s:
            self._owed += max(0.0, seconds / self._prices.pass_s - self._prices.draft_cost)

    def _is_time(self) -> bool:
        """Whether to ask the heads now."""
        if self._balance > -_TOLERANCE:
            return True
        self._n_silent += 1
        return self._n_silent >= self._silence

    def _book(self, gain: float) -> None:
        """What asking the heads has brought, in passes of one row."""
        was_silent = self._balance <= -_TOLERANCE
        self._balance = max(self._balance * _FADE + gain, -_TOLERANCE)
        if not was_silent:
            return
        self._n_silent = 0
        if gain > 0:
            self._balance, self._silence = 0.0, _FIRST_SILENCE
        else:
            self._silence = min(2 * self._silence, _LONGEST_SILENCE)


def _encoded(features: Any) -> NDArray[np.float32]:
    """The encoder's output of a window."""
    hidden: NDArray[np.float32] = features.hidden
    return hidden
