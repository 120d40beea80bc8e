"""Read whisper.cpp's model files (`ggml-base.bin`) whose weights are f32, f16, bf16, or rounded to q4, q5 or q8_0.

A file is a magic number, eleven int32 of dimensions, Whisper's mel filters, the text tokens in the order of their ids,
then tensors under openai-whisper's names, one after another (whisper.cpp, models/convert-pt-to-ggml.py). Rounded ones
lie in blocks of 32 values (ggml, src/ggml-quants.c): a float16 scale, in q4_1 and q5_1 a float16 least value, in q5 the
fifth bits, and the four low bits of values 0 to 15 with those of 16 to 31, or 32 int8. k-quants are refused.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from specedge.errors import CheckpointError
from specedge.models import catalogue

from .openai_pt import canonical_name, derive_spec, read_dims
from .spec import F32, FLOATS, Source, Spec, Stored
from .vocabulary import published_tokenizer

MAGIC = b"lmgg"
GGUF_MAGIC = b"GGUF"
_DIMS = (
    "n_vocab n_audio_ctx n_audio_state n_audio_head n_audio_layer n_text_ctx n_text_state n_text_head n_text_layer "
    "n_mels"
).split()
_FLOAT_TYPES = {0: "F32", 1: "F16", 30: "BF16"}
_BLOCK = 32
_SCALE, _LEAST, _HIGH, _LOW = ("scale", "<f2"), ("least", "<f2"), ("high", "<u4"), ("low", "u1", _BLOCK // 2)
_ROUNDED: Mapping[int, tuple[str, np.dtype[Any]]] = {
    2: ("q4_0", np.dtype([_SCALE, _LOW])),
    3: ("q4_1", np.dtype([_SCALE, _LEAST, _LOW])),
    6: ("q5_0", np.dtype([_SCALE, _HIGH, _LOW])),
    7: ("q5_1", np.dtype([_SCALE, _LEAST, _HIGH, _LOW])),
    8: ("q8_0", np.dtype([_SCALE, ("values", "i1", _BLOCK)])),
}
_OTHER_TYPES = {9: "q8_1", 10: "q2_K", 11: "q3_K", 12: "q4_K", 13: "q5_K", 14: "q6_K"}
_MAX_NAME = 256


def is_ggml(head: bytes) -> bool:
    """Whether a file that begins with `head` is whisper.cpp's, or one of its successors that it does not use."""
    return head[:4] in (MAGIC, GGUF_MAGIC)


def open_ggml(path: Path) -> tuple[Spec, dict[str, Stored]]:
    """Spec and weights of a file of whisper.cpp. Raises CheckpointError."""
    with path.open("rb") as file:
        if file.read(4) == GGUF_MAGIC:
            raise CheckpointError(f"{path}: is a GGUF file, in which no Whisper is published; {_advice(path)}")
        try:
            dims = read_dims(dict(zip(_DIMS, _ints(file, len(_DIMS)), strict=True)), str(path))
            _ints(file, 1)  # the kind of most tensors, which each tensor says again
            n_mels, n_bins = _ints(file, 2)
            _skip(file, 4 * n_mels * n_bins)
            _check_tokens(file, dims["n_vocab"], path)
            entries, rounded = _tensors(file, path)
        except struct.error:
            raise CheckpointError(f"{path}: ends in the middle; copy or download it again") from None
    positions = entries.get("model.decoder.embed_positions.weight")
    if positions is not None and positions.shape:
        dims["n_text_ctx"] = positions.shape[0]  # a converter writes the length of generated text here
    known = _published(path)
    spec = derive_spec(
        dims,
        entries,
        source=Source(kind="ggml", id=path.name),
        where=str(path),
        published=None if known is None else known.name,
        warning=f"its weights were rounded to {rounded[1]} bits ({rounded}), and are again; for the model's own text, "
        f"{_advice(path)}"
        if rounded
        else "",
    )
    return spec, entries


def _unrounded(path: Path, offset: int, shape: tuple[int, ...], blocks: np.dtype[Any]) -> F32:
    found = np.fromfile(path, blocks, math.prod(shape) // _BLOCK, offset=offset)
    return _unpacked(found, blocks.names or ()).reshape(shape)


def _unpacked(blocks: NDArray[Any], fields: Sequence[str]) -> F32:
    """The values of blocks with these fields: [n_blocks, 32]."""
    scale = blocks["scale"].astype(np.float32)[:, None]
    if "values" in fields:
        return np.asarray(blocks["values"] * scale, np.float32)
    codes = np.concatenate([blocks["low"] & 15, blocks["low"] >> 4], axis=1)
    if "high" in fields:
        codes |= ((blocks["high"][:, None] >> np.arange(_BLOCK, dtype=np.uint32) & 1) << 4).astype(np.uint8)
    if "least" in fields:
        return np.asarray(codes * scale + blocks["least"].astype(np.float32)[:, None], np.float32)
    return np.asarray((codes - np.float32(16 if "high" in fields else 8)) * scale, np.float32)


def _tensors(file: BinaryIO, path: Path) -> tuple[dict[str, Stored], str]:
    """Every tensor by canonical name, its values skipped, and the least of the types that some are rounded to."""
    end, found, rounded = path.stat().st_size, dict[str, Stored](), set[str]()
    while file.tell() < end:
        n_dims, n_name, kind = _ints(file, 3)
        if not (1 <= n_dims <= 4 and 1 <= n_name <= _MAX_NAME):
            raise CheckpointError(f"{path}: is damaged at byte {file.tell()}; copy or download it again")
        shape = tuple(_ints(file, n_dims)[::-1])
        name = file.read(n_name).decode("utf-8", "replace")
        if kind not in _FLOAT_TYPES and kind not in _ROUNDED:
            raise CheckpointError(
                f"{path}: tensor {name} is stored as {_OTHER_TYPES.get(kind, f'type {kind}')}; expected f16, or q8_0, "
                f"q5 or q4 without k: give such a file, or {_advice(path)}"
            )
        per_block, in_block = (_BLOCK, _ROUNDED[kind][1]) if kind in _ROUNDED else (1, FLOATS[_FLOAT_TYPES[kind]])
        n_bytes = math.prod(shape) // per_block * in_block.itemsize
        if min(shape) < 1 or shape[-1] % per_block or file.tell() + n_bytes > end:
            raise CheckpointError(f"{path}: is damaged at tensor {name} {list(shape)}; copy or download it again")
        if name.endswith(("conv1.bias", "conv2.bias")):
            shape = shape[:1]  # stored as a column
        tensor = Stored(shape, _FLOAT_TYPES.get(kind, "F32"), path, file.tell())
        if kind in _ROUNDED:
            rounded.add(_ROUNDED[kind][0])
            tensor = replace(tensor, read=partial(_unrounded, path, tensor.offset, shape, in_block))
        _skip(file, n_bytes)
        found[canonical_name(name)] = tensor
    return found, min(rounded, default="")


def _check_tokens(file: BinaryIO, n_vocab: int, path: Path) -> None:
    """Raises CheckpointError unless the text tokens are openai-whisper's, for a file says nothing of special ones."""
    expected = list(published_tokenizer(n_vocab).ranks)
    tokens = []
    for _ in range(_ints(file, 1)[0]):
        n_bytes = _ints(file, 1)[0]
        if not 0 <= n_bytes <= _MAX_NAME:
            raise CheckpointError(f"{path}: is damaged at byte {file.tell()}; copy or download it again")
        tokens.append(file.read(n_bytes))
    if tokens[: len(expected)] != expected:
        raise CheckpointError(
            f"{path}: has another vocabulary than openai-whisper's; export the checkpoint it was made from"
        )


def _published(path: Path) -> catalogue.Checkpoint | None:
    """The published model that a file's name promises: ggml-base.en-q8_0.bin is base.en."""
    found = re.fullmatch(r"(?:ggml-)?(.*?)(?:-(?:q\d\w*|f16|f32))?(?:-tdrz)?\.(?:bin|gguf|ggml)", path.name, re.ASCII)
    return catalogue.find(found[1]) if found is not None else None


def _advice(path: Path) -> str:
    known = _published(path)
    return "export the checkpoint it was made from" if known is None else f"`specedge export {known.hub_id}`"


def _ints(file: BinaryIO, n: int) -> tuple[int, ...]:
    return struct.unpack(f"<{n}i", file.read(4 * n))


def _skip(file: BinaryIO, n_bytes: int) -> None:
    if n_bytes < 0:
        raise struct.error
    file.seek(n_bytes, 1)
