"""The `.tmap` file, versions 1 and 2: its header, section table, keys and quantised numbers.

Knows bytes and integers; not where they come from nor what is looked up in them. The specification with the reason for
each rule is `docs/tmap-format.md`. All integers are little-endian.

    header   64 bytes: magic 8s · byte-order mark u32 · n_sections u32 · total length u64 · n_text u32 · CRC-32 u32 ·
             fingerprint 32s; the CRC covers header and section table with its own four bytes as zeros
    table    32 bytes a section: name 8s · offset u64 · n_bytes u64 · CRC-32 u32 · zero u32
    sections at multiples of 64, in the order of `section_names`, zeros between, nothing after the last

Version 2 is version 1 with a corpus: two sections more. A map without a corpus is written as version 1.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specedge.maps.outputs import Kind
from specedge.runtime.errors import MapError

__all__ = [
    "ALIGNMENT",
    "CONF_BLOCK",
    "CORPUS_DEPTH",
    "END",
    "MAX_LENGTH",
    "MAX_N_TEXT",
    "MAX_ORDER",
    "TOKEN_MAP",
    "Section",
    "aligned",
    "counts_of",
    "pack_head",
    "parse_head",
    "quantise_confidence",
    "quantise_count",
    "section_names",
    "text_fingerprint",
]

MAGIC = b"\x89TMAP1\r\n"
MAGIC_WITH_CORPUS = b"\x89TMAP2\r\n"
BYTE_ORDER_MARK = 0x1A2B3C4D
ALIGNMENT = 64
MAX_ORDER = 5
MAX_LENGTH = 64  # tokens of a candidate, the end of the sentence counted
MAX_N_TEXT = 0xFFFE
END = 0xFFFF  # before the first token of a sentence in a key, after the last in a candidate
CONF_BLOCK = 64  # candidates that share one entry of `confat`
CORPUS_DEPTH = 20  # tokens by which places in the corpus are sorted, and that a match can have

TOKEN_MAP = Kind("token map", lambda head: head.startswith((MAGIC, MAGIC_WITH_CORPUS)))

_HEADER = struct.Struct("<8sIIQII32s")
_ENTRY = struct.Struct("<8sQQII")
_CRC_AT = 28
_PER_ORDER = ("keys", "csr", "first")
_SHARED = ("ref", "len", "count", "confat", "conf", "pool")
_CORPUS = ("corpus", "suffix")

REMEDY = "build it again with `specedge map build`"


@dataclass(frozen=True)
class Section:
    """Where a section lies in the file, and the CRC-32 of its bytes."""

    name: str
    offset: int
    n_bytes: int
    crc: int


def aligned(offset: int) -> int:
    """`offset` rounded up to where a section may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def section_names(n_orders: int, *, has_corpus: bool = False) -> tuple[str, ...]:
    """The names of all sections of a map with keys of 1 to `n_orders` tokens, in file order."""
    names = ["meta"]
    for n in range(1, n_orders + 1):
        names += [f"{kind}{n}" for kind in _PER_ORDER]
        if n == MAX_ORDER:
            names.insert(-2, f"old{n}")
    return (*names, *_SHARED, *(_CORPUS if has_corpus else ()))


_ORDERS_OF = {
    (has_corpus, len(section_names(n, has_corpus=has_corpus))): n
    for n in range(1, MAX_ORDER + 1)
    for has_corpus in (False, True)
}


def pack_head(sections: Sequence[Section], *, n_text: int, fingerprint: bytes) -> bytes:
    """Header and section table; the first section begins at `aligned(len(result))`."""
    total = sections[-1].offset + sections[-1].n_bytes
    magic = MAGIC_WITH_CORPUS if sections[-1].name == _CORPUS[-1] else MAGIC
    header = _HEADER.pack(magic, BYTE_ORDER_MARK, len(sections), total, n_text, 0, fingerprint)
    table = b"".join(_ENTRY.pack(s.name.encode(), s.offset, s.n_bytes, s.crc, 0) for s in sections)
    crc = zlib.crc32(header + table)
    return header[:_CRC_AT] + crc.to_bytes(4, "little") + header[_CRC_AT + 4 :] + table


def head_bytes(n_orders: int, *, has_corpus: bool = False) -> int:
    """Length of header and section table."""
    return _HEADER.size + _ENTRY.size * len(section_names(n_orders, has_corpus=has_corpus))


def parse_head(data: memoryview, where: str) -> tuple[dict[str, Section], int, int, bytes]:
    """Sections by name, n_orders, n_text and fingerprint of the file `data`; allocates a few kilobytes at most.

    Everything is checked against the true length of `data`, not against what the file says of itself. Raises MapError.
    """
    if len(data) < _HEADER.size:
        raise MapError(f"{where}: {len(data)} bytes are too few for a token map: the file is cut short; {REMEDY}")
    magic, mark, n_sections, total, n_text, crc, fingerprint = _HEADER.unpack_from(data)
    has_corpus = magic == MAGIC_WITH_CORPUS
    if magic != MAGIC and not has_corpus:
        if magic[:5] == MAGIC[:5] and magic[6:] == MAGIC[6:] and magic[5:6].isdigit():
            raise MapError(f"{where}: token map of version {magic[5:6].decode()}, expected 1 or 2; update specedge")
        raise MapError(f"{where}: this is no token map: it does not begin with the magic bytes; {REMEDY}")
    if mark != BYTE_ORDER_MARK:
        raise MapError(f"{where}: this token map was written with another byte order; {REMEDY}")
    if total != len(data):
        raise MapError(f"{where}: {len(data)} bytes, expected {total}: the file is cut short or changed; {REMEDY}")
    n_orders = _ORDERS_OF.get((has_corpus, n_sections))
    if n_orders is None or head_bytes(n_orders, has_corpus=has_corpus) > len(data):
        raise MapError(f"{where}: a section table of {n_sections} entries cannot be; {REMEDY}")
    head = bytearray(data[: head_bytes(n_orders, has_corpus=has_corpus)])
    head[_CRC_AT : _CRC_AT + 4] = bytes(4)
    if zlib.crc32(head) != crc:
        raise MapError(f"{where}: the header is damaged: its checksum does not match; {REMEDY}")
    if not 1 <= n_text <= MAX_N_TEXT:
        raise MapError(f"{where}: a vocabulary of {n_text} text tokens, expected 1 to {MAX_N_TEXT}; {REMEDY}")
    names = section_names(n_orders, has_corpus=has_corpus)
    return _parse_table(data, names, len(head), where), n_orders, n_text, fingerprint


def _parse_table(data: memoryview, names: Sequence[str], end: int, where: str) -> dict[str, Section]:
    """The sections, which fill the file from `end` on without a hole."""
    sections: dict[str, Section] = {}
    for i, expected in enumerate(names):
        raw, offset, n_bytes, crc, zero = _ENTRY.unpack_from(data, _HEADER.size + i * _ENTRY.size)
        if raw != expected.encode().ljust(8, b"\0") or zero:
            raise MapError(f"{where}: section {i} is not {expected!r} as expected; {REMEDY}")
        if offset != aligned(end) or offset + n_bytes > len(data):
            raise MapError(f"{where}: section {expected!r} does not follow the one before it; {REMEDY}")
        if any(data[end:offset]):
            raise MapError(f"{where}: there are bytes between sections before {expected!r}; {REMEDY}")
        sections[expected] = Section(expected, offset, n_bytes, crc)
        end = offset + n_bytes
    if end != len(data):
        raise MapError(f"{where}: {len(data) - end} bytes after the last section; {REMEDY}")
    return sections


def text_fingerprint(ranks: Sequence[bytes], n_text: int) -> bytes:
    """SHA-256 over the byte strings of the ids below `n_text` (the id of `<|endoftext|>`), each after its u16 length.

    Special tokens are left out, so Whisper v1, v2 and v3 have one fingerprint and share maps.
    """
    tokens = ranks[:n_text]
    lengths = [n.to_bytes(2, "little") for n in range(1 + max(map(len, tokens), default=0))]
    return hashlib.sha256(b"".join([part for token in tokens for part in (lengths[len(token)], token)])).digest()


# A count q stands for 2^(q/8): within 5 % up to 3.9 billion. Bounds, not logarithms, so that no libm changes a byte.
_COUNT_BOUNDS = np.array([2.0 ** ((q + 0.5) / 8) for q in range(255)])
COUNTS = tuple(max(1, round(2.0 ** (q / 8))) for q in range(256))


def quantise_count(counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The u8 for each count, 1 or more."""
    return np.searchsorted(_COUNT_BOUNDS, counts.astype(np.float64)).astype(np.uint8)


def counts_of(quantised: Sequence[int]) -> tuple[int, ...]:
    """The counts that u8 values stand for; exact up to 12."""
    return tuple(COUNTS[q] for q in quantised)


def quantise_confidence(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.uint8]:
    """round(255 part/whole) for 0 < part <= whole, at least 1, in integers."""
    rounded: NDArray[np.uint8] = np.maximum((510 * part + whole) // (2 * whole), 1).astype(np.uint8)
    return rounded
