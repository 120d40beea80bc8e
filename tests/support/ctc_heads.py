"""Random CTC heads, and bundles that bring one."""

from __future__ import annotations

import shutil
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.export.bundling import add_to_bundle
from specedge.export.ctc_graph import UNSAID, CtcWeights, Float, encoder_weights_sha256, write_head
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.drafters.ctc.head import N_UNITS, Posteriors


def random_head(
    n_state: int,
    *,
    n_trunk: int = 8,
    n_blocks: int = 2,
    n_taps: int = 3,
    n_hidden: int = 16,
    bias: float = 0.0,
    said: range = range(256),
    n_parts: int = 1,
) -> CtcWeights:
    """A head for the bytes `said` that hears something in about half of random frames; more with a lower `bias`.

    n_parts: frames of each row of the encoder.
    """
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Float:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)

    gate = 3 * normal(n_trunk)
    arrays = {"trunk.weight": normal(n_state, n_parts * n_trunk).T, "trunk.bias": normal(n_parts * n_trunk)}
    for i in range(n_blocks):
        arrays |= {f"taps.{i}.weight": normal(n_taps, n_trunk).T[:, None, :, None]}
        arrays |= {f"mixes.{i}.weight": normal(n_trunk, n_trunk).T, f"mixes.{i}.bias": normal(n_trunk)}
    arrays |= {"gate.weight": (gate - gate.mean())[None], "gate.bias": np.array([bias + 4], np.float32)}
    arrays |= {"times_in.weight": normal(n_taps, n_trunk, 4).transpose(2, 1, 0)[..., None], "times_in.bias": normal(4)}
    arrays |= {"times_out.weight": normal(4, 2).T, "times_out.bias": normal(2)}
    for name, n_in, n_out in (("unit_in", n_state + n_trunk, n_hidden), ("unit_out", n_hidden, len(said))):
        arrays |= {f"{name}.weight": normal(n_in, n_out).T, f"{name}.bias": normal(n_out)}
    return CtcWeights(arrays=arrays, first_byte=said.start)


def bundle_with_head(source: Bundle, folder: Path, weights: CtcWeights | None = None) -> Bundle:
    """A copy of `source` in `folder` with a head for its encoder."""
    shutil.copytree(source.path, folder)
    head = folder.parent / f"{folder.name}-head.onnx"
    weights = random_head(source.manifest.dims.n_audio_state) if weights is None else weights
    write_head(head, weights, encoder_weights_sha256(source.manifest, source.path))
    return add_to_bundle(folder, ctc=head)


def posteriors(head: CtcWeights, features: Float) -> Posteriors:
    """What the graph of a head computes for features `[n_ctx, n_state]`, in NumPy."""
    arrays, x = head.arrays, features.astype(np.float64)

    def linear(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        return np.asarray(x @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"])

    z = _gelu(linear(x, "trunk")).reshape(-1, head.n_trunk)
    for i in range(head.n_blocks):
        taps = arrays[f"taps.{i}.weight"][:, 0, :, 0].T
        near = sum(rows * tap for rows, tap in zip(_shifted(z, len(taps)), taps, strict=True))
        z = z + _gelu(linear(near, f"mixes.{i}"))
    blank = linear(z, "gate")[:, 0]
    frames = np.flatnonzero(~(blank >= np.log(head.blank_ceiling / (1 - head.blank_ceiling))))
    wide = np.concatenate([x[frames // head.n_parts], z[frames]], axis=1)
    units = linear(_gelu(linear(wide, "unit_in")), "unit_out")
    units -= np.logaddexp.reduce(units, axis=1, keepdims=True) + np.logaddexp(0, blank[frames, None])
    units = np.pad(units, ((0, 0), (head.first_byte, N_UNITS - 1 - head.stop_byte)), constant_values=UNSAID)
    taps = arrays["times_in.weight"][..., 0].transpose(2, 1, 0)
    near = sum(rows @ tap for rows, tap in zip(_shifted(z, len(taps)), taps, strict=True))
    return Posteriors(
        frames=frames,
        log_probs=np.concatenate([-np.logaddexp(0, -blank[frames, None]), units], axis=1).astype(np.float32),
        times=linear(_gelu(near + arrays["times_in.bias"]), "times_out").astype(np.float32),
        n_ctx=len(z),
        n_parts=head.n_parts,
    )


def _shifted(z: NDArray[np.float64], n_taps: int) -> list[NDArray[np.float64]]:
    """The neighbours of each row, from the one farthest before it to the one farthest behind."""
    padded = np.pad(z, ((n_taps // 2, n_taps // 2), (0, 0)))
    return [padded[at : at + len(z)] for at in range(n_taps)]


def _gelu(x: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    return np.asarray(0.5 * x * (1 + np.vectorize(erf, otypes=[np.float64])(x / np.sqrt(2))), np.float64)
