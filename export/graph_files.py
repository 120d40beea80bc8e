"""What a bundle's manifest says about a file: the signature of a graph, size and hash; and files that reach the disk.

Does not know: what the graphs compute.
"""

from __future__ import annotations

import os
from pathlib import Path

import onnx

from specedge.runtime.bundles.bundle import FileEntry, GraphSpec, TensorSpec, hash_file

__all__ = ["file_entry", "signature", "write_durably"]


def signature(folder: Path, graph: str) -> GraphSpec:
    """What the graph file of `graph` in `folder` takes and gives, for the manifest."""
    model = onnx.load(str(folder / f"{graph}.onnx"), load_external_data=False)
    return GraphSpec(
        file=f"{graph}.onnx",
        inputs=tuple(_tensor_spec(value) for value in model.graph.input),
        outputs=tuple(_tensor_spec(value) for value in model.graph.output),
    )


def _tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    return TensorSpec(
        name=value.name,
        dtype=str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)),
        shape=tuple(dim.dim_param or int(dim.dim_value) for dim in tensor.shape.dim),
    )


def file_entry(path: Path) -> FileEntry:
    """Size and hash of a file. Raises BundleError when it cannot be read."""
    size, sha256 = hash_file(path)
    return FileEntry(size=size, sha256=sha256)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file that is on the disk when this returns. Raises OSError."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
