"""A checkpoint out of ONNX files made by Optimum or transformers.js: `specedge export DIR --from optimum`.

torch.onnx.export keeps the names of most parameters but stores the second operand of a MatMul transposed and nameless
(`onnx::MatMul_242`), and folds the encoder's positions into `onnx::Add_241`. They are recovered from the graph: by the
module path in a node's name (`/model/decoder/layers.0/self_attn/q_proj/MatMul`), and as the one matrix that is added.
decoder_model_merged.onnx holds its nodes in the branches of an If and adds `_merged_0` to names.
No graph is run, and quantised ones are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from specedge.errors import CheckpointError

from .checkpoint import Checkpoint, load_configs
from .spec import F32, Source, Spec, Stored

_ENCODER = "encoder_model.onnx"
# The with-past decoder comes last: it has no cross-attention keys and values.
_DECODERS = ("decoder_model.onnx", "decoder_model_merged.onnx", "decoder_with_past_model.onnx")
_QUANTISED = re.compile(r"^(DynamicQuantize|QLinear|MatMulInteger|ConvInteger|MatMulNBits|QGemm)|Quantized$|izeLinear$")
_QUANTISED_FILE = re.compile(r"_(quantized|int8|uint8|q4|q4f16|bnb4)\.onnx$")
_DTYPES = {1: "F32", 10: "F16", 11: "F64", 16: "BF16"}  # onnx.TensorProto.DataType


@dataclass(frozen=True)
class _Ref:
    """A constant of a graph, and whether the weight is its transpose."""

    tensor: onnx.TensorProto
    transposed: bool = False


def open_optimum(folder: Path) -> Checkpoint:
    """Open a folder of fp32 ONNX files, at its top or in `onnx/`, with config.json and tokenizer files at the top.

    Raises CheckpointError: no such files, quantised files, or a weight that cannot be found (by canonical name).
    """
    folder = Path(folder).expanduser()
    onnx_dir = folder / "onnx" if (folder / "onnx" / _ENCODER).is_file() else folder
    if not (folder / "config.json").is_file() and (folder.parent / "config.json").is_file() and folder.name == "onnx":
        folder = folder.parent
    files = {"encoder": _pick(onnx_dir, (_ENCODER,)), "decoder": _pick(onnx_dir, _DECODERS)}
    config, generation, preprocessor = load_configs(folder)
    where = str(folder / "config.json")
    source = Source(kind="optimum", id=folder.resolve().name)
    spec = Spec.from_config(config, generation=generation, preprocessor=preprocessor, source=source, where=where)
    entries = dict[str, Stored]()
    for side, path in files.items():
        entries |= {name: _stored(name, ref, path) for name, ref in _Graph(_load(path), side, path).weights().items()}
    lost = [name for name, _ in spec.shapes() if name not in entries]
    if lost:
        file = files["encoder" if ".encoder." in lost[0] else "decoder"]
        raise CheckpointError(
            f"{file}: the weights of {lost[0]} cannot be found in the graph ({len(lost)} missing); expected Optimum's "
            f"{file.name if file.name == _ENCODER else _DECODERS[0]} as exported, without graph optimisation"
        )
    return Checkpoint(spec, entries, folder=folder, where=str(folder))


def _pick(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    have = sorted(path.name for path in folder.glob("*.onnx")) if folder.is_dir() else []
    if any(_QUANTISED_FILE.search(name) for name in have):
        raise CheckpointError(f"{folder}: holds only quantised ONNX files; expected the fp32 {' or '.join(names)}")
    raise CheckpointError(f"{folder}: holds no {' or '.join(names)}; expected a folder that Optimum exported to ONNX")


def _load(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # protobuf's DecodeError is not importable from one place in all its versions
        raise CheckpointError(f"{path}: is not a valid ONNX file ({type(error).__name__}); export it again") from error


# ------------------------------------------------------------------------------------------------------ graph
class _Graph:
    """Finds the parameters of one side ("encoder" or "decoder") by following its graph and the branches inside it."""

    def __init__(self, model: onnx.ModelProto, side: str, path: Path) -> None:
        self._side, self._path = side, path
        self._constants: dict[str, onnx.TensorProto] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._collect(model.graph)
        self._made_by = {output: node for node in self._nodes for output in node.output}

    def _collect(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self._constants.setdefault(tensor.name, tensor)
        for node in graph.node:
            if _QUANTISED.search(node.op_type):
                raise CheckpointError(f"{self._path}: is quantised ({node.op_type}); give the fp32 export instead")
            self._nodes.append(node)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self._collect(attribute.g)
                elif node.op_type == "Constant" and attribute.name == "value":
                    self._constants.setdefault(node.output[0], attribute.t)

    def weights(self) -> dict[str, _Ref]:
        found = dict[str, _Ref]()
        for name, ref in self._places():
            if name is not None and ref is not None:
                found.setdefault(name, ref)
        return found

    def _places(self) -> Iterator[tuple[str | None, _Ref | None]]:
        for name in [*self._constants, *self._made_by]:
            yield _parameter(name, self._side), self._resolve(name)
        for node in self._nodes:
            module = _module(node.name, self._side)
            if node.op_type in ("MatMul", "Gemm") and module is not None:
                yield f"{module}.weight", self._operand(node)
            elif node.op_type == "Add" and self._side == "encoder":
                for ref in map(self._resolve, node.input):
                    if ref is not None and len(ref.tensor.dims) > 1:  # the only matrix that is added
                        yield "model.encoder.embed_positions.weight", ref

    def _operand(self, node: onnx.NodeProto) -> _Ref | None:
        """The weight [n_out, n_in] of a MatMul or Gemm; the graph multiplies by its transpose."""
        ref = self._resolve(node.input[1])
        if ref is None or len(ref.tensor.dims) != 2:
            return None
        turned = node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute)
        return _Ref(ref.tensor, ref.transposed != (not turned))

    def _resolve(self, value: str) -> _Ref | None:
        """The constant behind a value, through Identity (the exporter's way to share equal ones) and Transpose."""
        turned = False
        for _ in range(8):
            if value in self._constants:
                return _Ref(self._constants[value], turned)
            node = self._made_by.get(value)
            if node is None or node.op_type not in ("Identity", "Transpose"):
                return None
            if node.op_type == "Transpose":
                order = next((list(a.ints) for a in node.attribute if a.name == "perm"), [1, 0])
                if order != [1, 0]:
                    return None
                turned = not turned
            value = node.input[0]
        return None


def _module(node_name: str, side: str) -> str | None:
    """`/model/decoder/layers.0/fc1/MatMul` -> `model.decoder.layers.0.fc1`; None for a name without a module."""
    parts = node_name.removesuffix("/").split("/")[1:-1]
    return _qualified(".".join(parts), side) if parts else None


def _parameter(value_name: str, side: str) -> str | None:
    """An initializer's canonical name, if it kept one."""
    name = re.sub(r"_merged_\d+$", "", value_name)
    if not re.fullmatch(r"[a-z]\w*(\.\w+)*\.(weight|bias)", name):
        return None
    return _qualified(name, side)


def _qualified(path: str, side: str) -> str:
    path = path.removeprefix("model.").removeprefix(f"{side}.")
    return path if path.startswith("proj_out") else f"model.{side}.{path}"


# --------------------------------------------------------------------------------------------------- constants
def _stored(name: str, ref: _Ref, path: Path) -> Stored:
    shape = tuple(int(n) for n in ref.tensor.dims)
    shape = shape[::-1] if ref.transposed else shape
    if name.endswith("embed_positions.weight") and len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    dtype = _DTYPES.get(ref.tensor.data_type, f"ONNX type {ref.tensor.data_type}")
    return Stored(shape, dtype, path, read=partial(_read, ref, shape, path))


def _read(ref: _Ref, shape: tuple[int, ...], path: Path) -> F32:
    try:
        value = numpy_helper.to_array(ref.tensor, str(path.parent))
    except Exception as error:  # of several modules: onnx refuses data outside the folder, links and wrong sizes
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: the values of {ref.tensor.name} cannot be read ({reason})") from error
    with np.errstate(over="ignore"):
        return np.array(value.T if ref.transposed else value, dtype=np.float32, order="C").reshape(shape)
