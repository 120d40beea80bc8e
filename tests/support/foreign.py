"""The same Whisper as other programs write it: whisper.cpp's files by hand, from its converter.

Its layout is written here a second time, without the code under test.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from support.checkpoints import weight
from support.edits import read_tensors
from support.openai_model import openai_name
from support.vocab import table

DIMS = {"n_mels": 80, "n_audio_ctx": 100, "n_audio_state": 64, "n_audio_head": 2, "n_audio_layer": 2}
DIMS |= {"n_vocab": 51865, "n_text_ctx": 64, "n_text_state": 64, "n_text_head": 2, "n_text_layer": 2}
_GGML_DIMS = "n_vocab n_audio_ctx n_audio_state n_audio_head n_audio_layer n_text_ctx n_text_state n_text_head"
_GGML_DIMS += " n_text_layer n_mels"


def write_ggml(checkpoint: Path, path: Path, kind: str, dims: Mapping[str, int] = DIMS) -> dict[str, np.ndarray]:
    """A file of whisper.cpp's for a checkpoint with `dims`; what its tensors are worth, by transformers' name.

    kind: "f32", "f16", or one of ROUNDED.
    """
    worth = {}
    n_mels = dims["n_mels"]
    with path.open("wb") as file:
        file.write(struct.pack("<i", 0x67676D6C))
        file.write(struct.pack("<11i", *(dims[name] for name in _GGML_DIMS.split()), int(kind != "f32")))
        file.write(struct.pack("<2i", n_mels, 201) + np.zeros((n_mels, 201), np.float32).tobytes())
        tokens = table("gpt2" if dims["n_vocab"] == 51864 else "multilingual")
        file.write(struct.pack("<i", len(tokens)))
        for token in tokens:
            file.write(struct.pack("<i", len(token)) + token)
        for name, stored in read_tensors(checkpoint / "model.safetensors").items():
            theirs, value = openai_name(name), np.asarray(stored, np.float32)
            number, data, worth[name] = _ggml_values(theirs, value, kind)
            shape = (*value.shape, 1) if theirs.endswith(("conv1.bias", "conv2.bias")) else value.shape
            file.write(
                struct.pack("<3i", len(shape), len(theirs), number) + struct.pack(f"<{len(shape)}i", *shape[::-1])
            )
            file.write(theirs.encode() + data)
    return worth


def _ggml_values(name: str, value: np.ndarray, kind: str) -> tuple[int, bytes, np.ndarray]:
    """The number of the type, the bytes, and what they are worth."""
    if kind == "f32" or value.ndim < 2 or name.endswith("positional_embedding"):
        return 0, value.tobytes(), value
    if kind == "f16" or value.ndim > 2:
        half = value.astype(np.float16)
        return 1, half.tobytes(), half.astype(np.float32)
    blocks, worth = round_to_blocks(value.reshape(-1, 32), kind)
    return ROUNDED[kind], blocks, worth.reshape(value.shape)


ROUNDED = {"q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}  # and their numbers


def round_to_blocks(value: np.ndarray, kind: str) -> tuple[bytes, np.ndarray]:
    """ggml's blocks of the rows [n, 32], and what they are worth (ggml, src/ggml-quants.c, quantize_row_*_ref)."""
    n_bits, has_least = int(kind[1]), kind.endswith("_1")
    least = value.min(1) if has_least else np.zeros(len(value), np.float32)
    widest = np.take_along_axis(value, np.abs(value).argmax(1)[:, None], 1)[:, 0]
    if n_bits == 8:
        scale = np.abs(widest) / 127
    else:
        scale = (value.max(1) - least) / (2**n_bits - 1) if has_least else widest / -(2 ** (n_bits - 1))
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    middle = 0 if has_least or n_bits == 8 else 2 ** (n_bits - 1)
    codes = np.rint((value - least[:, None]) * inverse[:, None]) + middle
    codes = codes.astype(np.int8) if n_bits == 8 else np.clip(codes, 0, 2**n_bits - 1).astype(np.uint8)
    halves = [part.astype("<f2") for part in ((scale, least) if has_least else (scale,))]
    columns = [half[:, None].view(np.uint8) for half in halves]
    if n_bits == 5:
        columns.append(np.packbits(codes >> 4, axis=1, bitorder="little"))
    columns.append(codes.view(np.uint8) if n_bits == 8 else codes[:, :16] & 15 | codes[:, 16:] << 4)
    worth = (codes.astype(np.float32) - middle) * halves[0].astype(np.float32)[:, None]
    worth = worth + (halves[1].astype(np.float32)[:, None] if has_least else 0)
    return np.concatenate(columns, axis=1).tobytes(), worth


def factor_encoder(values: dict[str, np.ndarray], ranks: list[dict[str, int]]) -> dict[str, np.ndarray]:
    """Tensors as lite-whisper has them: the named linear maps of each encoder layer as two factors and a bias."""
    made = dict(values)
    for layer, table_ in enumerate(ranks):
        for linear, rank in table_.items():
            at = f"model.encoder.layers.{layer}.{linear if linear.startswith('fc') else f'self_attn.{linear}'}"
            n_out, n_in = made.pop(f"{at}.weight").shape
            made[f"{at}.weight1"] = weight(f"{at}.weight1", (n_in, rank), 0).astype(np.float16)
            made[f"{at}.weight2"] = weight(f"{at}.weight2", (rank, n_out), 0).astype(np.float16)
            made[f"{at}.bias"] = weight(f"{at}.bias", (n_out,), 0).astype(np.float16)
    return made
