"""kernels.onnx as other machines would run it: with a kernel that computes something else, or with products that clip.

The change is in the graph: what a faulty kernel gives is what the right one gives for another graph.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from specedge.runtime.engine.kernels import CLIPPED, GRAPH

SHIPPED = GRAPH


def wrong(folder: Path, name: str, factor: float = 1.1) -> Path:
    """The graph with the output `name` multiplied by `factor`."""
    return _with_outputs_times(folder, {name: factor})


def clipping(folder: Path) -> Path:
    """The graph with products of the whole range as small as 16 bits hold: 32767 of 64770 in each pair."""
    return _with_outputs_times(folder, {kernel.name: 32767 / 64770 for kernel in CLIPPED})


def _with_outputs_times(folder: Path, factors: dict[str, float]) -> Path:
    model = onnx.load(str(SHIPPED))
    for name, factor in factors.items():
        for node in model.graph.node:
            for field in (node.input, node.output):
                field[:] = [f"right_{name}" if value == name else value for value in field]
        constant = numpy_helper.from_array(np.array(factor, np.float32), f"factor_{name}")
        model.graph.initializer.append(constant)
        model.graph.node.append(helper.make_node("Mul", [f"right_{name}", constant.name], [name]))
    path = folder / SHIPPED.name
    onnx.save(model, str(path))
    return path
