"""A language model of n-grams over token maps and the online cache of this run's text.

The score of a token behind a sentence begun is the logarithm of its share in the longest n-gram that has it, less
`BACK_OFF` for each shorter length ("stupid back-off", Brants et al. 2007); of several maps the best counts. What no map
knows may be said too, at `UNKNOWN`: the vocabulary stays open. Scores are no probabilities.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specedge.maps.ngram_cache import NgramCache, ngrams
from specedge.maps.tmap_format import END
from specedge.maps.token_map import NgramIndex, TokenMap

BACK_OFF = 1.0
LONGEST = 3  # ids of an n-gram: those of four decide nothing that these do not
_ALONE = 3.0  # more for a token that no n-gram of two has
UNKNOWN = -11.0
_RARE, _FREQUENT = 3.0, 3.0  # how far the score of the unknown may fall, and rise, as such tokens come true or do not
_FADE = 0.97
_MAX_BYTES = 4 << 20  # of scores that are kept
_MAX_KEPT = 1 << 16  # ids behind keys that are remembered


class _Known(NamedTuple):
    """The logarithm of the share of each id behind a key: the greatest of the maps', and the cache's."""

    mapped: Mapping[int, float]
    cached: Mapping[int, float]


_NO_IDS: Mapping[int, float] = {}


class Guide:
    """The n-grams of `maps`, which must stay open, and of `cache`. `ends` says whether a sentence ends with an id.

    vocabulary: int64 [n_known], the ids that the maps know, rising; unknown: the score of what no n-gram has, the
    lower, the seldomer such tokens came true.
    """

    def __init__(
        self, maps: Sequence[TokenMap], cache: NgramCache | None, *, ends: Callable[[int], bool], longest: int = LONGEST
    ) -> None:
        self.ends = functools.cache(ends)
        self._maps, self._cache, self._longest = tuple(maps), cache, longest
        self._indices = [NgramIndex(map_, longest) for map_ in self._maps]
        alone = [index.alone for index in self._indices]
        self.vocabulary: NDArray[np.int64] = np.unique(np.concatenate([np.zeros(0, np.int64), *[a.ids for a in alone]]))
        base = np.full(len(self.vocabulary), -np.inf, np.float32)
        for known in alone:
            at = self.vocabulary.searchsorted(known.ids)
            base[at] = np.maximum(base[at], known.log_shares)
        self._places = [
            {n: self.vocabulary.searchsorted(order.followers.ids) for n, order in index.orders.items()}
            for index in self._indices
        ]
        self._base = np.maximum(base - np.float32(_ALONE + BACK_OFF * (longest - 1)), np.float32(UNKNOWN))
        self._alone: dict[int, float] = dict(zip(self.vocabulary.tolist(), self._base.tolist(), strict=True))
        self._came, self._hoped = 1.0, 2.0
        self.unknown = UNKNOWN
        # What was looked up before; of the cache until it learns.
        self._scores: dict[tuple[int, ...], NDArray[np.float32]] = {}
        self._mapped: dict[tuple[int, ...], Mapping[int, float]] = {}
        self._cached: dict[tuple[int, ...], Mapping[int, float]] = {}
        self._behind: dict[tuple[int, ...], list[_Known]] = {}
        self._n_mapped = 0
        self._cache_version = -1

    @property
    def knows(self) -> bool:
        """Whether there is anything to be asked."""
        return bool(self._maps) or bool(self._cache)

    def followers(self, tokens: tuple[int, ...]) -> list[tuple[int, float]]:
        """What the maps know to follow the last tokens, the likeliest first, and the logarithm of the share of each.

        The longest end of `tokens` that they know counts.
        """
        found: Mapping[int, float] = {}
        for n in range(min(len(tokens), self._longest - 1), 0, -1):
            found = self._mapped_behind(tokens[-n:])
            if found:
                break
        return sorted(found.items(), key=lambda item: -item[1])

    def said_behind(self, token: int) -> Iterable[tuple[int, float]]:
        """As `followers`, what the cache knows, in any order."""
        self._forget()
        return self._cached_behind((token,)).items()

    def order(self, sentence: Sequence[int], token: int) -> int:
        """How many ids the longest known n-gram has that ends with `token` behind `sentence`, 3 at most; 0 for none."""
        found = int(token in self._alone)
        for mapped, cached in self._known(sentence)[:2]:
            if token not in mapped and token not in cached:
                break  # what has an n-gram has its end
            found = 2 if found < 2 else 3
        return found

    def learn(self, tokens: Sequence[int], n_known: int = 0) -> None:
        """Have the cache learn text ids (`NgramCache.learn`)."""
        if self._cache is None:
            return
        for key, _ in ngrams(tokens, n_known, self._longest - 1):
            self._cached.pop(key, None)
        self._behind.clear()
        was_current = self._cache.version == self._cache_version
        self._cache.learn(tokens, n_known)
        if was_current:
            self._cache_version = self._cache.version

    def learn_unknown(self, *, came_true: bool) -> None:
        """A token that no n-gram has was drafted, and came true or not."""
        self._came = self._came * _FADE + came_true
        self._hoped = self._hoped * _FADE + 1.0
        share = self._came / self._hoped
        self.unknown = UNKNOWN * (1 + _RARE * max(0.0, 0.5 - share)) + _FREQUENT * max(0.0, share - 0.5)

    def behind(self, sentence: tuple[int, ...], token: int) -> tuple[int, ...]:
        """What n-grams go on from once `token` is said behind `sentence`: as much of it as they can hold."""
        return () if self.ends(token) else (*sentence, token)[-self._longest :]

    def scores(self, sentence: Sequence[int]) -> NDArray[np.float32]:
        """What the maps say of each id of `vocabulary` behind `sentence`, float32 [n_known], to be read only."""
        n_context = self._longest - 1
        context = tuple(sentence[max(0, len(sentence) - n_context) :])
        key = (len(sentence) < n_context, *context)
        known = self._scores.get(key)
        if known is None:
            if len(self._scores) * self._base.nbytes > _MAX_BYTES:
                self._scores.clear()
            known = self._scores[key] = self._scored(context)
        return known

    def score(self, sentence: Sequence[int], token: int) -> float:
        """The score of one id."""
        best = self._alone.get(token)
        if best is None:
            best = self.unknown
        back = BACK_OFF * (self._longest - 2)
        for mapped, cached in self._known(sentence):
            said = mapped.get(token)
            if said is not None and said - back > best:
                best = said - back
            said = cached.get(token)
            if said is not None and said - back > best:
                best = said - back
            back -= BACK_OFF
        return best

    def _known(self, sentence: Sequence[int]) -> list[_Known]:
        """What follows the last id of a sentence, the last two and so on; ends where there is nothing more."""
        self._forget()
        longest = self._longest - 1
        context = (END, *sentence[max(0, len(sentence) - longest) :])[-longest:]
        known = self._behind.get(context)
        return self._looked_up(context) if known is None else known

    def _forget(self) -> None:
        """Drop what is known of the cache, if somebody else had it learn."""
        if self._cache is not None and self._cache.version != self._cache_version:
            self._cache_version = self._cache.version
            self._behind.clear()
            self._cached.clear()

    def _looked_up(self, context: tuple[int, ...]) -> list[_Known]:
        """As `_known`, of the ids that count."""
        if len(self._behind) > _MAX_KEPT:
            self._behind.clear()
        found = self._behind[context] = list[_Known]()
        for n in range(1, len(context) + 1):
            known = _Known(self._mapped_behind(context[-n:]), self._cached_behind(context[-n:]))
            if not known.mapped and not known.cached:
                break  # what follows much follows the end of it
            found.append(known)
        return found

    def _mapped_behind(self, key: tuple[int, ...]) -> Mapping[int, float]:
        mapped = self._mapped.get(key)
        if mapped is not None:
            return mapped
        found: dict[int, float] = {}
        for index in self._indices:
            ids, shares = index.followers(key, len(key) + 1)
            if found:
                for id_, share in zip(ids.tolist(), shares.tolist(), strict=True):
                    found[id_] = max(share, found.get(id_, share))
            elif len(ids):
                found = dict(zip(ids.tolist(), shares.tolist(), strict=True))
        if self._n_mapped > _MAX_KEPT:
            self._mapped.clear()
            self._n_mapped = 0
        self._mapped[key] = found
        self._n_mapped += 1 + len(found)
        return found

    def _cached_behind(self, key: tuple[int, ...]) -> Mapping[int, float]:
        cached = self._cached.get(key)
        if cached is not None:
            return cached
        pairs = [] if self._cache is None else self._cache.pairs(key)
        total = 1 + sum([count for _, count in pairs])  # what was seen once is no law
        if len(self._cached) > _MAX_KEPT:
            self._cached.clear()
        found = self._cached[key] = {id_: math.log(count / total) for id_, count in pairs} if pairs else _NO_IDS
        return found

    def _scored(self, context: Sequence[int]) -> NDArray[np.float32]:
        """What the maps say."""
        scores: NDArray[np.float32] = self._base.copy()
        for n in range(2, self._longest + 1):
            back = np.float32(BACK_OFF * (self._longest - n))
            for index, places in zip(self._indices, self._places, strict=True):
                low, high = index.span(context, n)
                if low < high:
                    at = places[n][low:high]
                    scores[at] = np.maximum(scores[at], index.orders[n].followers.log_shares[low:high] - back)
        return scores
