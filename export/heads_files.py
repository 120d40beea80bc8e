"""Files of trained heads: those of `specedge train heads`, and FasterDecoding's medusa_lm_head.

    heads.safetensors     canonical names (`heads`), head_tokens besides where the vocabulary is a part: ids as float32
    medusa_lm_head.*      i.j.linear.{weight,bias}, and i.n.weight, a vocabulary matrix a head (FasterDecoding/Medusa)

The kind is what the names say. A checkpoint in whisper-medusa's layout is opened by `checkpoint`, not here.
Does not know: graphs; whether the heads were trained for this model, beyond their shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.export.heads import BLOCK, Heads, HeadsSpec, head_shapes
from specedge.export.spec import Spec
from specedge.export.tensors import FLOATS, SafetensorsSource, Stored, TensorSource, TorchSource
from specedge.maps.outputs import Kind
from specedge.runtime.errors import CheckpointError

__all__ = ["HEADS", "HEADS_FILE", "TOKENS", "open_heads"]

HEADS_FILE = "heads.safetensors"
TOKENS = "head_tokens"
HEADS = Kind("file of trained heads", lambda head: head[8:9] == b"{" and f'"{TOKENS}":'.encode() in head)
_NAMES = (HEADS_FILE, "medusa_lm_head.safetensors", "medusa_lm_head.pt")


class _Named:
    """Tensors of a file under canonical names."""

    def __init__(self, source: TensorSource, names: Mapping[str, str], where: Path) -> None:
        self._source, self._names, self._where = source, names, where

    def entry(self, name: str) -> Stored | None:
        return self._source.entries[self._names[name]] if name in self._names else None

    def has(self, name: str) -> bool:
        return name in self._names

    def tensor(self, name: str) -> NDArray[np.float32]:
        value = self._source.read(self._names[name])
        if not np.isfinite(value).all():
            raise CheckpointError(f"{self._where}: tensor {name} holds NaN or infinity; the file is damaged")
        return value


def open_heads(path: Path, spec: Spec) -> Heads:
    """The heads in a file, or in one of a known name in a folder, for the model of `spec`.

    Raises CheckpointError for a file that holds no heads, or heads of another shape than this model needs.
    """
    file = _file(path)
    source: TensorSource = SafetensorsSource([file]) if file.suffix == ".safetensors" else TorchSource([file])
    names = _canonical(source.entries)
    named = _Named(source, names, file)
    found = _spec_of(set(names), file)
    d, n_vocab = spec.dims.n_text_state, spec.dims.n_vocab
    tokens = _tokens(named, n_vocab, file) if named.has(TOKENS) else None
    n_rows = n_vocab if tokens is None else len(tokens)
    for name, shape in head_shapes(found, d, spec.n_text_ffn, n_rows):
        stored = named.entry(name)
        if stored is None:
            raise CheckpointError(f"{file}: tensor {name} is missing; expected shape {list(shape)}")
        if stored.shape != shape or stored.dtype not in FLOATS:
            raise CheckpointError(
                f"{file}: tensor {name} is {stored.dtype} {list(stored.shape)}; the model asks for floats {list(shape)}"
            )
    return Heads(spec=found, weights=named, tokens=tokens)


def _file(path: Path) -> Path:
    if not path.is_dir():
        if not path.is_file():
            raise CheckpointError(f"{path}: there is no such file; expected trained heads")
        return path
    file = next((path / name for name in _NAMES if (path / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"{path}: holds no heads (looked for {', '.join(_NAMES)})")
    return file


def _canonical(stored: Mapping[str, Stored]) -> dict[str, str]:
    """Canonical name -> stored name."""
    names = {}
    for name in stored:
        block = re.fullmatch(r"(\d+)\.(\d+)\.linear\.(weight|bias)", name)
        matrix = re.fullmatch(r"(\d+)\.\d+\.weight", name)
        if block is not None:
            names[f"medusa_heads.{name}"] = name
        elif matrix is not None:
            names[f"projection_heads.{matrix[1]}.weight"] = name
        else:
            names[name] = name
    return names


def _spec_of(names: set[str], file: Path) -> HeadsSpec:
    counts = {kind: _count(names, rf"{kind}_heads\.(\d+)\.") for kind in ("medusa", "latent", "projection")}
    if counts["medusa"]:
        has_block = any(name.startswith(f"{BLOCK}.") for name in names)
        found = HeadsSpec(
            kind="medusa-block" if has_block else "medusa-linear",
            n_heads=counts["medusa"],
            n_layers=_count(names, r"medusa_heads\.0\.(\d+)\."),
            own_vocabulary=bool(counts["projection"]),
        )
    elif counts["latent"]:
        found = HeadsSpec(kind="mtp-latent", n_heads=counts["latent"])
    elif counts["projection"]:
        found = HeadsSpec(kind="mtp-projection", n_heads=counts["projection"], own_vocabulary=True)
    else:
        raise CheckpointError(f"{file}: holds no heads: no tensor is called as one of a known layout")
    return found


def _count(names: set[str], pattern: str) -> int:
    """One more than the highest number that the pattern finds at the beginning of a name, 0 where it finds none."""
    return 1 + max((int(found[1]) for name in names if (found := re.match(pattern, name))), default=-1)


def _tokens(named: _Named, n_vocab: int, file: Path) -> NDArray[np.int64]:
    tokens = named.tensor(TOKENS).astype(np.int64)
    if tokens.ndim != 1 or not tokens.size or tokens[0] < 0 or tokens[-1] >= n_vocab or (np.diff(tokens) <= 0).any():
        raise CheckpointError(f"{file}: {TOKENS} must be rising token ids below {n_vocab}")
    return tokens
