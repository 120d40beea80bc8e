"""Read the folders of mlx-whisper: config.json of openai-whisper's dims, weights in .npz or .safetensors.

Names are openai-whisper's, but for the feed-forward layers (mlp1, mlp2); a convolution's channels come last; the
encoder's positions are not stored, for they are computed (mlx-examples, whisper/convert.py). Quantised folders are
refused, named by their `quantization`.
"""

from __future__ import annotations

import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from specedge.errors import CheckpointError

from .openai_pt import canonical_name, derive_spec, read_dims
from .spec import F32, Source, Spec, Stored, read_json, read_weights

_FILES = ("model.safetensors", "weights.safetensors", "weights.npz")
_POSITIONS = "model.encoder.embed_positions.weight"
_CONVOLUTIONS = {"model.encoder.conv1.weight", "model.encoder.conv2.weight"}
_FORMAT: Any = np.lib.format  # which some versions of NumPy have no types for
_HEADS = "alignment_heads"
_NPZ_TYPES = {"<f2": "F16", "<f4": "F32", "<f8": "F64"}


def is_mlx(folder: Path) -> bool:
    """Whether a folder's config.json has openai-whisper's dims, as only MLX writes them."""
    path = folder / "config.json"
    return path.is_file() and "n_audio_state" in read_json(path)


def open_mlx(folder: Path, source: Source) -> tuple[Spec, dict[str, Stored]]:
    """Spec and weights of a folder of mlx-whisper. Raises CheckpointError."""
    config = read_json(folder / "config.json")
    if config.get("quantization") is not None:
        said = config["quantization"]
        bits = said.get("bits", "?") if isinstance(said, dict) else "?"
        raise CheckpointError(
            f"{folder}: is an MLX model of {bits} bits, and rounding it once more would cost words; give the float16 "
            "one, or export the checkpoint it was made from"
        )
    dims = read_dims(config, str(folder / "config.json"))
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if path is None:
        raise CheckpointError(f"{folder}: is an MLX model without weights; looked for {', '.join(_FILES)}")
    stored = read_weights([path]) if path.suffix == ".safetensors" else _npz(path)
    named = stored.pop(_HEADS, None)
    entries = {_canonical(name): tensor for name, tensor in stored.items()}
    for name in _CONVOLUTIONS & entries.keys():
        entries[name] = _turned(entries[name])
    shape = (dims["n_audio_ctx"], dims["n_audio_state"])
    entries.setdefault(_POSITIONS, Stored(shape, "F32", path, read=partial(_sinusoids, *shape)))
    pairs = named.read() if named is not None and named.read is not None else np.zeros((0, 2))
    heads = [[int(layer), int(head)] for layer, head in pairs] if pairs.ndim == 2 and pairs.shape[1] == 2 else []
    return derive_spec(dims, entries, source=source, where=str(folder), heads=heads), entries


def _npz(path: Path) -> dict[str, Stored]:
    """The tensors of an .npz, read one at a time."""
    found = {}
    with _opened(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as file:
                _FORMAT.read_magic(file)
                shape, by_columns, dtype = _FORMAT.read_array_header_1_0(file)
            kind = _NPZ_TYPES.get(dtype.str, dtype.str) if not by_columns or len(shape) < 2 else "columns"
            found[member.removesuffix(".npy")] = Stored(shape, kind, path, read=partial(_member, path, member))
    return found


def _member(path: Path, name: str) -> F32:
    with _opened(path) as archive, archive.open(name) as file:
        return np.ascontiguousarray(_FORMAT.read_array(file, allow_pickle=False), np.float32)


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{path}: is no .npz file ({error}); copy or download it again") from None


def _canonical(name: str) -> str:
    return canonical_name(name.replace(".mlp1.", ".mlp.0.").replace(".mlp2.", ".mlp.2."))


def _turned(stored: Stored) -> Stored:
    """A convolution [n_out, width, n_in] as transformers has it."""
    shape = stored.shape
    turned = (shape[0], shape[2], shape[1]) if len(shape) == 3 else shape
    return replace(stored, shape=turned, read=lambda: np.ascontiguousarray(stored.tensor().transpose(0, 2, 1)))


def _sinusoids(n_ctx: int, d: int) -> F32:
    """The encoder's fixed positions (openai-whisper, model.py: sinusoids), float32 [n_ctx, d]."""
    rates = np.exp(-np.log(10_000) / (d // 2 - 1) * np.arange(d // 2))
    angles = np.arange(n_ctx)[:, None] * rates[None, :]
    positions: F32 = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    return positions
