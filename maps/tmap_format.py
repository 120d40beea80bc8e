"""The `.tmap` file, versions 1 and 3, as docs/tmap-format.md specifies it.

A checksum only says that a file is as it was written. `check_contents` says that counts and offsets can be followed; it
works in blocks, so that it allocates far less than the size of the file.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import MapError
from specedge.files import Kind

MAGIC = b"\x89TMAP1\r\n"
NUMBERED_MAGIC = b"\x89TMAP3\r\n"
BYTE_ORDER_MARK = 0x1A2B3C4D
ALIGNMENT = 64
MAX_ORDER = 5
MAX_LENGTH = 64  # tokens of a candidate, the end of the sentence counted
MAX_N_TEXT = 1 << 20  # as many as a byte table has
MAX_TOKENS = 0xFFFE  # different ones in a map
END = 0xFFFF  # before the first token of a sentence in a key, after the last in a candidate
END_ID = 0xFFFF_FFFF  # the same among the ids of a numbered map, where 0xFFFF may be an id
CONF_BLOCK = 64  # candidates that share one entry of `confat`
TOKEN_MAP = Kind("token map", lambda head: head.startswith((MAGIC, NUMBERED_MAGIC)))
_HEADER = struct.Struct("<8sIIQII32s")
_ENTRY = struct.Struct("<8sQQII")
_CRC_AT = 28
_PER_ORDER = ("keys", "csr", "first")
_SHARED = ("ref", "len", "count", "confat", "conf", "pool")
REMEDY = "build it again with `specedge map build`"


@dataclass(frozen=True)
class Section:
    name: str
    offset: int
    n_bytes: int
    crc: int

    @property
    def end(self) -> int:
        return self.offset + self.n_bytes


def aligned(offset: int) -> int:
    """`offset` rounded up to where a section may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def section_names(n_orders: int, *, numbered: bool = False) -> tuple[str, ...]:
    """All sections of a map with keys of 1 to `n_orders` ids, in file order; `numbered` for version 3."""
    names = ["meta", "ids"] if numbered else ["meta"]
    for n in range(1, n_orders + 1):
        names += [f"{kind}{n}" for kind in _PER_ORDER]
        if n == MAX_ORDER:
            names.insert(-2, f"old{n}")
    return (*names, *_SHARED)


_ORDERS_OF = {
    (numbered, len(section_names(n, numbered=numbered))): n
    for n in range(1, MAX_ORDER + 1)
    for numbered in (False, True)
}


def pack_head(sections: Sequence[Section], *, n_text: int, fingerprint: bytes) -> bytes:
    """Header and section table; the first section begins at `aligned(len(result))`."""
    numbered = any(section.name == "ids" for section in sections)
    header = _HEADER.pack(
        NUMBERED_MAGIC if numbered else MAGIC, BYTE_ORDER_MARK, len(sections), sections[-1].end, n_text, 0, fingerprint
    )
    table = b"".join(_ENTRY.pack(s.name.encode(), s.offset, s.n_bytes, s.crc, 0) for s in sections)
    crc = zlib.crc32(header + table)
    return header[:_CRC_AT] + crc.to_bytes(4, "little") + header[_CRC_AT + 4 :] + table


def head_bytes(n_orders: int, *, numbered: bool = False) -> int:
    return _HEADER.size + _ENTRY.size * len(section_names(n_orders, numbered=numbered))


def parse_head(data: memoryview, where: str) -> tuple[dict[str, Section], int, int, bytes]:
    """Sections by name, n_orders, n_text and fingerprint, checked against the length of `data`. Raises MapError."""
    if len(data) < _HEADER.size or data[: len(MAGIC)] not in (MAGIC, NUMBERED_MAGIC):
        raise MapError(f"{where}: this is no token map of version 1 or 3, or it is cut short; {REMEDY}")
    magic, mark, n_sections, total, n_text, crc, fingerprint = _HEADER.unpack_from(data)
    numbered = magic == NUMBERED_MAGIC
    if total != len(data):
        raise MapError(f"{where}: {len(data)} bytes, expected {total}: the file is cut short or changed; {REMEDY}")
    n_orders = _ORDERS_OF.get((numbered, n_sections))
    if n_orders is None or head_bytes(n_orders, numbered=numbered) > len(data):
        raise MapError(f"{where}: a section table of {n_sections} entries cannot be; {REMEDY}")
    head = bytearray(data[: head_bytes(n_orders, numbered=numbered)])
    head[_CRC_AT : _CRC_AT + 4] = bytes(4)
    most = MAX_N_TEXT if numbered else MAX_TOKENS
    if zlib.crc32(head) != crc or mark != BYTE_ORDER_MARK or not 1 <= n_text <= most:
        raise MapError(f"{where}: the header is damaged: its checksum does not match, or its numbers; {REMEDY}")
    names = section_names(n_orders, numbered=numbered)
    return _parse_table(data, names, len(head), where), n_orders, n_text, fingerprint


def _parse_table(data: memoryview, names: Sequence[str], end: int, where: str) -> dict[str, Section]:
    """The sections, which must fill the file from `end` on without a gap."""
    sections: dict[str, Section] = {}
    for i, expected in enumerate(names):
        raw, offset, n_bytes, crc, zero = _ENTRY.unpack_from(data, _HEADER.size + i * _ENTRY.size)
        is_entry = raw == expected.encode().ljust(8, b"\0") and offset == aligned(end) and not zero
        if not is_entry or offset + n_bytes > len(data) or any(data[end:offset]):
            raise MapError(f"{where}: section {i} is not {expected!r}, right behind the one before it; {REMEDY}")
        sections[expected] = Section(expected, offset, n_bytes, crc)
        end = offset + n_bytes
    if end != len(data):
        raise MapError(f"{where}: {len(data) - end} bytes after the last section; {REMEDY}")
    return sections


def text_fingerprint(ranks: Sequence[bytes], n_text: int) -> bytes:
    """SHA-256 over the byte strings of the ids below `n_text` (the id of `<|endoftext|>`), each after its u16 length.

    Without special tokens Whisper v1, v2 and v3 have one fingerprint and share maps.
    """
    tokens = ranks[:n_text]
    lengths = [n.to_bytes(2, "little") for n in range(1 + max(map(len, tokens), default=0))]
    sized = zip(map(len, tokens), tokens, strict=True)
    return hashlib.sha256(b"".join([part for n, token in sized for part in (lengths[n], token)])).digest()


# A stored q stands for 2^(q/8), exact up to 13, within 8 % up to 3.9 billion. No libm, so no byte differs.
_COUNT_BOUNDS = np.array([2.0 ** ((q + 0.5) / 8) for q in range(255)])
COUNTS = tuple(max(1, round(2.0 ** (q / 8))) for q in range(256))


def quantise_count(counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.searchsorted(_COUNT_BOUNDS, counts.astype(np.float64)).astype(np.uint8)


def quantise_confidence(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.uint8]:
    """round(255 part/whole) for 0 < part <= whole, at least 1, in integers."""
    rounded: NDArray[np.uint8] = np.maximum((510 * part + whole) // (2 * whole), 1).astype(np.uint8)
    return rounded


_BLOCK = 1 << 13
_ITEM_BYTES = {"keys": 8, "csr": 4, "first": 4, "old": 2, "ids": 4, "ref": 4, "confat": 4, "pool": 2}
MAX_META_BYTES = 1 << 16


def parse_meta(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object of the section `meta`. Raises MapError."""
    try:
        meta = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        meta = None
    if not isinstance(meta, dict):
        raise MapError(f"{where}: the section 'meta' is no JSON object; {REMEDY}")
    return meta


def check_contents(views: Mapping[str, memoryview], n_orders: int, n_text: int, where: str) -> None:
    """Raises MapError for sections whose lengths, counts, offsets or ids do not fit together."""

    def expect(is_right: bool, section: str, what: str) -> None:
        if not is_right:
            raise MapError(f"{where}: section {section!r} is wrong: {what}; {REMEDY}")

    arrays = {}
    for name, view in views.items():
        width = _ITEM_BYTES.get(name.rstrip("0123456789"), 1)
        expect(len(view) % width == 0, name, "an impossible length")
        arrays[name] = np.frombuffer(view, dtype=f"<u{width}")
    expect(len(arrays["meta"]) <= MAX_META_BYTES, "meta", "an impossible length")
    if "ids" in arrays:
        ids = arrays["ids"]
        expect(1 <= len(ids) <= MAX_TOKENS, "ids", "an impossible length")
        expect(_rises(ids) and ids[-1] < n_text, "ids", f"its ids do not rise or are not below {n_text}")
        n_text = len(ids)
    base = 0
    for n in range(1, n_orders + 1):
        _check_order(arrays, n, base, n_text, expect)
        base = int(arrays[f"first{n}"][-1])
    expect(base == len(arrays["ref"]), f"first{n_orders}", f"{base} candidates, expected {len(arrays['ref'])}")
    pool = arrays["pool"]
    are_text = all(((pool[part] < n_text) | (pool[part] == END)).all() for part in _blocks(len(pool)))
    expect(are_text, "pool", f"a token id is not below {n_text}")
    _check_candidates(arrays, expect)


_Expect = Callable[[bool, str, str], None]  # that it is right; the section, and what is wrong with it


def _check_order(arrays: Mapping[str, NDArray[Any]], n: int, base: int, n_text: int, expect: _Expect) -> None:
    keys, csr, first, old = arrays[f"keys{n}"], arrays[f"csr{n}"], arrays[f"first{n}"], arrays.get(f"old{n}")
    expect(len(first) == len(keys) + 1, f"first{n}", "an impossible length beside the keys")
    expect(_rises(first) and first[0] == base, f"first{n}", "its numbers do not rise from where the order before ended")
    expect(old is None or len(old) == len(keys), f"old{n}", "an impossible length beside the keys")
    shift = np.uint64(16 * (min(n, MAX_ORDER - 1) - 1))
    are_keys = _rises(keys, old) and not (keys[-1:] >> shift > END).any()
    expect(are_keys, f"keys{n}", "its keys do not rise or are none")
    n_rows = len(csr) - 2  # last tokens with a row of their own; then comes the start of the sentence
    expect(0 <= n_rows <= n_text, f"csr{n}", f"an impossible length, expected up to {n_text} rows")
    # Where the keys of each of these ids begin, of the first without a row, and of the start of a sentence.
    rows = np.append(np.arange(n_rows + 1), END).astype(np.uint64)
    starts = np.append(np.searchsorted(keys, rows << shift), len(keys))
    expect(np.array_equal(starts, np.append(csr[:-1], csr[-2:])), f"csr{n}", "it does not fit the keys")


def _check_candidates(arrays: Mapping[str, NDArray[Any]], expect: _Expect) -> None:
    n_candidates, n_pool, confat = len(arrays["ref"]), len(arrays["pool"]), arrays["confat"]
    expected = {"len": n_candidates, "count": n_candidates, "confat": n_candidates // CONF_BLOCK + 1}
    for name, n_items in expected.items():
        expect(len(arrays[name]) == n_items, name, f"an impossible length, expected {n_items} items")
    total = 0
    for at in range(0, n_candidates, _BLOCK):
        lengths = arrays["len"][at : at + _BLOCK].astype(np.int64)
        are_lengths = 1 <= lengths.min() and lengths.max() <= MAX_LENGTH
        expect(are_lengths, "len", f"a candidate's length is not 1 to {MAX_LENGTH}")
        expect((arrays["ref"][at : at + _BLOCK] + lengths).max() <= n_pool, "ref", "a candidate ends beyond the pool")
        starts = (total + np.cumsum(lengths) - lengths)[::CONF_BLOCK]
        given = confat[at // CONF_BLOCK :][: len(starts)]
        expect(np.array_equal(starts, given), "confat", "it does not add up the lengths")
        total += int(lengths.sum())
    is_sum = n_candidates % CONF_BLOCK > 0 or confat[-1] == total
    expect(is_sum, "confat", "it does not add up the lengths")
    expect(len(arrays["conf"]) == total, "conf", f"{len(arrays['conf'])} confidences for {total} tokens")


def _blocks(n: int, overlap: int = 0) -> Iterator[slice]:
    """Parts of `n` items that are looked at together, each with the first `overlap` of the next one."""
    return (slice(at, at + _BLOCK + overlap) for at in range(0, n - overlap, _BLOCK))


def _rises(values: NDArray[Any], then: NDArray[Any] | None = None) -> bool:
    """Whether each is more than the one before; `then` decides between equals."""
    for part in _blocks(len(values), 1):
        rises = values[part][1:] > values[part][:-1]
        if then is not None:
            rises |= (values[part][1:] == values[part][:-1]) & (then[part][1:] > then[part][:-1])
        if not rises.all():
            return False
    return True
