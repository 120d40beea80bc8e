"""The cache of words: what is remembered, what goes first, what it costs, and that a bad file costs nothing."""

from __future__ import annotations

import logging
import sqlite3
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.errors import ResourceError
from specedge.maps.word_cache import ENTRY_BYTES, ID_BYTES, WordCache, everything
from specedge.models import store
from specedge.runtime.cli.main import main
from specedge.runtime.papers.across_words import direct_map

PAIR = b"p" * 32
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
    assert (cache.n_hits, cache.n_misses) == (1, 1)


def test_the_price_is_no_less_than_what_python_takes() -> None:
    n = 2000
    cache = WordCache(1 << 30)
    for id_ in range(n):
        cache.put((id_ + 1000, id_ + 5000, 7), (id_ + 90_000,))
    held = sys.getsizeof(cache._entries) + sum(
        sys.getsizeof(a) + sys.getsizeof(b) + 28 * (len(a) + len(b)) for a, b in cache.items()
    )
    assert held <= cache.size_bytes


def test_runs_that_are_too_long_or_empty_are_not_kept() -> None:
    cache = WordCache()
    cache.put((), (1,))
    cache.put((1,), ())
    cache.put(tuple(range(65)), (1,))
    assert len(cache) == 0


def test_words_outlive_the_process_by_pair(tmp_path: Path) -> None:
    path = tmp_path / "new" / "words.sqlite"
    cache = WordCache()
    cache.put((1, 2), (3,))
    cache.put((4,), (5, 6))
    cache.get((1, 2))
    assert cache.save(path, PAIR) and cache.save(path, b"other")
    again = WordCache()
    assert again.load(path, PAIR, n_source=10, n_target=10) == 2
    assert again.items() == cache.items()
    assert WordCache().load(path, b"unknown", n_source=10, n_target=10) == 0
    assert WordCache().load(path, PAIR, n_source=4, n_target=10) == 1  # (4,) is no id there
    small = WordCache(PRICE)
    small.load(path, PAIR, n_source=10, n_target=10)
    assert small.items() == cache.items()[-1:] and small.size_bytes <= PRICE
    again.put((7,), (8,))
    assert again.save(path, PAIR)
    assert WordCache().load(path, PAIR, n_source=10, n_target=10) == 3


def test_there_is_nothing_to_load_and_no_warning_without_a_file(tmp_path: Path) -> None:
    assert WordCache().load(tmp_path / "none", PAIR, n_source=1, n_target=1) == 0
    assert not (tmp_path / "none").exists()


def test_a_file_that_is_no_cache_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"not a database, but long enough to look like one" * 40)
    newer = tmp_path / "newer"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 9")
        connection.execute("CREATE TABLE x (y)")
    connection.close()
    for path in (bad, newer):
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            assert WordCache().load(path, PAIR, n_source=9, n_target=9) == 0
            assert len(caplog.records) == 1
        before = path.read_bytes()
        assert not WordCache().save(path, PAIR)
        assert path.read_bytes() == before


def test_all_of_a_file_can_be_seen_and_removed_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path))
    cache = WordCache()
    cache.put((1, 2), (3,))
    cache.save(store.word_cache_path(), PAIR)
    assert list(everything(store.word_cache_path())) == [(PAIR, (1, 2), (3,))]
    assert main(["disk", "show"]) == 0
    assert "1 words" in capsys.readouterr().out
    assert main(["disk", "export"]) == 0
    assert '"draft": [1, 2], "target": [3]' in capsys.readouterr().out
    assert main(["disk", "clear", "learned"]) == 0
    assert not store.word_cache_path().exists() and list(everything(store.word_cache_path())) == []
    store.word_cache_path().write_bytes(b"no database at all, but a file" * 50)
    with pytest.raises(ResourceError, match="specedge disk clear learned"):
        list(everything(store.word_cache_path()))


@pytest.mark.parametrize(
    "row", [(b"\1", b"\1\0\0\0"), (b"\1\0\0\0", b""), (b"\1\0\0\0", b"\xff\xff\0\0"), ("text", b"\1\0\0\0")]
)
def test_rows_of_another_program_are_passed_over(tmp_path: Path, row: tuple[object, object]) -> None:
    path = tmp_path / "words.sqlite"
    cache = WordCache()
    cache.put((1,), (2,))
    cache.save(path, PAIR)
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT OR REPLACE INTO word VALUES (?, ?, ?, 5)", (PAIR, *row))
    connection.close()
    again = WordCache()
    assert again.load(path, PAIR, n_source=100, n_target=100) <= 1


def test_tokens_are_the_same_by_their_bytes() -> None:
    source, target = [b"a", b"\xff", b" the", b"", b"zz"], [b"\xff", b" the", b"", b"a"]
    assert direct_map(source, target).tolist() == [3, 0, 1, -1, -1]


def test_a_file_whose_schema_is_no_text_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """sqlite's message quotes the schema, and then Python raises UnicodeDecodeError instead of sqlite3.Error."""
    path = tmp_path / "words.sqlite"
    cache = WordCache()
    cache.put((1,), (2,))
    assert cache.save(path, PAIR)
    path.write_bytes(path.read_bytes().replace(b"used INTEGER NOT NULL,", b"used INTEGER NOT NUL\xff\xff", 1))
    assert WordCache().load(path, PAIR, n_source=10, n_target=10) == 0 and not cache.save(path, PAIR)
    assert len(caplog.records) == 2
    with pytest.raises(ResourceError, match="no usable cache"):
        list(everything(path))
