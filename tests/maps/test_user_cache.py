"""The cache that outlives the process: kept, bounded, shared, set aside when broken, shown, exported, erased."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from specedge.errors import ResourceError
from specedge.maps.ngram_cache import MAX_ID, STRICT, UserCache, draft_by_counts, erase, export

VOCABULARY, OTHER = bytes(32), bytes(range(32))
TEXT = [1, 2, 3, 4, 5]


def entries(path: Path) -> dict[bytes, int]:
    """How many entries a cache has, by vocabulary."""
    return dict(Counter(vocabulary for vocabulary, *_ in export(path)))


def _filled(path: Path, times: int = 3) -> Path:
    with UserCache(path, VOCABULARY) as cache:
        for _ in range(times):
            cache.learn(TEXT)
    return path


def test_what_was_learned_is_there_the_next_time(tmp_path: Path) -> None:
    path = _filled(tmp_path / "deep" / "c.sqlite")
    with UserCache(path, VOCABULARY) as cache:
        assert cache.pairs([1, 2]) == [(3, 3)]
        assert draft_by_counts(cache.pairs, [1, 2], 9, STRICT) == ([3, 4, 5], [1.0] * 3)
        assert cache.pairs([9]) == cache.pairs([MAX_ID]) == []
    with UserCache(path, OTHER) as cache:
        assert cache.pairs([1, 2]) == []
        cache.learn([7, 8])
    assert entries(path) == {VOCABULARY: 10, OTHER: 1}
    assert (VOCABULARY, (1, 2), 3, 3) in list(export(path))
    erase(path)
    assert not list(path.parent.iterdir())
    erase(path)
    assert entries(path) == {} and list(export(path)) == []


def test_ids_beyond_two_bytes_are_kept_beside_the_others(tmp_path: Path) -> None:
    text = [5, 0x10000, 151_642, 5, 0xFFFF, MAX_ID, 7]
    with UserCache(tmp_path / "c.sqlite", VOCABULARY) as cache:
        cache.learn(text)
        for at in range(1, len(text)):
            for n in range(1, min(4, at) + 1):
                if text[at - n : at] != [5]:
                    assert cache.pairs(text[at - n : at]) == [(text[at], 1)]
        assert sorted(cache.pairs([5])) == [(0xFFFF, 1), (0x10000, 1)]
        assert cache.pairs([7]) == []
    keys = {key for _, key, _, _ in export(tmp_path / "c.sqlite")}
    assert (5, 0x10000) in keys and (5, 0xFFFF) in keys and (151_642, 5, 0xFFFF, MAX_ID) in keys


def test_the_budget_holds_and_the_newest_stays(tmp_path: Path) -> None:
    path, rng, budget_bytes = tmp_path / "c.sqlite", random.Random(2), 256 << 10
    with UserCache(path, VOCABULARY, budget_bytes=budget_bytes) as cache:
        for _ in range(60):
            tokens = [rng.randrange(50_000) for _ in range(60)]
            cache.learn(tokens)
            assert path.stat().st_size <= budget_bytes
        assert cache.pairs(tokens[:1]) == [(tokens[1], 1)]
        n_entries = sum(entries(path).values())
        assert 1000 < n_entries < 60 * 59 * 4 // 2


BROKEN = {
    "zeroed": lambda data: bytes(len(data)),
    "truncated": lambda data: data[: len(data) // 2],
    "random": lambda data: random.Random(3).randbytes(len(data)),
    "text": lambda data: b"not a database, but long enough to look like one" * 9,
    "inside": lambda data: data[:4096] + random.Random(4).randbytes(len(data) - 4096),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_cache_is_set_aside_once(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    path = _filled(tmp_path / "c.sqlite")
    data = BROKEN[how](path.read_bytes())
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING, "specedge"):
        with UserCache(path, VOCABULARY) as cache:
            cache.pairs([1])
            cache.learn(TEXT)
        with UserCache(path, VOCABULARY) as cache:
            cache.learn(TEXT)
            assert cache.pairs([1])[0][0] == 2
    assert (tmp_path / "c.sqlite.bad").read_bytes()[:64] == data[:64]
    assert sum("is now c.sqlite.bad" in r.getMessage() for r in caplog.records) == 1
    erase(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("schema", ["PRAGMA user_version = 7", "CREATE TABLE gram (x)"])
def test_another_version_is_set_aside(tmp_path: Path, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "c.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(schema)
    connection.close()
    with UserCache(path, VOCABULARY) as cache:
        assert not cache.pairs([1])
    with UserCache(path, VOCABULARY) as cache:
        cache.learn(TEXT)
        assert cache.pairs([1]) == [(2, 1)]
    assert (tmp_path / "c.sqlite.bad").exists() and len(caplog.records) == 1


def test_values_of_strangers_are_passed_over(tmp_path: Path) -> None:
    path = _filled(tmp_path / "c.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE gram SET id = 'x' WHERE key = ?", (b"\1\0\0\0",))
    connection.execute("UPDATE gram SET count = -3 WHERE key = ?", (b"\2\0\0\0",))
    connection.commit()
    connection.close()
    with UserCache(path, VOCABULARY) as cache:
        assert cache.pairs([1]) == cache.pairs([2]) == []


def test_values_of_strangers_are_neither_shown_nor_exported(tmp_path: Path) -> None:
    path = _filled(tmp_path / "c.sqlite")
    shown, exported = entries(path), list(export(path))
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        rows = [(None, b"\1\0\0\0", 1, 1, 1), (VOCABULARY, b"", 1, 1, 1), (VOCABULARY, b"\7\0\0\0", "x", 1, 1)]
        rows += [(VOCABULARY, b"\7\0\0\0", 1 << 40, 1, 1), (b"other", b"\7\0\0\0", 1, None, "then")]
        connection.execute("ALTER TABLE gram RENAME TO ours")
        connection.execute("CREATE TABLE gram (vocabulary, key, id, count, used)")
        connection.execute("INSERT INTO gram SELECT * FROM ours")
        connection.executemany("INSERT INTO gram VALUES (?, ?, ?, ?, ?)", rows)
    assert list(export(path)) == exported
    assert entries(path).keys() == shown.keys()


def test_a_file_whose_schema_is_no_text_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """sqlite's message quotes the schema, and then Python raises UnicodeDecodeError instead of sqlite3.Error."""
    path = _filled(tmp_path / "c.sqlite")
    damaged = path.read_bytes().replace(b"id INTEGER NOT NULL,", b"id INTEGER NOT NUL\xff\xff", 1)
    path.write_bytes(damaged)
    with pytest.raises(ResourceError, match="no usable cache"):
        list(export(path))
    with UserCache(path, VOCABULARY) as cache:
        assert not cache.pairs([1])
    with UserCache(path, VOCABULARY) as cache:
        cache.learn(TEXT)
        assert cache.pairs([1])[0][0] == 2
    assert (tmp_path / "c.sqlite.bad").read_bytes() == damaged and len(caplog.records) == 1


def test_a_place_that_cannot_be_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no database " * 99)
    for path in (tmp_path / "file" / "c.sqlite", tmp_path):
        caplog.clear()
        with UserCache(path, VOCABULARY) as cache:
            cache.learn(TEXT)
            assert draft_by_counts(cache.pairs, [1, 2], 5, STRICT) == ([], [])
        assert len(caplog.records) == 1
    with pytest.raises(ResourceError, match="no usable cache"):
        list(export(tmp_path / "file"))


def _learners(path: Path, n_processes: int, n_times: int) -> None:
    """Processes that learn the same at once; none of them may complain."""
    code = (
        "import sys; from specedge.maps.ngram_cache import UserCache\n"
        "with UserCache(sys.argv[1], bytes(32)) as cache:\n"
        "    for _ in range(int(sys.argv[2])): cache.learn([1, 2, 3])\n"
        "    assert cache.pairs([1])\n"
    )
    command = [sys.executable, "-c", code, os.fspath(path), str(n_times)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(n_processes)]
    for process in processes:
        _, complaints = process.communicate(timeout=600)
        assert process.returncode == 0 and not complaints, complaints.decode()


def test_several_processes_learn_into_one_cache(tmp_path: Path) -> None:
    """All start at once on no file: nothing is lost, nobody complains."""
    path = tmp_path / "c.sqlite"
    _learners(path, 4, 20)
    with UserCache(path, VOCABULARY) as cache:
        assert cache.pairs([1, 2]) == [(3, 80)]


@pytest.mark.stress
def test_eight_processes_learn_for_long(tmp_path: Path) -> None:
    """Who waits for more than five seconds gives up what it was to learn, but says nothing and breaks nothing."""
    path = tmp_path / "c.sqlite"
    _learners(path, 8, 300)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with UserCache(path, VOCABULARY) as cache:
        ((id_, count),) = cache.pairs([1, 2])
        assert id_ == 3 and 2000 < count <= 2400
    assert [path.name for path in tmp_path.iterdir()] == ["c.sqlite"]
