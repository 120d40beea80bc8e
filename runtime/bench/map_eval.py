"""What a token map would do for a text, priced by a cost table: a replay in which the text plays the model.

At every place the longest key that the map has gives its first candidate, as far as it is expected to pay, and the text
says what would have been accepted. Only the decoder is judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specedge.maps.tmap_format import END
from specedge.maps.token_map import TokenMap

from ..device import CostTable


@dataclass(kw_only=True)
class Replay:
    """Counters. tokens: ends of sentences too; hits: lookups that found a key; drafts: hits that paid; cost: in passes
    of one row; hits_by_order: by the length of the key."""

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
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def mean_accepted(self) -> float:
        return self.accepted / self.drafts if self.drafts else 0.0

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def speed_up(self) -> float:
        """Of the decoder, compared with one pass for each token."""
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
    if not candidates:
        return ()
    result.hits += 1
    result.hits_by_order[n] = result.hits_by_order.get(n, 0) + 1
    first = candidates[0]
    length, _ = costs.best_chain(first.confidences)
    result.drafts += bool(length)
    return (*first.tokens, *[END] * first.ends)[:length]
