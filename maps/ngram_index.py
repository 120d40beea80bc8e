"""What may follow a few ids, read forwards out of a token map: every n-gram that the map has a key for.

A map names up to three continuations of a key. Its keys say more: that a key exists means that these ids were seen
together, and its counts say how often. Sorted by all but their last id, the keys of two to four ids are the n-grams of
the corpus, which is what a search over sounds needs: all that may come next, not only the likeliest.

The index is a copy in memory, about 14 bytes for each key; keys of four ids are left out of maps with more than
`MAX_KEYS` of them. Knows ids; not text, nor how probabilities of several lengths are weighed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specedge.maps.tmap_format import END
from specedge.maps.token_map import TokenMap

__all__ = ["LONGEST", "MAX_KEYS", "Followers", "NgramIndex"]

LONGEST = 4
MAX_KEYS = 1 << 19


class Followers(NamedTuple):
    """What followed a context: ids int64[n], rising, and the natural logarithm of each one's share, float32[n]."""

    ids: NDArray[np.int64]
    log_shares: NDArray[np.float32]


class _Order(NamedTuple):
    # Views whose items are Python's own numbers: one is looked at a time.
    contexts: memoryview  # uint64, packed as in the map's keys, rising, each once
    starts: memoryview  # int64
    followers: Followers


_NONE = Followers(np.zeros(0, np.int64), np.zeros(0, np.float32))


class NgramIndex:
    """The n-grams of one open map, of at most `longest` ids; the map may be closed afterwards.

    alone: the ids it knows, whatever is before.
    """

    def __init__(self, map_: TokenMap, longest: int = LONGEST) -> None:
        ids, counts = map_.occurrences(1)
        is_text = ids != END
        known = ids[is_text].astype(np.int64)
        order = np.argsort(known, kind="stable")
        shares = counts[is_text][order]
        self.alone = Followers(known[order], np.log(shares / max(float(shares.sum()), 1.0)).astype(np.float32))
        self._orders: dict[int, _Order] = {}
        for n in range(2, min(longest, LONGEST, map_.n_orders) + 1):
            keys, counts = map_.occurrences(n)
            if len(keys) and (n < LONGEST or len(keys) <= MAX_KEYS):
                self._orders[n] = _indexed(keys, counts, n)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of n-grams that it has, 2 and more."""
        return tuple(self._orders)

    def all_followers(self, n: int) -> Followers:
        """The followers of all contexts of `n` - 1 ids, one context after another."""
        return self._orders[n].followers

    def span(self, sentence: Sequence[int], n: int) -> tuple[int, int]:
        """Where in `all_followers` those of the last `n` - 1 ids of a sentence begun are; its start counts as an id.

        Two equal numbers where nothing followed.
        """
        order = self._orders.get(n)
        wanted = n - 1
        if order is None or len(sentence) + 1 < wanted:
            return 0, 0
        packed = 0
        for back in range(1, wanted + 1):
            id_ = sentence[-back] if back <= len(sentence) else END
            if not 0 <= id_ <= END:
                return 0, 0
            packed = packed << 16 | id_
        contexts = order.contexts
        at = bisect_left(contexts, packed)
        if at == len(contexts) or contexts[at] != packed:
            return 0, 0
        return order.starts[at], order.starts[at + 1]

    def followers(self, sentence: Sequence[int], n: int) -> Followers:
        """What followed the last `n` - 1 ids of a sentence begun; empty if nothing did."""
        low, high = self.span(sentence, n)
        if low == high:
            return _NONE
        ids, shares = self._orders[n].followers
        return Followers(ids[low:high], shares[low:high])


def _indexed(keys: NDArray[np.uint64], counts: NDArray[np.float32], n: int) -> _Order:
    """The keys of `n` ids by all but their last id."""
    shift = np.uint64(16 * (n - 1))
    context = keys & np.uint64((1 << 16 * (n - 1)) - 1)
    order = np.argsort(context, kind="stable")  # keys are sorted by their last id first, so that stays in order
    context, last, counts = context[order], (keys >> shift)[order].astype(np.int64), counts[order]
    is_text = last != END
    context, last, counts = context[is_text], last[is_text], counts[is_text]
    is_first = np.concatenate(([True], context[1:] != context[:-1])) if len(context) else np.zeros(0, np.bool_)
    starts = np.append(np.flatnonzero(is_first), len(context))
    sizes = np.diff(starts)
    totals = np.add.reduceat(counts, starts[:-1]) if len(context) else counts
    shares = np.log(counts / np.repeat(totals, sizes)).astype(np.float32)
    return _Order(context[is_first].data, starts.data, Followers(last, shares))
