"""Graphs cut from the written decoder graph: they refer to its data file, so they cost a bundle the graph alone.

many     The decoder over the rows of several texts. Linear layers run on all rows at once and read the weights once;
         attention treats each text over its own past and its own window. A row has the bits of a pass of its own text,
         provided that each text brings an even number of rows.
         in   as the decoder's, but past_len i32 [n_texts], total_len i32 [] = the largest of the texts' rows after the
              pass; self_k_i, self_v_i f32 [n_texts, n_head, n_slots, head_dim]; the cross-attention tensors
              [n_windows, ...];
              text_len i32 [n_texts]: rows of each text in the pass, even, 0 for a text that is not in it;
              text_rows i64 [n_texts, n_text_rows]: the text's rows among those of the pass, padded with any;
              in_text i64 [n_rows]: where in text_rows, flattened, a row of the pass is;
              window_rows i64 [n_windows, n_window_rows], in_window i64 [n_rows]: the same for the windows;
         out  as the decoder's
align    What each alignment head looks at, for a whole text in one pass, for word times (openai-whisper timing.py,
         find_alignment). It ends at the last layer that has an alignment head. Of int8 keys it takes the dequantised
         values.
         in   ids, positions, past_len = n_rows - 1, total_len = n_rows and the cross-attention tensors
         out  scores f32 [n_align_heads, n_rows, n_audio_ctx]: queries times keys over sqrt(head_dim), before the
              softmax, in the order of `alignment_heads`
shortlist
         The decoder with the logits of some spans of ids, for a draft (`runtime.engine.shortlist`).
         in   the decoder's
         out  logits f32 [1, n_logit_rows, n_columns], one span behind the other; the rest is the decoder's
vectors  The rows of the vocabulary matrix, for gradients and for tokens that join a shortlist: rows i64 [n_vectors] to
         f32 [n_vectors, n_text_state].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from specedge.runtime.bundle.manifest import ALIGN_GRAPH, SHORTLIST_GRAPH, VECTORS_GRAPH, Dims
from specedge.runtime.engine.shortlist import Span

from .decoder_graph import COLUMNS, PROJECTION_SCALES
from .onnx_builder import Dim, write_graph

FLOAT = TensorProto.FLOAT
QUERY_LENGTHS = 16  # the input of GroupQueryAttention with the rows of each text, since ONNX Runtime 1.32
Heads = Sequence[tuple[int, int]]


def write_many(folder: Path) -> None:
    """Write `many.onnx` beside the `decoder.onnx` in `folder`. Raises OSError."""
    graph = onnx.load(str(folder / "decoder.onnx"), load_external_data=False).graph
    n_heads = _axes(graph.input, "self_k_0")[1].dim_value
    d = hidden_width(graph)
    heads, merged = f"i64_0_0_{n_heads}_{d // n_heads}", f"i64_0_0_{d}"  # the shapes by which int8 attention is found
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        by_text, by_window = node.op_type == "GroupQueryAttention", node.op_type == "MultiHeadAttention"
        if by_text:
            node.input.extend([""] * (QUERY_LENGTHS - len(node.input)) + ["text_len"])
        if by_text or by_window or heads in node.input:
            nodes += _apart(node, "text_rows" if by_text else "window_rows")
        nodes.append(node)
        if by_text or by_window or merged in node.input:
            nodes += _together(node, "in_text" if by_text else "in_window")
    for value in [*graph.input, *graph.output]:
        name, shape = value.name, value.type.tensor_type.shape.dim
        if name.startswith(("self_", "new_self_")) or name == "past_len":
            shape[0].dim_param = "n_texts"
        elif name.startswith("cross_"):
            shape[0].dim_param = "n_windows"
    inputs = [
        helper.make_tensor_value_info("text_len", TensorProto.INT32, ["n_texts"]),
        helper.make_tensor_value_info("text_rows", TensorProto.INT64, ["n_texts", "n_text_rows"]),
        helper.make_tensor_value_info("in_text", TensorProto.INT64, ["n_rows"]),
        helper.make_tensor_value_info("window_rows", TensorProto.INT64, ["n_windows", "n_window_rows"]),
        helper.make_tensor_value_info("in_window", TensorProto.INT64, ["n_rows"]),
    ]
    constants = {"many.first": [0], "many.rows": [1, -1, d]}
    initializers = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()]
    made = [*graph.initializer, *initializers]
    many = helper.make_graph(nodes, "many", [*graph.input, *inputs], list(graph.output), made)
    write_graph(folder / "many.onnx", many)


def _axes(values: Iterable[onnx.ValueInfoProto], name: str) -> Sequence[onnx.TensorShapeProto.Dimension]:
    return next(value.type.tensor_type.shape.dim for value in values if value.name == name)


def _apart(node: onnx.NodeProto, rows: str) -> list[onnx.NodeProto]:
    """Give `node` its first input text by text or window by window, as the graph's input `rows` says."""
    flat, name = node.input[0], node.output[0]
    node.input[0] = f"{name}.apart"
    return [
        helper.make_node("Gather", [flat, rows], [f"{name}.gathered"], axis=1),
        helper.make_node("Squeeze", [f"{name}.gathered", "many.first"], [node.input[0]]),
    ]


def _together(node: onnx.NodeProto, places: str) -> list[onnx.NodeProto]:
    """Put what `node` gives back into the order of the pass, as the graph's input `places` says."""
    name = node.output[0]
    node.output[0] = f"{name}.apart_out"
    return [
        helper.make_node("Reshape", [node.output[0], "many.rows"], [f"{name}.behind"]),
        helper.make_node("Gather", [f"{name}.behind", places], [name], axis=1),
    ]


def default_heads(dims: Dims) -> tuple[tuple[int, int], ...]:
    """All (layer, head) of the last half of the decoder: openai-whisper's choice where none are given (model.py)."""
    layers = range(dims.n_text_layer // 2, dims.n_text_layer)
    return tuple((layer, head) for layer in layers for head in range(dims.n_text_head))


def write_align_graph(folder: Path, dims: Dims, heads: Heads) -> None:
    """Write `align.onnx` beside the `decoder.onnx` in `folder`, for one or more `heads`. Raises OSError."""
    graph, count = onnx.load(str(folder / "decoder.onnx"), load_external_data=False).graph, itertools.count(1)
    head_dim = dims.n_text_state // dims.n_text_head

    def const(array: NDArray[np.generic]) -> str:
        name = f"align_const_{next(count)}"
        graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def node(op: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        name = f"align_{op}_{next(count)}"
        graph.node.append(helper.make_node(op, inputs, [output or name], name=name, **attributes))
        return output or name

    parts = []
    for layer, pairs in itertools.groupby(heads, lambda pair: pair[0]):  # in the order of `heads`
        is_int8 = any(value.name == f"cross_k_scale_{layer}" for value in graph.input)
        if is_int8:  # the scales carry 1 / sqrt(head_dim)
            queries, keys = _consumer(graph, "Mul", f"cross_k_scale_{layer}").output[0], f"cross_k_{layer}"
        else:
            rows = _consumer(graph, "MultiHeadAttention", f"cross_k_{layer}").input[0]
            shape = const(np.array([0, 0, dims.n_text_head, head_dim], np.int64))
            queries = node("Transpose", [node("Reshape", [rows, shape])], perm=[0, 2, 1, 3])
            scale = const(np.array(1 / math.sqrt(head_dim), np.float32))
            keys = node("Transpose", [f"cross_k_{layer}"], perm=[0, 1, 3, 2])
            queries = node("Mul", [queries, scale])
        chosen = const(np.array([head for _, head in pairs], np.int64))
        pair = [node("Gather", [tensor, chosen], axis=1) for tensor in (queries, keys)]
        if is_int8:
            pair[1] = node("Cast", [pair[1]], to=FLOAT)
        parts.append(node("MatMul", pair))
    joined = node("Concat", parts, axis=1)
    output = node("Squeeze", [joined, const(np.array([0], np.int64))], "scores")
    kept = _upstream(graph, output)
    for each in kept:
        if each.op_type == "GroupQueryAttention":  # over the pass alone: no past, and none for later
            each.input[3] = each.input[4] = ""
    used = {name for each in kept for name in each.input}
    inputs = [value for value in graph.input if value.name in used]
    initializers = [tensor for tensor in graph.initializer if tensor.name in used]
    shape_out: list[Dim] = [len(heads), "n_rows", "n_audio_ctx"]
    outputs = [helper.make_tensor_value_info(output, FLOAT, shape_out)]
    write_graph(folder / f"{ALIGN_GRAPH}.onnx", helper.make_graph(kept, ALIGN_GRAPH, inputs, outputs, initializers))


def _consumer(graph: onnx.GraphProto, op: str, name: str) -> onnx.NodeProto:
    """The node of this kind whose second input is the value `name`."""
    found: onnx.NodeProto = next(node for node in graph.node if node.op_type == op and node.input[1:2] == [name])
    return found


def _upstream(graph: onnx.GraphProto, output: str) -> list[onnx.NodeProto]:
    """The nodes that `output` depends on, in their order."""
    needed = {output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
            needed.discard("")
    return kept[::-1]


def vectors_graph(graph: onnx.GraphProto) -> onnx.GraphProto:
    """The rows of the matrix that the decoder multiplies last."""
    matrix, scales = _last_matrix(graph)
    columns = f"{matrix}{COLUMNS}"
    nodes = [helper.make_node("Gather", [matrix, "rows"], ["vectors" if scales is None else "rounded"])]
    if scales is not None:
        nodes += [
            helper.make_node("Cast", ["rounded"], ["whole"], to=FLOAT),
            helper.make_node("Gather", [scales, "rows"], ["steps"]),
            helper.make_node("Mul", ["whole", "steps"], ["level"]),
            helper.make_node("Mul", ["level", columns], ["vectors"]),
        ]
    return helper.make_graph(
        nodes,
        VECTORS_GRAPH,
        [helper.make_tensor_value_info("rows", TensorProto.INT64, ["n_vectors"])],
        [helper.make_tensor_value_info("vectors", FLOAT, ["n_vectors", hidden_width(graph)])],
        [tensor for tensor in graph.initializer if tensor.name in (matrix, scales, columns)],
    )


def write_shortlist_graphs(folder: Path, spans: Sequence[Span]) -> None:
    """Write `shortlist.onnx` and `vectors.onnx` beside the `decoder.onnx` in `folder`.

    spans: the ids whose logits are wanted, parts of the padded vocabulary. Raises OSError.
    """
    graph = onnx.load(str(folder / "decoder.onnx"), load_external_data=False).graph
    write_graph(folder / f"{VECTORS_GRAPH}.onnx", vectors_graph(graph))
    write_graph(folder / f"{SHORTLIST_GRAPH}.onnx", _shortlist(graph, spans))


def _shortlist(graph: onnx.GraphProto, spans: Sequence[Span]) -> onnx.GraphProto:
    """The decoder with a vocabulary product for each span, over the same bytes."""
    matrix, scales = _last_matrix(graph)
    at = next(at for at, node in enumerate(graph.node) if node.op_type in ("QGemm", "Gemm") and matrix in node.input)
    product = graph.node[at]
    logits, products, parts = product.output[0], [], _cut(graph, matrix, spans)
    n_columns = sum(tensor.dims[0] for tensor in graph.initializer if tensor.name in parts)
    for part in parts:
        one = onnx.NodeProto()
        one.CopyFrom(product)
        one.name = one.output[0] = f"{part}.product"
        one.input[list(product.input).index(matrix)] = part
        products.append(one)
    joined = helper.make_node("Concat", [f"{part}.product" for part in parts], [logits], axis=-1)
    nodes = [*graph.node[:at], *products, joined]
    for node in graph.node[at + 1 :]:
        if logits in node.input:
            graph.initializer.append(numpy_helper.from_array(np.array([1, -1, n_columns]), "shortlist.shape"))
            node.input[1] = "shortlist.shape"
        if scales is not None and PROJECTION_SCALES in node.input:
            parts = _cut(graph, PROJECTION_SCALES, spans)
            nodes.append(helper.make_node("Concat", parts, ["shortlist.scales"], axis=-1))
            node.input[list(node.input).index(PROJECTION_SCALES)] = "shortlist.scales"
        nodes.append(node)
    _axes(graph.output, "logits")[2].dim_value = n_columns
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    return helper.make_graph(nodes, SHORTLIST_GRAPH, list(graph.input), list(graph.output), kept)


def _cut(graph: onnx.GraphProto, name: str, spans: Sequence[Span]) -> list[str]:
    """Add tensors with rows of the tensor `name`, of the same data file, and return their names."""
    tensor = next(tensor for tensor in graph.initializer if tensor.name == name)
    row_bytes = math.prod(tensor.dims[1:]) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    names = []
    for start, stop in spans:
        part = graph.initializer.add()
        part.CopyFrom(tensor)
        part.name, part.dims[0] = f"{name}.{start}", stop - start
        names.append(part.name)
        if tensor.data_location == TensorProto.EXTERNAL:
            place = {entry.key: entry for entry in part.external_data}
            place["offset"].value = str(int(place["offset"].value) + start * row_bytes)
            place["length"].value = str((stop - start) * row_bytes)
        else:
            part.raw_data = tensor.raw_data[start * row_bytes : stop * row_bytes]
    return names


def _last_matrix(graph: onnx.GraphProto) -> tuple[str, str | None]:
    """The names of the vocabulary matrix, a token a row, and of its scales where it is rounded."""
    product = next(node for node in reversed(graph.node) if node.op_type in ("QGemm", "Gemm"))
    is_rounded = product.op_type == "QGemm"
    matrix = str(product.input[3 if is_rounded else 1])
    return matrix, f"{matrix}.scales" if is_rounded else None


def hidden_width(graph: onnx.GraphProto) -> int:
    return int(_axes(graph.output, "hidden")[2].dim_value)
