"""Heads with random weights over the small checkpoints: in memory, as the published files, and in torch."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.export.heads import Heads, HeadsSpec, head_shapes
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.dims import Dims
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
    kind: str, dims: Dims, *, n_heads: int = N_HEADS, n_layers: int = 1, tokens: NDArray[np.int64] | None = None
) -> Heads:
    """Heads of a kind."""
    d = dims.n_text_state
    spec = HeadsSpec(kind=kind, n_heads=n_heads, n_layers=n_layers)
    n_rows = dims.n_vocab if tokens is None else len(tokens)
    arrays = {name: weight(name, shape, 0) for name, shape in head_shapes(spec, d, 4 * d, n_rows)}
    return Heads(spec=spec, weights=Arrays(arrays), tokens=tokens)


def guesses(heads: Heads, hidden: F32, features: F32, dims: Dims, decoder: Any) -> F32:
    """Probabilities, float32 [n_heads, n tokens], of the heads behind the last of the rows `hidden`, by torch."""
    import torch

    from specedge.export.training.nets import Block, HeadNet

    name = "proj_out.weight" if decoder.has("proj_out.weight") else "model.decoder.embed_tokens.weight"
    matrix = torch.from_numpy(decoder.tensor(name))
    tokens = range(len(matrix)) if heads.tokens is None else heads.tokens.tolist()
    d = dims.n_text_state
    net = HeadNet(heads.spec.kind, heads.spec.n_heads, matrix[list(tokens)], Block(d, dims.n_text_head, 4 * d))
    net.load_named(heads.weights)
    with torch.no_grad():
        last = net.rows(torch.from_numpy(hidden)[None], torch.from_numpy(features)[None])[0, -1:]
        found = [torch.softmax(net.logits(last, head)[0], -1).numpy() for head in range(net.n_heads)]
    return np.stack(found)


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
    """An engine over `bundle`. Leave no state of your own behind."""
    return _engine(precision)


@functools.cache
def _engine(precision: str) -> Engine:
    return Engine(bundle(precision), threads=1)


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
