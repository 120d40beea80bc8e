"""Export of Qwen3-ASR: both spellings, what the bundle says, and one line for what cannot be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge import WhisperModel
from specedge.errors import CheckpointError, ModelError, UsageError
from specedge.export import layers, spec
from specedge.export.checkpoint import open_checkpoint
from specedge.export.decoder_graph import VOCABULARY
from specedge.export.export import export_to
from specedge.export.spec import Stored
from specedge.runtime.bundle.dims import SpeechDims
from specedge.runtime.bundle.manifest import Manifest, check_fit
from specedge.runtime.engine.speech import SpeechEngine
from specedge.runtime.text.speech_tokens import SpeechTokens
from support.edits import read_tensors, write_tensors
from support.exported import bundle
from support.qwen_checkpoints import (
    ENDS,
    IDS,
    N_VOCAB,
    export_speech,
    make_qwen,
    noise,
    qwen_bundle,
    qwen_checkpoint,
    qwen_engine,
)


def special() -> SpeechTokens:
    tokens = qwen_bundle().manifest.tokens
    assert isinstance(tokens, SpeechTokens)
    return tokens


def mel_of(n_frames: int) -> np.ndarray:
    values = np.random.default_rng(n_frames).normal(0.1, 0.6, (80, n_frames))
    return np.clip(values, -1, 1.5).astype(np.float32)


def test_the_manifest_says_what_the_model_is() -> None:
    manifest = qwen_bundle().manifest
    dims = manifest.dims
    assert isinstance(dims, SpeechDims) and manifest.window_s == 30
    assert set(manifest.graphs) == {"encoder", "projector", "decoder", "mtp-latent"}
    assert (dims.n_audio_ctx, dims.n_kv_head, dims.head_dim, dims.n_frames, dims.n_text_ctx) == (390, 2, 32, 3000, 902)
    assert [dims.positions(n) for n in (1, 8, 9, 100, 101, 807, 3000)] == [1, 1, 2, 13, 14, 105, 390]
    assert Manifest.from_bytes(manifest.to_bytes(), "again") == manifest
    assert manifest.selfcheck["row_invariance"]["exact"]


def test_the_prompt_is_the_published_one() -> None:
    tokens, tokenizer = special(), qwen_bundle().tokenizer
    assert tokenizer.pattern == "qwen"
    names = {id_: name for name, id_ in IDS.items()}

    def spelt(ids: list[int]) -> str:
        return "".join(
            "AUDIO" if id_ == N_VOCAB else names[id_] if id_ in names else tokenizer.decode([id_]) for id_ in ids
        )

    head = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n<|audio_start|>AUDIO<|audio_end|><|im_end|>\n"
    asked = head + "<|im_start|>assistant\nlanguage {}<asr_text>"
    assert spelt(tokens.prompt(1, "en")) == asked.format("", "English")
    assert spelt(tokens.prompt(1, "tl", tokenizer.encode("Ada"))) == asked.format("Ada", "Filipino")
    assert spelt(tokens.prompt(1)) == asked.format("", "None")
    assert tokens.language_in(tokens.prompt(3, "zh", [5])) == "zh" and tokens.language_in(tokens.prompt(3)) is None
    assert (tokens.eot, *tokens.other_ends) == tuple(ENDS) and set(tokens.languages) == {"zh", "en", "de", "tl"}
    assert SpeechTokens.from_json(tokens.to_json(), N_VOCAB) == tokens


@pytest.mark.parametrize(
    "change", [{"context_at": 99}, {"context_at": 1.0}, {"unknown": [-1]}, {"unknown": 7}, {"x": 1}]
)
def test_a_manifest_with_other_prompts_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ModelError, TypeError)):
        SpeechTokens.from_json({**special().to_json(), **change}, N_VOCAB)


def test_no_language_may_begin_another() -> None:
    told = special().to_json()
    told["languages"]["en"] = told["languages"]["de"][:-1]
    with pytest.raises(ModelError, match="begin those of another one"):
        SpeechTokens.from_json(told, N_VOCAB)


def test_both_spellings_are_the_same_model(tmp_path: Path) -> None:
    ours, theirs = qwen_checkpoint(), qwen_checkpoint(published=False)
    with open_checkpoint(ours) as a, open_checkpoint(theirs) as b:
        assert a.spec.dims == b.spec.dims and a.spec.rope_theta == b.spec.rope_theta == 1e6  # type: ignore[attr-defined]
        shapes = list(a.spec.shapes())
        assert shapes == list(b.spec.shapes()) and a.spec.tied and b.spec.tied
        for name, shape in shapes:
            assert (a.tensor(name) == b.tensor(name)).all() and a.tensor(name).shape == shape
        (ranks, tokens), (other_ranks, other_tokens) = a.vocabulary(), b.vocabulary()
    assert ranks == other_ranks and tokens.to_json()["before"] == other_tokens.to_json()["before"]
    assert len(other_tokens.languages) == 30 and {*tokens.languages} < {*other_tokens.languages}


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_stretches_of_audio_do_not_see_each_other(precision: str) -> None:
    """Audio behind a stretch, threads and neighbours change no bit of it."""
    engine, mel = qwen_engine(precision), mel_of(1777)
    whole = engine.encode(mel)
    assert whole.hidden.shape == (13 * 17 + 10, 64) and whole.n_frames == 1777
    assert engine.encode(mel[:, :800]).hidden.tobytes() == whole.hidden[:104].tobytes()
    assert engine.encode(mel[:, 800:]).hidden.tobytes() == whole.hidden[104:].tobytes()
    assert engine.encode(mel[:, :850]).hidden[:104].tobytes() == whole.hidden[:104].tobytes()
    other = SpeechEngine(qwen_bundle(precision), threads=2, loads=())
    assert other.encode(mel).hidden.tobytes() == whole.hidden.tobytes()
    (alone, second) = engine.encode_all([mel, mel[::-1].copy()])
    assert alone.hidden.tobytes() == whole.hidden.tobytes() and second.n_audio == whole.n_audio


def config(where: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        value = json.loads((folder / "config.json").read_text())
        part = value["thinker_config"] if where == "thinker" else value["thinker_config"][where]
        for name, new in changes.items():
            part.pop(name, None)
            if new is not None:
                part[name] = new
        (folder / "config.json").write_text(json.dumps(value))

    return change


def weights(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for file in sorted(folder.glob("*.safetensors")):
            tensors = read_tensors(file)
            known = {name: value for name, value in changes.items() if name.replace("__", ".") in tensors}
            write_tensors(file, {**tensors, **{name.replace("__", "."): value for name, value in known.items()}})

    return change


def text_file(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


PROJECTOR = {"thinker__audio_tower__proj2__weight": np.zeros((48, 32), np.float32)}
BAD: dict[str, Callable[[Path], None]] = {
    "n_window_infer is 750; expected a multiple of 100": config("audio_config", n_window_infer=750),
    "audio_config: n_window is missing": config("audio_config", n_window=None),
    "d_model is 64; expected a multiple of 6": config("audio_config", encoder_attention_heads=3),
    "activation_function 'relu' is not supported": config("audio_config", activation_function="relu"),
    "audio_config is missing": config("thinker", audio_config=None),
    "this is Qwen's aligner": config("thinker", classify_num=5000),
    "the weights are quantised (gptq)": config("thinker", quantization_config={"quant_method": "gptq"}),
    "projector.linear_2.weight has shape [48, 32]; the config asks for [48, 64]": weights(**PROJECTOR),
    "num_key_value_heads is missing": config("text_config", num_key_value_heads=None),
    "num_attention_heads is 4; expected a multiple of 3": config("text_config", num_key_value_heads=3),
    "head_dim is 20": config("text_config", head_dim=20),
    "rope scaling 'yarn'": config("text_config", rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    "max_position_embeddings is 100; a window has 390 rows": config("text_config", max_position_embeddings=100),
    "text_config: expected hidden_act 'silu' and no": config("text_config", hidden_act="gelu"),
    "expected hidden_act 'silu' and no sliding_window": config("text_config", sliding_window=512),
    "embed_tokens.weight has shape [420, 48]; the config asks for [400, 48]": config("text_config", vocab_size=400),
    "there is no such file; the checkpoint is incomplete": without("model-00002-of-00002.safetensors"),
    "there is no vocabulary": without("vocab.json"),
    "no added token <|endoftext|>": text_file("tokenizer_config.json", "<|endoftext|>", "<|no|>"),
    "no token <asr_text>": text_file("tokenizer_config.json", "<asr_text>", "<other>"),
    "<asr_text> has id 4060, but the model has only 420 tokens": text_file("tokenizer_config.json", '"406"', '"4060"'),
    "the chat template has no <|audio_start|>": text_file("chat_template.json", "<|audio_start|>", "<|vision|>"),
}


@pytest.mark.parametrize("line", BAD)
def test_what_cannot_be_exported_is_one_line(line: str, tmp_path: Path) -> None:
    shutil.copytree(qwen_checkpoint(), tmp_path / "c")
    BAD[line](tmp_path / "c")
    with pytest.raises(CheckpointError) as caught, open_checkpoint(tmp_path / "c") as opened:
        opened.vocabulary()
    assert line in str(caught.value) and "\n" not in str(caught.value) and caught.value.exit_code == 4


def test_another_way_of_cutting_text_is_refused(tmp_path: Path) -> None:
    make_qwen(tmp_path / "c", published=False)
    text_file("tokenizer.json", "|\\\\p{N}|", "|\\\\p{N}{1,3}|")(tmp_path / "c")
    with open_checkpoint(tmp_path / "c") as opened, pytest.raises(CheckpointError, match="does not cut text as qwen"):
        opened.vocabulary()


def test_the_encoder_has_no_plain_twin(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has Qwen's encoder, which is not written in plain operators"):
        export_to(str(qwen_checkpoint()), tmp_path / "b", encoder_plain=True)
    assert not (tmp_path / "b").exists()


@pytest.fixture(scope="module")
def model() -> WhisperModel:
    return WhisperModel(qwen_bundle().path, cpu_threads=1)


CANNOT: dict[str, dict[str, Any]] = {
    "no cross-attention to read word times from": {"word_timestamps": True},
    "give a Whisper model to translate": {"task": "translate"},
    "does not know 'fr'": {"language": "fr"},
}


@pytest.mark.parametrize("line", CANNOT)
def test_what_a_speech_llm_cannot_do_is_one_line(line: str, model: WhisperModel) -> None:
    with pytest.raises(UsageError) as caught:
        list(model.transcribe(noise(1), drafter="none", **CANNOT[line])[0])
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_segments_are_windows_and_no_audio_has_none(model: WhisperModel) -> None:
    told: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 6, "drafter": "none", "window_end": "full"}
    found = list(model.transcribe(noise(2, 61.0), "en", **told)[0])
    assert [segment.seek for segment in found] == [0, 3000, 6000] and found[0].no_speech_prob == 0.0
    assert (found[1].start, found[1].end) == (30.0, 60.0)
    segments, info = model.transcribe(noise(2, 0.02), "en", **told)
    assert len(list(segments)) <= 1 and info.language == "en"
    assert list(model.transcribe(noise(2, 0.0), "en", **told)[0]) == []


def test_a_speech_llm_drafts_for_its_own_layout_alone() -> None:
    with pytest.raises(
        UsageError, match="speech is a speech LLM, which drafts only for a larger one of its own layout"
    ):
        check_fit(qwen_bundle().manifest, bundle().manifest)
    check_fit(qwen_bundle().manifest, qwen_bundle().manifest)


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
