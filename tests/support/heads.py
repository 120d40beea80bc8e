"""Heads with random weights over the small checkpoints: in memory, as the published files, and in plain NumPy."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.export import selfcheck
from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.export.heads import Heads, HeadsSpec, head_shapes
from specedge.runtime.bundle.bundle import Bundle, Dims
from specedge.runtime.engine.engine import Engine
from specedge.runtime.options import HEAD_KINDS
from support.checkpoints import weight
from support.edits import edit_config, read_tensors, write_tensors
from support.exported import checkpoint, made_folder

F32 = NDArray[np.float32]
N_HEADS = 3


class Arrays:
    """Weights in memory."""

    def __init__(self, arrays: dict[str, F32]) -> None:
        self.arrays = arrays

    def tensor(self, name: str) -> F32:
        return self.arrays[name]

    def has(self, name: str) -> bool:
        return name in self.arrays


def random_heads(
    kind: str,
    dims: Dims,
    *,
    n_heads: int = N_HEADS,
    n_layers: int = 1,
    tokens: NDArray[np.int64] | None = None,
    own: bool = False,
) -> Heads:
    """Heads of a kind; `own` gives Medusa's kinds a vocabulary matrix a head, as FasterDecoding's files have it."""
    d = dims.n_text_state
    spec = HeadsSpec(kind=kind, n_heads=n_heads, n_layers=n_layers, own_vocabulary=own or kind == "mtp-projection")
    n_rows = dims.n_vocab if tokens is None else len(tokens)
    arrays = {name: weight(name, shape, 0) for name, shape in head_shapes(spec, d, 4 * d, n_rows)}
    return Heads(spec=spec, weights=Arrays(arrays), tokens=tokens)


def guesses(heads: Heads, hidden: F32, features: F32, dims: Dims, decoder: Any) -> F32:
    """Probabilities, float32 [n_heads, n tokens], of the heads behind the last of the rows `hidden`, in plain NumPy."""
    weights = heads.weights
    x = hidden
    if heads.spec.kind == "medusa-block":
        x, _ = selfcheck.decoder_layer(x, features, weights, "medusa_block", dims.n_text_head)
    last = x[-1:]
    matrix = decoder.tensor(
        "proj_out.weight" if decoder.has("proj_out.weight") else "model.decoder.embed_tokens.weight"
    )
    rows = []
    for i in range(heads.spec.n_heads):
        row = last
        if heads.spec.kind.startswith("medusa-"):
            row = selfcheck.residual_blocks(last, weights, f"medusa_heads.{i}")
        if heads.spec.kind == "mtp-latent":
            row = last @ weights.tensor(f"latent_heads.{i}.weight").T
        if heads.spec.own_vocabulary:
            logits = row @ weights.tensor(f"projection_heads.{i}.weight").T
        else:
            logits = row @ (matrix if heads.tokens is None else matrix[heads.tokens]).T
        mass = np.exp(logits - logits.max())
        rows.append((mass / mass.sum())[0])
    return np.stack(rows)


def bundle(precision: str = "int8") -> Bundle:
    """The bundle of the micro checkpoint with heads of all kinds. Do not change its folder."""
    return _bundle(precision)


@functools.cache
def _bundle(precision: str) -> Bundle:
    with open_checkpoint(checkpoint()) as source:
        heads = [random_heads(kind, source.spec.dims) for kind in HEAD_KINDS]
        out = made_folder("bundle", f"heads-{precision}")
        return write_bundle(source, out, precision=precision, name="micro", version="0.1.0", heads=heads)


def engine(precision: str = "int8") -> Engine:
    """An engine over `bundle`, without a cache of packed weights. Leave no state of your own behind."""
    return _engine(precision)


@functools.cache
def _engine(precision: str) -> Engine:
    return Engine(bundle(precision), threads=1, cache=False)


def published_checkpoint(
    source: Path, folder: Path, kind: str, *, n_heads: int = N_HEADS, n_layers: int = 1, **changes: Any
) -> Path:
    """A checkpoint in whisper-medusa's layout made of the one in `source`; `changes` go into config.json."""
    from shutil import copytree

    copytree(source, folder)
    path = folder / "model.safetensors"
    stored = {f"whisper_model.{name}": value for name, value in read_tensors(path).items()}
    d = stored["whisper_model.model.decoder.layer_norm.weight"].shape[0]
    is_linear = kind == "medusa-linear"
    spec = HeadsSpec(kind=kind, n_heads=n_heads + is_linear, n_layers=n_layers)
    for name, shape in head_shapes(spec, d, 4 * d, 0):
        stored[name] = (weight(name, shape, 0) * np.float32(0.3)).astype(np.float16)
    stored["whisper_layer.fc1.bias"] = np.zeros(4 * d, np.float16)  # of the training alone
    write_tensors(path, stored)
    settings = {
        "architectures": ["WhisperMedusaModel"],
        "medusa_num_heads": n_heads,
        "medusa_num_layers": n_layers,
        "medusa_hidden_size": d,
        "medusa_heads_type": "base_head" if is_linear else "medusa_block",
        "medusa_choices": [1] * (n_heads + 1),
        "medusa_loss_on_original": False,
        "medusa_kl_loss": False,
        "medusa_kl_weight": 0.0,
        "output_whisper_original": False,
        "whisper_model_name": "openai/whisper-large-v2",
    }
    edit_config(folder, **(settings | changes))
    return folder


def medusa_lm_head(file: Path, dims: Dims, *, n_heads: int = N_HEADS, n_layers: int = 1) -> Heads:
    """Write `file` as FasterDecoding/Medusa names its tensors; the same heads in memory come back."""
    heads = random_heads("medusa-linear", dims, n_heads=n_heads, n_layers=n_layers, own=True)
    arrays = heads.weights.arrays  # type: ignore[attr-defined]
    stored = {}
    for name, value in arrays.items():
        if name.startswith("projection_heads."):
            stored[f"{name.split('.')[1]}.{n_layers}.weight"] = value
        else:
            stored[name.removeprefix("medusa_heads.")] = value
    if file.suffix == ".safetensors":
        write_tensors(file, stored)
    else:
        import torch

        torch.save({name: torch.from_numpy(value) for name, value in stored.items()}, file)
    return heads
