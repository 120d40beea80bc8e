"""The online n-gram cache: a model of it in plain dictionaries, its budget, and its rule of drafting."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specedge.maps.ngram_cache import ENTRY_BYTES, LAX, MAX_ID, PAIR_BYTES, STRICT, NgramCache, draft_by_counts, ngrams

_ids = st.integers(0, 6) | st.sampled_from([0xFFFF, 50364, 1 << 16, MAX_ID])


class CacheMachine(RuleBasedStateMachine):
    """The cache against a dictionary of lists, eviction included."""

    def __init__(self) -> None:
        super().__init__()
        self.budget_bytes = 7 * (ENTRY_BYTES + PAIR_BYTES)
        self.cache = NgramCache(self.budget_bytes)
        self.known: OrderedDict[tuple[int, ...], list[list[int]]] = OrderedDict()

    def _price(self) -> int:
        return sum(ENTRY_BYTES + PAIR_BYTES * len(pairs) for pairs in self.known.values())

    def _evicted_for(self, n_bytes: int, keep: tuple[int, ...] | None = None) -> bool:
        while self._price() + n_bytes > self.budget_bytes:
            oldest = next(iter(self.known), None)
            if oldest is None or oldest == keep:
                return False
            del self.known[oldest]
        return True

    @rule(tokens=st.lists(_ids, max_size=7))
    def learn(self, tokens: list[int]) -> None:
        self.cache.learn(tokens)
        for key, id_ in ngrams(tokens):
            pairs = self.known.get(key)
            if pairs is None:
                if self._evicted_for(ENTRY_BYTES + PAIR_BYTES):
                    self.known[key] = [[id_, 1]]
                continue
            self.known.move_to_end(key)
            same = next((pair for pair in pairs if pair[0] == id_), None)
            if same is not None:
                same[1] += 1
            elif len(pairs) == 4:
                pairs.remove(min(pairs, key=lambda pair: pair[1]))
                pairs.append([id_, 1])
            elif self._evicted_for(PAIR_BYTES, keep=key):
                pairs.append([id_, 1])

    @rule(key=st.lists(_ids, min_size=1, max_size=4))
    def ask(self, key: list[int]) -> None:
        expected = self.known.get(tuple(key), [])
        assert self.cache.pairs(key) == [tuple(pair) for pair in expected]
        if expected:
            self.known.move_to_end(tuple(key))

    @invariant()
    def within_the_budget(self) -> None:
        assert self.cache.size_bytes == self._price() <= self.budget_bytes
        assert len(self.cache) == len(self.known)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=25)


@pytest.mark.slow
def test_the_price_is_above_what_python_takes() -> None:
    rng = random.Random(1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        cache = NgramCache(budget_bytes=2 << 20)
        for _ in range(400):
            cache.learn([rng.randrange(300, 50_000) for _ in range(20)])
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert cache.size_bytes > 0.99 * (2 << 20)
    assert taken <= cache.size_bytes


def test_drafts_follow_samples_and_shares() -> None:
    cache = NgramCache()
    cache.learn([1, 2, 3, 4, 5])
    # Seen once: enough for keys of three and four, not for those of one and two.
    assert draft_by_counts(cache.pairs, [2], 9, LAX) == ([], [])
    assert draft_by_counts(cache.pairs, [1, 2, 3], 9, LAX) == ([4, 5], [1.0, 1.0])
    assert draft_by_counts(cache.pairs, [1, 2, 3], 9, STRICT) == ([], [])
    assert draft_by_counts(cache.pairs, [1, 2, 3], 1, LAX) == ([4], [1.0])
    for _ in range(3):
        cache.learn([1, 2, 3, 4, 5])
    assert draft_by_counts(cache.pairs, [1], 9, STRICT) == ([2, 3, 4, 5], [1.0] * 4)
    cache.learn([7, 8])
    cache.learn([7, 9])
    assert draft_by_counts(cache.pairs, [7], 9, LAX) == ([], [])  # 50 % of two
    cache.learn([7, 8])
    assert draft_by_counts(cache.pairs, [7], 9, LAX) == ([8], [pytest.approx(2 / 3)])


def test_threads_share_a_cache() -> None:
    cache = NgramCache(budget_bytes=40_000)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            cache.learn([rng.randrange(9) for _ in range(9)])
            draft_by_counts(cache.pairs, [rng.randrange(9)], 5, LAX)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.size_bytes <= 40_000
    sizes = [ENTRY_BYTES + len(flat) // 2 * PAIR_BYTES for _, flat in cache._entries.items()]
    assert cache.size_bytes == sum(sizes)
