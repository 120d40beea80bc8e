"""The align graph: what each alignment head looks at, for a whole text in one pass, out of the decoder graph itself.

in   ids, positions, past_len, total_len and the cross-attention tensors as in `decoder_graph`, with
     past_len = n_rows - 1 and total_len = n_rows: there is no past
out  scores f32 [n_align_heads, n_rows, n_audio_ctx]: queries times keys over sqrt(head_dim), before the softmax, in the
     order of `alignment_heads`

Word times come from it (openai-whisper timing.py, find_alignment). It is cut out of the finished decoder graph by
following the tensors, so it needs no weights, reads the decoder's own data file, ends at the last layer that has an
alignment head, and can be added to a bundle that has none (`add_align`). Of int8 keys it takes the dequantised values.
It does not know how times are made of scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from specedge.errors import BundleError
from specedge.runtime.bundle.manifest import ALIGN_GRAPH, Dims

from .onnx_builder import Dim

Heads = Sequence[tuple[int, int]]


def default_heads(dims: Dims) -> tuple[tuple[int, int], ...]:
    """All (layer, head) of the last half of the decoder: openai-whisper's choice where none are given (model.py)."""
    layers = range(dims.n_text_layer // 2, dims.n_text_layer)
    return tuple((layer, head) for layer in layers for head in range(dims.n_text_head))


def write_align_graph(decoder: Path, out: Path, dims: Dims, heads: Heads) -> None:
    """Write the align graph of the graph file `decoder`, whose data file lies beside `out`, for one or more `heads`.

    Raises
    ------
    BundleError
        when `decoder` is not a decoder graph of `decoder_graph` with these dimensions.
    """
    model = onnx.load(str(decoder), load_external_data=False)
    scores = _Scores(model.graph, dims)
    output = scores.of(heads)
    graph = model.graph
    kept = _upstream(graph, output)
    _forget_past(kept)
    used = {name for node in kept for name in node.input}
    inputs = [value for value in graph.input if value.name in used]
    initializers = [tensor for tensor in graph.initializer if tensor.name in used]
    shape: list[Dim] = [len(heads), "n_rows", "n_audio_ctx"]
    cut = helper.make_graph(
        kept, ALIGN_GRAPH, inputs, [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)], initializers
    )
    made = helper.make_model(
        cut, opset_imports=list(model.opset_import), ir_version=model.ir_version, producer_name=model.producer_name
    )
    out.write_bytes(made.SerializeToString())


class _Scores:
    """Adds the nodes of the scores to `graph`."""

    def __init__(self, graph: onnx.GraphProto, dims: Dims) -> None:
        self._graph = graph
        self._dims = dims
        self._head_dim = dims.n_text_state // dims.n_text_head
        self._count = 0

    def of(self, heads: Heads) -> str:
        """The name of the scores of `heads`, in their order."""
        parts = []
        for layer, numbers in _by_layer(heads):
            queries, keys = self._operands(layer)
            chosen = self._const(np.array(numbers, np.int64))
            pair = [self._node("Gather", [tensor, chosen], axis=1) for tensor in (queries, keys)]
            if self._is_int8(layer):
                pair[1] = self._node("Cast", [pair[1]], to=TensorProto.FLOAT)
            parts.append(self._node("MatMul", pair))
        joined = self._node("Concat", parts, axis=1)
        return self._node("Squeeze", [joined, self._const(np.array([0], np.int64))], output="scores")

    def _operands(self, layer: int) -> tuple[str, str]:
        """Scaled queries [1, n_head, n_rows, head_dim] and keys [1, n_head, head_dim, n_audio_ctx] of a layer."""
        if self._is_int8(layer):  # the scales carry 1 / sqrt(head_dim)
            return self._consumer("Mul", 1, f"cross_k_scale_{layer}").output[0], f"cross_k_{layer}"
        rows = self._consumer("MultiHeadAttention", 1, f"cross_k_{layer}").input[0]
        shape = self._const(np.array([0, 0, self._dims.n_text_head, self._head_dim], np.int64))
        queries = self._node("Transpose", [self._node("Reshape", [rows, shape])], perm=[0, 2, 1, 3])
        scale = self._const(np.array(1 / math.sqrt(self._head_dim), np.float32))
        keys = self._node("Transpose", [f"cross_k_{layer}"], perm=[0, 1, 3, 2])
        return self._node("Mul", [queries, scale]), keys

    def _is_int8(self, layer: int) -> bool:
        return any(value.name == f"cross_k_scale_{layer}" for value in self._graph.input)

    def _consumer(self, op: str, place: int, name: str) -> onnx.NodeProto:
        node: onnx.NodeProto
        for node in self._graph.node:
            if node.op_type == op and len(node.input) > place and node.input[place] == name:
                return node
        raise BundleError(f"the decoder graph has no {op} of {name}, so word times cannot be had from it; export again")

    def _const(self, array: NDArray[np.generic]) -> str:
        self._count += 1
        name = f"align_const_{self._count}"
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def _node(self, op: str, inputs: list[str], *, output: str = "", **attributes: int | list[int]) -> str:
        self._count += 1
        name = f"align_{op}_{self._count}"
        given: dict[str, object] = dict(attributes)
        self._graph.node.append(helper.make_node(op, inputs, [output or name], name=name, **given))  # type: ignore[arg-type]
        return output or name


def _by_layer(heads: Heads) -> Iterator[tuple[int, list[int]]]:
    """Neighbours of the same layer together, so that the scores come out in the order of `heads`."""
    layer, numbers = -1, list[int]()
    for at, head in heads:
        if numbers and at != layer:
            yield layer, numbers
            numbers = []
        layer = at
        numbers.append(head)
    if numbers:
        yield layer, numbers


def _upstream(graph: onnx.GraphProto, output: str) -> list[onnx.NodeProto]:
    """The nodes that `output` depends on, in their order."""
    needed = {output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(name for name in node.input if name)
    return kept[::-1]


def _forget_past(nodes: list[onnx.NodeProto]) -> None:
    """Self-attention over the pass alone: no keys and values from before, none for later."""
    for node in nodes:
        if node.op_type == "GroupQueryAttention":
            node.input[3] = node.input[4] = ""
