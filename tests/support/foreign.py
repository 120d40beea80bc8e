"""The same random Whisper as other programs write it: whisper.cpp's and MLX's files by hand, from their converters.

Their layouts are written here a second time, without the code under test.
"""

from __future__ import annotations

import json
import struct
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


def _as_openai(checkpoint: Path) -> dict[str, np.ndarray]:
    return {openai_name(name): value for name, value in read_tensors(checkpoint / "model.safetensors").items()}


def write_ggml(checkpoint: Path, path: Path, kind: str) -> dict[str, np.ndarray]:
    """A file of whisper.cpp's for a checkpoint with DIMS; what its tensors are worth, by transformers' name.

    kind: "f32", "f16", or a quantisation of the library gguf, such as "q8_0".
    """
    worth = {}
    with path.open("wb") as file:
        file.write(struct.pack("<i", 0x67676D6C))
        file.write(struct.pack("<11i", *(DIMS[name] for name in _GGML_DIMS.split()), int(kind != "f32")))
        file.write(struct.pack("<2i", 80, 201) + np.zeros((80, 201), np.float32).tobytes())
        tokens = table("multilingual")
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
    import gguf

    quantised = gguf.GGMLQuantizationType[kind.upper()]
    packed = gguf.quants.quantize(value, quantised)
    return int(quantised), packed.tobytes(), gguf.quants.dequantize(packed, quantised)


def write_mlx(checkpoint: Path, folder: Path, *, heads: list[list[int]] | None = None) -> Path:
    """A folder of mlx-whisper's converter for a checkpoint with DIMS."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DIMS | {"model_type": "whisper"}), encoding="utf-8")
    values = {}
    for name, value in _as_openai(checkpoint).items():
        if name == "encoder.positional_embedding":
            continue
        value = value.transpose(0, 2, 1) if name.endswith(("conv1.weight", "conv2.weight")) else value
        values[name.replace(".mlp.0.", ".mlp1.").replace(".mlp.2.", ".mlp2.")] = np.ascontiguousarray(value)
    if heads is not None:
        values["alignment_heads"] = np.array(heads)
    np.savez(folder / "weights.npz", **values)
    return folder


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
