"""Export of a speech LLM in Voxtral's layout: what the bundle says, and one line for what cannot be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge import WhisperModel
from specedge.errors import CheckpointError, UsageError
from specedge.export import layers, spec
from specedge.export.checkpoint import open_checkpoint
from specedge.export.decoder_graph import VOCABULARY
from specedge.export.heads import HeadsSpec
from specedge.export.spec import Stored
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.dims import SpeechDims
from specedge.runtime.bundle.manifest import Manifest, check_fit
from support.edits import read_tensors, write_tensors
from support.exported import bundle
from support.qwen_checkpoints import N_VOCAB, make_qwen, qwen_bundle
from support.speech_checkpoints import checkpoint, export_speech, noise, speech_bundle


def test_the_manifest_says_what_the_model_is() -> None:
    manifest = speech_bundle().manifest
    assert manifest.kind == "speech" and manifest.window_s == 2
    assert set(manifest.graphs) == {"encoder", "projector", "decoder", "mtp-latent"}
    dims = manifest.dims
    assert isinstance(dims, SpeechDims)
    assert (dims.n_audio_rows, dims.n_kv_head, dims.head_dim, dims.n_stacked) == (25, 2, 32, 4)
    assert Manifest.from_bytes(manifest.to_bytes(), "again") == manifest


def text_config(**changes: Any) -> Any:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        for name, value in changes.items():
            config["text_config"].pop(name, None)
            if value is not None:
                config["text_config"][name] = value
        (folder / "config.json").write_text(json.dumps(config))

    return change


def weights(**changes: Any) -> Any:
    def change(folder: Path) -> None:
        tensors = dict(read_tensors(folder / "model.safetensors"))
        for name, value in changes.items():
            tensors[name.replace("__", ".")] = value
        write_tensors(folder / "model.safetensors", tensors)

    return change


def sharded(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    places = {"weight_map": {"audio_tower.conv1.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(places))


def tekken(change: Any) -> Any:
    def write(folder: Path) -> None:
        value = json.loads((folder / "tekken.json").read_text())
        change(value)
        (folder / "tekken.json").write_text(json.dumps(value))

    return write


BAD = {
    "num_key_value_heads is missing": text_config(num_key_value_heads=None),
    "num_key_value_heads 3 does not divide": text_config(num_key_value_heads=3),
    "head_dim is 20": text_config(head_dim=20),
    "does not divide hidden_size": text_config(head_dim=None, num_attention_heads=6),
    "rope scaling 'yarn'": text_config(rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    "rope scaling 'llama3'": text_config(rope_parameters={"rope_type": "llama3", "rope_theta": 1e4}),
    "max_position_embeddings is 100": text_config(max_position_embeddings=100),
    "hidden_act 'gelu' is not supported": text_config(hidden_act="gelu"),
    "sliding_window is not supported": text_config(sliding_window=512),
    "projector.linear_1.weight has shape": weights(
        multi_modal_projector__linear_1__weight=np.zeros((64, 128), np.float32)
    ),
    "there is no such file; the checkpoint is incomplete": sharded,
    "tekken.json: there is no such file": lambda folder: (folder / "tekken.json").unlink(),
    "the model has 320 tokens": tekken(lambda value: value["config"].update(default_vocab_size=321)),
    "token 7 has rank 8": tekken(lambda value: value["vocab"].pop(7)),
    "token [TRANSCRIBE] has rank 90": tekken(
        lambda value: value.update(special_tokens=[{"token_str": "[TRANSCRIBE]", "rank": 90}])
    ),
}


@pytest.mark.parametrize("line", BAD)
def test_what_cannot_be_exported_is_one_line(line: str, tmp_path: Path) -> None:
    shutil.copytree(checkpoint(), tmp_path / "c")
    BAD[line](tmp_path / "c")
    with pytest.raises(CheckpointError) as caught, open_checkpoint(tmp_path / "c") as opened:
        opened.vocabulary()
    assert line in str(caught.value) and "\n" not in str(caught.value) and caught.value.exit_code == 4


@pytest.fixture(scope="module")
def model() -> WhisperModel:
    return WhisperModel(speech_bundle().path, cpu_threads=1)


CANNOT: dict[str, dict[str, Any]] = {
    "no cross-attention to read word times from": {"word_timestamps": True},
    "give a Whisper model to translate": {"task": "translate"},
    "initial_prompt: this speech LLM has no place": {"initial_prompt": "Names: Ada."},
    "hotwords: this speech LLM has no place": {"hotwords": "Ada"},
    "does not know 'zh'": {"language": "zh"},
}


@pytest.mark.parametrize("line", CANNOT)
def test_what_a_speech_llm_cannot_do_is_one_line(line: str, model: WhisperModel) -> None:
    with pytest.raises(UsageError) as caught:
        list(model.transcribe(noise(1), drafter="none", **CANNOT[line])[0])
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_languages_are_not_detected(model: WhisperModel) -> None:
    with pytest.raises(UsageError, match="is a speech LLM, and this needs a Whisper model"):
        model.detect_language(features=np.zeros((80, 200), np.float32))


def test_segments_are_windows_and_no_audio_has_none(model: WhisperModel) -> None:
    told: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 6, "drafter": "none"}
    segments, info = model.transcribe(noise(2, 5.0), **told)
    found = list(segments)
    assert [segment.seek for segment in found] == [0, 200, 400] and info.language == "und"
    assert (found[1].start, found[1].end) == (2.0, 4.0) and found[0].no_speech_prob == 0.0
    segments, info = model.transcribe(noise(2, 0.02), "en", **told)
    assert len(list(segments)) <= 1 and info.language == "en"
    assert list(model.transcribe(noise(2, 0.0), "en", **told)[0]) == []


@pytest.mark.parametrize("target", [bundle, qwen_bundle])
def test_a_speech_llm_drafts_for_its_own_layout_alone(target: Callable[[], Bundle]) -> None:
    with pytest.raises(
        UsageError, match="speech is a speech LLM, which drafts only for a larger one of its own layout"
    ):
        check_fit(speech_bundle().manifest, target().manifest)
    check_fit(speech_bundle().manifest, speech_bundle().manifest)


def test_heads_and_languages_of_a_checkpoint_are_its_own(tmp_path: Path) -> None:
    shutil.copytree(checkpoint(), tmp_path / "c")
    weights(latent_heads__0__weight=np.eye(64, dtype=np.float32))(tmp_path / "c")
    (tmp_path / "c" / "generation_config.json").write_text(json.dumps({"languages": ["en"]}))
    with open_checkpoint(tmp_path / "c") as opened:
        assert opened.spec.heads == HeadsSpec(kind="mtp-latent", n_heads=1)
        assert list(opened.vocabulary()[1].languages) == ["en"]
        assert (opened.tensor("latent_heads.0.weight") == np.eye(64)).all()


def test_the_export_and_its_check_read_a_vocabulary_in_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In float32 that of a 1.7B is 1.2 GB: more than all else that an export holds."""
    sizes: list[int] = []
    whole = Stored.tensor

    def read(stored: Stored) -> Any:
        sizes.append(stored.shape[0])
        return whole(stored)

    monkeypatch.setattr(Stored, "tensor", read)
    for module in (layers, spec):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 64)
    export_speech(make_qwen(tmp_path / "checkpoint"), tmp_path / "bundle")
    assert N_VOCAB not in sizes and len(sizes) > 20
    rows = [N_VOCAB - 1, 0, 63, 64, 7]
    with open_checkpoint(tmp_path / "checkpoint") as weights:
        assert (layers.rows_of(weights, VOCABULARY, rows) == weights.tensor(VOCABULARY)[rows]).all()
