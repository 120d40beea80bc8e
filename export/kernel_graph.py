"""The graph of `specedge doctor`'s check of kernels: each node that bundles are made of, its result an output.

    python -m specedge.export.kernel_graph      # writes runtime/engine/kernels.onnx

Written by the functions that write bundles, with weights from `runtime.engine.kernels`, which says what each output
should be.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from specedge.runtime.engine import kernels
from specedge.runtime.engine.kernels import CACHES, GRAPH, HEAD_DIM, N_HEAD, N_IN, N_OUT

from .decoder_graph import attend_causally, attend_int8, vocabulary_product
from .layers import LinearKind, gelu, linear, quantize_columns, residual_norm
from .onnx_builder import CONTRIB, GraphBuilder

FLOAT = TensorProto.FLOAT
_TYPES = {"float32": FLOAT, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32}


class _Given:
    """Weights by name, for the functions that ask for them so."""

    def __init__(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        self._arrays = arrays

    def tensor(self, name: str) -> NDArray[np.float32]:
        return self._arrays[name]

    def has(self, name: str) -> bool:
        return name in self._arrays


def write_kernels(folder: Path) -> Path:
    """Write `kernels.onnx` into `folder`; returns its path. Raises OSError."""
    with GraphBuilder(folder, GRAPH.stem, inline=True) as g:
        _declare_inputs(g)
        _products(g)
        _float_layers(g)
        _attentions(g)
        _full_range(g)
        g.save()
    return g.path


def _declare_inputs(g: GraphBuilder) -> None:
    n_rows = 4  # any number that no other axis has
    for name, array in kernels.inputs(n_rows).items():
        if name not in CACHES:  # which `attend_causally` declares
            g.input(name, _TYPES[array.dtype.name], ["n_rows" if axis == n_rows else axis for axis in array.shape])


def _products(g: GraphBuilder) -> None:
    weight8, bias = kernels.weight8(), kernels.bias()
    kinds: tuple[tuple[LinearKind, NDArray[np.float32]], ...]
    kinds = (("few8", weight8), ("rows8", weight8), ("block4", kernels.weight4()))
    for kind, weight in kinds:
        g.output(linear(g, "rows", kind, weight, bias, kind), kind, FLOAT, [1, "n_rows", N_OUT])
    y = linear(g, "signal", "product32", kernels.weight32(), bias, "fp32")
    g.output(y, "product32", FLOAT, [1, "n_rows", N_OUT])
    quantized = quantize_columns(weight8)
    g.const("vocabulary", quantized.weight.T)
    g.const("vocabulary.scales", quantized.scales[:, None])
    y = vocabulary_product(g, "rows", "vocabulary", N_IN, N_OUT, "few8")
    g.output(y, "vocabulary8", FLOAT, [1, "n_rows", N_OUT])
    source = g.const("projection", kernels.weight32())
    y = vocabulary_product(g, "signal", source, N_IN, N_OUT, "fp32")
    g.output(y, "vocabulary32", FLOAT, [1, "n_rows", N_OUT])


def _float_layers(g: GraphBuilder) -> None:
    normalised, _ = residual_norm(g, ("signal",), "rows", _Given(kernels.norm_weights()), "norm")
    g.output(normalised, "norm", FLOAT, [1, "n_rows", N_IN])
    g.output(gelu(g, "signal"), "gelu", FLOAT, [1, "n_rows", N_IN])


def _attentions(g: GraphBuilder) -> None:
    cross = (f"cross_{part}" for part in ("k", "v", "k_scale", "v_scale"))
    y = attend_int8(g, "rows", *cross, n_head=N_HEAD, head_dim=HEAD_DIM)
    g.output(y, "cross_attention8", FLOAT, [1, "n_rows", N_IN])
    y = attend_causally(g, "qkv", "causal", 0, n_head=N_HEAD, head_dim=HEAD_DIM)
    g.output(y, "self_attention", FLOAT, [1, "n_rows", N_IN])
    parts = g.nodes("Split", ["qkv"], outputs=3, axis=2, num_outputs=3)
    y = g.node("MultiHeadAttention", parts, domain=CONTRIB, num_heads=N_HEAD)
    g.output(y, "attention", FLOAT, [1, "n_rows", N_IN])


def _full_range(g: GraphBuilder) -> None:
    """The three integer products over all of int8, which no layer of a bundle holds any more."""
    weight, one = kernels.full_range_weight(), g.scalar(1.0)
    middle = g.const("zero_point_128", np.array(128, np.uint8))
    constant = g.const("full.weight", weight)
    for name, right in (("full_product", constant), ("full_attention", "full_range")):
        y = g.node("MatMulIntegerToFloat", ["bytes", right, one, one, middle], domain=CONTRIB)
        g.output(y, name, FLOAT, [1, "n_rows", N_OUT])
    y = g.node(
        "QGemm",
        [
            g.node("Reshape", ["bytes", g.ints(-1, N_IN)]),
            one,
            middle,
            g.const("full.vocabulary", weight.T),
            g.const("full.scales", np.ones(N_OUT, np.float32)),
            g.const("full.zero_points", np.zeros(N_OUT, np.int8)),
        ],
        domain=CONTRIB,
        transB=1,
    )
    g.output(g.node("Reshape", [y, g.ints(1, -1, N_OUT)]), "full_vocabulary", FLOAT, [1, "n_rows", N_OUT])


if __name__ == "__main__":
    print(write_kernels(GRAPH.parent))
