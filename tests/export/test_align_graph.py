"""The align graph against transformers' cross attentions, and its way into bundles that were made without it."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.errors import BundleError
from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.export.derived_graphs import default_heads
from specedge.export.selfcheck import relative_error
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.engine import Engine
from support.checkpoints import make_checkpoint
from support.exported import bundle, engine, noise_mel, transformers_model

# As in test_graphs.py for logits: what rounding costs these small, unforgiving models.
MOST_SCORES_ERROR = {"fp32": 1e-5, "int8": 0.1, "int4": 0.45}
CASES = [
    *(("fp32", variant) for variant in ("plain", "odd heads")),
    *(
        pytest.param("fp32", variant, marks=pytest.mark.slow)
        for variant in ("v3", "deep text", "distil", "odd lengths", "key bias")
    ),
    *(("int8", variant) for variant in ("plain", "deep text")),
    ("int4", "plain"),
]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A bundle as exports before the align graph made it."""
    folder = tmp_path / "old"
    shutil.copytree(bundle("int8").path, folder)
    (folder / "align.onnx").unlink()
    made = bundle("int8").manifest
    graphs = {name: spec for name, spec in made.graphs.items() if name != "align"}
    files = {name: entry for name, entry in made.files.items() if name != "align.onnx"}
    (folder / "specedge.json").write_bytes(replace(made, graphs=graphs, files=files).to_bytes())
    return folder


def attentions_of(variant: str, mel: NDArray[np.float32], ids: list[int], monkeypatch: Any) -> Any:
    """transformers' cross attentions after the softmax, one [n_head, n_rows, n_ctx] a layer."""
    import torch

    model = transformers_model(variant)
    monkeypatch.setattr(model.config, "_attn_implementation", "eager")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model(
            input_features=torch.from_numpy(mel)[None],
            decoder_input_ids=torch.tensor([ids]),
            use_cache=False,
            output_attentions=True,
        )
    return [layer[0].numpy() for layer in out.cross_attentions]


def softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    mass = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: NDArray[np.float32] = mass / mass.sum(axis=-1, keepdims=True)
    return shares


@pytest.mark.parametrize(("precision", "variant"), CASES)
def test_scores_are_the_cross_attentions_of_transformers(
    precision: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine(precision, variant)
    dims, heads = made.dims, made.bundle.manifest.alignment_heads
    mel = noise_mel(dims.n_mels, 2 * dims.n_audio_ctx, 1)
    ids = np.random.default_rng(1).integers(0, dims.n_vocab, 21).tolist()
    layers = attentions_of(variant, mel, ids, monkeypatch)
    expected = np.stack([layers[layer][head] for layer, head in heads])
    scores = made.align(made.encode(mel), ids).scores
    assert scores.shape == (len(heads), 21, dims.n_audio_ctx) and scores.dtype == np.float32
    assert relative_error(softmax(scores), expected) < MOST_SCORES_ERROR[precision]


def test_without_alignment_heads_they_are_the_last_half_of_the_layers(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "source")
    generation = json.loads((folder / "generation_config.json").read_text())
    del generation["alignment_heads"]
    (folder / "generation_config.json").write_text(json.dumps(generation))
    with open_checkpoint(folder) as source:
        made = write_bundle(source, tmp_path / "out", precision="fp32", name="micro", version="0.1.0")
    assert made.manifest.alignment_heads == default_heads(made.manifest.dims) == ((1, 0), (1, 1))


def test_a_bundle_without_it_opens_and_says_what_to_do(old: Path) -> None:
    loaded = Engine(Bundle.open(old), threads=1)
    with pytest.raises(BundleError, match="no graph for word timestamps; export the model again") as raised:
        loaded.align(loaded.encode(noise_mel(80, 200)), [1, 2])
    assert raised.value.exit_code == 4
