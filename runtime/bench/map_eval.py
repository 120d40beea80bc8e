"""What a token map would do for a text, priced by a cost table: a replay in which the text plays the model.

At every place the longest key that the map has gives its first candidate, as far as it is expected to pay, and the text
says what would have been accepted. Only the decoder is judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

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

    def figures(self) -> dict[str, Any]:
        """Counters and rates as the command shows them; the speed-up is of the decoder, over one pass a token."""
        rates = {
            "hit_rate": (self.hits, self.lookups, 4),
            "acceptance_rate": (self.accepted, self.proposed, 4),
            "mean_accepted_length": (self.accepted, self.drafts, 3),
            "tokens_per_pass": (self.tokens, self.passes, 3),
            "expected_decoder_speed_up": (self.tokens, self.cost, 3),
        }
        found = {name: round(part / whole, digits) if whole else 0.0 for name, (part, whole, digits) in rates.items()}
        return {
            "sentences": self.sentences,
            "tokens": self.tokens,
            "hit_rate": found.pop("hit_rate"),
            "hits_by_key_length": {str(n): self.hits_by_order[n] for n in sorted(self.hits_by_order)},
            "proposed": self.proposed,
            "accepted": self.accepted,
            **found,
        }


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
