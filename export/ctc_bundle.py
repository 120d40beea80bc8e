"""A trained CTC head into a bundle: the head's file, the fingerprint of the encoder it was trained for, the check.

A head's file is the graph `ctc` with its weights and metadata: the table of units, and a fingerprint of the encoder's
weights. That one is taken of the weights which every precision keeps as they are, convolutions, gains and biases, and
so it is the same for all exports of one checkpoint. In a bundle the graph gets the fingerprint of the bundle's encoder
files too, which the runtime compares without reading a weight.
Does not know: training, what the encoder computes.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import external_data_helper, helper, numpy_helper

from specedge.export.ctc_graph import CtcWeights, write_ctc_graph
from specedge.export.encoder_graph import convolution_weight
from specedge.export.graph_files import file_entry, signature
from specedge.maps.outputs import Kind
from specedge.maps.publish import publishing, scratch_folder
from specedge.runtime.bundles.bundle import Manifest, encoder_fingerprint
from specedge.runtime.bundles.manifest import CTC_GRAPH
from specedge.runtime.ctc.head import (
    ENCODER_KEY,
    REMEDY,
    UNITS,
    UNITS_KEY,
    UNITS_SHA256_KEY,
    WEIGHTS_KEY,
    check_units,
    units_sha256,
)
from specedge.runtime.errors import BundleError

__all__ = ["HEAD", "encoder_weights_sha256", "with_ctc_head", "write_head", "write_head_for"]

# Nodes come before weights in a graph, and their names before its metadata.
HEAD = Kind("CTC head", lambda head: b"specedge" in head[:32] and b"log_probs" in head)

_KEPT = re.compile(r"model\.encoder\..*((layer_norm|conv1|conv2)\.(weight|bias)|(qkv|out_proj|fc1|fc2)\.bias)")


def encoder_weights_sha256(manifest: Manifest, folder: Path) -> str:
    """The fingerprint of the encoder in the bundle's files in `folder`, see above.

    Raises BundleError when the graph cannot be read.
    """
    path = folder / manifest.graphs["encoder"].file
    hasher = hashlib.sha256()
    try:
        model = onnx.load(str(path), load_external_data=False)
        for tensor in sorted(model.graph.initializer, key=lambda tensor: tensor.name):
            if _KEPT.fullmatch(tensor.name):
                if external_data_helper.uses_external_data(tensor):
                    external_data_helper.load_external_data_for_tensor(tensor, str(folder))
                values = numpy_helper.to_array(tensor).astype("<f4")
                if values.ndim == 2:  # a convolution as a product; the fingerprint is of the checkpoint's layout
                    values = convolution_weight(values)
                hasher.update(f"{tensor.name} {values.shape}\n".encode("ascii") + values.tobytes())
    except Exception as error:  # protobuf and onnx have no common base class
        raise BundleError(f"{path}: cannot be read as a graph; export the model again") from error
    return hasher.hexdigest()


def write_head(path: Path, weights: CtcWeights, encoder_sha256: str) -> None:
    """Write a trained head to a file of its own; `encoder_sha256` is `encoder_weights_sha256`'s.

    Raises ResourceError when it cannot be written, UsageError for a file there that is no head.
    """
    metadata = {UNITS_KEY: UNITS, UNITS_SHA256_KEY: units_sha256(), WEIGHTS_KEY: encoder_sha256}
    with scratch_folder(path) as folder:
        write_ctc_graph(folder / path.name, weights, metadata)
        with publishing(path, HEAD) as file:
            file.write((folder / path.name).read_bytes())


def write_head_for(manifest: Manifest, folder: Path, head: Path, path: Path) -> None:
    """Write to `path` the head in the file `head`, as the graph of the bundle whose files are in `folder`.

    Raises BundleError when it is no head for this encoder, OSError when it cannot be written.
    """
    try:
        model = onnx.load(str(head))
        onnx.checker.check_model(model)
    except FileNotFoundError:
        raise BundleError(f"{head}: no such file, expected a trained CTC head; {REMEDY}") from None
    except Exception as error:
        raise BundleError(f"{head}: cannot be read as a CTC head; {REMEDY}") from error
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    check_units(metadata, head)
    if metadata.get(WEIGHTS_KEY) != encoder_weights_sha256(manifest, folder):
        raise BundleError(f"{head}: a CTC head for another encoder than this model's; {REMEDY}")
    model.graph.name = CTC_GRAPH  # not the name of the file it lay in
    helper.set_model_props(model, {**metadata, ENCODER_KEY: encoder_fingerprint(manifest)})
    path.write_bytes(model.SerializeToString())


def with_ctc_head(manifest: Manifest, head: Path, folder: Path) -> Manifest:
    """`manifest` with the head in the file `head`, which is written into `folder`. Raises as `write_head_for`."""
    path = folder / f"{CTC_GRAPH}.onnx"
    write_head_for(manifest, folder, head, path)
    return replace(
        manifest,
        graphs={**manifest.graphs, CTC_GRAPH: signature(folder, CTC_GRAPH)},
        files={**manifest.files, path.name: file_entry(path)},
    )
