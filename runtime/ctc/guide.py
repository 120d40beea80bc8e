"""What a language model of n-grams says of the next token: token maps, and the online cache of this run's text.

The score of a token behind a sentence begun is the logarithm of its share in the longest n-gram that has it, less
`BACK_OFF` for each shorter length ("stupid back-off", Brants et al. 2007); of several maps the best counts. What no map
knows may be said too, at `UNKNOWN`: the vocabulary stays open. Scores are no probabilities.
Does not know: sounds, spellings, windows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specedge.maps.ngram_cache import NgramCache
from specedge.maps.ngram_index import LONGEST, NgramIndex
from specedge.maps.token_map import TokenMap

__all__ = ["UNKNOWN", "Guide"]

BACK_OFF = 1.0
_ALONE = 3.0  # more for a token that no n-gram of two has
UNKNOWN = -11.0
_RARE, _FREQUENT = 3.0, 3.0  # how far the score of the unknown may fall, and rise, as such tokens come true or do not
_FADE = 0.97
_MAX_BYTES = 4 << 20  # of scores that are kept


class Guide:
    """The n-grams of `maps`, which must stay open, and of `cache`. `ends` says whether a sentence ends with an id.

    vocabulary: int64 [n_known], the ids that the maps know, rising.
    """

    def __init__(
        self,
        maps: Sequence[TokenMap],
        cache: NgramCache | None,
        *,
        ends: Callable[[int], bool],
        longest: int = LONGEST,
    ) -> None:
        self.ends = functools.cache(ends)
        self._maps, self._cache, self._longest = tuple(maps), cache, longest
        self._indices = [NgramIndex(map_) for map_ in self._maps]
        alone = [index.alone for index in self._indices]
        self.vocabulary: NDArray[np.int64] = np.unique(np.concatenate([np.zeros(0, np.int64), *[a.ids for a in alone]]))
        base = np.full(len(self.vocabulary), -np.inf, np.float32)
        for known in alone:
            at = self.vocabulary.searchsorted(known.ids)
            base[at] = np.maximum(base[at], known.log_shares)
        self._places = [
            {n: self.vocabulary.searchsorted(index.all_followers(n).ids) for n in index.lengths}
            for index in self._indices
        ]
        self._base = np.maximum(base - np.float32(_ALONE + BACK_OFF * (longest - 1)), np.float32(UNKNOWN))
        self._came, self._hoped = 1.0, 2.0
        self._scores: dict[tuple[int, ...], NDArray[np.float32]] = {}

    @property
    def knows(self) -> bool:
        """Whether there is anything to be asked."""
        return bool(self._maps) or bool(self._cache)

    def order(self, sentence: Sequence[int], token: int) -> int:
        """How many ids the longest known n-gram has that ends with `token` behind `sentence`; 0 for none."""
        context = (*sentence[-LONGEST:], token)
        most = min(self._longest, len(context) + (len(sentence) < LONGEST))
        for n in range(most, 0, -1):
            for map_ in self._maps:
                if map_.find(context, n):
                    return n
            if self._cache is not None and 1 < n <= len(context):
                if any(id_ == token for id_, _ in self._cache.pairs(context[-n:-1])):
                    return n
        return 0

    @property
    def unknown(self) -> float:
        """The score of what no n-gram has: the lower, the seldomer such tokens came true."""
        share = self._came / self._hoped
        return UNKNOWN * (1 + _RARE * max(0.0, 0.5 - share)) + _FREQUENT * max(0.0, share - 0.5)

    def learn_unknown(self, *, came_true: bool) -> None:
        """A token that no n-gram has was drafted, and came true or not."""
        self._came = self._came * _FADE + came_true
        self._hoped = self._hoped * _FADE + 1.0

    def scores(self, sentence: Sequence[int]) -> tuple[NDArray[np.float32], dict[int, float]]:
        """The score of each id of `vocabulary` behind `sentence`, float32 [n_known], and of ids that only the cache
        knows."""
        context = tuple(sentence[-(LONGEST - 1) :])
        key = (len(sentence) < LONGEST - 1, *context)
        known = self._scores.get(key)
        if known is None:
            if len(self._scores) * self._base.nbytes > _MAX_BYTES:
                self._scores.clear()
            known = self._scores[key] = self._scored(context)
        if not self._cache:
            return known, {}
        others: dict[int, float] = {}
        own = known.copy()
        for n in range(2, min(self._longest, len(context) + 1) + 1):
            self._add_cached(context[-(n - 1) :], BACK_OFF * (self._longest - n), own, others)
        return own, others

    def score(self, sentence: Sequence[int], token: int) -> float:
        """The score of one id."""
        context = tuple(sentence[-(LONGEST - 1) :])
        at = int(self.vocabulary.searchsorted(token))
        is_known = at < len(self.vocabulary) and self.vocabulary[at] == token
        best = self.unknown
        if is_known:
            scores = self._scores.get((len(sentence) < LONGEST - 1, *context))
            best = self._one(context, token, at) if scores is None else float(scores[at])
        if self._cache:
            for n in range(2, min(self._longest, len(context) + 1) + 1):
                said = self._cached(context[-(n - 1) :]).get(token)
                best = best if said is None else max(best, said - BACK_OFF * (self._longest - n))
        return best

    def _one(self, context: Sequence[int], token: int, at: int) -> float:
        """What the maps say of a known id."""
        best = float(self._base[at])
        for n in range(2, self._longest + 1):
            for index in self._indices:
                low, high = index.span(context, n)
                if low < high:
                    ids, shares = index.all_followers(n)
                    place = low + int(ids[low:high].searchsorted(token))
                    if place < high and ids[place] == token:
                        best = max(best, float(shares[place]) - BACK_OFF * (self._longest - n))
        return best

    def _scored(self, context: Sequence[int]) -> NDArray[np.float32]:
        """What the maps say."""
        scores: NDArray[np.float32] = self._base.copy()
        for n in range(2, self._longest + 1):
            back = np.float32(BACK_OFF * (self._longest - n))
            for index, places in zip(self._indices, self._places, strict=True):
                low, high = index.span(context, n)
                if low < high:
                    at = places[n][low:high]
                    scores[at] = np.maximum(scores[at], index.all_followers(n).log_shares[low:high] - back)
        return scores

    def _add_cached(
        self, key: Sequence[int], back: float, scores: NDArray[np.float32], others: dict[int, float]
    ) -> None:
        for id_, score in self._cached(key).items():
            at = int(self.vocabulary.searchsorted(id_))
            if at < len(scores) and self.vocabulary[at] == id_:
                scores[at] = max(float(scores[at]), score - back)
            else:
                others[id_] = max(others.get(id_, UNKNOWN), score - back)

    def _cached(self, key: Sequence[int]) -> dict[int, float]:
        """The logarithm of the share of each id behind a key in the cache."""
        if self._cache is None:
            return {}
        pairs = self._cache.pairs(key)
        total = 1 + sum(count for _, count in pairs)  # what was seen once is no law
        return {id_: math.log(count / total) for id_, count in pairs}
