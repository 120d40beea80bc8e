"""The graphs against transformers on the same weights, for every shape a Whisper comes in, and against plain NumPy."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from specedge.errors import CheckpointError
from specedge.export import layers as precision_module
from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.export.decoder_graph import padded_vocabulary
from specedge.export.selfcheck import relative_error
from specedge.runtime.engine.engine import Engine
from support.checkpoints import make_checkpoint
from support.edits import read_tensors, write_tensors
from support.exported import PRECISIONS, VARIANTS, bundle, checkpoint, engine, load_transformers, noise_mel
from support.exported import transformers_model as peer

# Relative to the size of the outputs: what rounding to 8 and to 4 bits costs these small, unforgiving models.
MOST_FEATURES_ERROR = {"fp32": 1e-5, "int8": 0.08, "int4": 0.3}
MOST_LOGITS_ERROR = {"fp32": 1e-5, "int8": 0.1, "int4": 0.45}


def window(variant: str, seed: int = 0) -> NDArray[np.float32]:
    dims = bundle("fp32", variant).manifest.dims
    return noise_mel(dims.n_mels, 2 * dims.n_audio_ctx, seed)


def random_ids(variant: str, n_rows: int, seed: int = 0) -> list[int]:
    n_vocab = bundle("fp32", variant).manifest.dims.n_vocab
    return np.random.default_rng(seed).integers(0, n_vocab, n_rows).tolist()


def expected_of(model: Any, mel: NDArray[np.float32], ids: list[int]) -> tuple[Any, Any]:
    """transformers' features [n_audio_ctx, n_state] and logits [n_rows, n_vocab]."""
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model(input_features=torch.from_numpy(mel)[None], decoder_input_ids=torch.tensor([ids]), use_cache=False)
    return out.encoder_last_hidden_state[0].numpy(), out.logits[0].numpy()


def measured_of(made: Engine, mel: NDArray[np.float32], ids: list[int]) -> tuple[Any, Any]:
    features = made.encode(mel)
    state = made.start(features)
    logits = made.forward(state, ids).copy()
    made.release(state)
    return features.hidden.copy(), logits


INT8_VARIANTS = ("plain", "v3", "untied", "distil", "odd lengths", "odd heads", "wide heads", "one head of 64")
CASES = [
    *(("fp32", variant) for variant in VARIANTS),
    *(("int8", variant) for variant in INT8_VARIANTS[:2]),
    ("int4", "plain"),
    *(pytest.param("int8", variant, marks=pytest.mark.slow) for variant in INT8_VARIANTS[2:]),
    *(pytest.param("int4", variant, marks=pytest.mark.slow) for variant in ("odd heads", "untied")),
]


@pytest.mark.parametrize(("precision", "variant"), CASES)
def test_outputs_are_those_of_transformers(precision: str, variant: str) -> None:
    mel, ids = window(variant), random_ids(variant, 21)
    features, logits = expected_of(peer(variant), mel, ids)
    got_features, got_logits = measured_of(engine(precision, variant), mel, ids)
    assert got_features.shape == features.shape and got_logits.shape == logits.shape
    assert relative_error(got_features, features) < MOST_FEATURES_ERROR[precision]
    assert relative_error(got_logits, logits) < MOST_LOGITS_ERROR[precision]
    if precision == "fp32":
        assert np.abs(got_features - features).max() < 1e-3 and np.abs(got_logits - logits).max() < 1e-3


@pytest.mark.parametrize("n_frames", [2, 50, 131, 199])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_short_window_is_a_model_with_fewer_positions(precision: str, n_frames: int, tmp_path: Path) -> None:
    """transformers refuses short windows, so its model is cut to length: the first positions are the same."""
    n_ctx = (n_frames + 1) // 2
    folder = make_checkpoint(tmp_path, n_audio_ctx=n_ctx, n_vocab=1000, tokenizer=False)
    model = load_transformers(folder)
    full = peer("plain").state_dict()
    cut = {name: full[name] if "embed_positions" not in name else full[name][: len(v)] for name, v in
           model.state_dict().items()}  # fmt: skip
    model.load_state_dict(cut)
    mel, ids = noise_mel(80, 2 * n_ctx, seed=n_frames), random_ids("plain", 6)
    if n_frames % 2:
        features, _ = measured_of(engine("fp32"), mel[:, :-1], ids)
        got, _ = measured_of(engine(precision), mel[:, :-1], ids)
    else:
        features, _ = expected_of(model, mel, ids)
        got, _ = measured_of(engine(precision), mel, ids)
    assert got.shape == features.shape == (n_ctx, 64)
    assert relative_error(got, features) < MOST_FEATURES_ERROR[precision]


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_loud_channels_of_the_first_attention_cost_no_precision(precision: str, tmp_path: Path) -> None:
    """The same function, with two channels a hundred times as loud and their weights a hundredth."""
    weights = read_tensors(shutil.copytree(checkpoint(), tmp_path / "loud") / "model.safetensors")
    layer = "model.encoder.layers.0"
    for part in ("weight", "bias"):
        weights[f"{layer}.self_attn_layer_norm.{part}"][[3, 40]] *= 100
    for part in "qkv":
        weights[f"{layer}.self_attn.{part}_proj.weight"][:, [3, 40]] /= 100
    write_tensors(tmp_path / "loud" / "model.safetensors", weights)
    with open_checkpoint(tmp_path / "loud") as source:
        loud = Engine(write_bundle(source, tmp_path / "out", precision=precision, name="loud", version="0.1.0"))
    mel = window("plain", seed=5)
    exact = engine("fp32").encode(mel).hidden
    error, error_of_plain = (relative_error(made.encode(mel).hidden, exact) for made in (loud, engine(precision)))
    assert error < 1.05 * error_of_plain


def test_a_width_that_no_block_divides_is_named(tmp_path: Path) -> None:
    folder = narrow_checkpoint(tmp_path)
    with open_checkpoint(folder) as source, pytest.raises(CheckpointError, match="multiple of 16.*--precision int8"):
        write_bundle(source, tmp_path / "out", precision="int4", name="narrow", version="0.1.0")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_other_precisions_take_a_width_that_no_block_divides(precision: str, tmp_path: Path) -> None:
    folder = narrow_checkpoint(tmp_path)
    with open_checkpoint(folder) as source:
        made = write_bundle(source, tmp_path / "out", precision=precision, name="narrow", version="0.1.0")
    assert made.manifest.selfcheck["logits_relative_error"] < MOST_LOGITS_ERROR[precision]


def narrow_checkpoint(folder: Path) -> Path:
    from dataclasses import replace
    from unittest import mock

    from support.checkpoints import SIZES

    with mock.patch.dict(SIZES, {"narrow": replace(SIZES["micro"], n_state=40, n_head=5)}):
        return make_checkpoint(folder / "checkpoint", size="narrow")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_embedding_shares_the_bytes_of_the_vocabulary(precision: str) -> None:
    """Tied weights are stored once: the matrix is half of a tiny model."""
    places: dict[tuple[str, str], set[str]] = {}
    model = onnx.load(str(bundle(precision).file("decoder.onnx")), load_external_data=False)
    for tensor in model.graph.initializer:
        entry = {item.key: item.value for item in tensor.external_data}
        if entry:
            places.setdefault((entry["offset"], entry["length"]), set()).add(tensor.name)
    dims = bundle(precision).manifest.dims
    n_rows = padded_vocabulary(dims, precision_module.PRECISIONS[precision].decoder)
    n_bytes = n_rows * dims.n_text_state * (4 if precision == "fp32" else 1)
    large = [names for (_, length), names in places.items() if int(length) == n_bytes]
    assert large == [{"vocabulary"}]
    readers = {node.op_type for node in model.graph.node if "vocabulary" in node.input}
    assert readers == {"Gather", "Gemm" if precision == "fp32" else "QGemm"}


@pytest.mark.parametrize("graph", ["encoder", "cross_kv", "decoder"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_graphs_need_nothing_but_the_runtime(precision: str, graph: str) -> None:
    """Standard and contributed operators only, data in one file beside the graph, and pages that can be mapped."""
    path = bundle(precision).file(f"{graph}.onnx")
    model = onnx.load(str(path), load_external_data=False)
    assert {node.domain for node in model.graph.node} <= {"", "com.microsoft"}
    assert not any(attribute.HasField("g") for node in model.graph.node for attribute in node.attribute)
    entries = [{e.key: e.value for e in t.external_data} for t in model.graph.initializer if t.external_data]
    assert {entry["location"] for entry in entries} == {f"{graph}.data"}
    assert all(int(entry["offset"]) % 4096 == 0 for entry in entries)


def test_no_scale_couples_the_rows_of_a_decoder() -> None:
    """The operators that round a whole tensor with one scale are what makes other int8 exports inexact."""
    for precision in PRECISIONS:
        model = onnx.load(str(bundle(precision).file("decoder.onnx")), load_external_data=False)
        assert not {"DynamicQuantizeLinear", "DynamicQuantizeMatMul"} & {node.op_type for node in model.graph.node}
