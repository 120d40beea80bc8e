"""The small trained model of the tests, tests/assets, as a float32 checkpoint and as a draft with other ids.

An integer times its column's scale is what the products of an int8 bundle compute with, so the bundle's graphs hold all
weights. Each is made once in a test run.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import external_data_helper, numpy_helper

from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.runtime.bundle.bundle import Bundle
from support import checkpoints
from support.checkpoints import Layout, Shape
from support.edits import write_tensors
from support.exported import made_folder
from support.paths import DEMO
from support.vocab import table, write_hf_tokenizer

Float = NDArray[np.float32]
SHAPE = Shape(
    n_state=256, n_head=4, n_audio_layer=6, n_text_layer=6, n_mels=128, n_vocab=51_866, n_audio_ctx=500, n_text_ctx=448
)
PUBLISHED_LIMIT = 50  # steps of 0.02 s
_FUSED = {"qkv": ("q_proj", "k_proj", "v_proj"), "kv": ("k_proj", "v_proj")}


@functools.cache
def checkpoint() -> Path:
    """The demo in Hugging Face layout, with a tokenizer. Do not change it: others use it too."""
    manifest = json.loads((DEMO / "specedge.json").read_bytes())
    layout = Layout.of(SHAPE.n_vocab, SHAPE.n_audio_ctx, False)
    generation = checkpoints.generation_config(SHAPE, layout) | {
        name: manifest[name] for name in ("alignment_heads", "max_initial_timestamp_index")
    }
    return _written("checkpoint", SHAPE, layout, generation, _tensors())


@functools.cache
def english_draft() -> Bundle:
    """The demo with the ids of English-only models: a token has the row of the token, or of the first of the tokens,
    that spells the same in the multilingual vocabulary, and the prompt's missing tokens leave their positions out."""
    shape = Shape(**{**vars(SHAPE), "n_vocab": 51_864})
    old, new = (Layout.of(one.n_vocab, SHAPE.n_audio_ctx, one is shape) for one in (SHAPE, shape))
    id_of = {spelt: token for token, spelt in enumerate(table("multilingual"))}
    rows = [id_of.get(spelt, -1) for spelt in table("gpt2")]
    names = [name.replace("nocaptions", "nospeech") for name in new.specials]
    rows += [old.specials[name] for name in names]
    rows += range(old.n_vocab - old.n_timestamps, old.n_vocab)
    tensors = _tensors()
    name = "model.decoder.embed_tokens.weight"
    none = tensors[name].mean(axis=0) - 10 * tensors["model.decoder.layer_norm.bias"]
    tensors[name] = np.stack([tensors[name][row] if row >= 0 else none for row in rows])
    positions = tensors["model.decoder.embed_positions.weight"]
    tensors["model.decoder.embed_positions.weight"] = np.concatenate([positions[:1], positions[3:], positions[-2:]])
    folder = _written("english", shape, new, checkpoints.generation_config(shape, new), tensors)
    with open_checkpoint(folder) as source:
        return write_bundle(source, made_folder("demo", "english-int8"), precision="int8", name="english", version="0")


@functools.cache
def for_faster_whisper() -> Path:
    """A CTranslate2 folder in float32, with the tokenizer and the window length that faster-whisper reads there."""
    import ctranslate2

    out = made_folder("demo", "ct2")
    converter = ctranslate2.converters.TransformersConverter(
        str(checkpoint()), copy_files=["tokenizer.json", "preprocessor_config.json"], load_as_float16=False
    )
    converter.convert(str(out), quantization="float32")
    return out


@functools.cache
def for_specedge() -> Path:
    """An fp32 bundle of the demo, `with_published_limit`."""
    with open_checkpoint(with_published_limit(checkpoint(), made_folder("demo", "published-limit"))) as source:
        return write_bundle(source, made_folder("demo", "fp32"), precision="fp32", name="demo", version="0").path


def with_published_limit(checkpoint: Path, out: Path) -> Path:
    """A checkpoint in the new folder `out`, with the limit of a window's first timestamp that published ones have.

    Neither openai-whisper nor faster-whisper reads one from a checkpoint. The demo's own is later, and changes where
    its segments may begin and its windows end.
    """
    shutil.copytree(checkpoint, out)
    generation = out / "generation_config.json"
    found = json.loads(generation.read_text(encoding="utf-8"))
    generation.write_text(json.dumps(found | {"max_initial_timestamp_index": PUBLISHED_LIMIT}))
    return out


def _convolution(matrix: Float) -> Float:
    """The weight [n_out, n_in, 3] of a convolution that stands in the graph as a matrix [3 n_in, n_out]."""
    return np.ascontiguousarray(matrix.reshape(3, -1, matrix.shape[1]).transpose(2, 1, 0))


def _written(name: str, shape: Shape, layout: Layout, generation: dict[str, Any], tensors: dict[str, Float]) -> Path:
    folder = made_folder("demo", name)
    folder.mkdir(parents=True)
    for file, value in (
        ("config", checkpoints.config(shape, layout, "float32")),
        ("generation_config", generation),
        ("preprocessor_config", checkpoints.preprocessor_config(shape)),
    ):
        (folder / f"{file}.json").write_text(json.dumps(value), encoding="utf-8")
    write_hf_tokenizer(folder, layout)
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def _tensors() -> dict[str, Float]:
    """The weights by a checkpoint's names."""
    stored: dict[str, onnx.TensorProto] = {}
    for graph in ("encoder", "cross_kv", "decoder"):
        model = onnx.load(str(DEMO / f"{graph}.onnx"), load_external_data=False)
        stored |= {tensor.name: tensor for tensor in model.graph.initializer}

    def value(name: str) -> Float:
        tensor = onnx.TensorProto()
        tensor.CopyFrom(stored[name])
        if external_data_helper.uses_external_data(tensor):
            external_data_helper.load_external_data_for_tensor(tensor, str(DEMO))
        return np.asarray(numpy_helper.to_array(tensor)).astype(np.float32)

    def matrix(layer: str) -> Float:
        return np.ascontiguousarray((value(f"{layer}.weight") * value(f"{layer}.scales")).T)

    def tensor(name: str) -> Float:
        layer, _, what = name.rpartition(".")
        if name.endswith("embed_tokens.weight"):
            rows = value("vocabulary") * value("vocabulary.scales")
            return rows[: SHAPE.n_vocab] * (value("vocabulary.columns") if "vocabulary.columns" in stored else 1)
        if name.endswith("embed_positions.weight"):
            return value(name.replace("embed_positions.weight", "positions"))
        attention, _, part = layer.rpartition(".")
        for fused, parts in _FUSED.items():
            whole = f"{attention}.{fused}"
            if part in parts and f"{whole}.bias" in stored:
                both = matrix(whole) if what == "weight" else value(f"{whole}.bias")
                return np.ascontiguousarray(np.split(both, len(parts))[parts.index(part)])
        return matrix(layer) if f"{layer}.scales" in stored and what == "weight" else value(name)

    found = {}
    for name, shape in checkpoints.tensors(SHAPE):
        found[name] = _convolution(value(name)) if re.search(r"conv\d\.weight", name) else tensor(name)
        assert found[name].shape == shape, name
    return found
