"""A small writer of ONNX graphs, and what a bundle's manifest says about them.

Nodes come in order, weights above `EXTERNAL_MIN_BYTES` go straight to one external data file, page-aligned, so building
a graph needs the memory of one layer. Operator sets are the default domain at `OPSET` and ONNX Runtime's contrib
domain.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from specedge.runtime.bundle.manifest import GraphSpec, TensorSpec

OPSET = 23
IR_VERSION = 10
CONTRIB = "com.microsoft"
EXTERNAL_MIN_BYTES = 1024
EXTERNAL_ALIGN_BYTES = 4096  # ONNX Runtime maps external weights, and a mapping starts on a page
Dim = int | str


class GraphBuilder(AbstractContextManager["GraphBuilder"]):
    """Collects nodes, inputs, outputs and initializers of one graph; `save` writes `<name>.onnx`.

    The external data file `<name>.data` is written while the graph is built. Use as a context manager: leaving it
    closes the file; `save` must come before. With `inline` the weights, a few MB at most, go into the graph file.
    prefix: of the names of nodes and values that it makes. `written` are the nodes so far; those of another graph are
    appended to it, whose names must be none that this builder makes.

    Raises OSError when the data file or the graph cannot be written.
    """

    def __init__(self, folder: Path, name: str, *, inline: bool = False, prefix: str = "") -> None:
        self.path = folder / f"{name}.onnx"
        self.data_path = folder / f"{name}.data"
        self._name = name
        self._data: BinaryIO = io.BytesIO() if inline else open(self.data_path, "wb")  # noqa: SIM115 - by __exit__
        self._external_min_bytes = math.inf if inline else EXTERNAL_MIN_BYTES
        self.written: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count, self._prefix = 0, prefix

    def __exit__(self, *exc: object) -> None:
        self._data.close()

    def input(self, name: str, elem_type: int, shape: Sequence[Dim]) -> str:
        """Declare a graph input of the TensorProto type `elem_type`; returns its name."""
        self._inputs.append(helper.make_tensor_value_info(name, elem_type, list(shape)))
        return name

    def output(self, value: str, name: str, elem_type: int, shape: Sequence[Dim]) -> None:
        """Publish `value` as the graph output `name`; a value already called so is not copied."""
        if value != name:
            self.node("Identity", [value], outputs=[name])
        self._outputs.append(helper.make_tensor_value_info(name, elem_type, list(shape)))

    def const(self, name: str, array: NDArray[np.generic]) -> str:
        """Add the initializer `name` once; later calls with the same name return it."""
        if name in self._initializers:
            return name
        array = np.ascontiguousarray(array)  # a scalar becomes one value in a row
        return self.const_in_parts(name, array.shape, array.dtype, iter([array]))

    def const_in_parts(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], parts: Iterator[NDArray[np.generic]]
    ) -> str:
        """As `const`, of the rows that `parts` gives one after another: of a large one only one is in memory."""
        if name in self._initializers:
            return name
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes < self._external_min_bytes:
            array = np.concatenate(list(parts)).reshape(shape)
            self._initializers[name] = numpy_helper.from_array(array, name)
            return name
        offset = self._data.tell()
        padding = -offset % EXTERNAL_ALIGN_BYTES
        self._data.write(bytes(padding))
        for part in parts:
            self._data.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        elem_type = helper.np_dtype_to_tensor_dtype(dtype)
        tensor = onnx.TensorProto(name=name, data_type=elem_type, data_location=TensorProto.EXTERNAL)
        tensor.dims.extend(shape)
        for key, value in (("location", self.data_path.name), ("offset", offset + padding), ("length", n_bytes)):
            tensor.external_data.add(key=key, value=str(value))
        self._initializers[name] = tensor
        return name

    def alias(self, name: str, of: str, shape: Sequence[int]) -> str:
        """Add the initializer `name` of another shape over the same bytes as `of`."""
        tensor = onnx.TensorProto()
        tensor.CopyFrom(self._initializers[of])
        tensor.name = name
        tensor.dims[:] = shape
        return self.borrow(tensor)

    def borrow(self, tensor: onnx.TensorProto) -> str:
        """Add an initializer of another graph in the same folder: its bytes stay in that graph's data file."""
        self._initializers.setdefault(tensor.name, tensor)
        return str(tensor.name)

    def ints(self, *values: int) -> str:
        """The int64 vector `values` as an initializer."""
        return self.const("i64_" + "_".join(map(str, values)), np.array(values, np.int64))

    def scalar(self, value: float) -> str:
        """The float32 scalar `value` as an initializer."""
        return self.const(f"f32_{value!r}", np.array(value, np.float32))

    def node(
        self, op: str, inputs: Sequence[str], *, outputs: Sequence[str] = (), domain: str = "", **attributes: Any
    ) -> str:
        """Append a node and return the name of its first output; of the only one where `outputs` does not name them."""
        self._count += 1
        made = f"{self._prefix}{op}_{self._count}"
        names = list(outputs) or [f"{made}_0"]
        self.written.append(helper.make_node(op, list(inputs), names, name=made, domain=domain, **attributes))
        return names[0]

    def nodes(self, op: str, inputs: Sequence[str], *, outputs: Sequence[str] | int, **options: Any) -> list[str]:
        """As `node`, for several outputs, which are named or told by their number; returns their names."""
        if isinstance(outputs, int):
            outputs = [f"{self._prefix}{op}_{self._count + 1}_{i}" for i in range(outputs)]
        self.node(op, inputs, outputs=outputs, **options)
        return list(outputs)

    def save(self, metadata: Mapping[str, str] | None = None) -> None:
        """Write the graph file, `metadata` in it; the weights are already in the data file."""
        self._data.flush()
        initializers = list(self._initializers.values())
        graph = helper.make_graph(self.written, self._name, self._inputs, self._outputs, initializers)
        write_graph(self.path, graph, metadata or {})


def write_graph(path: Path, graph: onnx.GraphProto, metadata: Mapping[str, str] | None = None) -> None:
    """Write a graph of the operator sets that all our graphs have, `metadata` in it. Raises OSError."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="specedge")
    helper.set_model_props(model, dict(metadata or {}))
    path.write_bytes(model.SerializeToString())


def signature(folder: Path, graph: str) -> GraphSpec:
    """What the graph file of `graph` in `folder` takes and gives, for the manifest."""
    model = onnx.load(str(folder / f"{graph}.onnx"), load_external_data=False)
    return GraphSpec(
        file=f"{graph}.onnx",
        inputs=tuple(map(_tensor_spec, model.graph.input)),
        outputs=tuple(map(_tensor_spec, model.graph.output)),
    )


def _tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    return TensorSpec(
        name=value.name,
        dtype=str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)),
        shape=tuple([dim.dim_param or int(dim.dim_value) for dim in tensor.shape.dim]),
    )
