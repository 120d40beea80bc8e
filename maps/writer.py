"""Write counted columns as a `.tmap` file (docs/tmap-format.md), pruned to a byte budget.

Between counting and writing the columns lie on disk, a file for each order, so that memory stays bounded.
The pool is the part of the text that candidates need, without gaps. The same columns give the same bytes.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from specedge.errors import ResourceError, UsageError
from specedge.files import publishing

from .tmap_format import CONF_BLOCK, END, MAX_ORDER, TOKEN_MAP, Section, aligned, head_bytes, pack_head


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunk:
    """Keys of one order, rising, with their candidates.

    One entry for each key: key u64, old u16, n_candidates u8, value f32; for each candidate: start u32 (in the text),
    length u8, count u8 (quantised); for each token: confidence u8.
    """

    key: NDArray[np.uint64]
    old: NDArray[np.uint16]
    n_candidates: NDArray[np.uint8]
    value: NDArray[np.float32]
    start: NDArray[np.uint32]
    length: NDArray[np.uint8]
    count: NDArray[np.uint8]
    confidence: NDArray[np.uint8]

    def only(self, kept: NDArray[np.bool_]) -> Chunk:
        candidates = np.repeat(kept, self.n_candidates)
        columns = {name: getattr(self, name)[kept] for name in ("key", "old", "n_candidates", "value")}
        columns |= {name: getattr(self, name)[candidates] for name in ("start", "length", "count")}
        return Chunk(**columns, confidence=self.confidence[np.repeat(candidates, self.length)])


class Spill:
    """The keys of a map in the empty folder `folder`, a file for each order, chunk by chunk."""

    def __init__(self, folder: Path, n_orders: int) -> None:
        self.n_orders = n_orders
        self._paths = {n: folder / f"order{n}" for n in range(1, n_orders + 1)}
        self.n_keys = dict.fromkeys(self._paths, 0)

    def append(self, n: int, chunk: Chunk) -> None:
        """Add keys of order `n`; keys rise within and between chunks."""
        self.n_keys[n] += len(chunk.key)
        with open(self._paths[n], "ab") as file:
            for column in vars(chunk).values():
                np.save(file, column)

    def chunks(self, n: int, kept: NDArray[np.bool_] | None = None) -> Iterator[Chunk]:
        """The keys of order `n`; `kept`, bool for the keys of all orders, says which of them, None for all."""
        at, end = (sum(list(self.n_keys.values())[:m]) for m in (n - 1, n))
        with open(self._paths[n], "rb") as file:
            while at < end:
                chunk = Chunk(**{field.name: np.load(file) for field in fields(Chunk)})
                yield chunk if kept is None else chunk.only(kept[at : at + len(chunk.key)])
                at += len(chunk.key)


_MAX_U32 = (1 << 32) - 1
_TEXT_BLOCK = 1 << 22
_FIT_TOLERANCE = 0.002  # of the keys; nearer to the budget is not worth another pass
_Kept = NDArray[np.bool_] | None  # which keys of all orders go into the file; None for all


def write_map(
    path: str | os.PathLike[str],
    spill: Spill,
    text: NDArray[np.uint16],
    *,
    n_text: int,
    fingerprint: bytes,
    meta: Mapping[str, Any],
    ids: NDArray[np.uint32] | None = None,
    budget_bytes: int | None = None,
) -> None:
    """Write the map, without its least valuable keys if it would exceed `budget_bytes`; `meta` says how many went.

    ids: what the tokens of `text` and keys stand for, rising; None where they are ids.

    Raises UsageError for a budget below an empty map and for a file at `path` that is no map; ResourceError when the
    file cannot be written.
    """

    def write(file: BinaryIO, kept: _Kept) -> list[Section]:
        writer = _SectionWriter(file, head_bytes(spill.n_orders, numbered=ids is not None))
        facts = {**meta, "pruned_keys": 0 if kept is None else int(np.count_nonzero(~kept))}
        writer.write("meta", [json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()])
        if ids is not None:
            writer.write("ids", [ids.astype("<u4").data])
        base = 0
        for n in spill.n_keys:
            base = _write_order(writer, spill, kept, n, base)
        _write_candidates(writer, spill, kept, text)
        return writer.sections

    def size_of(kept: _Kept) -> int:
        with open(os.devnull, "wb") as nothing:
            return write(nothing, kept)[-1].end

    kept = None if budget_bytes is None else _fitting(size_of, spill, budget_bytes)
    with publishing(path, TOKEN_MAP) as file:
        sections = write(file, kept)
        sizes = {section.name: section.n_bytes for section in sections}
        if max(sizes["conf"], sizes["pool"] // 2) > _MAX_U32:
            raise ResourceError(
                f"{os.fspath(path)}: too large for a token map; give a byte budget or a higher minimum count"
            )
        file.seek(0)
        file.write(pack_head(sections, n_text=n_text, fingerprint=fingerprint))


def _fitting(size_of: Callable[[_Kept], int], spill: Spill, budget_bytes: int) -> _Kept:
    """The most valuable keys in `budget_bytes`. Raises UsageError where a map of none exceeds them."""
    if size_of(None) <= budget_bytes:
        return None
    values = np.concatenate([chunk.value for n in spill.n_keys for chunk in spill.chunks(n)])
    rising = np.sort(values)
    best, fits, fails = _best_keys(values, rising, 0), 0, len(values)
    if (least_bytes := size_of(best)) > budget_bytes:
        raise UsageError(f"a budget of {budget_bytes} bytes is too small: an empty map has {least_bytes}")
    while fails - fits > max(1, int(_FIT_TOLERANCE * len(values))):
        middle = (fits + fails) // 2
        tried = _best_keys(values, rising, middle)
        if size_of(tried) <= budget_bytes:
            best, fits = tried, middle
        else:
            fails = middle
    return best


def _best_keys(values: NDArray[np.float32], rising: NDArray[np.float32], n_kept: int) -> NDArray[np.bool_]:
    """Which keys have the `n_kept` highest values, of equal ones the first; `rising` are the values, sorted."""
    if n_kept == 0:
        return np.zeros(len(values), dtype=np.bool_)
    least = rising[len(values) - n_kept]
    kept: NDArray[np.bool_] = values > least
    alike = np.flatnonzero(values == least)
    kept[alike[: n_kept - int(np.count_nonzero(kept))]] = True
    return kept


def _last_ids(keys: NDArray[np.uint64], n: int) -> NDArray[np.int64]:
    return (keys >> np.uint64(16 * (min(n, MAX_ORDER - 1) - 1))).astype(np.int64)


def _cover(covered: NDArray[np.bool_], chunk: Chunk) -> None:
    start = chunk.start.astype(np.int64)
    for i in range(int(chunk.length.max(initial=0))):
        covered[start[chunk.length > i] + i] = True


def _write_order(writer: _SectionWriter, spill: Spill, kept: _Kept, n: int, base: int) -> int:
    """Keys, index and first candidates of order `n`; returns the number of its last candidate plus one."""
    writer.write(f"keys{n}", (chunk.key.data for chunk in spill.chunks(n, kept)))
    if n == MAX_ORDER:
        writer.write(f"old{n}", (chunk.old.data for chunk in spill.chunks(n, kept)))
    counted = np.zeros(END + 1, dtype=np.int64)
    for chunk in spill.chunks(n, kept):
        counted += np.bincount(_last_ids(chunk.key, n), minlength=END + 1)
    n_rows = int(np.flatnonzero(counted[:END])[-1]) + 1 if counted[:END].any() else 0
    csr = np.concatenate(([0], np.cumsum(counted[:n_rows]), [counted.sum()]))
    writer.write(f"csr{n}", [csr.astype("<u4").data])
    counts = [np.zeros(1, np.uint8), *(chunk.n_candidates for chunk in spill.chunks(n, kept))]
    firsts = base + np.cumsum(np.concatenate(counts), dtype=np.int64)
    writer.write(f"first{n}", [firsts.astype("<u4").data])
    return int(firsts[-1])


def _write_candidates(writer: _SectionWriter, spill: Spill, kept: _Kept, text: NDArray[np.uint16]) -> None:
    """The sections that all orders share."""

    def chunks() -> Iterator[Chunk]:
        for n in spill.n_keys:
            yield from spill.chunks(n, kept)

    covered = np.zeros(len(text), dtype=np.bool_)
    for chunk in chunks():
        _cover(covered, chunk)
    ends = np.cumsum(covered, dtype="<u4")  # of each covered place, in the pool
    writer.write("ref", ((ends[chunk.start] - 1).astype("<u4").data for chunk in chunks()))
    lengths = np.concatenate([np.zeros(0, np.uint8), *(chunk.length for chunk in chunks())])
    writer.write("len", [lengths.data])
    writer.write("count", (chunk.count.data for chunk in chunks()))
    before = np.append(0, np.cumsum(lengths, dtype="<u4")[CONF_BLOCK - 1 :: CONF_BLOCK])
    writer.write("confat", [before.astype("<u4").data])
    writer.write("conf", (chunk.confidence.data for chunk in chunks()))
    blocks = (slice(at, at + _TEXT_BLOCK) for at in range(0, len(text), _TEXT_BLOCK))
    writer.write("pool", (text[block][covered[block]].data for block in blocks))


class _SectionWriter:
    """Writes sections one after the other behind room for the head, which needs their checksums."""

    def __init__(self, file: BinaryIO, n_head: int) -> None:
        self._file = file
        self._at = n_head
        file.write(bytes(n_head))
        self.sections: list[Section] = []

    def write(self, name: str, parts: Iterable[memoryview | bytes]) -> None:
        offset = aligned(self._at)
        self._file.write(bytes(offset - self._at))
        crc, n_bytes = 0, 0
        for part in parts:
            data = memoryview(part).cast("B") if len(part) else b""
            self._file.write(data)
            crc, n_bytes = zlib.crc32(data, crc), n_bytes + len(data)
        self.sections.append(Section(name, offset, n_bytes, crc))
        self._at = offset + n_bytes
