"""How words of one vocabulary are spelt in another: OmniDraft's n-gram cache (arXiv 2507.02659).

The paper maps several draft tokens to one target token; here both sides may be several. Byte-pair encoding never merges
across words, so a word is spelt the same in every context. The least recently used goes first. An entry has a fixed
price above what CPython takes, and the sum never exceeds the budget. `save` writes parts of the user's words to an
sqlite3 database, and nothing else does. May be used from several threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from specedge.files import private_folder

from .ngram_cache import DATABASE_ERRORS, open_database, query_database

__all__ = ["ENTRY_BYTES", "ID_BYTES", "WordCache", "everything"]

ENTRY_BYTES = 376  # two tuples 56 each, slot and node of the OrderedDict up to 220, rounding
ID_BYTES = 36  # a slot of 8 and an integer of 28
MAX_IDS = 64

_SCHEMA = """
CREATE TABLE IF NOT EXISTS word (
    pair BLOB NOT NULL, source BLOB NOT NULL, target BLOB NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (pair, source)
) WITHOUT ROWID;
"""

_log = logging.getLogger("specedge.maps.word_cache")
Ids = tuple[int, ...]


class WordCache:
    """`budget_bytes` bounds `size_bytes` always; `n_hits` and `n_misses` count calls of `get`."""

    def __init__(self, budget_bytes: int = 4 << 20) -> None:
        self.budget_bytes = budget_bytes
        self.n_hits = self.n_misses = 0
        self._entries: OrderedDict[Ids, Ids] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        return self._size

    def get(self, source: Ids) -> Ids | None:
        """`source` in the other vocabulary, None if it is not known; it becomes the most recently used."""
        with self._lock:
            found = self._entries.get(source)
            if found is None:
                self.n_misses += 1
                return None
            self.n_hits += 1
            self._entries.move_to_end(source)
            return found

    def put(self, source: Ids, target: Ids) -> None:
        """Remember an entry of 1 to `MAX_IDS` ids on both sides; others are ignored."""
        if not (1 <= len(source) <= MAX_IDS and 1 <= len(target) <= MAX_IDS):
            return
        price = _price(source, target)
        with self._lock:
            old = self._entries.pop(source, None)
            self._size -= 0 if old is None else _price(source, old)
            while self._entries and self._size + price > self.budget_bytes:
                gone, spelt = self._entries.popitem(last=False)
                self._size -= _price(gone, spelt)
            if self._size + price <= self.budget_bytes:
                self._entries[source] = target
                self._size += price

    def items(self) -> list[tuple[Ids, Ids]]:
        """All entries, the least recently used first."""
        with self._lock:
            return list(self._entries.items())

    def load(self, path: str | os.PathLike[str], pair: bytes, *, n_source: int, n_target: int) -> int:
        """Add the saved entries of `pair` whose ids are below `n_source` and `n_target`; returns how many.

        A file that is missing gives nothing; one that is locked, broken or of another version, one warning.
        """
        if not os.path.exists(path):
            return 0
        n_found = 0
        with _harmless(path), contextlib.closing(open_database(path, _SCHEMA)) as connection:
            rows = connection.execute("SELECT source, target FROM word WHERE pair = ? ORDER BY used", (pair,))
            for source, target in rows:
                spelt, means = _unpacked(source, n_source), _unpacked(target, n_target)
                if spelt and means:
                    self.put(spelt, means)
                    n_found += 1
        return n_found

    def save(self, path: str | os.PathLike[str], pair: bytes) -> bool:
        """Replace the saved entries of `pair` by these, all or none; whether it could be written."""
        rows = [(pair, _packed(key), _packed(value), used) for used, (key, value) in enumerate(self.items())]
        is_kept = False
        with _harmless(path):
            private_folder(Path(path).parent)
            with contextlib.closing(open_database(path, _SCHEMA)) as connection, connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("DELETE FROM word WHERE pair = ?", (pair,))
                connection.executemany("INSERT INTO word VALUES (?, ?, ?, ?)", rows)
            is_kept = True
        return is_kept


def everything(path: str | os.PathLike[str]) -> Iterator[tuple[bytes, Ids, Ids]]:
    """All saved entries: pair, source and target. Raises ResourceError where the file is no cache of words."""
    query = "SELECT pair, source, target FROM word ORDER BY pair, used"
    for pair, source, target in query_database(path, _SCHEMA, query):
        spelt, means = _unpacked(source, 1 << 32), _unpacked(target, 1 << 32)
        if isinstance(pair, bytes) and spelt and means:
            yield pair, spelt, means


def _price(source: Ids, target: Ids) -> int:
    return ENTRY_BYTES + ID_BYTES * (len(source) + len(target))


def _packed(ids: Ids) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


def _unpacked(data: object, limit: int) -> Ids | None:
    """A database may hold anything that another program put there."""
    if not isinstance(data, bytes) or len(data) % 4 or not 4 <= len(data) <= 4 * MAX_IDS:
        return None
    ids = struct.unpack(f"<{len(data) // 4}I", data)
    return ids if max(ids) < limit else None


@contextlib.contextmanager
def _harmless(path: str | os.PathLike[str]) -> Iterator[None]:
    """A file that cannot be read or written gives one warning: it must never stop a transcription."""
    try:
        yield
    except (*DATABASE_ERRORS, OSError) as error:
        _log.warning("%s cannot be used as a cache of words: %s", os.fspath(path), error)
