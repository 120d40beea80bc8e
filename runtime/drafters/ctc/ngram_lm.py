"""A language model of n-grams over token maps and the online cache of this run's text.

The score of a token behind a sentence begun is the logarithm of its share in the longest n-gram that has it, less
`BACK_OFF` for each shorter length ("stupid back-off", Brants et al. 2007); of several maps and the cache the best
counts. What none of them knows may be said too, at `UNKNOWN`: the vocabulary stays open. Scores are no probabilities.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from specedge.maps.ngram_cache import NgramCache, ngrams
from specedge.maps.tmap_format import END
from specedge.maps.token_map import NgramIndex, TokenMap

from ...text.tokenizer import Tokenizer
from ...text.words import ends_sentence, opens_word

BACK_OFF = 1.0
LONGEST = 3  # ids of an n-gram: those of four decide nothing that these do not
_ALONE = 3.0  # more for a token that no n-gram of two has
UNKNOWN = -11.0
_MOSTLY = -0.7  # the logarithm of the share of a mark that belongs to a word, heard or not
_MOST_INSIDE = 32
_MAX_KEPT = 1 << 16  # ids behind keys that are remembered


class Followers(NamedTuple):
    """What follows some ids. shares: the logarithm of the share of each, likeliest first; inside: those that go on with
    a word, so many at most."""

    shares: Mapping[int, float]
    inside: Sequence[int]


class Guide:
    """The n-grams of `maps`, which may be closed afterwards, and of `cache`, which learns.

    ends: whether a sentence ends with an id; alone: the score of each id that the maps know, where no longer n-gram has
    it.
    """

    def __init__(self, maps: Sequence[TokenMap], cache: NgramCache | None, tokenizer: Tokenizer) -> None:
        self.ends = functools.cache(ends_sentence(tokenizer))
        self._ranks, self._cache = tokenizer.ranks, cache
        self._indices = [NgramIndex(map_, LONGEST) for map_ in maps]
        self.alone: dict[int, float] = {}
        for ids, shares in [index.alone for index in self._indices]:
            for id_, share in zip(ids.tolist(), shares.tolist(), strict=True):
                score = share - _ALONE - BACK_OFF * (LONGEST - 1)
                self.alone[id_] = max(score, UNKNOWN, self.alone.get(id_, UNKNOWN))
        self._followers: dict[tuple[int, ...], Followers] = {}
        self._n_kept = 0

    @property
    def knows(self) -> bool:
        """Whether there is anything to be asked."""
        return bool(self._indices) or bool(self._cache)

    def followers(self, tokens: tuple[int, ...]) -> Followers:
        """What is known to follow some tokens, () for the beginning of a sentence; their longest end known counts."""
        context = tokens[1 - LONGEST :] or (END,)
        known = [self._behind(context[at:]) for at in range(len(context))]
        return next((one for one in known if one.shares), known[-1])

    def order(self, sentence: Sequence[int], token: int) -> int:
        """How many ids the longest known n-gram has that ends with `token` behind `sentence`, 3 at most; 0 for none."""
        found = int(token in self.alone)
        for n, known in enumerate(self._known(sentence), 2):
            if token not in known.shares:
                break  # what has an n-gram has its end
            found = n
        return found

    def score(self, sentence: Sequence[int], token: int) -> float:
        """The score of one id."""
        best = self.alone.get(token, UNKNOWN)
        back = BACK_OFF * (LONGEST - 2)
        for known in self._known(sentence):
            best = max(best, known.shares.get(token, best + back) - back)
            back -= BACK_OFF
        return best

    def behind(self, sentence: tuple[int, ...], token: int) -> tuple[int, ...]:
        """What n-grams go on from once `token` is said behind `sentence`: as much of it as they can hold."""
        return () if self.ends(token) else (*sentence, token)[-LONGEST:]

    def learn(self, tokens: Sequence[int], n_known: int = 0) -> None:
        """Have the cache learn text ids (`NgramCache.learn`)."""
        if self._cache is not None:
            self._cache.learn(tokens, n_known)
            for key, _ in ngrams(tokens, n_known, LONGEST - 1):
                self._followers.pop(key, None)

    def _known(self, sentence: Sequence[int]) -> Iterator[Followers]:
        """What follows the last id of a sentence, the last two and so on; ends where there is nothing more."""
        context = (END, *sentence[max(0, len(sentence) - LONGEST + 1) :])[1 - LONGEST :]
        for n in range(1, len(context) + 1):
            known = self._behind(context[-n:])
            if not known.shares:
                return  # what follows much follows the end of it
            yield known

    def _behind(self, key: tuple[int, ...]) -> Followers:
        """What follows exactly these ids."""
        known = self._followers.get(key)
        if known is not None:
            return known
        found: dict[int, float] = {}
        for index in self._indices:
            ids, shares = index.followers(key, len(key) + 1)
            for id_, share in zip(ids.tolist(), shares.tolist(), strict=True):
                found[id_] = max(share, found.get(id_, share))
        pairs = [] if self._cache is None else self._cache.pairs(key)
        total = 1 + sum([count for _, count in pairs])  # what was seen once is no law
        for id_, count in pairs:
            share = math.log(count / total)
            found[id_] = max(share, found.get(id_, share))
        likely = sorted(found.items(), key=lambda item: -item[1])
        ranks = self._ranks
        inside = [
            id_ for id_, share in likely if ranks[id_][:1] > b" " and (share > _MOSTLY or not opens_word(ranks[id_]))
        ]
        if self._n_kept > _MAX_KEPT:
            self._followers.clear()
            self._n_kept = 0
        self._n_kept += 1 + len(found)
        known = self._followers[key] = Followers(dict(likely), inside[:_MOST_INSIDE])
        return known
