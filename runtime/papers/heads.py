"""Drafts from heads on the decoder's last hidden row: Whisper-Medusa, multi-token prediction.

The pass that verifies one draft gives the hidden row that the next draft is made from: head i guesses the token i + 1
places behind the one that the row itself decided (Segal-Feldman et al. 2024, section II; Raj et al., section III-A). So
an iteration is one pass of the decoder, and one of the heads' own small graph on one row. Behind a prompt there is no
row to guess from; with timestamps the text is expected to begin at 0 s there, which saves a pass of each window.

A pass runs paths of one length as batch rows, so a tree is the chain of all heads' best guesses, cut somewhere, and
beside it paths in which one head takes another of its choices (Cai et al. 2024, Medusa, section 2.1.2). Of these trees
the one with the largest expected gain over its rows is verified (`Guesses`). Heads guess without knowing what the heads
before them said, so their probabilities are calibrated by range, apart for the first head and the later ones, for best
guesses, other choices, and guesses behind another choice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from ..decoding.drafter import NO_GUESS, DraftContext, Drafter, DraftTree, TargetModel, WindowContext
from ..decoding.payoff import Guess, GuessDrafter
from ..device import CostTable
from ..drafters.registry import costs_of, weighed
from ..engine.heads import HeadsPass
from ..engine.session import Canceller
from ..options import HEAD_KINDS, DrafterOptions

_RANGES = (0.1, 0.25, 0.5, 0.75, 0.9)
_MAX_SCALE = 4.0  # a head that is right behind right ones is right far more often than it says
_MARGIN = 0.1  # tokens that each path beside the first must add
_HOPELESS = 0.05  # another choice that is this unlikely, with all before it, is not looked at where rows cost
_DEEPEST_OTHER = 8  # heads whose other choices are looked at
_AT_ONCE = 0.5  # first belief that a window begins with speech at once
_CHOICES = 4
_MAX_HEADS = 20


class HeadsDrafter(GuessDrafter):
    """See the module.

    name: of the kind of heads; costs: the target's T(k); n_heads: the most that are used, the first ones; n_choices: of
    each head that are looked at, 1 for chains only; gated: False drafts whatever the heads give, as a tree of all the
    paths that a pass can verify, which shows the fewest passes and not the least time.
    """

    def __init__(
        self,
        name: str,
        heads: HeadsPass,
        costs: CostTable,
        *,
        n_heads: int = _MAX_HEADS,
        n_choices: int = _CHOICES,
        gated: bool = True,
    ) -> None:
        super().__init__(costs, max_scale=_MAX_SCALE)
        self.name = name
        self._heads: HeadsPass | None = heads
        self._n_heads, self._n_choices, self._gated = n_heads, n_choices, gated

    has_heads = True
    reads_hidden = True

    def another(self) -> Self:
        """One that shares the heads' graph, and what their guesses are worth."""
        twin = super().another()
        twin._heads = None if self._heads is None else self._heads.another()
        return twin

    def begin(self, window: WindowContext) -> None:
        """A new text: the heads have seen nothing of it."""
        super().begin(window)
        if self._heads is not None:
            encoded: NDArray[np.float32] = window.features.hidden
            self._heads.begin(encoded, window.n_heard(len(encoded)))

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """Return what the heads see behind the last decided token, as far as that is expected to pay."""
        window, heads, hidden = self._window, self._heads, context.hidden
        n_pending = context.n_pending
        if window is None or heads is None or hidden is None:
            return NO_GUESS
        has_timestamps = window.has_times(context.prompt)
        if n_pending > 1 and has_timestamps and not context.sampled and budget and self._gated:
            return self._opening(window.timestamp_begin, n_pending)
        if not len(hidden) or n_pending != 1:
            return NO_GUESS
        ids, probs = heads.guess(hidden, min(self._n_choices, window.n_vocab))
        return self.grow(ids[: self._n_heads], probs[: self._n_heads], window.n_paths, budget)

    def guess(self, hidden: NDArray[np.float32], n_choices: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return what the heads that are used see behind the last of the rows, for a beam that does not verify it."""
        if self._heads is None:
            raise RuntimeError("the heads were closed")
        ids, probs = self._heads.guess(hidden, n_choices)
        return ids[: self._n_heads], probs[: self._n_heads]

    def close(self) -> None:
        self._heads = self._window = None

    def grow(self, ids: NDArray[np.int64], probs: NDArray[np.float32], n_paths: int, budget: int) -> DraftTree:
        """The tree, at most `budget` nodes, of up to `n_paths` paths, for choices [n_heads, n_choices], best first."""
        choices, sure = ids[:budget].tolist(), probs[:budget].tolist()
        length, others = self._shape(sure, n_paths)
        paths = [_path(choices, sure, length, *other) for other in [(length, 0), *others]] if length else []
        return self._guesses.draft(paths, budget)

    def _opening(self, token: int, n_pending: int) -> DraftTree:
        """`token` as the first of a text, behind the `n_pending` rows of its prompt, if that is worth a row.

        It comes without a confidence: no head has seen it, and a rule that believes sure heads must not.
        """
        guess = Guess([token], [_AT_ONCE], ["opening"])
        length, _ = self._guesses.best_length(guess, n_pending)
        return DraftTree(self._guesses.draft([guess], length).tokens)

    def _shape(self, sure: list[list[float]], n_paths: int) -> tuple[int, list[tuple[int, int]]]:
        """The length of the tree's paths, and of each path beside the first its head and choice that differ."""
        believed, gain = self._guesses.believed, self._guesses.gain
        best: tuple[int, list[tuple[int, int]]] = (0, [])
        best_gain = 0.0
        hopeless = _HOPELESS if self._gated else 0.0
        reached, worth = [1.0], 0.0
        others: list[tuple[float, int, int]] = []  # probability that the path is right so far, head, choice
        expected: dict[tuple[int, int], list[float]] = {}  # probability of the path's end, nodes expected of it
        for depth, row in enumerate(sure):
            if expected:
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
    """Guesses of one class are calibrated together. Later heads share theirs: a head never tried inherits it."""
    return kind, depth > 0, bisect_right(_RANGES, own)


def _path(
    choices: Sequence[Sequence[int]], sure: Sequence[Sequence[float]], length: int, head: int, choice: int
) -> Guess:
    """Best guesses but for the given choice of one head, which is out of `length` for none."""
    path = Guess([], [], [])
    for depth in range(length):
        at = choice if depth == head else 0
        own = sure[depth][at]
        kind = "best" if depth < head else str(choice) if depth == head else "behind"
        path.add(choices[depth][at], own, _class(kind, depth, own))
    return path


def _rows(length: int, n_paths: int) -> int:
    """Rows of a pass over paths of that length, each with the pending row and padded to an even number."""
    return n_paths * (1 + length + (1 + length) % 2)


def make(target: TargetModel, kind: str, lookahead: str) -> Drafter:
    """The drafter whose heads the bundle brings in its graph `kind`, the drafter's name. Raises UsageError."""
    bundle = target.bundle
    if kind not in bundle.manifest.graphs:
        have = ", ".join(name for name in HEAD_KINDS if name in bundle.manifest.graphs) or "none"
        raise UsageError(
            f"the drafter {kind} needs heads of that kind, and {bundle.manifest.name} brings {have}: export a "
            "checkpoint that has them, or give trained heads to `specedge export --heads`"
        )
    n_heads = _heads_wanted(lookahead, kind)
    heads = HeadsPass(bundle, kind, target.canceller or Canceller(), threads=target.threads)
    costs = costs_of(target)
    if n_heads is not None:
        return HeadsDrafter(kind, heads, costs, n_heads=n_heads, gated=False)
    return weighed(HeadsDrafter(kind, heads, costs), target)


def _heads_wanted(lookahead: str, kind: str) -> int | None:
    """How many heads draft whatever it costs, None where costs decide. Raises UsageError."""
    if lookahead == DrafterOptions.lookahead:
        return None
    if not lookahead.isdecimal() or int(lookahead) < 1:
        raise UsageError(f"lookahead: got {lookahead!r}; the drafter {kind} takes cost, or a number from 1 on")
    return int(lookahead)
