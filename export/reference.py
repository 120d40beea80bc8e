"""A graph that is computed while it is written: the float32 reference that a bundle's graphs are compared with.

The functions that write a graph for a file take `Reference` in the place of a `GraphBuilder`. Nodes run some at a time,
whenever they hold enough weights, and the weights of products (`NAME.weight`) are forgotten then: no more than a layer
of the largest model is in memory. Values stay, for a few seconds of audio have small ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from specedge.runtime.device import threads_allowed
from specedge.runtime.engine.session import Canceller, Session, bind_array_input, run_outputs

from .onnx_builder import GraphBuilder, write_graph

Array = NDArray[Any]
RUN_BYTES = 48 << 20  # of weights


class Reference(GraphBuilder):
    """Runs nodes instead of writing them. inputs: the graph's, by name. `ran`: the nodes; `values`: all that is known.

    Raises as `Session` does.
    """

    def __init__(self, inputs: Mapping[str, Array], canceller: Canceller) -> None:
        super().__init__(Path(), "reference", inline=True)
        self.values: dict[str, Array] = dict(inputs)
        self._canceller = canceller
        self._weights: dict[str, Array] = {}
        self._held_bytes = 0
        self.ran: list[onnx.NodeProto] = []

    def const_in_parts(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], parts: Iterator[NDArray[np.generic]]
    ) -> str:
        if name not in self._weights:
            self._weights[name] = np.ascontiguousarray(np.concatenate(list(parts)).reshape(shape))
        return name

    def node(self, op: str, inputs: Sequence[str], **options: Any) -> str:
        made = super().node(op, inputs, **options)
        for name in inputs:
            if name.endswith(".weight"):
                self._held_bytes += self._weights[name].nbytes
        if self._held_bytes > RUN_BYTES:
            self.save()
        return made

    def save(self, metadata: Mapping[str, str] | None = None) -> None:
        """Run what is left; `node` does so in between."""
        made = [name for node in self.written for name in node.output]
        known = self.values | self._weights
        taken = {name: known[name] for node in self.written for name in node.input if name in known}
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in taken.items()
        ]
        graph = helper.make_graph(self.written, "reference", inputs, [onnx.ValueInfoProto(name=n) for n in made])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "reference.onnx"
            write_graph(path, graph)
            session = Session(path, self._canceller, threads=threads_allowed())
        binding = session.binding()
        for name, array in taken.items():
            bind_array_input(binding, name, array)
        self.values |= zip(made, run_outputs(session, binding, made), strict=True)
        for name in taken:
            if name.endswith(".weight"):
                del self._weights[name]
        self.ran += self.written
        self.written, self._held_bytes = [], 0
