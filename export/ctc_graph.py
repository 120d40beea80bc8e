"""The CTC head: its graph, and how a trained head gets into a bundle.

in   features f32 [1, n_ctx, n_audio_state], the encoder's output
out  frames i64 [n_heard], the frames whose blank probability is below a ceiling stored in the graph
     log_probs f32 [n_heard, 257], blank in column 0, byte b in column b + 1 (runtime/drafters/ctc/head.py)
     times f32 [n_frames, 2], how likely each frame is one at which a segment begins, and at which one ends: logits

A frame is a row of the encoder's output, or a part of one: where rows are fewer than letters (Qwen's encoder has 13 a
second), the first product makes several frames of each, n_frames = n_parts * n_ctx.

Blank and byte are two questions (as in the factorised transducers of Variani et al. 2020, HAT). A narrow trunk runs
over all frames: a product, then blocks that look at neighbouring frames, for an encoder made for attention does not say
all of a byte in one frame. It gives the probability of blank, p; only where that is below the ceiling a wider product
over the frame and its trunk tells the bytes apart, and byte b has (1 - p) times its softmax. So the wide product costs
only the frames that are spoken in. A head may tell a range of bytes alone: English is spelt with a fifth of them.
Products are float32: a drafter's bits do not matter. A frame of NaN passes the gate, for the drafter to see.

A head's file is the graph `ctc` with metadata: the table of units and a fingerprint of the encoder's weights, taken of
those that every precision keeps as they are (convolutions, gains and biases), so it is the same for all exports of one
checkpoint. In a bundle the graph gets the fingerprint of the bundle's encoder files too, which the runtime compares
without reading a weight.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from specedge.errors import BundleError, BundleNotFoundError
from specedge.files import Kind, publishing, scratch_folder
from specedge.runtime.bundle.bundle import Manifest, encoder_fingerprint
from specedge.runtime.bundle.manifest import CTC_GRAPH
from specedge.runtime.drafters.ctc.head import (
    ENCODER_KEY,
    N_UNITS,
    REMEDY,
    UNITS,
    UNITS_KEY,
    UNITS_SHA256_KEY,
    WEIGHTS_KEY,
    check_units,
    units_sha256,
)

from .encoder_graph import convolution_weight
from .layers import gelu
from .onnx_builder import GraphBuilder
from .spec import Stored

FLOAT = TensorProto.FLOAT
BLANK_CEILING = 0.9  # a frame where blank is at least so likely is not projected
UNSAID = -20.0  # the logarithm of the probability of a byte that a head does not tell
Float = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class CtcWeights:
    """A head's weights, float32, by name and shape as torch has them (`training.ctc.HeadNet`).

    trunk `[n_parts * n_trunk, n_state]` makes the trunk z = GELU(...) of the frames of a row, one behind the other.
    Blocks go on from there: z + GELU(`mixes.I` of the neighbours of z by `taps.I` `[n_trunk, 1, n_taps, 1]`), outside
    the window z is 0. gate gives the logit of blank. unit_in `[n_hidden, n_state + n_trunk]` and unit_out give the
    logits of the bytes from `first_byte` on from frame and trunk; all others are never heard. times_in, a convolution
    of the trunk, and times_out give the logits of a segment's begin and end.
    """

    arrays: Mapping[str, Float]
    blank_ceiling: float = BLANK_CEILING
    first_byte: int = 0

    @property
    def n_state(self) -> int:
        """Width of the encoder."""
        return int(self.arrays["trunk.weight"].shape[1])

    @property
    def n_trunk(self) -> int:
        return int(self.arrays["gate.weight"].shape[1])

    @property
    def n_parts(self) -> int:
        """Frames of each row of the encoder's output."""
        return len(self.arrays["trunk.weight"]) // self.n_trunk

    @property
    def n_blocks(self) -> int:
        return sum(name.startswith("taps.") for name in self.arrays)

    @property
    def stop_byte(self) -> int:
        """Behind the last byte that it tells."""
        return self.first_byte + len(self.arrays["unit_out.weight"])


def write_ctc_graph(path: Path, weights: CtcWeights, metadata: Mapping[str, str]) -> None:
    """Write the graph to `path` (`.onnx`), one file with its weights and `metadata`. Raises OSError."""
    with GraphBuilder(path.parent, path.stem, inline=True) as g:
        features = g.input("features", FLOAT, [1, "n_ctx", weights.n_state])
        x = g.node("Squeeze", [features, g.ints(0)])
        picture = _trunk(g, x, weights)
        z = g.node("Transpose", [g.node("Squeeze", [picture, g.ints(0, 3)])], perm=[1, 0])
        blank = _linear(g, z, weights, "gate")
        ceiling = g.const(
            "blank_ceiling", np.array(log(weights.blank_ceiling / (1 - weights.blank_ceiling)), np.float32)
        )
        is_heard = g.node("Not", [g.node("GreaterOrEqual", [g.node("Squeeze", [blank, g.ints(1)]), ceiling])])
        frames = g.node("Squeeze", [g.node("NonZero", [is_heard]), g.ints(0)])
        rows = frames if weights.n_parts == 1 else g.node("Div", [frames, g.ints(weights.n_parts)])
        wide = g.node("Concat", [g.node("Gather", [x, rows]), g.node("Gather", [z, frames])], axis=1)
        units = _linear(g, gelu(g, _linear(g, wide, weights, "unit_in")), weights, "unit_out")
        heard = g.node("Gather", [blank, frames])
        log_blank = g.node("Neg", [g.node("Softplus", [g.node("Neg", [heard])])])
        log_units = g.node("Sub", [g.node("LogSoftmax", [units], axis=1), g.node("Softplus", [heard])])
        outside = (weights.first_byte, N_UNITS - 1 - weights.stop_byte)
        if any(outside):
            log_units = g.node("Pad", [log_units, g.ints(0, outside[0], 0, outside[1]), g.scalar(UNSAID)])
        g.output(frames, "frames", TensorProto.INT64, ["n_heard"])
        g.output(g.node("Concat", [log_blank, log_units], axis=1), "log_probs", FLOAT, ["n_heard", N_UNITS])
        n_frames = "n_ctx" if weights.n_parts == 1 else "n_frames"
        told = gelu(g, _convolution(g, picture, weights, "times_in", "times"))
        found = _convolution(g, told, weights, "times_out", "times.out")
        times = g.node("Transpose", [g.node("Squeeze", [found, g.ints(0, 3)])], perm=[1, 0])
        g.output(times, "times", FLOAT, [n_frames, 2])
        g.save(metadata)


def _trunk(g: GraphBuilder, x: str, weights: CtcWeights) -> str:
    """The trunk of every frame, as a picture of one column: [1, n_trunk, n_ctx, 1]."""
    z = gelu(g, _linear(g, x, weights, "trunk"))
    if weights.n_parts > 1:
        z = g.node("Reshape", [z, g.ints(-1, weights.n_trunk)])
    # Convolutions follow each other without their values being laid out anew.
    z = g.node("Unsqueeze", [g.node("Transpose", [z], perm=[1, 0]), g.ints(0, 3)])
    for i in range(weights.n_blocks):
        near = _convolution(g, z, weights, f"taps.{i}", f"block_{i}")
        z = g.node("Add", [z, gelu(g, _convolution(g, near, weights, f"mixes.{i}", f"block_{i}.mix"))])
    return z


def _convolution(g: GraphBuilder, x: str, weights: CtcWeights, name: str, stored: str) -> str:
    """A convolution over the frames of a picture, of `taps` a channel by itself, or a linear map as one."""
    weight, bias = weights.arrays[f"{name}.weight"], weights.arrays.get(f"{name}.bias")
    is_map = weight.ndim == 2
    inputs = [x, g.const(stored if is_map else f"{stored}.taps", weight[:, :, None, None] if is_map else weight)]
    if bias is not None:
        inputs.append(g.const(f"{stored}.bias", bias))
    if is_map:
        return g.node("Conv", inputs, kernel_shape=[1, 1])
    n_taps, reach = weight.shape[2], weight.shape[2] // 2
    alone: dict[str, Any] = {"group": len(weight)} if name.startswith("taps.") else {}
    return g.node("Conv", inputs, **alone, kernel_shape=[n_taps, 1], pads=[reach, 0, reach, 0])


def _linear(g: GraphBuilder, x: str, weights: CtcWeights, name: str) -> str:
    y = g.node("MatMul", [x, g.const(name, weights.arrays[f"{name}.weight"].T)])
    return g.node("Add", [y, g.const(f"{name}.bias", weights.arrays[f"{name}.bias"])])


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
                values = _values(tensor, folder)
                if values.ndim == 2:  # a convolution as a product; the fingerprint is of the checkpoint's layout
                    values = convolution_weight(values)
                hasher.update(f"{tensor.name} {values.shape}\n".encode("ascii") + values.tobytes())
    except Exception as error:  # protobuf and onnx have no common base class
        raise BundleError(f"{path}: cannot be read as a graph; export the model again") from error
    return hasher.hexdigest()


def _values(tensor: onnx.TensorProto, folder: Path) -> Float:
    """Not by onnx where they lie in a file: it refuses one with two names, as where a draft has the same encoder."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return numpy_helper.to_array(tensor).astype("<f4")
    place = {entry.key: entry.value for entry in tensor.external_data}
    return Stored(tuple(tensor.dims), "F32", folder / Path(place["location"]).name, int(place["offset"])).tensor()


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
        raise BundleNotFoundError(f"{head}: no such file, expected a trained CTC head; {REMEDY}") from None
    except Exception as error:
        raise BundleError(f"{head}: cannot be read as a CTC head; {REMEDY}") from error
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    check_units(metadata, head)
    if metadata.get(WEIGHTS_KEY) != encoder_weights_sha256(manifest, folder):
        raise BundleError(f"{head}: a CTC head for another encoder than this model's; {REMEDY}")
    model.graph.name = CTC_GRAPH  # not the name of the file it lay in
    helper.set_model_props(model, {**metadata, ENCODER_KEY: encoder_fingerprint(manifest)})
    path.write_bytes(model.SerializeToString())
