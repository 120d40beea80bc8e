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
        for name, stored in _weights(path, side):
            if name and stored is not None:
                entries.setdefault(name, stored)
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
    only_quantised = any(_QUANTISED_FILE.search(path.name) for path in folder.glob("*.onnx"))
    found = "only quantised ONNX files" if only_quantised else f"no {' or '.join(names)}"
    raise CheckpointError(f"{folder}: holds {found}; expected the fp32 {' or '.join(names)} that Optimum exported")


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, and the branches inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _weights(path: Path, side: str) -> Iterator[tuple[str, Stored | None]]:
    """What may be parameters of one side ("encoder" or "decoder"), by canonical name; the first of a name counts."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's DecodeError is not importable from one place in all its versions
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path}: cannot be read as ONNX ({reason}); export it again") from error
    constants, made_by = dict[str, onnx.TensorProto](), dict[str, onnx.NodeProto]()
    nodes = [node for graph in _graphs(model.graph) for node in graph.node]
    for tensor in (tensor for graph in _graphs(model.graph) for tensor in graph.initializer):
        constants.setdefault(tensor.name, tensor)
    for node in nodes:
        if _QUANTISED.search(node.op_type):
            raise CheckpointError(f"{path}: is quantised ({node.op_type}); give the fp32 export instead")
        made_by |= dict.fromkeys(node.output, node)
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                constants.setdefault(node.output[0], attribute.t)

    def constant(value: str, turned: bool = False) -> Stored | None:
        """The constant behind a value, through Identity (the exporter's way to share equal ones) and Transpose."""
        for _ in range(8):
            if value in constants:
                return _stored(constants[value], turned, path)
            node = made_by.get(value)
            if node is None or node.op_type not in ("Identity", "Transpose"):
                return None
            turned ^= node.op_type == "Transpose"
            value = node.input[0]
        return None

    for value in [*constants, *made_by]:
        yield _canonical(re.sub(r"_merged_\d+$", "", value), side), constant(value)
    for node in nodes:
        if node.op_type in ("MatMul", "Gemm"):  # by the transpose of the weight [n_out, n_in]
            as_stored = any(one.name == "transB" and one.i for one in node.attribute)
            module = ".".join(node.name.split("/")[1:-1])
            yield _canonical(f"{module}.weight", side), constant(node.input[1], not as_stored)
        elif node.op_type == "Add" and side == "encoder":
            matrices = [one for one in map(constant, node.input) if one is not None and len(one.shape) > 1]
            yield from (("model.encoder.embed_positions.weight", one) for one in matrices)  # nothing else is added


def _canonical(name: str, side: str) -> str:
    """The canonical name of a parameter by its own or its module's path; "" where it has none."""
    if not re.fullmatch(r"[a-z]\w*(\.\w+)*\.(weight|bias)", name):
        return ""
    name = name.removeprefix("model.").removeprefix(f"{side}.")
    return name if name.startswith("proj_out") else f"model.{side}.{name}"


def _stored(tensor: onnx.TensorProto, turned: bool, path: Path) -> Stored:
    shape = tuple(tensor.dims)[:: -1 if turned else 1]
    if len(shape) == 3 and shape[0] == 1:  # positions, as they are added
        shape = shape[1:]
    dtype = _DTYPES.get(tensor.data_type, f"ONNX type {tensor.data_type}")
    return Stored(shape, dtype, path, read=partial(_read, tensor, turned, shape, path))


def _read(tensor: onnx.TensorProto, turned: bool, shape: tuple[int, ...], path: Path) -> F32:
    try:
        value = numpy_helper.to_array(tensor, str(path.parent))
    except Exception as error:  # of several modules: onnx refuses data outside the folder, links and wrong sizes
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: the values of {tensor.name} cannot be read ({reason})") from error
    with np.errstate(over="ignore"):
        return np.array(value.T if turned else value, dtype=np.float32, order="C").reshape(shape)
