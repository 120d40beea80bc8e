"""What followed the last one to four text ids, in memory (`NgramCache`) or in the user's files (`UserCache`).

Both draft by the rule of llama.cpp's n-gram cache: the longest key with enough samples and a large enough share decides
each token, until none does. Both learn only when told to, drop the least recently used first, and may be used from
several threads. Ids are at most `MAX_ID`.

`NgramCache` has a fixed price for a key and for a continuation, above what CPython takes; the sum never exceeds the
budget.

`UserCache` is an sqlite3 database that outlives the process, off unless asked for, because it holds parts of the user's
text; `export` and `erase` show and remove all of it. Several processes may share one. A lock that lasts longer than
five seconds costs what was to be learned, never an error. A database that is broken or of another version is said to
be, and set aside with the ending `.bad`; the next run begins a new one. Not for network file systems.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specedge.errors import ResourceError
from specedge.files import private_folder

from .lru import Lru

MAX_ORDER = 4
MAX_PAIRS = 4
_ID_BITS = 20
MAX_ID = (1 << _ID_BITS) - 1  # as many ids as a byte table may have; four of them still make an integer of 40 bytes
ENTRY_BYTES = 320  # integer key 40, slot and node of the OrderedDict up to 220, empty tuple 56
PAIR_BYTES = 72  # two slots of the tuple, two integers of 28, which hold counts up to a billion
Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Thresholds:
    """When counts decide, by the length of the key from 1: samples needed, and the best id's share in percent."""

    min_samples: tuple[int, int, int, int]
    min_share: tuple[int, int, int, int]


LAX = Thresholds((2, 2, 1, 1), (66, 50, 50, 50))  # for text of this run
STRICT = Thresholds((4, 3, 2, 2), (75, 66, 66, 66))  # for text of other days


def draft_by_counts(
    pairs_of: Callable[[tuple[int, ...]], Pairs], context: Sequence[int], n_draft: int, thresholds: Thresholds
) -> tuple[list[int], list[float]]:
    """Up to `n_draft` ids that may follow `context`, and each one's share of the samples.

    pairs_of: the (id, count) pairs of a key of one to four ids.
    """
    known = list(context[-MAX_ORDER:])
    ids: list[int] = []
    shares: list[float] = []
    while len(ids) < n_draft:
        for n in range(len(known), 0, -1):
            pairs = pairs_of(tuple(known[-n:]))
            samples = sum(count for _, count in pairs)
            id_, count = max(pairs, key=lambda pair: (pair[1], -pair[0]), default=(0, 0))
            is_known = samples >= max(1, thresholds.min_samples[n - 1])
            if is_known and 100 * count >= thresholds.min_share[n - 1] * samples:
                break
        else:
            break
        ids.append(id_)
        shares.append(count / samples)
        known = [*known, id_][-MAX_ORDER:]
    return ids, shares


class NgramCache(Lru[int, tuple[int, ...]]):
    """Keys of at most `longest` ids; `budget_bytes` bounds `size_bytes` always; `version` changes with the contents."""

    def __init__(self, budget_bytes: int = 4 << 20, *, longest: int = MAX_ORDER) -> None:
        # Keys and pairs are packed: an integer, and ids and counts in turn.
        super().__init__(budget_bytes, lambda _, flat: ENTRY_BYTES + len(flat) // 2 * PAIR_BYTES)
        self._longest = longest
        self.version = 0

    def learn(self, tokens: Sequence[int], n_known: int = 0) -> None:
        """Count the n-grams of `tokens`, the text ids of one window behind `n_known` that were counted before."""
        with self.lock:
            self.version += 1
            for key, id_ in ngrams(tokens, n_known, self._longest):
                pairs = dict(self.pairs(key))
                if id_ not in pairs and len(pairs) == MAX_PAIRS:
                    del pairs[min(pairs, key=lambda known: pairs[known])]  # the rarest, of equals the oldest
                pairs[id_] = pairs.get(id_, 0) + 1
                self.put(_packed(key), tuple([value for pair in pairs.items() for value in pair]))

    def pairs(self, key: Sequence[int]) -> list[tuple[int, int]]:
        """The (id, count) pairs after `key`, one to four ids; the entry becomes the most recently used."""
        flat = self.get(_packed(key)) or ()
        return list(zip(flat[::2], flat[1::2], strict=True))


def ngrams(tokens: Sequence[int], n_known: int = 0, longest: int = MAX_ORDER) -> Iterator[tuple[tuple[int, ...], int]]:
    """Every key of one to `longest` ids in `tokens` with the id after it, if that is not among the first `n_known`."""
    for at in range(n_known, len(tokens)):
        for n in range(1, min(longest, at) + 1):
            yield tuple(tokens[at - n : at]), tokens[at]


def _packed(key: Sequence[int]) -> int:
    packed = len(key)
    for id_ in key:
        packed = packed << _ID_BITS | id_
    return packed


SCHEMA_VERSION = 2
USER_BUDGET_BYTES = 16 << 20
_BUSY_S = 5.0
_WAL_BYTES = 1 << 20
_FULL_SHARE = 0.8  # of the pages in use before anything is evicted
_EVICTED_PART = 4  # a fourth of the rows
_DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the second when a message quotes a damaged file

_SCHEMA = """
CREATE TABLE IF NOT EXISTS gram (
    vocabulary BLOB NOT NULL, key BLOB NOT NULL, id INTEGER NOT NULL, count INTEGER NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (vocabulary, key, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS gram_used ON gram (used);
"""

# A database may hold anything that another program put there.
_SOUND = f"""
typeof(vocabulary) = 'blob' AND typeof(key) = 'blob' AND length(key) IN (4, 8, 12, 16)
AND typeof(id) = 'integer' AND id BETWEEN 0 AND {MAX_ID} AND typeof(count) = 'integer' AND count > 0
"""

_ADD = """
INSERT INTO gram VALUES (?, ?, ?, 1, ?)
ON CONFLICT (vocabulary, key, id) DO UPDATE SET count = min(count + 1, 1000000), used = excluded.used
"""

_log = logging.getLogger("specedge.maps.ngram_cache")


class UserCache(contextlib.AbstractContextManager["UserCache"]):
    """An open cache for one vocabulary; close it or use it in a `with`.

    A cache that cannot be used gives one warning, and then knows and learns nothing.
    """

    def __init__(
        self, path: str | os.PathLike[str], fingerprint: bytes, *, budget_bytes: int = USER_BUDGET_BYTES
    ) -> None:
        self.path = Path(path)
        self._fingerprint = fingerprint
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        with self._harmless():
            private_folder(self.path.parent)
            self._connection = _connect(self.path, budget_bytes)

    def learn(self, tokens: Sequence[int], n_known: int = 0) -> None:
        """As `NgramCache.learn`."""
        rows = [(self._fingerprint, _packed_bytes(key), id_, int(time.time())) for key, id_ in ngrams(tokens, n_known)]
        with self._lock, self._harmless():
            if self._connection is None or not rows:
                return
            try:
                with self._connection:
                    self._connection.execute("BEGIN IMMEDIATE")
                    _evict(self._connection)
                    self._connection.executemany(_ADD, rows)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise

    def pairs(self, key: Sequence[int]) -> list[tuple[int, int]]:
        """The (id, count) pairs after `key`, one to four ids."""
        with self._lock, self._harmless():
            if self._connection is not None:
                query = f"SELECT id, count FROM gram WHERE vocabulary = ? AND key = ? AND {_SOUND}"
                return self._connection.execute(query, (self._fingerprint, _packed_bytes(key))).fetchall()
        return []

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """A cache that fails gives one warning and is not used again: it must never stop a transcription."""
        try:
            yield
        except (*_DATABASE_ERRORS, OSError) as error:
            self.close()
            aside = ""
            if type(error) in (sqlite3.DatabaseError, UnicodeDecodeError):  # the file itself is to blame
                bad = self.path.with_name(self.path.name + ".bad")
                with contextlib.suppress(OSError):
                    os.replace(self.path, bad)
                    aside = f"; it is now {bad.name}"
                for ending in ("-wal", "-shm"):
                    with contextlib.suppress(OSError):
                        os.unlink(f"{self.path}{ending}")
            message = "%s cannot be used as a cache (%s): nothing is learned in this run%s"
            _log.warning(message, self.path, error, aside)


def _evict(connection: sqlite3.Connection) -> None:
    """Drop the least recently used rows when the file is nearly full."""
    pages, limit, free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "max_page_count", "freelist_count")
    )
    if pages - free >= _FULL_SHARE * limit:
        query = "SELECT vocabulary, key, id FROM gram ORDER BY used, count LIMIT (SELECT count(*) FROM gram) / ?"
        gone = connection.execute(query, (_EVICTED_PART,)).fetchall()
        connection.executemany("DELETE FROM gram WHERE vocabulary = ? AND key = ? AND id = ?", gone)


def _connect(path: str | os.PathLike[str], budget_bytes: int | None = None) -> sqlite3.Connection:
    """Open a private database, made if it is new; budget_bytes: to learn into, None to read it as it is.

    Raises sqlite3.DatabaseError for another version or no database, UnicodeDecodeError for some damaged ones.
    """
    with contextlib.suppress(OSError):  # it is there, or opening it says what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))  # sqlite3 gives its side files the same mode
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        if budget_bytes is not None:
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            with contextlib.suppress(sqlite3.OperationalError):  # another process does it, or will
                connection.execute("PRAGMA journal_mode = WAL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version != SCHEMA_VERSION and (version or n_tables):
            raise sqlite3.DatabaseError(f"version {version}, expected {SCHEMA_VERSION}")
        if not version:
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        connection.execute("SELECT vocabulary, key, id, count, used FROM gram LIMIT 1").fetchall()
        if budget_bytes is not None:
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count = {max(budget_bytes // page_bytes, 1)}")
    except BaseException:
        connection.close()
        raise
    return connection


def _packed_bytes(key: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(key)}I", *key)


def export(path: str | os.PathLike[str]) -> Iterator[tuple[bytes, tuple[int, ...], int, int]]:
    """Everything in the cache: vocabulary, key, id, count; nothing where there is no file.

    Raises ResourceError where the file is no usable cache.
    """
    if not os.path.exists(path):
        return
    try:
        with contextlib.closing(_connect(path)) as connection:
            query = f"SELECT vocabulary, key, id, count FROM gram WHERE {_SOUND} ORDER BY 1, 2, 3"
            for vocabulary, key, id_, count in connection.execute(query):
                yield vocabulary, struct.unpack(f"<{len(key) // 4}I", key), id_, count
    except _DATABASE_ERRORS as error:
        raise ResourceError(
            f"{os.fspath(path)}: no usable cache ({error}); `specedge disk --clear learned` removes it"
        ) from None


def erase(path: str | os.PathLike[str]) -> None:
    """Remove the cache with its side files. Raises OSError if that fails."""
    for ending in ("", "-wal", "-shm", ".bad"):  # the last is what was set aside
        Path(f"{os.fspath(path)}{ending}").unlink(missing_ok=True)
