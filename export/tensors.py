"""Files of weights, read one tensor at a time: safetensors, and PyTorch pickles through its weights-only loader.

The safetensors library validates a file's header (README of huggingface/safetensors, "Format"); the bytes of a tensor
are then read by ourselves: mapped pages would count as resident memory, and its NumPy reader has no bfloat16.
It does not know which tensors a model has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from specedge.runtime.errors import CheckpointError

__all__ = ["FLOATS", "SafetensorsSource", "Stored", "TensorSource", "TorchSource", "load_pickle", "read_floats"]

F32 = npt.NDArray[np.float32]

_CHUNK_BYTES = 8 << 20
_RELOAD_BYTES = 512 << 20

# Stored type -> how its bytes are read. bfloat16 is the upper half of a float32.
FLOATS: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True)
class Stored:
    """One tensor as a file declares it: shape, type as safetensors spells it ("F16"), and the file."""

    shape: tuple[int, ...]
    dtype: str
    path: Path
    offset: int = 0


class TensorSource(Protocol):
    """Named tensors on disk. `entries` costs headers only; `read` gives float32, C-contiguous, one tensor."""

    @property
    def entries(self) -> Mapping[str, Stored]: ...

    def read(self, name: str) -> F32: ...

    def close(self) -> None: ...


def read_floats(path: Path, offset: int, shape: tuple[int, ...], dtype: str) -> F32:
    """Read `shape` values of a stored type (a key of FLOATS) at a byte offset, as float32.

    Peak memory is the result plus one block. Raises CheckpointError where the file ends early.
    """
    out = np.empty(shape, dtype=np.float32)
    flat = out.reshape(-1)
    kind = FLOATS[dtype]
    step = _CHUNK_BYTES // kind.itemsize
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        for start in range(0, flat.size, step):
            part = flat[start : start + step]
            _convert(_read_exactly(file, part.size * kind.itemsize, path), kind, dtype, part)
    return out


def _read_exactly(file: Any, n_bytes: int, path: Path) -> bytearray:
    block = bytearray(n_bytes)
    view, done = memoryview(block), 0
    while done < n_bytes:
        got = file.readinto(view[done:])
        if not got:
            raise CheckpointError(f"{path}: ends in the middle of a tensor; copy or download the file again")
        done += got
    return block


def _convert(block: bytearray, kind: np.dtype[Any], dtype: str, out: F32) -> None:
    raw = np.frombuffer(block, dtype=kind)
    if dtype == "BF16":
        np.left_shift(raw, 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")
        return
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which the checkpoint refuses by name
        out[...] = raw


# --------------------------------------------------------------------------------------------------- safetensors
class SafetensorsSource:
    """One or several .safetensors files. Holds no file open, so reads are safe from several threads."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._entries: dict[str, Stored] = {}
        for path in paths:
            self._entries.update(_safetensors_entries(path))

    @property
    def entries(self) -> Mapping[str, Stored]:
        return self._entries

    def read(self, name: str) -> F32:
        stored = self._entries[name]
        with _readable(stored.path):
            return read_floats(stored.path, stored.offset, stored.shape, stored.dtype)

    def close(self) -> None:
        """Nothing is held open."""


def _safetensors_entries(path: Path) -> Iterator[tuple[str, Stored]]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise CheckpointError(
            f"{path}: reading it needs the package safetensors: pip install 'specedge[export]'"
        ) from error
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file; the checkpoint is incomplete")
    with _readable(path):
        try:
            with safe_open(str(path), framework="numpy"):  # validates lengths, offsets, overlaps and holes
                pass
        except SafetensorError as error:
            reason = f"is not a valid safetensors file ({error}); copy or download it again"
            raise CheckpointError(f"{path}: {reason}") from error
        with path.open("rb") as file:
            n_header = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(n_header))
    for name, entry in header.items():
        if name != "__metadata__":
            offset = 8 + n_header + entry["data_offsets"][0]
            yield name, Stored(tuple(entry["shape"]), entry["dtype"], path, offset)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error


# --------------------------------------------------------------------------------------------------------- torch
class TorchSource:
    """One or several pickles holding {name: tensor}, mapped rather than read.

    Mapped pages count as resident memory, so the mapping is renewed after every half gigabyte read.
    """

    def __init__(self, paths: Sequence[Path], *, key: str | None = None) -> None:
        self._paths, self._key = list(paths), key
        self._states: dict[Path, dict[str, Any]] = {}
        self._read_bytes = 0
        self._entries: dict[str, Stored] = {}
        for path in self._paths:
            for name, tensor in self._state(path).items():
                self._entries[name] = Stored(tuple(tensor.shape), _torch_dtype(tensor), path)

    @property
    def entries(self) -> Mapping[str, Stored]:
        return self._entries

    def read(self, name: str) -> F32:
        import torch

        stored = self._entries[name]
        tensor = self._state(stored.path)[name].detach()
        out = np.empty(stored.shape, dtype=np.float32)
        torch.from_numpy(out).copy_(tensor)
        self._read_bytes += tensor.numel() * tensor.element_size()
        if self._read_bytes > _RELOAD_BYTES:
            self.close()
        return out

    def close(self) -> None:
        self._states.clear()
        self._read_bytes = 0

    def _state(self, path: Path) -> dict[str, Any]:
        if path not in self._states:
            value = load_pickle(path)
            import torch

            value = value.get(self._key) if self._key is not None and isinstance(value, dict) else value
            if not isinstance(value, dict):
                raise CheckpointError(f"{path}: expected a dictionary of tensors, found {type(value).__name__}")
            tensors = {name: item for name, item in value.items() if isinstance(item, torch.Tensor)}
            if not tensors:
                raise CheckpointError(f"{path}: holds no tensors by name; expected a model's state_dict")
            self._states[path] = tensors
        return self._states[path]


def load_pickle(path: Path) -> Any:
    """A pickle through torch's weights-only loader, mapped where its format allows.

    Raises CheckpointError if torch is absent, if the file holds anything but tensors and plain containers (nothing in
    it is executed), or if it is damaged.
    """
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(
            f"{path}: is a PyTorch pickle, and reading it needs torch: pip install torch, or give a checkpoint saved "
            "as model.safetensors"
        ) from error
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file; the checkpoint is incomplete")
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except Exception as error:  # the loader raises half a dozen unrelated classes for damaged files
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{path}: torch's weights-only loader refuses it ({reason})") from error


def _is_zip(path: Path) -> bool:
    """torch maps its zip format (torch >= 1.6) only; the older one is read whole."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _torch_dtype(tensor: Any) -> str:
    names = {"torch.float64": "F64", "torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16"}
    dtype = str(tensor.dtype)
    strided = str(tensor.layout) == "torch.strided" and not tensor.is_quantized
    return names.get(dtype, dtype) if strided and math.prod(tensor.shape) == tensor.numel() else str(tensor.layout)
