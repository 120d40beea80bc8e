"""Read the CTranslate2 folders of faster-whisper: model.bin in float32, float16, bfloat16, int16 or int8.

model.bin is a version, the name of the model and its revision, then variables (name, shape, type, bytes) in order, then
aliases of equal variables (CTranslate2, python/ctranslate2/specs/model_spec.py, `_serialize`). Queries, keys and values
of an attention lie in one matrix. An integer matrix has a scale, of the whole or of each row, by which its values were
multiplied. A folder does not say which checkpoint it was made from; its card or its name may.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from specedge.errors import CheckpointError
from specedge.models import catalogue

from .openai_pt import config_of, dims_of, read_dims
from .spec import F32, FLOATS, Source, Spec, Stored, read_optional

_MODEL = "WhisperSpec"
_VERSIONS = range(4, 7)  # of the file: older ones do not name types
_TYPES = ("F32", "I8", "I16", "I32", "F16", "BF16")
_INTEGERS: dict[str, np.dtype[Any]] = {"I8": np.dtype("i1"), "I16": np.dtype("<i2"), "I32": np.dtype("<i4")}
_WIDTHS = {name: kind.itemsize for name, kind in {**_INTEGERS, **FLOATS}.items()}
_MAX_RANK = 4
_CARD_BYTES = 1 << 20


def is_ctranslate2(folder: Path) -> bool:
    """Whether a folder holds a model.bin of CTranslate2's."""
    try:
        with (folder / "model.bin").open("rb") as file:
            _int(file)
            return _text(file).endswith("Spec")
    except (OSError, struct.error, UnicodeDecodeError):
        return False


def open_ctranslate2(folder: Path, source: Source) -> tuple[Spec, dict[str, Stored]]:
    """Spec and weights of a folder of CTranslate2's. Raises CheckpointError."""
    path = folder / "model.bin"
    variables, aliases = _variables(path)
    entries = dict(_weights(variables, aliases))
    n_heads = {f"n_{key}_head": _number(variables, f"{side}/num_heads", path) for side, key in _SIDES.items()}
    dims = read_dims(dims_of(entries, path) | n_heads, str(path))
    said = read_optional(folder / "config.json")
    generation = {
        "suppress_tokens": said.get("suppress_ids"),
        "begin_suppress_tokens": said.get("suppress_ids_begin"),
        "alignment_heads": said.get("alignment_heads"),
        "max_initial_timestamp_index": 50,  # which faster-whisper takes where nothing is said
    }
    rounded = any(name.endswith("weight_scale") for name in variables)
    spec = Spec.from_config(
        config_of(dims, entries) | {"tie_word_embeddings": "decoder/projection/weight" in aliases},
        generation=generation,
        preprocessor=read_optional(folder / "preprocessor_config.json"),
        source=source,
        where=str(path),
        warning=f"its weights were rounded to integers, and are again; for the model's own text, {_advice(folder)}"
        if rounded
        else "",
    )
    return spec, entries


# ---------------------------------------------------------------------------------------------------------- names
_WHOLE = {
    "embeddings/weight": "embed_tokens.weight",
    "position_encodings/encodings": "embed_positions.weight",
    "layer_norm/gamma": "layer_norm.weight",
    "layer_norm/beta": "layer_norm.bias",
    **{f"conv{i}/{part}": f"conv{i}.{part}" for i in (1, 2) for part in ("weight", "bias")},
}
_SIDES = {"encoder": "audio", "decoder": "text"}
_ATTENTIONS = {"self_attention": "self_attn", "attention": "encoder_attn"}
# What a variable of a layer stacks, in this order.
_STACKS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("self_attention", "linear_0"): ("q_proj", "k_proj", "v_proj"),
    ("self_attention", "linear_1"): ("out_proj",),
    ("attention", "linear_0"): ("q_proj",),
    ("attention", "linear_1"): ("k_proj", "v_proj"),
    ("attention", "linear_2"): ("out_proj",),
    ("ffn", "linear_0"): ("fc1",),
    ("ffn", "linear_1"): ("fc2",),
}


def _weights(variables: Mapping[str, Stored], aliases: Mapping[str, str]) -> Iterator[tuple[str, Stored]]:
    """Every weight of a checkpoint that the file holds, by its canonical name."""
    for name in (*variables, *aliases):
        stored = aliases.get(name, name)
        if stored not in variables:
            continue
        side, _, rest = name.partition("/")
        if rest in _WHOLE:
            yield f"model.{side}.{_WHOLE[rest]}", _part(variables, stored)
        elif rest == "projection/weight":
            yield "proj_out.weight", _part(variables, stored)
        elif found := re.fullmatch(r"layer_(\d+)/(self_attention|attention|ffn)/(\w+)/(\w+)", rest):
            names = _in_layer(found[2], found[3], found[4])
            for at, inner in enumerate(names):
                if not inner.endswith("k_proj.bias"):  # zeros: Whisper's keys have none
                    yield f"model.{side}.layers.{found[1]}.{inner}", _part(variables, stored, at, len(names))


def _in_layer(block: str, layer: str, part: str) -> list[str]:
    """The names inside a layer of what a variable stacks."""
    attention = _ATTENTIONS.get(block)
    if layer == "layer_norm":
        norm = "final_layer_norm" if attention is None else f"{attention}_layer_norm"
        return [f"{norm}.{'weight' if part == 'gamma' else 'bias'}"]
    stack = _STACKS.get((block, layer), ()) if part in ("weight", "bias") else ()
    return [f"{name}.{part}" if attention is None else f"{attention}.{name}.{part}" for name in stack]


# ----------------------------------------------------------------------------------------------------------- file
def _variables(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """Every variable of the file, and the aliases. Raises CheckpointError."""
    end = path.stat().st_size
    found: dict[str, Stored] = {}
    try:
        with path.open("rb") as file:
            version, model, _ = _int(file), _text(file), _int(file)
            if version not in _VERSIONS or model != _MODEL:
                raise CheckpointError(
                    f"{path}: is a {model[:40]} of CTranslate2's format {version}; expected a {_MODEL} of format "
                    f"{_VERSIONS[0]} to {_VERSIONS[-1]}; {_advice(path.parent)}"
                )
            for _ in range(_int(file)):
                name, rank = _text(file), file.read(1)[0]
                shape = struct.unpack(f"<{rank}I", file.read(4 * rank))
                kind, n_bytes = file.read(1)[0], _int(file)
                if kind >= len(_TYPES) or rank > _MAX_RANK:
                    raise struct.error
                found[name] = Stored(shape, _TYPES[kind], path, file.tell())
                if math.prod(shape) * _WIDTHS[_TYPES[kind]] != n_bytes or file.tell() + n_bytes > end:
                    raise struct.error
                file.seek(n_bytes, 1)
            return found, {_text(file): _text(file) for _ in range(_int(file))}
    except (struct.error, IndexError, UnicodeDecodeError):
        raise CheckpointError(f"{path}: is damaged; copy or download it again") from None


def _int(file: BinaryIO) -> int:
    return int(struct.unpack("<I", file.read(4))[0])


def _text(file: BinaryIO) -> str:
    n_bytes = struct.unpack("<H", file.read(2))[0]
    return str(struct.unpack(f"{n_bytes}s", file.read(n_bytes))[0], "utf-8").removesuffix("\0")


def _number(variables: Mapping[str, Stored], name: str, path: Path) -> int:
    variable = variables.get(name)
    if variable is None or variable.shape or variable.dtype not in _INTEGERS:
        raise CheckpointError(f"{path}: {name} is missing; {_advice(path.parent)}")
    return int(np.fromfile(path, _INTEGERS[variable.dtype], 1, offset=variable.offset)[0])


def _part(variables: Mapping[str, Stored], name: str, at: int = 0, n_parts: int = 1) -> Stored:
    """The `at`-th of the equal parts that a variable stacks. Integers with a scale are read as the floats they were."""
    whole, scale = variables[name], variables.get(f"{name}_scale")
    n_rows, *rest = whole.shape or (0,)
    n_rows //= n_parts
    n_bytes = n_rows * math.prod(rest) * _WIDTHS[whole.dtype]
    part = replace(whole, shape=(n_rows, *rest), offset=whole.offset + at * n_bytes)
    if scale is None or whole.dtype not in ("I8", "I16"):
        return part
    return replace(part, dtype="F32", read=partial(_unrounded, part, scale, slice(at * n_rows, (at + 1) * n_rows)))


def _unrounded(part: Stored, scale: Stored, rows: slice) -> F32:
    values = np.fromfile(part.path, _INTEGERS[part.dtype], math.prod(part.shape), offset=part.offset)
    values = values.reshape(part.shape)
    scales = scale.tensor()
    if scales.shape:
        scales = scales[rows].reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(values / scales, np.float32)


def _advice(folder: Path) -> str:
    """How to export the checkpoint that a folder was made from, as far as its card or its name says."""
    source = _source(folder)
    return f"`specedge export {source}`" if source else "export the checkpoint it was made from"


def _source(folder: Path) -> str | None:
    card = folder / "README.md"
    if card.is_file() and card.stat().st_size <= _CARD_BYTES:
        text = card.read_text(encoding="utf-8", errors="replace")
        named = re.search(r"ct2-transformers-converter\s[^\n]*?--model\s+([\w.-]+/[\w.-]+)", text)
        if named is not None:
            return named[1]
    for name in [part.name for part in (folder.resolve(), *folder.resolve().parents)][:4]:
        known = catalogue.conversion_of(name)  # in the hub's cache, a name stands two folders above
        if known is not None:
            return known.hub_id
    return None
