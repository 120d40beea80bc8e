"""What a token map would do for a text: a replay in which the text plays the model, priced by a cost table.

At every place the longest key that the map has gives its first candidate; as much of it is drafted as is expected to
pay; the text then says what would have been accepted. No model runs, so only the decoder is judged, and a model that
says the text as it stands. Does not know: the encoder's share, several candidates at once, files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specedge.maps.tmap_format import END
from specedge.maps.token_map import TokenMap
from specedge.runtime.costs import CostTable

__all__ = ["Replay", "replay"]


@dataclass(kw_only=True)
class Replay:
    """Counters over all sentences; `cost` and `tokens` in units of a pass with one row.

    sentences; tokens: their ids and ends; passes; lookups and hits (a key was there); drafts (it paid); proposed and
    accepted tokens; hits_by_order: by the length of the key.
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


def _draft(token_map: TokenMap, context: Sequence[int], costs: CostTable, result: Replay) -> Sequence[int]:
    n, candidates = token_map.longest(context)
    result.lookups += 1
    if not n:
        return ()
    result.hits += 1
    result.hits_by_order[n] = result.hits_by_order.get(n, 0) + 1
    best = candidates[0]
    length, _ = costs.best_prefix(best.confidences)
    if not length:
        return ()
    result.drafts += 1
    return (*best.tokens, *[END] * best.ends)[:length]
