"""The graph of a CTC head: posteriors over the bytes of the text for the frames that may hold one.

    in   features f32 [1, n_ctx, n_audio_state], the encoder's output
    out  frames i64 [n_heard], the frames whose blank probability is below a ceiling stored in the graph
         log_probs f32 [n_heard, 257], blank in column 0, byte b in column b + 1 (runtime/ctc_head.py)

Blank and byte are two questions (as in the factorised transducers, Variani et al. 2020, HAT): a narrow product over all
frames and their neighbours gives the probability of blank, p; only where it is below the ceiling a wider product tells
the bytes apart, and byte b has (1 - p) times its softmax. So what the gate drops is what the head believes, and the
wide product costs only the frames that are spoken in. Products are float32: rows vary in number, and a drafter's bits
do not matter. A frame of NaN passes the gate, for the drafter to see.

`CtcWeights.posteriors` computes the same in NumPy. Does not know: training, bundles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import erf, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from specedge.export.layers import gelu
from specedge.export.onnx_builder import GraphBuilder
from specedge.runtime.ctc_head import N_UNITS, Posteriors

__all__ = ["BLANK_CEILING", "CtcWeights", "write_ctc_graph"]

FLOAT = TensorProto.FLOAT
BLANK_CEILING = 0.99  # a frame where blank is at least so likely is not projected

Float = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class CtcWeights:
    """A head's weights, float32. Frames before the first and behind the last count as these.

    gate_in `[n_taps, n_state, n_gate]`, gate_in_bias `[n_gate]`, gate_out `[n_gate]`, gate_out_bias `[]`: the logit of
    blank from a frame and its (n_taps - 1) / 2 neighbours on each side. unit_in `[n_taps, n_state, n_hidden]`,
    unit_in_bias `[n_hidden]`, unit_out `[n_hidden, 256]`, unit_out_bias `[256]`: the logits of the bytes; without a
    hidden layer unit_out and its bias are None and unit_in has 256 columns. Both n_taps are odd.
    """

    gate_in: Float
    gate_in_bias: Float
    gate_out: Float
    gate_out_bias: Float
    unit_in: Float
    unit_in_bias: Float
    unit_out: Float | None = None
    unit_out_bias: Float | None = None
    blank_ceiling: float = BLANK_CEILING

    @property
    def n_state(self) -> int:
        """Width of the encoder."""
        return int(self.unit_in.shape[1])

    def posteriors(self, features: Float) -> Posteriors:
        """What the graph computes for features `[n_ctx, n_state]`, in float64 up to the last step."""
        x = features.astype(np.float64)
        frames = np.arange(len(x))
        blank = _gelu(_taps(x, frames, self.gate_in) + self.gate_in_bias) @ self.gate_out + self.gate_out_bias
        frames = np.flatnonzero(~(blank >= _logit(self.blank_ceiling)))
        units = _taps(x, frames, self.unit_in) + self.unit_in_bias
        if self.unit_out is not None and self.unit_out_bias is not None:
            units = _gelu(units) @ self.unit_out + self.unit_out_bias
        units -= np.logaddexp.reduce(units, axis=1, keepdims=True)
        heard = blank[frames, None]
        log_probs = np.concatenate([-np.logaddexp(0, -heard), units - np.logaddexp(0, heard)], axis=1)
        return Posteriors(frames=frames, log_probs=log_probs.astype(np.float32), n_ctx=len(features))


def write_ctc_graph(path: Path, weights: CtcWeights, metadata: Mapping[str, str]) -> None:
    """Write the graph to `path` (`.onnx`), one file with its weights and `metadata`. Raises OSError."""
    with GraphBuilder(path.parent, path.stem, inline=True) as g:
        features = g.input("features", FLOAT, [1, "n_ctx", weights.n_state])
        x = g.node("Squeeze", [features, g.ints(0)])
        blank = _blank_logits(g, x, weights)
        ceiling = g.const("blank_ceiling", np.array(_logit(weights.blank_ceiling), np.float32))
        is_heard = g.node("Not", [g.node("GreaterOrEqual", [blank, ceiling])])
        frames = g.node("Squeeze", [g.node("NonZero", [is_heard]), g.ints(0)])
        units = _linear(g, _neighbourhoods(g, x, frames, len(weights.unit_in)), "unit_in", _rows(weights.unit_in))
        units = g.node("Add", [units, g.const("unit_in_bias", weights.unit_in_bias)])
        if weights.unit_out is not None and weights.unit_out_bias is not None:
            units = _linear(g, gelu(g, units), "unit_out", weights.unit_out)
            units = g.node("Add", [units, g.const("unit_out_bias", weights.unit_out_bias)])
        heard = g.node("Unsqueeze", [g.node("Gather", [blank, frames]), g.ints(1)])
        log_blank = g.node("Neg", [g.node("Softplus", [g.node("Neg", [heard])])])
        log_units = g.node("Sub", [g.node("LogSoftmax", [units], axis=1), g.node("Softplus", [heard])])
        g.output(frames, "frames", TensorProto.INT64, ["n_heard"])
        g.output(g.node("Concat", [log_blank, log_units], axis=1), "log_probs", FLOAT, ["n_heard", N_UNITS])
        g.save(metadata)


def _blank_logits(g: GraphBuilder, x: str, weights: CtcWeights) -> str:
    """The logit of blank of every frame, [n_ctx]: one product for all taps, then shifted and added."""
    n_taps, n_state, n_gate = weights.gate_in.shape
    reach = n_taps // 2
    together = weights.gate_in.transpose(1, 0, 2).reshape(n_state, n_taps * n_gate)
    y = _linear(g, x, "gate_in", together)
    if reach:
        y = g.node("Pad", [y, g.ints(reach, 0, reach, 0)], mode="edge")
    n_ctx = g.node("Shape", [x], start=0, end=1)
    narrow = g.const("gate_in_bias", weights.gate_in_bias)
    for tap in range(n_taps):
        stop = g.node("Concat", [g.node("Add", [n_ctx, g.ints(tap)]), g.ints((tap + 1) * n_gate)], axis=0)
        part = g.node("Slice", [y, g.ints(tap, tap * n_gate), stop])
        narrow = g.node("Add", [part, narrow])
    y = _linear(g, gelu(g, narrow), "gate_out", weights.gate_out[:, None])
    y = g.node("Add", [y, g.const("gate_out_bias", weights.gate_out_bias)])
    return g.node("Squeeze", [y, g.ints(1)])


def _neighbourhoods(g: GraphBuilder, x: str, frames: str, n_taps: int) -> str:
    """The frames with their neighbours, earliest first, [n_heard, n_taps * n_state]."""
    reach = n_taps // 2
    last = g.node("Sub", [g.node("Squeeze", [g.node("Shape", [x], start=0, end=1)]), g.const("one", np.array(1))])
    parts = []
    for offset in range(-reach, reach + 1):
        at = frames
        if offset:
            at = g.node("Add", [frames, g.ints(offset)])
            at = g.node("Min", [g.node("Max", [at, g.ints(0)]), last])
        parts.append(g.node("Gather", [x, at]))
    return parts[0] if n_taps == 1 else g.node("Concat", parts, axis=1)


def _linear(g: GraphBuilder, x: str, name: str, weight: Float) -> str:
    return g.node("MatMul", [x, g.const(name, weight)])


def _rows(weight: Float) -> Float:
    """Taps `[n_taps, n_state, n]` as the one product over neighbours laid side by side, `[n_taps * n_state, n]`."""
    return weight.reshape(-1, weight.shape[2])


def _taps(x: NDArray[np.float64], frames: NDArray[np.int64], weight: Float) -> NDArray[np.float64]:
    reach = len(weight) // 2
    shifted = (np.clip(frames + offset, 0, len(x) - 1) for offset in range(-reach, reach + 1))
    return np.asarray(np.concatenate([x[at] for at in shifted], axis=1) @ _rows(weight), np.float64)


def _gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(0.5 * x * (1 + np.vectorize(erf, otypes=[np.float64])(x / np.sqrt(2))), np.float64)


def _logit(probability: float) -> float:
    return log(probability / (1 - probability))
