"""Write counted columns as a `.tmap` file (docs/tmap-format.md), pruned to a byte budget.

Between counting and writing the columns lie on disk, a file for each order, so that memory stays bounded.
The pool is the part of the text that candidates need, without gaps. The same columns give the same bytes.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from specedge.errors import ResourceError, UsageError
from specedge.files import publishing

from .tmap_format import CONF_BLOCK, END, MAX_ORDER, TOKEN_MAP, Section, aligned, head_bytes, pack_head, section_names


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

    def values(self) -> NDArray[np.float32]:
        """The value of each key, order by order."""
        return np.concatenate([chunk.value for n in self.n_keys for chunk in self.chunks(n)])

    def chunks(self, n: int, kept: NDArray[np.bool_] | None = None) -> Iterator[Chunk]:
        """The keys of order `n` where `kept` (bool[n_keys]) is true; all of them if None."""
        at = 0
        with open(self._paths[n], "rb") as file:
            while at < self.n_keys[n]:
                chunk = Chunk(**{field.name: np.load(file) for field in fields(Chunk)})
                yield chunk if kept is None else chunk.only(kept[at : at + len(chunk.key)])
                at += len(chunk.key)


_MAX_U32 = (1 << 32) - 1
_TEXT_BLOCK = 1 << 22
_FIT_TOLERANCE = 0.002  # of the keys; nearer to the budget is not worth another pass


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
    plan = _plan(spill, text, dict(meta), ids, budget_bytes)
    if max(plan.n_candidates, plan.n_pool, plan.n_confidences) > _MAX_U32:
        raise ResourceError(
            f"{os.fspath(path)}: too large for a token map; give a byte budget or a higher minimum count"
        )
    with publishing(path, TOKEN_MAP) as file:
        writer = _SectionWriter(file, head_bytes(spill.n_orders, numbered=ids is not None))
        writer.write("meta", [plan.meta])
        if ids is not None:
            writer.write("ids", [ids.astype("<u4").data])
        base = 0
        for n in range(1, spill.n_orders + 1):
            base = _write_order(writer, spill, plan, n, base)
        _write_candidates(writer, spill, plan, text)
        writer.finish(n_text=n_text, fingerprint=fingerprint)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Plan:
    """What goes into the file: the `kept` keys by order (None: all), and sizes."""

    kept: Mapping[int, NDArray[np.bool_] | None]
    n_candidates: int
    n_confidences: int
    n_pool: int
    meta: bytes
    size_bytes: int


def _plan(
    spill: Spill,
    text: NDArray[np.uint16],
    meta: dict[str, Any],
    ids: NDArray[np.uint32] | None,
    budget_bytes: int | None,
) -> _Plan:
    measured = partial(_measured, spill, text, meta, ids)
    whole = measured(None)
    if budget_bytes is None or whole.size_bytes <= budget_bytes:
        return whole
    values = spill.values()
    rising = np.sort(values)
    plan, fits, fails = measured(_best_keys(values, rising, 0)), 0, len(values)
    if plan.size_bytes > budget_bytes:
        raise UsageError(f"a budget of {budget_bytes} bytes is too small: an empty map has {plan.size_bytes}")
    while fails - fits > max(1, int(_FIT_TOLERANCE * len(values))):
        middle = (fits + fails) // 2
        tried = measured(_best_keys(values, rising, middle))
        if tried.size_bytes <= budget_bytes:
            plan, fits = tried, middle
        else:
            fails = middle
    return plan


def _best_keys(values: NDArray[np.float32], rising: NDArray[np.float32], n_kept: int) -> NDArray[np.bool_]:
    """Which keys have the `n_kept` highest values, of equal ones the first; `rising` are the values, sorted."""
    if n_kept == 0:
        return np.zeros(len(values), dtype=np.bool_)
    least = rising[len(values) - n_kept]
    kept: NDArray[np.bool_] = values > least
    alike = np.flatnonzero(values == least)
    kept[alike[: n_kept - int(np.count_nonzero(kept))]] = True
    return kept


def _measured(
    spill: Spill,
    text: NDArray[np.uint16],
    meta: dict[str, Any],
    ids: NDArray[np.uint32] | None,
    chosen: NDArray[np.bool_] | None,
) -> _Plan:
    """The plan that keeps the `chosen` keys (None: all)."""
    kept: dict[int, NDArray[np.bool_] | None] = dict.fromkeys(spill.n_keys)
    n_pruned = 0
    if chosen is not None:
        ends = np.cumsum(list(spill.n_keys.values()))
        kept.update(zip(spill.n_keys, np.split(chosen, ends[:-1]), strict=True))
        n_pruned = int(np.count_nonzero(~chosen))
    covered = np.zeros(len(text), dtype=np.bool_)
    names = section_names(spill.n_orders, numbered=ids is not None)
    sizes: dict[str, int] = dict.fromkeys(names, 0)
    if ids is not None:
        sizes["ids"] = 4 * len(ids)
    n_candidates = n_confidences = 0
    for n in spill.n_keys:
        n_order_keys, last = 0, -1
        for chunk in spill.chunks(n, kept[n]):
            n_order_keys += len(chunk.key)
            last = max(last, _highest_id(chunk.key, n))
            n_candidates += len(chunk.start)
            n_confidences += len(chunk.confidence)
            _cover(covered, chunk)
        sizes |= {f"keys{n}": 8 * n_order_keys, f"csr{n}": 4 * (last + 3), f"first{n}": 4 * (n_order_keys + 1)}
        if n == MAX_ORDER:
            sizes[f"old{n}"] = 2 * n_order_keys
    n_pool = int(np.count_nonzero(covered))
    meta_bytes = json.dumps(meta | {"pruned_keys": n_pruned}, sort_keys=True, separators=(",", ":")).encode()
    sizes |= {"meta": len(meta_bytes), "ref": 4 * n_candidates, "len": n_candidates, "count": n_candidates}
    sizes |= {"confat": 4 * (n_candidates // CONF_BLOCK + 1), "conf": n_confidences, "pool": 2 * n_pool}
    size_bytes = head_bytes(spill.n_orders, numbered=ids is not None)
    for name in names:
        size_bytes = aligned(size_bytes) + sizes[name]
    return _Plan(
        kept=kept,
        n_candidates=n_candidates,
        n_confidences=n_confidences,
        n_pool=n_pool,
        meta=meta_bytes,
        size_bytes=size_bytes,
    )


def _last_ids(keys: NDArray[np.uint64], n: int) -> NDArray[np.int64]:
    return (keys >> np.uint64(16 * (min(n, MAX_ORDER - 1) - 1))).astype(np.int64)


def _highest_id(keys: NDArray[np.uint64], n: int) -> int:
    """The highest last token of the rising `keys` that is an id, -1 if there is none."""
    last = _last_ids(keys, n)
    ids = last[: np.searchsorted(last, END)]
    return int(ids[-1]) if len(ids) else -1


def _cover(covered: NDArray[np.bool_], chunk: Chunk) -> None:
    start = chunk.start.astype(np.int64)
    for i in range(int(chunk.length.max(initial=0))):
        covered[start[chunk.length > i] + i] = True


def _write_order(writer: _SectionWriter, spill: Spill, plan: _Plan, n: int, base: int) -> int:
    """Keys, index and first candidates of order `n`; returns the number of its last candidate plus one."""
    writer.write(f"keys{n}", (chunk.key.data for chunk in spill.chunks(n, plan.kept[n])))
    if n == MAX_ORDER:
        writer.write(f"old{n}", (chunk.old.data for chunk in spill.chunks(n, plan.kept[n])))
    counted = np.zeros(END + 1, dtype=np.int64)
    for chunk in spill.chunks(n, plan.kept[n]):
        counted += np.bincount(_last_ids(chunk.key, n), minlength=END + 1)
    n_rows = int(np.flatnonzero(counted[:END])[-1]) + 1 if counted[:END].any() else 0
    csr = np.concatenate(([0], np.cumsum(counted[:n_rows]), [counted.sum()]))
    writer.write(f"csr{n}", [csr.astype("<u4").data])
    end = base

    def firsts() -> Iterator[memoryview]:
        nonlocal end
        yield np.array([base], dtype="<u4").data
        for chunk in spill.chunks(n, plan.kept[n]):
            ends = end + np.cumsum(chunk.n_candidates, dtype=np.int64)
            end = int(ends[-1]) if len(ends) else end
            yield ends.astype("<u4").data

    writer.write(f"first{n}", firsts())
    return end


def _write_candidates(writer: _SectionWriter, spill: Spill, plan: _Plan, text: NDArray[np.uint16]) -> None:
    """The sections that all orders share."""

    def chunks() -> Iterator[Chunk]:
        for n in spill.n_keys:
            yield from spill.chunks(n, plan.kept[n])

    covered = np.zeros(len(text), dtype=np.bool_)
    for chunk in chunks():
        _cover(covered, chunk)
    ends = np.cumsum(covered, dtype="<u4")  # of each covered place, in the pool
    writer.write("ref", ((ends[chunk.start] - 1).astype("<u4").data for chunk in chunks()))
    writer.write("len", (chunk.length.data for chunk in chunks()))
    writer.write("count", (chunk.count.data for chunk in chunks()))
    writer.write("confat", (block.data for block in _block_starts(chunk.length for chunk in chunks())))
    writer.write("conf", (chunk.confidence.data for chunk in chunks()))
    blocks = (slice(at, at + _TEXT_BLOCK) for at in range(0, len(text), _TEXT_BLOCK))
    writer.write("pool", (text[block][covered[block]].data for block in blocks))


def _block_starts(lengths: Iterable[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint32]]:
    """The sum of the lengths before every `CONF_BLOCK`th candidate, and before the end if that is a multiple."""
    n, total = 0, 0
    for block in lengths:
        ends = total + np.cumsum(block, dtype=np.int64)
        starts = ends - block
        yield starts[-n % CONF_BLOCK :: CONF_BLOCK].astype("<u4")
        n += len(block)
        total = int(ends[-1]) if len(block) else total
    if n % CONF_BLOCK == 0:
        yield np.array([total], dtype="<u4")


class _SectionWriter:
    """Writes sections one after the other, and at the end the head, which needs their checksums."""

    def __init__(self, file: BinaryIO, n_head: int) -> None:
        self._file = file
        self._at = n_head
        file.write(bytes(n_head))
        self._sections: list[Section] = []

    def write(self, name: str, parts: Iterable[memoryview | bytes]) -> None:
        offset = aligned(self._at)
        self._file.write(bytes(offset - self._at))
        crc, n_bytes = 0, 0
        for part in parts:
            data = memoryview(part).cast("B") if len(part) else b""
            self._file.write(data)
            crc, n_bytes = zlib.crc32(data, crc), n_bytes + len(data)
        self._sections.append(Section(name, offset, n_bytes, crc))
        self._at = offset + n_bytes

    def finish(self, *, n_text: int, fingerprint: bytes) -> None:
        self._file.seek(0)
        self._file.write(pack_head(self._sections, n_text=n_text, fingerprint=fingerprint))
