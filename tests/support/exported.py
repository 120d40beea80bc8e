"""Bundles of small random checkpoints, each made once in a test run, and transformers' model of the same weights.

A variant is a shape and layout that some published or fine-tuned Whisper has, at a few thousand weights.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from specedge.export.bundling import add_to_bundle, write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.engine import Engine
from support.checkpoints import SIZES, Shape, make_checkpoint, weight
from support.edits import edit_config, read_tensors, write_tensors

PRECISIONS = ("fp32", "int8", "int4")
_ROOT = tempfile.TemporaryDirectory(prefix="specedge-bundles-", ignore_cleanup_errors=True)
atexit.register(_ROOT.cleanup)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What differs from the micro checkpoint: dimensions, layout options, a head of its own, biased keys."""

    shape: dict[str, int] = field(default_factory=dict)
    en: bool = False
    untied: bool = False
    key_bias: bool = False


VARIANTS = {
    "plain": Variant(),
    "en": Variant(en=True),
    "v3": Variant(shape={"n_mels": 128, "n_vocab": 1001}),
    "untied": Variant(untied=True),
    "distil": Variant(shape={"n_audio_layer": 3, "n_text_layer": 1}),
    "deep text": Variant(shape={"n_audio_layer": 1, "n_text_layer": 3}),
    "odd lengths": Variant(shape={"n_audio_ctx": 75, "n_text_ctx": 37}),
    "narrow heads": Variant(shape={"n_head": 4}),  # 16 wide
    "odd heads": Variant(shape={"n_state": 48, "n_head": 2}),  # 24 wide
    "wide heads": Variant(shape={"n_state": 80, "n_head": 1}),
    "one head of 64": Variant(shape={"n_head": 1, "n_text_ctx": 448}),
    "key bias": Variant(key_bias=True),
}

# Smaller than the others, to draft for them; the first has the encoder of "plain".
_SMALL = {"n_audio_layer": 1, "n_text_layer": 1}
DRAFTS = {
    "draft same": Variant(shape={"n_text_layer": 1}),
    "draft": Variant(shape=_SMALL),
    "draft v3": Variant(shape={**_SMALL, "n_mels": 128, "n_vocab": 1001}),
    "draft en": Variant(shape=_SMALL, en=True),
}
# To draft for a speech LLM with windows of 30 s.
_LONG = {**_SMALL, "n_state": 32, "n_head": 1, "n_audio_ctx": 1500, "n_vocab": 2200}
_OTHERS = {
    "draft long": Variant(shape=_LONG, en=True),
    "draft narrow": Variant(shape={**_SMALL, "n_state": 32}, en=True),
}


def checkpoint(variant: str = "plain") -> Path:
    """The checkpoint folder of a variant. Do not change it: others use it too."""
    return _checkpoint(variant)


@functools.cache
def _checkpoint(variant: str) -> Path:
    chosen = (VARIANTS | DRAFTS | _OTHERS)[variant]
    shape = replace(SIZES["micro"], **chosen.shape)
    with mock.patch.dict(SIZES, {"variant": shape}):
        folder = make_checkpoint(made_folder("checkpoint", variant), size="variant", en=chosen.en)
    extra = _extra_weights(chosen, shape)
    if extra:
        weights = folder / "model.safetensors"
        write_tensors(weights, read_tensors(weights) | extra)
        edit_config(folder, tie_word_embeddings=not chosen.untied)
    return folder


def bundle(precision: str = "int8", variant: str = "plain") -> Bundle:
    """The bundle of a variant, exported through the real code. Do not change its folder."""
    return _bundle(precision, variant)


@functools.cache
def _bundle(precision: str, variant: str) -> Bundle:
    with open_checkpoint(checkpoint(variant)) as source:
        out = made_folder("bundle", f"{variant}-{precision}")
        return write_bundle(source, out, precision=precision, name="micro", version="0.1.0")


def learnable(precision: str = "int8", variant: str = "draft") -> Bundle:
    """The bundle of a variant with the graphs that a draft learns with. Do not change its folder."""
    return _learnable(precision, variant)


@functools.cache
def _learnable(precision: str, variant: str) -> Bundle:
    out = made_folder("learnable", f"{variant}-{precision}")
    return add_to_bundle(Path(shutil.copytree(bundle(precision, variant).path, out)), learnable=True)


def engine(precision: str = "int8", variant: str = "plain", threads: int = 2) -> Engine:
    """An engine over `bundle`. Leave no state of your own behind."""
    return _engine(precision, variant, threads)


@functools.cache
def _engine(precision: str, variant: str, threads: int) -> Engine:
    return Engine(bundle(precision, variant), threads=threads)


def transformers_model(variant: str = "plain") -> Any:
    """transformers' WhisperForConditionalGeneration, float32, of `checkpoint(variant)`."""
    return _transformers_model(variant)


@functools.cache
def _transformers_model(variant: str) -> Any:
    return load_transformers(checkpoint(variant))


def load_transformers(folder: Path) -> Any:
    """transformers' model of a checkpoint folder, float32, for inference."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch
    from transformers import WhisperForConditionalGeneration
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    return WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


def noise_mel(n_mels: int, n_frames: int, seed: int = 0) -> NDArray[np.float32]:
    """A log-mel of noise under a moving envelope, within the range of real ones: float32 [n_mels, n_frames]."""
    rng = np.random.default_rng(seed)
    envelope = np.sin(np.arange(n_frames) / 17 + rng.uniform(0, 6)) + np.cos(np.arange(n_mels) / 9)[:, None]
    return np.clip(0.4 * rng.standard_normal((n_mels, n_frames)) + 0.4 * envelope, -1, 1.6).astype(np.float32)


def made_folder(kind: str, name: str) -> Path:
    """A folder of this test run, gone with it."""
    return Path(_ROOT.name) / kind / name.replace(" ", "-")


def _extra_weights(variant: Variant, shape: Shape) -> dict[str, NDArray[Any]]:
    shapes = {}
    if variant.untied:
        shapes["proj_out.weight"] = (shape.n_vocab, shape.n_state)
    if variant.key_bias:
        shapes["model.decoder.layers.0.self_attn.k_proj.bias"] = (shape.n_state,)
    return {name: weight(name, size, 0).astype(np.float16) for name, size in shapes.items()}
