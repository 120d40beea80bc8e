"""The graphs a draft learns with: its decoder with two low-rank factors as inputs, and the vectors of its vocabulary.

learn    the decoder graph, in which the rows whose logits are wanted become h + (h A) B before the vocabulary product:
         learn_a f32 [n_text_state, n_rank] and learn_b f32 [n_rank, n_text_state]. While B is zero, all bits are the
         decoder's own. Keys and values do not depend on the factors
vectors  rows i64 [n_vectors] to vectors f32 [n_vectors, n_text_state] as the vocabulary product has them, for gradients

Both are made of the written decoder graph and read its data file, so they cost a bundle the graphs alone. No other
graph changes: who does not learn loads neither. Does not know: how factors are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from specedge.errors import BundleError
from specedge.runtime.bundle.manifest import LEARN_GRAPH, VECTORS_GRAPH

__all__ = ["write_learn_graphs"]

FLOAT = TensorProto.FLOAT


def write_learn_graphs(decoder: Path, out: Mapping[str, Path]) -> None:
    """Write both graphs, of the graph file `decoder`, to `out` by their names, beside the decoder's data file.

    Raises BundleError when `decoder` is no graph of `decoder_graph`, OSError.
    """
    model = onnx.load(str(decoder), load_external_data=False)
    # The vectors first: the other graph changes the model in place.
    made = {VECTORS_GRAPH: _vectors(model), LEARN_GRAPH: _learning(model)}
    for name, graph in made.items():
        written = helper.make_model(
            graph,
            opset_imports=list(model.opset_import),
            ir_version=model.ir_version,
            producer_name=model.producer_name,
        )
        out[name].write_bytes(written.SerializeToString())


def _learning(model: onnx.ModelProto) -> onnx.GraphProto:
    """The decoder with the factors between the wanted rows and the vocabulary."""
    graph = model.graph
    wanted = _wanted_rows(graph)
    d = _width(graph)
    before = f"{wanted}.before"
    nodes = []
    for node in graph.node:
        nodes.append(node)
        if wanted in node.output:
            node.output[list(node.output).index(wanted)] = before
            nodes += [
                helper.make_node("MatMul", [before, "learn_a"], ["learn.narrow"]),
                helper.make_node("MatMul", ["learn.narrow", "learn_b"], ["learn.change"]),
                helper.make_node("Add", [before, "learn.change"], [wanted]),
            ]
    factors: dict[str, list[int | str]] = {"learn_a": [d, "n_rank"], "learn_b": ["n_rank", d]}
    inputs = [*graph.input, *(helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in factors.items())]
    return helper.make_graph(nodes, LEARN_GRAPH, inputs, list(graph.output), list(graph.initializer))


def _vectors(model: onnx.ModelProto) -> onnx.GraphProto:
    """The rows of the matrix that the decoder multiplies last."""
    graph = model.graph
    matrix, scales = _last_matrix(graph)
    nodes = [helper.make_node("Gather", [matrix, "rows"], ["vectors" if scales is None else "rounded"])]
    if scales is not None:
        nodes += [
            helper.make_node("Cast", ["rounded"], ["whole"], to=FLOAT),
            helper.make_node("Gather", [scales, "rows"], ["steps"]),
            helper.make_node("Mul", ["whole", "steps"], ["vectors"]),
        ]
    return helper.make_graph(
        nodes,
        VECTORS_GRAPH,
        [helper.make_tensor_value_info("rows", TensorProto.INT64, ["n_vectors"])],
        [helper.make_tensor_value_info("vectors", FLOAT, ["n_vectors", _width(graph)])],
        [tensor for tensor in graph.initializer if tensor.name in (matrix, scales)],
    )


def _wanted_rows(graph: onnx.GraphProto) -> str:
    for node in graph.node:
        if node.op_type == "Gather" and node.input[1] == "logit_rows":
            return str(node.output[0])
    raise _foreign("rows of wanted logits")


def _last_matrix(graph: onnx.GraphProto) -> tuple[str, str | None]:
    """The names of the vocabulary matrix, a token a row, and of its scales where it is rounded."""
    names = {tensor.name for tensor in graph.initializer}
    for node in reversed(graph.node):
        if node.op_type == "QGemm":
            return str(node.input[3]), f"{node.input[3]}.scales"
        if node.op_type == "Gemm" and node.input[1] in names:
            return str(node.input[1]), None
    raise _foreign("vocabulary product")


def _width(graph: onnx.GraphProto) -> int:
    for value in graph.output:
        if value.name == "hidden":
            return int(value.type.tensor_type.shape.dim[2].dim_value)
    raise _foreign("hidden rows")


def _foreign(what: str) -> BundleError:
    return BundleError(f"the decoder graph has no {what}, so a draft cannot learn with it; export again")
