"""How words of one vocabulary are spelt in another: runs of ids to runs of ids, bounded in bytes (arXiv 2507.02659).

OmniDraft's n-gram cache, many to many. A word, a piece that byte-pair encoding never merges across, is spelt the same
wherever it stands, so an entry needs no context. The least recently used goes first. Bytes are accounted exactly by a
fixed price that is above what CPython takes: `ENTRY_BYTES` for an entry and `ID_BYTES` for each id in it; the sum never
exceeds the budget. `load` and `save` keep entries of one pair of vocabularies in an sqlite3 database, which parts of
the user's words can be read from: nothing is saved unless somebody calls `save`.
Does not know: text, models, where the file is. Safe to use from several threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from specedge.errors import ResourceError
from specedge.files import private_file, private_folder

__all__ = ["ENTRY_BYTES", "ID_BYTES", "WordCache", "everything"]

ENTRY_BYTES = 376  # two tuples 56 each, slot and node of the OrderedDict up to 220, rounding
ID_BYTES = 36  # a slot of 8 and an integer of 28
MAX_IDS = 64
_SCHEMA_VERSION = 1
_BUSY_S = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS word (
    pair BLOB NOT NULL, source BLOB NOT NULL, target BLOB NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (pair, source)
) WITHOUT ROWID;
"""

_log = logging.getLogger("specedge.maps.word_cache")
Ids = tuple[int, ...]


class WordCache:
    """The cache; `budget_bytes` bounds `size_bytes` always. `n_hits` and `n_misses` count what `get` was asked."""

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
        """The price of all that is kept."""
        return self._size

    def get(self, source: Ids) -> Ids | None:
        """What `source` is in the other vocabulary, None if it is not known; asked for, it is the last to go."""
        with self._lock:
            found = self._entries.get(source)
            if found is None:
                self.n_misses += 1
                return None
            self.n_hits += 1
            self._entries.move_to_end(source)
            return found

    def put(self, source: Ids, target: Ids) -> None:
        """Remember an entry, if it is one that fits: 1 to `MAX_IDS` ids on both sides."""
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
        """Add what is kept for `pair`; how many entries that was. Ids from `n_source` and `n_target` on are refused.

        A file that is missing, locked, broken or of another version gives nothing, with one warning if it is there.
        """
        if not os.path.exists(path):
            return 0
        n_found = 0
        with _harmless(path), contextlib.closing(_connect(path)) as connection:
            rows = connection.execute("SELECT source, target FROM word WHERE pair = ? ORDER BY used", (pair,))
            for source, target in rows:
                spelt, means = _unpacked(source, n_source), _unpacked(target, n_target)
                if spelt and means:
                    self.put(spelt, means)
                    n_found += 1
        return n_found

    def save(self, path: str | os.PathLike[str], pair: bytes) -> bool:
        """Keep what is here as all that is known of `pair`, whole or not at all; whether it could be written."""
        rows = [(pair, _packed(key), _packed(value), used) for used, (key, value) in enumerate(self.items())]
        is_kept = False
        with _harmless(path):
            private_folder(Path(path).parent)
            with contextlib.closing(_connect(path)) as connection, connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("DELETE FROM word WHERE pair = ?", (pair,))
                connection.executemany("INSERT INTO word VALUES (?, ?, ?, ?)", rows)
            is_kept = True
        return is_kept


def everything(path: str | os.PathLike[str]) -> Iterator[tuple[bytes, Ids, Ids]]:
    """All that is kept: pair, source and target. Raises ResourceError where the file is no cache of words."""
    if not os.path.exists(path):
        return
    try:
        with contextlib.closing(_connect(path)) as connection:
            for pair, source, target in connection.execute("SELECT pair, source, target FROM word ORDER BY pair, used"):
                spelt, means = _unpacked(source, 1 << 32), _unpacked(target, 1 << 32)
                if isinstance(pair, bytes) and spelt and means:
                    yield pair, spelt, means
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the second comes of messages that quote a damaged file
        raise ResourceError(
            f"{os.fspath(path)}: no usable cache ({error}); `specedge cache clear` removes it"
        ) from None


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


def _connect(path: str | os.PathLike[str]) -> sqlite3.Connection:
    private_file(path, make=True)
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version != _SCHEMA_VERSION and (version or n_tables):
            raise sqlite3.DatabaseError(f"version {version}, expected {_SCHEMA_VERSION}")
        if not version:
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _harmless(path: str | os.PathLike[str]) -> Iterator[None]:
    """What cannot be read or written costs what was learned, never a transcription."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
        _log.warning("%s cannot be used as a cache of words: %s", os.fspath(path), error)
