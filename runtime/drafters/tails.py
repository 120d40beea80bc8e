"""Drafts from what was refused: the rest of a draft behind its first wrong token, offered again (SpecASR).

A drafter that hears or remembers the right sentence is often wrong in one token only. The rest is aligned by the token
that the model said instead: it took the wrong one's place, or it comes up further on in the draft, which then had some
tokens too many, or it was said besides. How far each of these is believed is learned from what came of them. The rest
is kept, and aligned anew behind each correction, until several in a row were wrong or another draft is refused.

Source: "SpecASR", arXiv 2507.18181 (the recycling of rejected suffixes), with costs (algorithms 2.3).
Does not know: who drafted, text, audio.
"""

from __future__ import annotations

from collections.abc import Sequence

from specedge.runtime.drafters import DraftContext, DraftTree, Verdict, WindowContext
from specedge.runtime.drafters.gate import Gate, RowCosts
from specedge.runtime.drafters.guesses import Guess, Guesses

__all__ = ["TailDrafter"]

_N_AHEAD = 4  # tokens among which the corrected one is looked for
_MOST_WRONG = 3  # in a row, before the rest is given up
_FIRST_BELIEFS = {"said": 0.8, "ahead": 0.5, "instead": 0.4, "besides": 0.2}
_BEHIND = 0.8  # first belief in a token behind the first one of a rest


class TailDrafter:
    """See the module. `refused` hands it what the last pass made of the best draft."""

    name = "recycled"

    def __init__(self, costs: RowCosts) -> None:
        self._guesses = Guesses(Gate(costs))
        self._n_paths = 1
        self._path: list[int] = []
        self._places: list[tuple[str, int]] = []  # where in it the model may stand, and why; the first is the usual one
        self._n_wrong = self._source = 0

    @property
    def has_drafts(self) -> bool:
        """Whether there is anything to offer."""
        return bool(self._places)

    def begin(self, window: WindowContext) -> None:
        """Another window: nothing was refused."""
        self._n_paths = window.n_paths
        self._places = []

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """The rest, as far as it is expected to pay."""
        paths = [self._guess(rest, kind) for kind, at in self._places if (rest := self._path[at : at + budget])]
        if len(paths) > 1:
            paths.sort(key=lambda path: -self._guesses.believed(path)[0])
        n_pending = len(context.prompt) + len(context.sampled) - context.position
        return self._guesses.draft(self._guesses.worth_while(paths, n_pending, self._n_paths), budget)

    def observe(self, verdict: Verdict) -> None:
        """Hold the alignments to what came of them."""
        self._guesses.learn(verdict)

    def end(self, tokens: tuple[int, ...]) -> None:
        """Nothing outlives a window."""
        self._places = []

    def refused(self, text: Sequence[int], path: Sequence[int], source: int = 0) -> None:
        """A pass decided `text`; `path` is the best draft of the others, () for none, `source` tells whose it is."""
        n = next((i for i, (token, said) in enumerate(zip(path, text, strict=False)) if token != said), -1)
        if n >= 0 and n + 1 < len(path):  # something was wrong, and something is left behind it
            self._path, self._places, self._n_wrong, self._source = list(path), [("said", n)], 0, source
            text = text[n:]
        for said in text:
            if self._places:
                self._follow(said)

    def _follow(self, said: int) -> None:
        """Move on by one token."""
        path = self._path
        agreeing = [at for _, at in self._places if at < len(path) and path[at] == said]
        if agreeing:
            self._places, self._n_wrong = [("said", agreeing[0] + 1)], 0
            return
        at = self._places[0][1]
        self._n_wrong += 1
        if self._n_wrong > _MOST_WRONG or at >= len(path):
            self._places = []
            return
        self._places = [("instead", at + 1), ("besides", at)]
        if said in path[at + 1 : at + 1 + _N_AHEAD]:
            self._places.append(("ahead", path.index(said, at + 1) + 1))

    def _guess(self, tokens: list[int], kind: str) -> Guess:
        """A path of a rest; what is left of one drafter's drafts is worth more than of another's."""
        n, source = len(tokens) - 1, self._source
        behind = (source, kind in ("said", "ahead"), "behind")
        return Guess(tokens, [_FIRST_BELIEFS[kind], *[_BEHIND] * n], [(source, kind), *[behind] * n])
