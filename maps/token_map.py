"""A token map opened for reading (Token Map Drafting, arXiv 2507.21522; format: docs/tmap-format.md).

`TokenMap` gives what followed the last few ids: candidates with counts and confidences.

A reader keeps the map that it opened, whoever replaces the file. A map up to 64 MB is read, a larger one is mapped, and
must not be overwritten in place.

`NgramIndex` gives every id that may follow a few ids, for a CTC search. The keys of a map are its corpus's n-grams;
sorted by all but their last id, they tell all that came next. It takes about 14 bytes of memory for each key.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from specedge.errors import MapError, MapNotFoundError

from .tmap_format import (
    CONF_BLOCK,
    COUNTS,
    END,
    END_ID,
    MAX_ORDER,
    REMEDY,
    Section,
    check_contents,
    parse_head,
    parse_meta,
)

READ_BYTES = 64 << 20


def held_bytes(path: str | os.PathLike[str]) -> bytes | mmap.mmap:
    """All bytes of a file, mapped where there are many. Raises OSError."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a pipe would wait for a writer
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size > READ_BYTES else file.read(size)


_NONE = range(0)


class Candidate(NamedTuple):
    """A continuation seen in the corpus.

    tokens: text ids; count: about how often all of them followed the key; confidences: for each token, the share of
    occurrences in which it came next, 0 to 1. With `ends`, the sentence ended after the last token, and `confidences`
    has one entry more, for that end.
    """

    tokens: tuple[int, ...]
    count: int  # type: ignore[assignment]  # a tuple's own method of this name is of no use here
    confidences: tuple[float, ...]
    ends: bool


class TokenMap(contextlib.AbstractContextManager["TokenMap"]):
    """An open map; make one with `TokenMap.open`, close it or use it in a `with`. May be used from several threads.

    A context is the ids since the start of a sentence; that start stands for the id before the first. Ids outside the
    vocabulary find nothing. In keys `end` stands for the start of a sentence.
    """

    def __init__(self, data: bytes | mmap.mmap, where: str) -> None:
        self.where = where
        self._data = data
        self._whole = memoryview(data)
        self._views: list[memoryview] = []
        self._sections, self.n_orders, self.n_text, self.fingerprint = parse_head(self._whole, where)
        self.verify()
        self._meta = parse_meta(bytes(self._slice(self._sections["meta"])), where)
        self._index()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, fingerprint: bytes | None = None) -> Self:
        """Open the file `path`; with `fingerprint` (see `text_fingerprint`), refuse another vocabulary's.

        Raises MapError when the file is missing, no token map, damaged, of another version or for another vocabulary;
        """
        where = os.fspath(path)
        try:
            data = held_bytes(path)
        except (OSError, ValueError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            kind = MapNotFoundError if isinstance(error, FileNotFoundError) else MapError
            raise kind(f"cannot read the token map {where}: {reason}; check the path") from None
        if not len(data):
            raise MapError(f"{where}: the file is empty, expected a token map; {REMEDY}")
        try:
            opened = cls(data, where)
        except BaseException:
            _give_back(data)
            raise
        if fingerprint is not None and fingerprint != opened.fingerprint:
            found = opened.fingerprint.hex()[:12]
            opened.close()
            raise MapError(
                f"{where}: made for another vocabulary ({found}, expected {fingerprint.hex()[:12]}); "
                "build it again with -m and the model it shall serve"
            )
        return opened

    def find(self, context: Sequence[int], n: int) -> range:
        """The numbers of the candidates, best first, for the last `n` ids of `context`; empty if there are none."""
        if not 0 < n <= min(self.n_orders, len(context) + 1):
            return _NONE
        keys, csr, first, old = self._orders[n]
        n_packed = min(n, MAX_ORDER - 1)
        key = _packed(context, n_packed, self._ids)
        if key is None:
            return _NONE
        row = min(key >> 16 * (n_packed - 1), len(csr) - 2)  # the last row is the start's, whose keys are others
        stop: int = csr[row + 1]
        at: int = bisect_left(keys, key, csr[row], stop)
        if n == MAX_ORDER:
            oldest = _packed(context[: 1 - MAX_ORDER], 1, self._ids)
            if oldest is None:
                return _NONE
            stop = bisect_right(keys, key, at, stop)
            at = bisect_left(old, oldest, at, stop)
            is_there = at < stop and old[at] == oldest
        else:
            is_there = at < stop and keys[at] == key
        return range(first[at], first[at + 1]) if is_there else _NONE

    def candidate(self, number: int) -> Candidate:
        """The candidate of that number, as `find` gives them."""
        ids, count, confidences, _ = self.raw_candidate(number)
        ends = ids[-1] == self.end
        return Candidate(ids[:-1] if ends else ids, COUNTS[count], tuple([c / 255 for c in confidences]), ends)

    def raw_candidate(self, number: int) -> tuple[tuple[int, ...], int, tuple[int, ...], int]:
        """The candidate as stored: ids with `end`, count and confidences quantised, place in the pool."""
        start, block = self._ref[number], number // CONF_BLOCK
        tokens = tuple(self._pool[start : start + self._len[number]])
        if END in tokens:
            tokens = tokens[: tokens.index(END) + 1]  # the last place in any map that `build` wrote
        at = self._confat[block] + sum(self._len[block * CONF_BLOCK : number])
        return self._said(tokens), self._count[number], tuple(self._conf[at : at + len(tokens)]), start

    def _said(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The ids of tokens as they are stored."""
        ids = self._ids
        return tokens if ids is None else tuple([END_ID if token == END else ids[token] for token in tokens])

    @property
    def end(self) -> int:
        """What stands for the start of a sentence in keys and for its end in raw candidates; no id is as high."""
        return END if self._ids is None else END_ID

    def ids(self) -> NDArray[np.uint32] | None:
        """The id of each stored token, rising, a copy; None where tokens are ids."""
        return None if self._ids is None else np.array(self._ids, np.uint32)

    def lookup(self, context: Sequence[int], n: int) -> tuple[Candidate, ...]:
        """The candidates, best first, for the last `n` ids of `context`."""
        return tuple([self.candidate(number) for number in self.find(context, n)])

    def longest(self, context: Sequence[int]) -> tuple[int, tuple[Candidate, ...]]:
        """The longest key at the end of `context` that the map has: its length and candidates; (0, ()) if none."""
        for n in range(min(self.n_orders, len(context) + 1), 0, -1):
            if found := self.lookup(context, n):
                return n, found
        return 0, ()

    def items(self, n: int) -> Iterator[tuple[tuple[int, ...], range]]:
        """All keys of `n` ids in the order of the file, oldest id first, with the numbers of their candidates."""
        keys, _, first, old = self._orders[n]
        n_packed = min(n, MAX_ORDER - 1)
        for at, key in enumerate(keys):
            packed = tuple([key >> 16 * i & 0xFFFF for i in range(n_packed)])
            key_tokens = packed if n < MAX_ORDER else (old[at], *packed)
            yield self._said(key_tokens), range(first[at], first[at + 1])

    def occurrences(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        """All keys of `n` tokens, at most 4, in the order of the file, and about how often each occurred; copies.

        A key is packed with its most recent token in the highest 16 of its 16 n bits, `END` for the start of a
        sentence. Tokens are as stored, see `ids`.
        """
        packed, _, first, _ = self._orders[n]
        lengths = np.array(self._len, np.int64)
        ends = np.cumsum(lengths)
        logs = np.concatenate(([0.0], np.cumsum(np.log(np.maximum(np.array(self._conf, np.float64), 1) / 255))))
        best = np.array(first, np.int64)[:-1]
        share = np.exp(logs[ends[best]] - logs[ends[best] - lengths[best]])
        seen = np.array(COUNTS, np.float64)[np.array(self._count, np.uint8)[best]] / share
        return np.array(packed, np.uint64), seen.astype(np.float32)

    def commonest(self, n: int) -> list[int]:
        """At most `n` ids of the corpus, the commonest first."""
        keys, seen = self.occurrences(1)
        best = [key for key in keys[np.argsort(-seen, kind="stable")].tolist() if key != END]
        return list(self._said(tuple(best[:n])))

    def pool_bytes(self) -> memoryview:
        """The section `pool` as it is."""
        return self._slice(self._sections["pool"])

    def info(self) -> dict[str, Any]:
        """Keys, sizes and options of the build, as JSON-ready values."""
        return {
            "path": self.where,
            "size_bytes": len(self._whole),
            "vocabulary": self.fingerprint.hex(),
            "n_text": self.n_text,
            "keys": {str(n): len(self._orders[n][0]) for n in range(1, self.n_orders + 1)},
            "candidates": len(self._ref),
            "pool_tokens": len(self._pool),
            "build": self._meta,
        }

    def verify(self) -> None:
        """Check every section's checksum and whether the contents agree, as on opening. Raises MapError."""
        for section in self._sections.values():
            if zlib.crc32(self._slice(section)) != section.crc:
                raise MapError(
                    f"{self.where}: damaged: the checksum of section {section.name!r} does not match; {REMEDY}"
                )
        slices = {name: self._slice(section) for name, section in self._sections.items()}
        check_contents(slices, self.n_orders, self.n_text, self.where)

    def close(self) -> None:
        """Give the memory back; look-ups find nothing from now on. A second call does nothing."""
        self.n_orders = 0
        for view in reversed(self._views):
            view.release()
        self._views.clear()
        self._whole.release()
        _give_back(self._data)

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _slice(self, section: Section) -> memoryview:
        return self._whole[section.offset : section.end]

    def _index(self) -> None:
        """The sections as sequences of integers."""

        def cast(name: str, kind: Literal["B", "H", "I", "Q"]) -> memoryview:
            view = self._slice(self._sections[name])
            self._views += [view, view.cast(kind)]
            return self._views[-1]

        self._ids = cast("ids", "I") if "ids" in self._sections else None
        empty = memoryview(b"").cast("H")
        self._orders = [(empty, empty, empty, empty)]
        for n in range(1, self.n_orders + 1):
            old = cast(f"old{n}", "H") if n == MAX_ORDER else empty
            self._orders.append((cast(f"keys{n}", "Q"), cast(f"csr{n}", "I"), cast(f"first{n}", "I"), old))
        self._ref, self._confat, self._pool = cast("ref", "I"), cast("confat", "I"), cast("pool", "H")
        self._len, self._count, self._conf = cast("len", "B"), cast("count", "B"), cast("conf", "B")


def _packed(context: Sequence[int], n: int, ids: Sequence[int] | memoryview | None) -> int | None:
    """The tokens of the last `n` ids of a context, the most recent in the highest bits; `END` for one before the first.

    ids: those of a numbered map, rising. None where an id is none of the map's.
    """
    packed = 0
    for back in range(1, n + 1):
        token = context[-back] if back <= len(context) else END
        if ids is not None and back <= len(context):
            at = bisect_left(ids, token)
            token = at if at < len(ids) and ids[at] == token else -1
        if not 0 <= token < END and back <= len(context):
            return None
        packed = packed << 16 | token
    return packed


def _give_back(data: bytes | mmap.mmap) -> None:
    if isinstance(data, mmap.mmap):
        with contextlib.suppress(BufferError):  # another thread or the error being handled holds a view
            data.close()


class Followers(NamedTuple):
    """Ids that followed a context, int64[n], rising, and the natural logarithm of each one's share, float32[n]."""

    ids: NDArray[np.int64]
    log_shares: NDArray[np.float32]


class _Order(NamedTuple):
    # Memoryviews give Python's own numbers: they are read one at a time.
    contexts: memoryview  # uint64, packed as in the map's keys, rising, each once
    starts: memoryview  # int64
    followers: Followers


_NO_FOLLOWERS = Followers(np.zeros(0, np.int64), np.zeros(0, np.float32))


class NgramIndex:
    """The n-grams of a map, of 2 to `longest` ids (at most 4); the map may be closed afterwards.

    alone: single ids; orders: for each length of n-grams that there are, their contexts, one id shorter, and followers.
    """

    def __init__(self, map_: TokenMap, longest: int) -> None:
        table = map_.ids()
        self._ids = None if table is None else table.data
        self.alone = _indexed(*map_.occurrences(1), 1, table).followers
        self.orders: dict[int, _Order] = {}
        for n in range(2, min(longest, map_.n_orders) + 1):
            keys, counts = map_.occurrences(n)
            if len(keys):
                self.orders[n] = _indexed(keys, counts, n, table)

    def followers(self, sentence: Sequence[int], n: int) -> Followers:
        """What followed the last `n` - 1 ids of a begun sentence, whose start counts too; empty if nothing did."""
        order = self.orders.get(n)
        if order is None or len(sentence) + 1 < n - 1:
            return _NO_FOLLOWERS
        packed = _packed(sentence, n - 1, self._ids)
        if packed is None:
            return _NO_FOLLOWERS
        contexts = order.contexts
        at = bisect_left(contexts, packed)
        if at == len(contexts) or contexts[at] != packed:
            return _NO_FOLLOWERS
        ids, shares = order.followers
        known = slice(order.starts[at], order.starts[at + 1])
        return Followers(ids[known], shares[known])


def _said(tokens: NDArray[np.int64], table: NDArray[np.uint32] | None) -> NDArray[np.int64]:
    return tokens if table is None else table[tokens].astype(np.int64)


def _indexed(keys: NDArray[np.uint64], counts: NDArray[np.float32], n: int, table: NDArray[np.uint32] | None) -> _Order:
    """The keys of `n` tokens by all but their last one; `table` has the ids of tokens, if they are not ids."""
    shift = np.uint64(16 * (n - 1))
    context = keys & np.uint64((1 << 16 * (n - 1)) - 1)
    order = np.argsort(context, kind="stable")  # keys are sorted by their last id first, so that stays in order
    context, last, counts = context[order], (keys >> shift)[order].astype(np.int64), counts[order]
    is_text = last != END
    context, last, counts = context[is_text], last[is_text], counts[is_text]
    contexts, first = np.unique(context, return_index=True)
    starts = np.append(first, len(context))
    totals = np.add.reduceat(counts, first) if len(first) else counts
    shares = np.log(counts / np.repeat(totals, np.diff(starts))).astype(np.float32)
    return _Order(contexts.data, starts.data, Followers(_said(last, table), shares))
