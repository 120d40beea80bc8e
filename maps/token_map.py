"""A token map opened for reading: what followed the last few tokens, how often, and how surely.

A reader keeps the map that it opened, whatever happens to the file (`map_file`). Sections up to 2 MiB are checked on
opening, larger ones and the sense of the contents before the first look-up, or by `verify`. Format:
docs/tmap-format.md, `tmap_format`. Paper: Token Map Drafting (arXiv 2507.21522). Does not know: text, drafters, how a
map is made.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from specedge.maps.corpus_index import CorpusIndex
from specedge.maps.map_file import held_bytes
from specedge.maps.tmap_check import check_contents, check_sizes, parse_meta
from specedge.maps.tmap_format import CONF_BLOCK, COUNTS, END, MAX_ORDER, REMEDY, Section, parse_head
from specedge.runtime.errors import MapError

__all__ = ["Candidate", "TokenMap"]

EAGER_BYTES = 2 << 20  # 0.9 ms of CRC-32 at most for each section on opening
_CRC_BLOCK = 1 << 20
_NONE = range(0)


class Candidate(NamedTuple):
    """A continuation seen in the corpus.

    tokens: text ids; count: about how often the key was followed by all of them; confidences: of each token, the share
    of occurrences in which it came next, 0 to 1. With `ends`, the sentence ended after the last token, and
    `confidences` has one entry more, for that end.
    """

    tokens: tuple[int, ...]
    count: int  # type: ignore[assignment]  # a tuple's own method of this name is of no use here
    confidences: tuple[float, ...]
    ends: bool


class TokenMap:
    """An opened map; make one with `TokenMap.open`, close it or use it in a `with`. Safe to use from several threads.

    A context is the ids since the start of a sentence: where it has fewer ids than a key, the start of the sentence
    stands for the one before the first. Ids that no vocabulary has simply find nothing.
    """

    def __init__(self, data: bytes | mmap.mmap, where: str) -> None:
        self.where = where
        self._data = data
        self._whole = memoryview(data)
        self._views: list[memoryview] = []
        self._ready = self._is_closed = False
        self._sections, self.n_orders, self.n_text, self.fingerprint = parse_head(self._whole, where)
        check_sizes({name: section.n_bytes for name, section in self._sections.items()}, self.n_orders, where)
        for section in self._sections.values():
            if section.n_bytes <= EAGER_BYTES:
                self._check_crc(section)
        self._meta = parse_meta(bytes(self._bytes("meta")), where)
        self._index()
        if all(section.n_bytes <= EAGER_BYTES for section in self._sections.values()):
            self._check_contents()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, fingerprint: bytes | None = None) -> Self:
        """Open the file `path`; with `fingerprint`, the 32 bytes of `text_fingerprint`, refuse another vocabulary's.

        Raises
        ------
        MapError
            the file is missing, is no token map, is damaged, of another version or for another vocabulary.
        ResourceError
            it is larger than 64 MB, and there is no room for a copy.
        """
        where = os.fspath(path)
        if sys.byteorder != "little":
            raise MapError(f"{where}: token maps need a little-endian machine")
        try:
            data = held_bytes(path)
        except (OSError, ValueError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise MapError(f"cannot read the token map {where}: {reason}; check the path") from None
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
        """The numbers of the candidates, best first, for the last `n` ids of `context`; empty if there are none.

        For the hot path: about a microsecond. `n` above the longest key, or above `len(context) + 1`, finds nothing.
        """
        if not self._ready:
            self.verify()
        length = len(context)
        if not 0 < n <= self.n_orders or n > length + 1:
            return _NONE
        keys, csr, first, _ = self._orders[n]
        last = context[-1] if length else END
        n_rows = len(csr) - 2
        if 0 <= last < n_rows:
            low, high = csr[last], csr[last + 1]
        elif last == END and not length:
            low, high = csr[n_rows], csr[n_rows + 1]
        else:
            return _NONE
        if low == high:
            return _NONE
        key, used = last, 1
        while used < n and used < 4:
            used += 1
            token = context[-used] if used <= length else END
            if token >> 16 or (token == END and used <= length):
                return _NONE
            key = key << 16 | token
        at: int = bisect_left(keys, key, low, high)
        if n == MAX_ORDER:
            at = self._find_oldest(context, key, at, high)
        if at == high or keys[at] != key:
            return _NONE
        return range(first[at], first[at + 1])

    def _find_oldest(self, context: Sequence[int], key: int, low: int, high: int) -> int:
        """Among the keys of five ids equal but for the oldest, the one with that too; `high` if there is none."""
        keys, _, _, old = self._orders[MAX_ORDER]
        oldest = context[-MAX_ORDER] if len(context) >= MAX_ORDER else END
        if oldest >> 16 or (oldest == END and len(context) >= MAX_ORDER):
            return high
        stop = bisect_left(keys, key + 1, low, high) if key < 0xFFFF_FFFF_FFFF_FFFF else high
        at: int = bisect_left(old, oldest, low, stop)
        return at if at < stop and old[at] == oldest else high

    def candidate(self, number: int) -> Candidate:
        """The candidate of that number, as `find` gives them."""
        length = self._len[number]
        start = self._ref[number]
        tokens = tuple(self._pool[start : start + length])
        block = number // CONF_BLOCK * CONF_BLOCK
        at = self._confat[number // CONF_BLOCK] + sum(self._len[block:number])
        confidences = tuple([value / 255 for value in self._conf[at : at + length]])
        if END in tokens:
            cut = tokens.index(END)  # the last place in any map that `build` wrote
            return Candidate(tokens[:cut], COUNTS[self._count[number]], confidences[: cut + 1], True)
        return Candidate(tokens, COUNTS[self._count[number]], confidences, False)

    def lookup(self, context: Sequence[int], n: int) -> tuple[Candidate, ...]:
        """The candidates, best first, for the last `n` ids of `context`."""
        return tuple([self.candidate(number) for number in self.find(context, n)])

    def longest(self, context: Sequence[int]) -> tuple[int, tuple[Candidate, ...]]:
        """The longest key at the end of `context` that the map has: its length and candidates; (0, ()) if none."""
        for n in range(min(self.n_orders, len(context) + 1), 0, -1):
            found = self.find(context, n)
            if found:
                return n, tuple([self.candidate(number) for number in found])
        return 0, ()

    def items(self, n: int) -> Any:
        """All keys of `n` tokens, oldest first (`END` before the first of a sentence), with their candidates' numbers.

        In the order of the file: by the most recent token first.
        """
        if not self._ready:
            self.verify()
        keys, _, first, old = self._orders[n]
        n_packed = min(n, MAX_ORDER - 1)
        for at, key in enumerate(keys):
            packed = tuple([key >> 16 * i & 0xFFFF for i in range(n_packed)])
            yield (packed if n < MAX_ORDER else (old[at], *packed)), range(first[at], first[at + 1])

    def occurrences(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        """All keys of `n` ids, at most 4, in the order of the file, and about how often each of them occurred.

        A key is packed with its most recent id in the highest 16 of its 16 n bits and `END` for the start of a
        sentence. Both arrays are copies.
        """
        if not self._ready:
            self.verify()
        packed, _, first, _ = self._orders[n]
        lengths = np.array(self._len, np.int64)
        ends = np.cumsum(lengths)
        logs = np.concatenate(([0.0], np.cumsum(np.log(np.maximum(np.array(self._conf, np.float64), 1) / 255))))
        best = np.array(first, np.int64)[:-1]
        share = np.exp(logs[ends[best]] - logs[ends[best] - lengths[best]])
        seen = np.array(COUNTS, np.float64)[np.array(self._count, np.uint8)[best]] / share
        return np.array(packed, np.uint64), seen.astype(np.float32)

    def raw_candidate(self, number: int) -> tuple[tuple[int, ...], int, tuple[int, ...], int]:
        """The candidate as stored: ids with `END` if it has one, count and confidences quantised, place in the pool."""
        length, start = self._len[number], self._ref[number]
        block = number // CONF_BLOCK * CONF_BLOCK
        at = self._confat[number // CONF_BLOCK] + sum(self._len[block:number])
        ids = tuple(self._pool[start : start + length])
        length = ids.index(END) + 1 if END in ids else length
        return ids[:length], self._count[number], tuple(self._conf[at : at + length]), start

    def pool_bytes(self) -> memoryview:
        """The section `pool` as it is."""
        section = self._sections["pool"]
        return self._whole[section.offset : section.offset + section.n_bytes]

    @property
    def corpus(self) -> CorpusIndex | None:
        """The corpus for look-ups of any length; None in a map without one."""
        if self._corpus is not None and not self._ready:
            self.verify()
        return self._corpus

    def info(self) -> dict[str, Any]:
        """What is known of the map, as JSON-ready values: numbers of keys, sizes, and how it was built."""
        corpus = self._corpus
        return {
            "path": self.where,
            "size_bytes": len(self._whole),
            "vocabulary": self.fingerprint.hex(),
            "n_text": self.n_text,
            "keys": {str(n): len(self._orders[n][0]) for n in range(1, self.n_orders + 1)},
            "candidates": len(self._ref),
            "pool_tokens": len(self._pool),
            "corpus": corpus and {"sentences": corpus.n_sentences, "tokens": corpus.n_tokens},
            "build": self._meta,
        }

    def verify(self) -> None:
        """Check every section's checksum and whether the contents agree. Raises MapError."""
        if self._is_closed:
            raise MapError(f"{self.where}: this token map is closed")
        for section in self._sections.values():
            self._check_crc(section)
        self._check_contents()

    def close(self) -> None:
        """Give the bytes back; look-ups raise MapError from now on. Twice is fine."""
        self._ready, self._is_closed = False, True
        for view in reversed(self._views):
            view.release()
        self._views.clear()
        self._whole.release()
        _give_back(self._data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _bytes(self, name: str) -> memoryview:
        section = self._sections[name]
        view = self._whole[section.offset : section.offset + section.n_bytes]
        self._views.append(view)
        return view

    def _index(self) -> None:
        """The sections as sequences of integers."""

        def cast(name: str, kind: Literal["B", "H", "I", "Q"]) -> memoryview:
            view = self._bytes(name).cast(kind)
            self._views.append(view)
            return view

        empty = memoryview(b"").cast("H")
        self._orders = [(empty, empty, empty, empty)]
        for n in range(1, self.n_orders + 1):
            old = cast(f"old{n}", "H") if n == MAX_ORDER else empty
            self._orders.append((cast(f"keys{n}", "Q"), cast(f"csr{n}", "I"), cast(f"first{n}", "I"), old))
        self._ref, self._confat, self._pool = cast("ref", "I"), cast("confat", "I"), cast("pool", "H")
        self._len, self._count, self._conf = cast("len", "B"), cast("count", "B"), cast("conf", "B")
        self._corpus: CorpusIndex | None = None
        if "corpus" in self._sections:
            self._corpus = CorpusIndex(cast("corpus", "H"), cast("suffix", "I"), self._bytes("corpus"))

    def _check_crc(self, section: Section) -> None:
        crc, end = 0, section.offset + section.n_bytes
        for at in range(section.offset, end, _CRC_BLOCK):
            with self._whole[at : min(at + _CRC_BLOCK, end)] as block:
                crc = zlib.crc32(block, crc)
        if crc != section.crc:
            raise MapError(f"{self.where}: damaged: the checksum of section {section.name!r} does not match; {REMEDY}")

    def _check_contents(self) -> None:
        slices = {s.name: self._whole[s.offset : s.offset + s.n_bytes] for s in self._sections.values()}
        check_contents(slices, self.n_orders, self.n_text, self.where)
        self._ready = True


def _give_back(data: bytes | mmap.mmap) -> None:
    if isinstance(data, mmap.mmap):
        with contextlib.suppress(BufferError):  # a look-up in another thread, or the error being handled, holds a view
            data.close()
