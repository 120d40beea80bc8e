"""The tree of the heads' best guesses that a pass should verify: how deep, and with which second choices.

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

from bisect import bisect_right
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.drafters import DraftChain, DraftTree, Verdict
from specedge.runtime.drafters.gate import Gate, RowCosts
from specedge.runtime.drafters.guesses import Guess, Guesses, cut

__all__ = ["HeadTrees"]

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
        return DraftChain(self._guesses.draft([cut(guess, length)], 1).tokens.tolist())

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
