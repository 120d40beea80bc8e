"""Random CTC heads, and bundles that bring one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from specedge.export.bundling import add_ctc_head
from specedge.export.ctc_graph import (
    CtcBlock,
    CtcCharacters,
    CtcTimes,
    CtcWeights,
    Float,
    encoder_weights_sha256,
    write_head,
)
from specedge.runtime.bundle.bundle import Bundle


def random_head(
    n_state: int,
    *,
    n_trunk: int = 8,
    n_blocks: int = 2,
    n_taps: int = 3,
    n_hidden: int = 16,
    bias: float = 0.0,
    n_characters: int = 0,
    said: range = range(256),
    n_parts: int = 1,
) -> CtcWeights:
    """A head for the bytes `said` that hears something in about half of random frames; more with a lower `bias`.

    n_parts: frames of each row of the encoder.

    With `n_characters`, a linear head over so many characters and blank is part of it.
    """
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Float:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)

    gate = 3 * normal(n_trunk)
    characters = None
    if n_characters:
        places = said.start + rng.permutation(len(said))[:n_characters]
        characters = CtcCharacters(normal(n_state, n_characters + 1), normal(n_characters + 1), places)
    return CtcWeights(
        trunk_in=normal(n_state, n_parts * n_trunk),
        trunk_bias=normal(n_parts * n_trunk),
        blocks=tuple(
            CtcBlock(taps=normal(n_taps, n_trunk), mix=normal(n_trunk, n_trunk), bias=normal(n_trunk))
            for _ in range(n_blocks)
        ),
        gate=gate - gate.mean(),
        gate_bias=np.array(bias + 4, np.float32),
        times=CtcTimes(taps=normal(n_taps, n_trunk, 4), bias=normal(4), out=normal(4, 2), out_bias=normal(2)),
        unit_in=normal(n_state + n_trunk, n_hidden),
        unit_in_bias=normal(n_hidden),
        unit_out=normal(n_hidden, len(said)),
        unit_out_bias=normal(len(said)),
        first_byte=said.start,
        characters=characters,
    )


def bundle_with_head(source: Bundle, folder: Path, weights: CtcWeights | None = None) -> Bundle:
    """A copy of `source` in `folder` with a head for its encoder."""
    shutil.copytree(source.path, folder)
    head = folder.parent / f"{folder.name}-head.onnx"
    weights = random_head(source.manifest.dims.n_audio_state) if weights is None else weights
    write_head(head, weights, encoder_weights_sha256(source.manifest, source.path))
    return add_ctc_head(folder, head)
