"""The graph with which a draft learns while it drafts (OmniDraft's online distillation, arXiv 2507.02659).

learn    The decoder with two low-rank factors: rows whose logits are wanted become h + (h A) B before the vocabulary
         product. While B is zero, all bits are the decoder's own.
         in   besides the decoder's: learn_a f32 [n_text_state, n_rank], learn_b f32 [n_rank, n_text_state]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from specedge.runtime.bundle.manifest import LEARN_GRAPH, VECTORS_GRAPH

from ..derived_graphs import hidden_width, vectors_graph
from ..onnx_builder import write_graph


def write_learn_graphs(decoder: Path, out: Mapping[str, Path]) -> None:
    """Write both graphs, of the graph file `decoder`, to `out` by their names, beside the decoder's data file.

    Raises OSError.
    """
    graph = onnx.load(str(decoder), load_external_data=False).graph
    write_graph(out[VECTORS_GRAPH], vectors_graph(graph))
    write_graph(out[LEARN_GRAPH], _learning(graph))  # the last one: it changes the graph in place


def _learning(graph: onnx.GraphProto) -> onnx.GraphProto:
    """The decoder with the factors between the wanted rows and the vocabulary."""
    gathers = (node for node in graph.node if node.op_type == "Gather")
    wanted = next(str(node.output[0]) for node in gathers if node.input[1] == "logit_rows")
    d = hidden_width(graph)
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
    inputs = list(graph.input)
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in factors.items()]
    return helper.make_graph(nodes, LEARN_GRAPH, inputs, list(graph.output), list(graph.initializer))
