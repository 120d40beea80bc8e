"""Perplexity of token sequences under an n-gram model of a corpus, with Witten-Bell interpolation down to uniform.

The dial of a domain-transfer experiment: how surprising a text is to what a map was made from. It knows ids only.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

__all__ = ["NgramModel"]

_START = -1


class NgramModel:
    """Counts of a corpus up to `order`; every sentence is closed by `end`. n_ids: outcomes of the uniform floor."""

    def __init__(self, sentences: Iterable[Sequence[int]], *, end: int, n_ids: int, order: int = 3) -> None:
        self._end, self._n_ids, self._order = end, n_ids, order
        self._after: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for sentence in sentences:
            padded = [_START] * (order - 1) + [*sentence, end]
            for at in range(order - 1, len(padded)):
                for n in range(order):
                    self._after[tuple(padded[at - n : at])][padded[at]] += 1
        self._total = {key: sum(counts.values()) for key, counts in self._after.items()}

    def probability(self, context: Sequence[int], id_: int) -> float:
        """P(id | the last ids of the context), above 0; over all ids it sums to 1."""
        result = 1.0 / self._n_ids
        for n in range(min(self._order - 1, len(context)) + 1):
            key = tuple(context[len(context) - n :])
            counts = self._after.get(key)
            if counts is None:
                break
            result = (counts[id_] + len(counts) * result) / (self._total[key] + len(counts))
        return result

    def perplexity(self, sentences: Iterable[Sequence[int]]) -> float:
        """Of all tokens and ends; 1.0 for no sentence."""
        total, n = 0.0, 0
        for sentence in sentences:
            padded = [_START] * (self._order - 1) + [*sentence, self._end]
            for at in range(self._order - 1, len(padded)):
                total -= math.log(self.probability(padded[:at], padded[at]))
                n += 1
        return math.exp(total / n) if n else 1.0
