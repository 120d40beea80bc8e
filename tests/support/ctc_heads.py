"""Random CTC heads, and bundles that bring one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from specedge.export.ctc_bundle import encoder_weights_sha256, write_head
from specedge.export.ctc_graph import CtcWeights, Float
from specedge.export.grow import add_ctc_head
from specedge.runtime.bundle import Bundle


def random_head(
    n_state: int, *, n_gate: int = 4, gate_taps: int = 3, n_hidden: int = 16, unit_taps: int = 3, bias: float = 0.0
) -> CtcWeights:
    """A head that hears something in about half of random frames; more with a lower `bias`. No hidden layer at 0."""
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Float:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)

    wide = n_hidden or 256
    return CtcWeights(
        gate_in=normal(gate_taps, n_state, n_gate),
        gate_in_bias=normal(n_gate),
        gate_out=10 * normal(n_gate),
        gate_out_bias=np.array(bias, np.float32),
        unit_in=normal(unit_taps, n_state, wide),
        unit_in_bias=normal(wide),
        unit_out=normal(n_hidden, 256) if n_hidden else None,
        unit_out_bias=normal(256) if n_hidden else None,
    )


def bundle_with_head(source: Bundle, folder: Path, weights: CtcWeights | None = None) -> Bundle:
    """A copy of `source` in `folder` with a head for its encoder."""
    shutil.copytree(source.path, folder)
    head = folder.parent / f"{folder.name}-head.onnx"
    weights = random_head(source.manifest.dims.n_audio_state) if weights is None else weights
    write_head(head, weights, encoder_weights_sha256(source.manifest, source.path))
    return add_ctc_head(folder, head)
