"""The cache of words: what is remembered, what goes first, and what it costs."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from specedge.maps.lru import ENTRY_BYTES, ID_BYTES, WordCache

RUNS = st.lists(st.integers(0, 60_000), min_size=1, max_size=6).map(tuple)
PRICE = ENTRY_BYTES + 3 * ID_BYTES


@given(entries=st.lists(st.tuples(RUNS, RUNS), max_size=60), budget=st.integers(0, 12_000))
def test_bytes_are_counted_exactly_and_never_exceed_the_budget(
    entries: list[tuple[tuple[int, ...], tuple[int, ...]]], budget: int
) -> None:
    cache = WordCache(budget)
    for source, target in entries:
        cache.put(source, target)
        assert cache.size_bytes <= budget
        kept = cache.items()
        assert cache.size_bytes == sum(ENTRY_BYTES + ID_BYTES * (len(a) + len(b)) for a, b in kept)
    for source, target in cache.items():
        assert cache.get(source) == target


def test_what_was_not_asked_for_longest_goes_first() -> None:
    cache = WordCache(3 * PRICE)
    for id_ in range(3):
        cache.put((id_, 9), (id_ + 10,))
    assert cache.get((0, 9)) == (10,)
    cache.put((3, 9), (13,))
    assert cache.get((1, 9)) is None
    assert [key for key, _ in cache.items()] == [(2, 9), (0, 9), (3, 9)]


def test_the_price_is_no_less_than_what_python_takes() -> None:
    n = 2000
    cache = WordCache(1 << 30)
    for id_ in range(n):
        cache.put((id_ + 1000, id_ + 5000, 7), (id_ + 90_000,))
    held = sys.getsizeof(cache._entries) + sum(
        sys.getsizeof(a) + sys.getsizeof(b) + 28 * (len(a) + len(b)) for a, b in cache.items()
    )
    assert held <= cache.size_bytes
