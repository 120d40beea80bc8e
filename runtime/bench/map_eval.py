"""What a token map does for a text, or for audio, priced by a cost table.

For a text it is a replay in which the text plays the model. At every place the longest key that the map has gives its
first candidate, as far as it is expected to pay; the text then says what would have been accepted. No model runs, so
only the decoder is judged, and a model that says the text as it stands. For audio the model runs, and `Watched` counts
what the drafter tokenmap does, several candidates at once included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from specedge.maps.tmap_format import END
from specedge.maps.token_map import TokenMap

from ..decoding.drafter import DraftContext, Drafter, DraftTree, Verdict, WindowContext
from ..device import CostTable
from ..drafters.tokenmap import sentence_so_far

__all__ = ["Replay", "Watched", "replay"]


@dataclass(kw_only=True)
class Replay:
    """Counters over all sentences; `cost` and `tokens` in units of a pass with one row.

    sentences: 0 for audio; tokens: their ids and ends, for audio all that were decided; passes; lookups and hits (a key
    was there); drafts (it paid); proposed and accepted tokens; hits_by_order: by the length of the key.
    """

    sentences: int = 0
    tokens: int = 0
    passes: int = 0
    lookups: int = 0
    hits: int = 0
    drafts: int = 0
    proposed: int = 0
    accepted: int = 0
    cost: float = 0.0
    hits_by_order: dict[int, int] = field(default_factory=dict)

    def looked_up(self, n: int) -> None:
        """A look-up found a key of `n` tokens, 0 for none."""
        self.lookups += 1
        if n:
            self.hits += 1
            self.hits_by_order[n] = self.hits_by_order.get(n, 0) + 1

    @property
    def hit_rate(self) -> float:
        return self.hits / self.lookups if self.lookups else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted of proposed tokens."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def mean_accepted(self) -> float:
        """Accepted tokens of a draft."""
        return self.accepted / self.drafts if self.drafts else 0.0

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def speed_up(self) -> float:
        """Of the decoder, against one pass for each token."""
        return self.tokens / self.cost if self.cost else 1.0


def replay(token_map: TokenMap, sentences: Iterable[Sequence[int]], costs: CostTable) -> Replay:
    """Decode each sentence with the map's drafts; the end of a sentence is a token too. Raises MapError."""
    result = Replay()
    for sentence in sentences:
        if not len(sentence):
            continue
        truth = [*sentence, END]
        result.sentences += 1
        result.tokens += len(truth)
        at = 0
        while at < len(truth):
            draft = _draft(token_map, truth[:at], costs, result)
            n_accepted = 0
            while (
                n_accepted < len(draft) and at + n_accepted < len(truth) and draft[n_accepted] == truth[at + n_accepted]
            ):
                n_accepted += 1
            result.passes += 1
            result.cost += costs.cost(1 + len(draft))
            result.proposed += len(draft)
            result.accepted += n_accepted
            at += n_accepted + 1
    return result


class Watched(Drafter):
    """A drafter as it is, and in `found` what came of it; see the module.

    Lookups and hits are `token_map`'s, counted where a pass may draft; a pass costs what its rows cost beyond those it
    runs anyway. `ends` says of a text id whether a sentence ends with it.
    """

    name = "tokenmap"

    def __init__(self, drafter: Drafter, token_map: TokenMap, costs: CostTable, ends: Callable[[int], bool]) -> None:
        self._drafter, self._map, self._costs, self._ends = drafter, token_map, costs, ends
        self._eot = 0
        self._n_pending = 1
        self._parents: list[int] = []
        self.found = Replay()

    def begin(self, window: WindowContext) -> None:
        """As the drafter."""
        self._eot = window.eot
        self._drafter.begin(window)

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """The drafter's guess."""
        tree = self._drafter.propose(context, budget)
        self._parents = [-1 + node for node in range(len(tree))] if tree.parents is None else list(tree.parents)
        self._n_pending = len(context.prompt) + len(context.sampled) - context.position
        n, _ = self._map.longest(sentence_so_far(context.sampled, self._eot, self._ends))
        self.found.looked_up(n)
        return tree

    def observe(self, verdict: Verdict) -> None:
        """Count the pass."""
        found, n = self.found, self._n_pending
        found.passes += 1
        found.tokens += verdict.n_accepted + 1
        found.drafts += bool(verdict.evaluated)
        found.proposed += len(verdict.evaluated)
        found.accepted += verdict.n_accepted
        found.cost += 1 + self._cost(n, verdict.evaluated) - self._costs.cost(n)
        self._n_pending, self._parents = 1, []  # where there is no room to draft, nobody is asked
        self._drafter.observe(verdict)

    def end(self, tokens: tuple[int, ...]) -> None:
        """As the drafter."""
        self._drafter.end(tokens)

    def _cost(self, n_pending: int, evaluated: Sequence[int]) -> float:
        """Of the pass, in passes of one row; several paths are as long as the longest, each with a root."""
        depths: dict[int, int] = {}
        for node in evaluated:
            depths[node] = depths.get(self._parents[node], 0) + 1
        inner = {self._parents[node] for node in evaluated}
        n_paths = sum(node not in inner for node in evaluated)
        if n_paths > 1:
            return self._costs.cost(n_paths * (n_pending + max(depths.values()))) + self._costs.several_paths
        return self._costs.cost(n_pending + len(evaluated))


def _draft(token_map: TokenMap, context: Sequence[int], costs: CostTable, result: Replay) -> Sequence[int]:
    n, candidates = token_map.longest(context)
    result.looked_up(n)
    if not candidates:
        return ()
    first = candidates[0]
    length, _ = costs.best_prefix(first.confidences)
    result.drafts += bool(length)
    return (*first.tokens, *[END] * first.ends)[:length]
