"""Write counted columns as a `.tmap` file (docs/tmap-format.md), pruned to a byte budget.

Between counting and writing the columns lie on disk, a file for each order, so that memory stays bounded.
The pool is the part of the text that candidates need, without gaps. The same columns give the same bytes.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specedge.errors import ResourceError, UsageError
from specedge.files import publishing

from .tmap_format import CONF_BLOCK, END, MAX_ORDER, TOKEN_MAP, Section, aligned, head_bytes, pack_head

KEY = np.dtype([("key", "<u8"), ("old", "<u2"), ("n_candidates", "u1"), ("value", "<f4")])
CANDIDATE = np.dtype([("start", "<u4"), ("length", "u1"), ("count", "u1")])  # in the text; tokens; quantised
_Rows = NDArray[Any]
_Kept = NDArray[np.bool_] | None  # which keys of all orders go into the file; None for all


class Chunk(NamedTuple):
    """Keys of one order, rising, each a `KEY`; their candidates, each a `CANDIDATE`; u8 for each token of those."""

    keys: _Rows
    candidates: _Rows
    confidence: NDArray[np.uint8]

    def only(self, kept: NDArray[np.bool_]) -> Chunk:
        candidates = np.repeat(kept, self.keys["n_candidates"])
        tokens = np.repeat(candidates, self.candidates["length"])
        return Chunk(self.keys[kept], self.candidates[candidates], self.confidence[tokens])


class Spill:
    """The keys of a map in the empty folder `folder`, a file for each order, chunk by chunk, and their text."""

    def __init__(self, folder: Path, n_orders: int) -> None:
        self.n_orders, self.text = n_orders, folder / "text"
        self._paths = {n: folder / f"order{n}" for n in range(1, n_orders + 1)}
        self.n_keys = dict.fromkeys(self._paths, 0)

    def append(self, n: int, chunk: Chunk) -> None:
        """Add keys of order `n`; keys rise within and between chunks."""
        self.n_keys[n] += len(chunk.keys)
        with open(self._paths[n], "ab") as file:
            for rows in chunk:
                np.save(file, rows)

    def chunks(self, kept: _Kept = None, order: int | None = None) -> Iterator[Chunk]:
        """The keys of one order or, for None, of all; `kept`, bool for all keys of all orders, says which of them."""
        at = 0
        for n, n_keys in self.n_keys.items():
            end = at + n_keys
            if n_keys and order in (None, n):
                with open(self._paths[n], "rb") as file:
                    while at < end:
                        chunk = Chunk(*map(np.load, [file] * 3))
                        yield chunk if kept is None else chunk.only(kept[at : at + len(chunk.keys)])
                        at += len(chunk.keys)
            at = end


_MAX_U32 = (1 << 32) - 1
_TEXT_BLOCK = 1 << 22
_FIT_TOLERANCE = 0.002  # of the keys; nearer to the budget is not worth another pass


def write_map(
    path: str | os.PathLike[str],
    spill: Spill,
    *,
    n_text: int,
    fingerprint: bytes,
    meta: Mapping[str, Any],
    ids: NDArray[np.uint32] | None = None,
    budget_bytes: int | None = None,
) -> None:
    """Write the map, without its least valuable keys if it would exceed `budget_bytes`; `meta` says how many went.

    ids: what the tokens of text and keys stand for, rising; None where they are ids.

    Raises UsageError for a budget below an empty map and for a file at `path` that is no map; ResourceError when the
    file cannot be written.
    """

    def write(file: BinaryIO, kept: _Kept) -> list[Section]:
        writer = _SectionWriter(file, head_bytes(spill.n_orders, numbered=ids is not None))
        facts = {**meta, "pruned_keys": 0 if kept is None else int(np.count_nonzero(~kept))}
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        writer.write("meta", [np.frombuffer(text.encode(), np.uint8)])
        if ids is not None:
            writer.write("ids", [ids.astype("<u4")])
        base = 0
        for n in spill.n_keys:
            base = _write_order(writer, spill, kept, n, base)
        _write_candidates(writer, spill, kept)
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
    values = np.concatenate([np.zeros(0, np.float32), *(chunk.keys["value"].copy() for chunk in spill.chunks())])
    best_first = np.argsort(-values, kind="stable")

    def best(n_kept: int) -> NDArray[np.bool_]:
        kept = np.zeros(len(values), np.bool_)
        kept[best_first[:n_kept]] = True
        return kept

    fits, fails = 0, len(values)
    if (least_bytes := size_of(best(0))) > budget_bytes:
        raise UsageError(f"a budget of {budget_bytes} bytes is too small: an empty map has {least_bytes}")
    while fails - fits > max(1, int(_FIT_TOLERANCE * len(values))):
        middle = (fits + fails) // 2
        if size_of(best(middle)) <= budget_bytes:
            fits = middle
        else:
            fails = middle
    return best(fits)


def _write_order(writer: _SectionWriter, spill: Spill, kept: _Kept, n: int, base: int) -> int:
    """Keys, index and first candidates of order `n`; returns the number of its last candidate plus one."""
    writer.write(f"keys{n}", (chunk.keys["key"] for chunk in spill.chunks(kept, n)))
    if n == MAX_ORDER:
        writer.write(f"old{n}", (chunk.keys["old"] for chunk in spill.chunks(kept, n)))
    shift = np.uint64(16 * (min(n, MAX_ORDER - 1) - 1))
    keys_of = np.zeros(END + 1, dtype=np.int64)  # by their last token
    counts = [np.array([base])]
    for chunk in spill.chunks(kept, n):
        keys_of += np.bincount((chunk.keys["key"] >> shift).astype(np.int64), minlength=END + 1)
        counts.append(chunk.keys["n_candidates"].copy())  # a view would keep all rows
    n_rows = int(keys_of[:END].nonzero()[0].max(initial=-1)) + 1
    writer.write(f"csr{n}", [np.concatenate(([0], np.cumsum(keys_of[:n_rows]), [keys_of.sum()])).astype("<u4")])
    firsts = np.cumsum(np.concatenate(counts), dtype=np.int64)
    writer.write(f"first{n}", [firsts.astype("<u4")])
    return int(firsts[-1])


def _write_candidates(writer: _SectionWriter, spill: Spill, kept: _Kept) -> None:
    """The sections that all orders share."""
    text = np.memmap(spill.text, dtype="<u2", mode="r")
    covered = np.zeros(len(text), dtype=np.bool_)
    for chunk in spill.chunks(kept):
        start, length = chunk.candidates["start"].astype(np.int64), chunk.candidates["length"]
        for i in range(int(length.max(initial=0))):
            covered[start[length > i] + i] = True
    ends = np.cumsum(covered, dtype="<u4")  # of each covered place, in the pool
    writer.write("ref", ((ends[chunk.candidates["start"]] - 1).astype("<u4") for chunk in spill.chunks(kept)))
    lengths_of = (chunk.candidates["length"].copy() for chunk in spill.chunks(kept))
    lengths = np.concatenate([np.zeros(0, np.uint8), *lengths_of])
    writer.write("len", [lengths])
    writer.write("count", (chunk.candidates["count"] for chunk in spill.chunks(kept)))
    before = np.append(0, np.cumsum(lengths, dtype="<u4")[CONF_BLOCK - 1 :: CONF_BLOCK])
    writer.write("confat", [before.astype("<u4")])
    writer.write("conf", (chunk.confidence for chunk in spill.chunks(kept)))
    blocks = (slice(at, at + _TEXT_BLOCK) for at in range(0, len(text), _TEXT_BLOCK))
    writer.write("pool", (text[block][covered[block]] for block in blocks))


class _SectionWriter:
    """Writes sections one after the other behind room for the head, which needs their checksums."""

    def __init__(self, file: BinaryIO, n_head: int) -> None:
        self._file, self._end = file, n_head
        file.write(bytes(n_head))
        self.sections: list[Section] = []

    def write(self, name: str, parts: Iterable[NDArray[Any]]) -> None:
        offset = aligned(self._end)
        self._file.write(bytes(offset - self._end))
        crc, n_bytes = 0, 0
        for part in parts:
            data = np.ascontiguousarray(part).data
            self._file.write(data)
            crc, n_bytes = zlib.crc32(data, crc), n_bytes + data.nbytes
        self.sections.append(Section(name, offset, n_bytes, crc))
        self._end = offset + n_bytes
