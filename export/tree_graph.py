"""The tree graph: the decoder graph over several paths that share one text and one reading of the weights.

It is the decoder graph with other self-attention: each `GroupQueryAttention`, which takes but one text when the past is
given, stands inside a Scan over the paths. All else works on rows alone, and the rows of all paths lie behind one
another. So a path's bits are those of a pass of its own: the same kernels, the same shapes. (One sequence with a mask
over a tree is not bit-identical, for a branch's keys lie at other places; graph recipe, section 3.)

Made from the written decoder graph, so that it refers to the same file of weights and costs a bundle the graph alone.

in   as the decoder's, with ids and positions i64 [1, n_rows] of n_paths * n_path_rows rows, path after path;
     past_len i32 [1] and total_len i32 [] as for one path; n_paths i64 [1];
     self_k_i, self_v_i are read only
out  logits and hidden as the decoder's; path_k_i, path_v_i f32 [n_paths, 1, n_head, n_path_rows, head_dim], the rows'
     keys and values, of which the runtime copies those of the path that it keeps
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def write_tree(folder: Path) -> None:
    """Write `tree.onnx` beside the `decoder.onnx` in `folder`. Raises OSError."""
    model = onnx.load(str(folder / "decoder.onnx"), load_external_data=False)
    graph = model.graph
    shapes = {value.name: value.type.tensor_type.shape.dim for value in [*graph.input, *graph.output]}
    d, n_head = shapes["hidden"][2].dim_value, shapes["self_k_0"][1].dim_value
    nodes = [
        helper.make_node("Concat", ["n_paths", "tree.row"], ["tree.path_shape"], axis=0),
        helper.make_node("Shape", ["ids"], ["tree.n_rows"], start=1, end=2),
        helper.make_node("Div", ["tree.n_rows", "n_paths"], ["tree.n_path_rows"]),
        helper.make_node("Cast", ["past_len"], ["tree.last"], to=TensorProto.INT64),
        helper.make_node("Add", ["tree.last", "tree.one"], ["tree.stop"]),
        helper.make_node("Sub", ["tree.stop", "tree.n_path_rows"], ["tree.start"]),
    ]
    outputs = [value for value in graph.output if not value.name.startswith("new_self_")]
    for node in graph.node:
        if node.op_type != "GroupQueryAttention":
            nodes.append(node)
            continue
        made, rows = _attention_by_path(node)
        nodes += made
        shape = ["n_paths", 1, n_head, "n_path_rows", d // n_head]
        outputs += [helper.make_tensor_value_info(name, FLOAT, shape) for name in rows]
    constants = {"row": [-1, 3 * d], "merged": [1, -1, d], "slots": [2], "first": [0], "one": [1]}
    initializers = [
        *graph.initializer,
        *(numpy_helper.from_array(np.array(value, np.int64), f"tree.{name}") for name, value in constants.items()),
    ]
    inputs = [*graph.input, helper.make_tensor_value_info("n_paths", TensorProto.INT64, [1])]
    tree = helper.make_model(
        helper.make_graph(nodes, "tree", inputs, outputs, initializers),
        opset_imports=list(model.opset_import),
        ir_version=model.ir_version,
        producer_name=model.producer_name,
    )
    (folder / "tree.onnx").write_bytes(tree.SerializeToString())


def _attention_by_path(node: onnx.NodeProto) -> tuple[list[onnx.NodeProto], list[str]]:
    """The nodes in place of one attention node, and the outputs with the rows' keys and values."""
    rows, *others = node.input
    attended, key, value = node.output
    names = [key.replace("new_self", "path"), value.replace("new_self", "path")]
    inside = {name: f"{attended}.{name}" for name in ("rows", "batch", "attended", "k", "v", "new_k", "new_v")}
    attention = onnx.NodeProto()
    attention.CopyFrom(node)
    del attention.input[:], attention.output[:]
    attention.input.extend([inside["batch"], *others])
    attention.output.extend([inside["attended"], inside["k"], inside["v"]])
    body = helper.make_graph(
        [
            helper.make_node("Unsqueeze", [inside["rows"], "tree.first"], [inside["batch"]]),
            attention,
            *(
                helper.make_node(
                    "Slice", [inside[part], "tree.start", "tree.stop", "tree.slots"], [inside[f"new_{part}"]]
                )
                for part in "kv"
            ),
        ],
        f"{attended}.path",
        [helper.make_tensor_value_info(inside["rows"], FLOAT, None)],
        [helper.make_tensor_value_info(inside[name], FLOAT, None) for name in ("attended", "new_k", "new_v")],
    )
    return [
        helper.make_node("Reshape", [rows, "tree.path_shape"], [f"{attended}.paths"]),
        helper.make_node("Scan", [f"{attended}.paths"], [f"{attended}.stacked", *names], body=body, num_scan_inputs=1),
        helper.make_node("Reshape", [f"{attended}.stacked", "tree.merged"], [attended]),
    ], names
