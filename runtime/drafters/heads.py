"""Drafts from heads on the decoder's last hidden row: Whisper-Medusa, multi-token prediction (algorithms 1.4, 1.5).

The pass that verifies one draft gives the hidden row that the next is made from: head i guesses the token i + 1 places
behind the one that the row itself decided. So an iteration is one pass of the decoder, and one of the heads' own small
graph, on one row. Behind the prompt there is no row to guess from: there the token is tried with which most texts
began, often a time of 0, as a row that a prompt of odd length has to spare. How long a draft is, and whether second
choices beside it are worth a tree, is `gate`'s decision; where the heads' own time has not paid in the last windows,
windows pass without them (`payoff`).

Does not know: the target's engine, text, which kind of heads they are.

The tree of the heads' best guesses that a pass should verify: how deep, and with which second choices.

A pass runs paths of one length as batch rows, so a tree is the chain of all heads' best guesses, cut somewhere, and
beside it paths in which one head is given another of its choices. For every length the paths that are expected to add
most are taken, and of all these trees the one with the largest gain over its rows (`gate`). Heads guess without knowing
what the heads before them said, so their own probabilities say little of a path: what came true is kept by range of
confidence, apart for the first head and the later ones, for best guesses, other choices and guesses behind another
choice. Later heads are kept together, so that one that was never worth a row is believed as those before it came true.

Source: the trees of Medusa (Cai et al. 2024) and Whisper-Medusa (algorithms 1.4), with costs (algorithms 2.3, 2.4).
Does not know: heads, text, what a pass takes beyond its number of rows.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..decoding.drafter import NO_GUESS, DraftContext, Drafter, DraftTree, Verdict, WindowContext
from ..decoding.payoff import Gate, Guess, Guesses, Payoff, Prices, RowCosts, cut
from ..device import CostTable

__all__ = ["Guessing", "HeadTrees", "HeadsDrafter"]

_RANGES = (0.1, 0.25, 0.5, 0.75, 0.9)
_MAX_SCALE = 4.0  # a head that is right behind right ones is right far more often than it says
_MARGIN = 0.1  # tokens that each path beside the first must add
_HOPELESS = 0.05  # another choice that is this unlikely, with all before it, is not looked at where rows cost
_FIRST_SURE = 0.5  # that a text begins as the last one did, until it was seen
_DEEPEST_OTHER = 8  # heads whose other choices are looked at
_DEAREST_PATH = 0.75  # in tokens: what another path adds at the very most, where the best choice is not sure


class HeadTrees:
    """The trees of one drafter; keep it for as long as the drafter.

    gated: False gives the whole tree, whatever its rows cost. n_rows: of the pass that verifies the last tree.
    """

    def __init__(self, costs: RowCosts, *, gated: bool) -> None:
        self._gate = Gate(costs, max_scale=_MAX_SCALE)
        self._guesses = Guesses(self._gate)
        self._gated = gated
        self._grows_paths = not gated or self._gate.tree_price(1, 2) < _DEAREST_PATH
        self.n_rows = 1

    def most_paths(self, n_paths: int) -> int:
        """How many of the `n_paths` that a pass can verify are looked at: 1 where others are too dear here."""
        return n_paths if self._grows_paths else 1

    def grow(self, ids: NDArray[np.int64], probs: NDArray[np.float32], n_paths: int, budget: int) -> DraftTree:
        """The tree, at most `budget` nodes, of up to `n_paths` paths, for choices [n_heads, n_choices], best first."""
        if self._gated and self.most_paths(n_paths) == 1:
            return self._chain(ids[:budget, 0].tolist(), probs[:budget, 0].tolist(), budget)
        choices, sure = ids[:budget].tolist(), probs[:budget].tolist()
        length, others = self._shape(sure, n_paths)
        self.n_rows = _rows(length, 1 + len(others))
        paths = [_path(choices, sure, length, *other) for other in [(length, 0), *others]] if length else []
        return self._guesses.draft(paths, budget)

    def opening(self, token: int, n_pending: int) -> DraftTree:
        """`token` as the first of a text, behind the `n_pending` rows of its prompt, if that is worth a row.

        It comes without a confidence: no head has seen it, and a rule that believes sure heads must not.
        """
        guess = Guess([token], [_FIRST_SURE], ["opening"])
        length, _ = self._gate.best_chain(self._guesses.believed(guess), n_pending)
        return DraftTree(self._guesses.draft([cut(guess, length)], 1).tokens)

    def learn(self, verdict: Verdict) -> None:
        """Hold the guesses to what came of them."""
        self._guesses.learn(verdict)

    def _chain(self, tokens: list[int], sure: list[float], budget: int) -> DraftTree:
        """As much of the best guesses as is worth its rows: a tree without other choices, found in less time."""
        classes = [_class("best", depth, own) for depth, own in enumerate(sure)]
        length, _ = self._gate.best_chain(self._gate.all_believed(sure, classes), 1)
        if length:
            length = min(_rows(length, 1) - 1, len(tokens))  # the last row of a pair is free
        self.n_rows = _rows(length, 1)
        return self._guesses.draft([Guess(tokens[:length], sure[:length], classes[:length])], budget)

    def _shape(self, sure: list[list[float]], n_paths: int) -> tuple[int, list[tuple[int, int]]]:
        """The length of the tree's paths, and of each path beside the first its head and choice that differ."""
        believed, gain = self._gate.believed, self._gate.gain
        best: tuple[int, list[tuple[int, int]]] = (0, [])
        best_gain = 0.0
        hopeless = _HOPELESS if self._gated else 0.0
        reached, worth = [1.0], 0.0
        others: list[tuple[float, int, int]] = []  # probability that the path is right so far, head, choice
        expected: dict[tuple[int, int], list[float]] = {}  # probability of the path's end, nodes expected of it
        for depth, row in enumerate(sure):
            behind = believed(row[0], _class("behind", depth, row[0]))
            for at in expected.values():
                at[0] *= behind
                at[1] += at[0]
            if depth < _DEEPEST_OTHER and n_paths > 1:
                for choice, own in enumerate(row[1:], 1):
                    is_right = reached[depth] * believed(own, _class(str(choice), depth, own))
                    if is_right > hopeless:
                        expected[depth, choice] = [is_right, is_right]
            reached.append(reached[depth] * believed(row[0], _class("best", depth, row[0])))
            worth += reached[-1]
            length = depth + 1
            others = sorted(((at[1], *where) for where, at in expected.items()), reverse=True)[: n_paths - 1]
            if not self._gated:
                continue
            total = worth
            for n in range(len(others) + 1):
                total += others[n - 1][0] - _MARGIN if n else 0.0
                here = gain(total, _rows(length, n + 1), 1, n + 1)
                if here > best_gain:
                    best, best_gain = (length, [(head, choice) for _, head, choice in others[:n]]), here
        return best if self._gated else (len(sure), [(head, choice) for _, head, choice in others])


def _class(kind: str, depth: int, own: float) -> Hashable:
    """The guesses that are believed alike."""
    return kind, depth > 0, bisect_right(_RANGES, own)


def _path(
    choices: Sequence[Sequence[int]], sure: Sequence[Sequence[float]], length: int, head: int, choice: int
) -> Guess:
    """Best guesses but for the given choice of one head, which is out of `length` for none."""
    path = Guess([], [], [])
    for depth in range(length):
        at = choice if depth == head else 0
        own = sure[depth][at]
        path.tokens.append(choices[depth][at])
        path.confidences.append(own)
        kind = "best" if depth < head else str(choice) if depth == head else "behind"
        path.classes.append(_class(kind, depth, own))
    return path


def _rows(length: int, n_paths: int) -> int:
    """Rows of a pass over paths of that length, each with the pending row and padded to an even number."""
    return n_paths * (1 + length + (1 + length) % 2)


_CHOICES = 4
_MAX_HEADS = 20
_FIRST_PRICE = 0.15  # of asking the heads, in passes of one row, until it was measured
_N_KEPT = 15  # times of asking
_MOST_OPENINGS = 4  # votes, so that texts may come to begin otherwise


class Guessing(Protocol):
    """The part of `heads_pass.HeadsPass` that is needed."""

    n_heads: int

    def begin(self, features: NDArray[np.float32], n_heard: int, /) -> None: ...

    def guess(
        self, hidden: NDArray[np.float32], n_choices: int, /
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...


class HeadsDrafter(Drafter):
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

    has_heads = True

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
            return NO_GUESS
        self._proposed_at = started = time.perf_counter()
        if window is None or heads is None or hidden is None or not len(hidden) or n_pending != 1:
            self._n_plain = 0
            return NO_GUESS
        if payoff is not None and payoff.wants_plain:
            self._n_plain += 1
            return NO_GUESS
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
