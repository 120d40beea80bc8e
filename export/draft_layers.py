"""Decoder layers that draft for one checkpoint over its own encoder, as a file of a few megabytes.

A draft of `specedge train draft --layers` shares all else with its target: encoder, token table, vocabulary. So its
file holds layers, positions and the last norm alone, matrices as int8 with a float32 scale a row, and the ids of text
that it was trained on, the only ones that it is likely to say. `fingerprint` says whose they are, by weights that
training changes, at half precision, in which most checkpoints are stored.

The distribution `specedge-drafts` brings such files for published models (`shipped`); its README names what they were
trained on.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.errors import CheckpointError, UsageError
from specedge.files import Kind, write_atomic

from .checkpoint import Checkpoint
from .qwen3_asr import SpeechSpec
from .spec import F32, Stored

SUFFIX = ".safetensors"
_SHIPPED = "specedge_drafts"  # the module of the distribution
_FORMAT = "specedge-draft-layers"
_SCALE = ".scale"
SHORTLIST = "shortlist"  # the tensor of ids
LAYERS = Kind("file of draft layers", lambda head: _FORMAT.encode() in head)
_TELLING = (
    "model.encoder.conv1.weight",
    "model.encoder.layer_norm.weight",
    "model.decoder.layer_norm.weight",
    "model.decoder.layer_norm.bias",
)


def fingerprint(checkpoint: Checkpoint) -> str:
    """SHA-256, in hex, that tells a checkpoint from others of its shape. Raises CheckpointError."""
    hasher = hashlib.sha256()
    for name in _TELLING:
        hasher.update(checkpoint.tensor(name).astype("<f2").tobytes())
    return hasher.hexdigest()


def write_layers(
    path: Path, target: Checkpoint, trained: Mapping[str, F32], n_layers: int, said: Iterable[int]
) -> None:
    """Write the `trained` weights of a draft of `n_layers` layers for `target`, by their canonical names.

    said: ids of text that it was trained on. Raises CheckpointError for weights of `target`, ResourceError, UsageError
    for a file at `path` of another kind.
    """
    from safetensors.numpy import save

    tensors = dict[str, NDArray[np.generic]]()
    for name, value in trained.items():
        if value.ndim < 2:
            tensors[name] = value.astype(np.float32)
            continue
        scale = np.maximum(np.abs(value).max(axis=1, keepdims=True), 1e-12) / 127
        tensors[name], tensors[name + _SCALE] = np.rint(value / scale).astype(np.int8), scale.astype(np.float32)
    tensors[SHORTLIST] = np.unique(np.fromiter(said, np.int32))
    about = {"format": _FORMAT, "target": fingerprint(target), "n_layers": str(n_layers)}
    write_atomic(path, save({name: np.ascontiguousarray(value) for name, value in tensors.items()}, about), LAYERS)


def open_layers(path: Path, target: Checkpoint) -> Checkpoint:
    """The draft in the file `path` as a checkpoint that reads all else from `target`.

    Raises CheckpointError for a file that is none, UsageError for layers of another model.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            said = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        layers = {
            name: (value * stored.get(name + _SCALE, np.float32(1))).astype(np.float32)
            for name, value in stored.items()
            if not name.endswith(_SCALE)
        }
    except (OSError, SafetensorError, ValueError) as error:  # ValueError: a scale does not fit its matrix
        raise CheckpointError(f"{path}: no file of draft layers: {error}") from error
    n_layers = said.get("n_layers", "")
    if said.get("format") != _FORMAT or not (n_layers.isdecimal() and int(n_layers)):
        raise CheckpointError(f"{path}: no draft layers, expected a file of `specedge train draft --layers`")
    if isinstance(target.spec, SpeechSpec) or said.get("target") != fingerprint(target):
        raise UsageError(f"{path}: was trained for another model than {target.spec.source.id}")
    spec = replace(
        target.spec,
        dims=replace(target.spec.dims, n_text_layer=int(n_layers)),
        heads=None,
        generation={**target.spec.generation, "alignment_heads": None},  # those are the deeper decoder's
    )
    entries = {name: target.entries[name] for name, _ in spec.shapes() if name in target.entries}
    entries |= {name: Stored(value.shape, "F32", path, read=value.copy) for name, value in layers.items()}
    return Checkpoint(spec, entries, folder=target.folder, where=str(path))


def shipped(target: Checkpoint) -> Path | None:
    """The file of the layers that come with a published model; None for other models, or without the distribution."""
    found = importlib.util.find_spec(_SHIPPED)
    places = [] if found is None else list(found.submodule_search_locations or [])
    if not places or isinstance(target.spec, SpeechSpec) or target.spec.heads is not None:
        return None
    path = Path(places[0]) / f"{fingerprint(target)[:16]}{SUFFIX}"
    return path if path.is_file() else None
