"""Columns of numbers on disk between the counting of a map and its writing, so that memory stays bounded.

One file a column and order, only ever appended to. Knows keys and candidates as numbers; not what they count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Chunk", "Spill"]

_KEY_COLUMNS = {"key": np.uint64, "old": np.uint16, "n_candidates": np.uint8, "value": np.float32}
_CANDIDATE_COLUMNS = {"start": np.uint32, "length": np.uint8, "count": np.uint8}
_CHUNK_KEYS = 1 << 18


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunk:
    """Some keys of one order, in their order, with their candidates.

    key u64, old u16, n_candidates u8, value f32, one for each key; start u32 (where in the text), length u8, count u8
    (quantised), one for each candidate; confidence u8, one for each token.
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
        """The chunk with the keys where `kept` is true."""
        candidates = np.repeat(kept, self.n_candidates)
        columns = {name: getattr(self, name)[kept] for name in _KEY_COLUMNS}
        columns |= {name: getattr(self, name)[candidates] for name in _CANDIDATE_COLUMNS}
        return Chunk(**columns, confidence=self.confidence[np.repeat(candidates, self.length)])


class Spill:
    """The columns of a map under way in the empty folder `folder`; use it in a `with`, write all before reading."""

    def __init__(self, folder: Path, n_orders: int) -> None:
        self.n_orders = n_orders
        self._folder = folder
        self._stack = ExitStack()
        names = (*_KEY_COLUMNS, *_CANDIDATE_COLUMNS, "confidence")
        self._files: dict[tuple[str, int], Any] = {
            (name, n): self._stack.enter_context(open(folder / f"{name}{n}", "xb"))
            for n in range(1, n_orders + 1)
            for name in names
        }
        self.n_keys = dict.fromkeys(range(1, n_orders + 1), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def append(self, n: int, chunk: Chunk) -> None:
        """Add keys of order `n`; keys rise within and between chunks."""
        self.n_keys[n] += len(chunk.key)
        for name, dtype in (_KEY_COLUMNS | _CANDIDATE_COLUMNS | {"confidence": np.uint8}).items():
            self._files[name, n].write(np.ascontiguousarray(getattr(chunk, name), dtype=dtype).data)

    def finish(self) -> None:
        """No more keys."""
        self._stack.close()

    def values(self) -> NDArray[np.float32]:
        """The value of each key, order by order."""
        return np.concatenate([np.fromfile(self._folder / f"value{n}", np.float32) for n in self.n_keys])

    def chunks(self, n: int, kept: NDArray[np.bool_] | None = None) -> Iterator[Chunk]:
        """The keys of order `n`, of those only the ones where `kept` (bool[n_keys]) is true."""
        dtypes = _KEY_COLUMNS | _CANDIDATE_COLUMNS | {"confidence": np.uint8}
        with ExitStack() as stack:
            files = {name: stack.enter_context(open(self._folder / f"{name}{n}", "rb")) for name in dtypes}

            def read(name: str, count: int) -> NDArray[Any]:
                return np.fromfile(files[name], dtypes[name], count)

            for at in range(0, self.n_keys[n], _CHUNK_KEYS):
                columns = {name: read(name, min(_CHUNK_KEYS, self.n_keys[n] - at)) for name in _KEY_COLUMNS}
                n_candidates = int(columns["n_candidates"].sum(dtype=np.int64))
                columns |= {name: read(name, n_candidates) for name in _CANDIDATE_COLUMNS}
                chunk = Chunk(**columns, confidence=read("confidence", int(columns["length"].sum(dtype=np.int64))))
                yield chunk if kept is None else chunk.only(kept[at : at + len(chunk.key)])
