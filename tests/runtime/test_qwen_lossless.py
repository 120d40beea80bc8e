"""A Qwen3-ASR of random weights: rows are exact with normed heads, drafts change nothing, the language is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge import WhisperModel
from specedge.errors import UsageError
from specedge.maps.build import BuildOptions, build
from specedge.maps.tmap_format import text_fingerprint
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import Drafter, TargetModel
from specedge.runtime.decoding.languages import UNKNOWN_LANGUAGE, say_language
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.engine.made_up import probe_ids, probe_mel
from specedge.runtime.options import DrafterOptions, TranscribeOptions
from specedge.runtime.text.speech_tokens import SpeechTokens
from support.drafting import plain_fields
from support.exported import bundle
from support.qwen_checkpoints import qwen_bundle, qwen_engine
from support.row_passes import rows_in_passes
from support.speech_checkpoints import noise

N_TOKENS = 24
TOLD: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 6, "drafter": "none"}


def special() -> SpeechTokens:
    tokens = qwen_bundle().manifest.tokens
    assert isinstance(tokens, SpeechTokens)
    return tokens


@pytest.mark.parametrize("n_before", [0, 3, 700])
def test_a_row_has_the_same_bits_in_any_pass(n_before: int) -> None:
    engine = qwen_engine()
    before, ids = probe_ids(engine.dims, n_before), probe_ids(engine.dims, 48)
    alone = rows_in_passes(engine, [1], ids, before)
    for size in range(2, 17):
        assert rows_in_passes(engine, [size], ids, before) == alone, size
    assert rows_in_passes(engine, [7, 1, 10, 3], ids, before) == alone


def decoded(drafter: Drafter | None = None, **more: Any) -> WindowResult:
    engine, found = qwen_engine(), qwen_bundle()
    mel = probe_mel(engine.dims, 900)
    engine.forget()
    features = engine.encode(mel)
    rules = window_rules(TranscribeOptions(), found.manifest, found.tokenizer)
    options = DecodeOptions(
        rules=rules,
        n_text_ctx=engine.dims.n_text_ctx,
        n_sample=N_TOKENS,
        window_key=7,
        mel=lambda n_mels: np.pad(mel[:n_mels], ((0, 0), (0, engine.dims.n_frames - mel.shape[1]))),
        **more,
    )
    return decode_window(engine, features, special().prompt(features.n_audio, "en"), options, drafter)


def named(name: str, folder: Path) -> Drafter:
    more: dict[str, Any] = {}
    if name == "draft":
        more["draft_model"] = bundle("int8", "draft long").path
    if name == "tokenmap":
        path, tokens = folder / "own.tmap", special()
        said = list(decoded().tokens)
        fingerprint = text_fingerprint(qwen_bundle().tokenizer.ranks, tokens.eot)
        build([said[:9], said], path, n_text=tokens.eot, fingerprint=fingerprint, options=BuildOptions(min_count=1))
        more["token_maps"] = (path,)
    target = TargetModel(qwen_bundle(), threads=1, engine=qwen_engine(), weighs=False)
    return make_drafter(DrafterOptions(name, **more), target)


WAYS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.7}, {"temperature": 0.7, "best_of": 3}, {"beam_size": 3})


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", ["ngram", "tokenmap", "mtp-latent", "draft", "auto"])
def test_drafters_change_nothing(name: str, way: dict[str, Any], tmp_path: Path) -> None:
    drafter = named(name, tmp_path)
    try:
        drafted = decoded(drafter, **way)
        assert plain_fields(drafted) == plain_fields(decoded(**way))
        assert drafted.speculation.evaluated or name in ("ngram", "auto", "draft")
    finally:
        drafter.close()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_a_speech_llm_drafts_for_another_one(precision: str, way: dict[str, Any]) -> None:
    """Through the target's encoder, and through one of its own."""
    options = DrafterOptions("draft", draft_model=qwen_bundle(precision).path)
    target = TargetModel(qwen_bundle(), threads=1, engine=qwen_engine(), weighs=False)
    drafter = make_drafter(options, target)
    try:
        drafted = decoded(drafter, **way)
        assert plain_fields(drafted) == plain_fields(decoded(**way))
        if not way:
            assert drafted.speculation.accepted >= N_TOKENS // 3
    finally:
        drafter.close()


@pytest.fixture(scope="module")
def model() -> WhisperModel:
    return WhisperModel(qwen_bundle().path, cpu_threads=1)


def test_the_language_found_is_the_likeliest_that_the_model_says(model: WhisperModel) -> None:
    segments, info = model.transcribe(noise(2, 40.0), **TOLD)
    found = list(segments)
    assert info.all_language_probs is not None
    shares = dict(info.all_language_probs)
    assert set(shares) == {*special().languages, UNKNOWN_LANGUAGE} and sum(shares.values()) == pytest.approx(1)
    assert info.language == max(shares, key=shares.__getitem__) and info.language_probability == shares[info.language]
    again, _ = model.transcribe(noise(2, 40.0), info.language, **TOLD)
    assert found == list(again)
    assert model.detect_language(noise(2, 40.0))[:2] == (info.language, info.language_probability)
    assert info.audio_context["heard_s"] == 40


def test_a_window_without_a_language_is_asked_for_none(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the windows behind it are asked again, until one has a language, which stays."""
    asked: list[int] = []
    answers = [UNKNOWN_LANGUAGE, "de"]

    def say(engine: Any, features: Any, tokens: Any, context: Any) -> dict[str, float]:
        asked.append(features.n_audio)
        return {answers[min(len(asked), len(answers)) - 1]: 1.0}

    monkeypatch.setattr("specedge.runtime.longform.transcribe.say_language", say)
    segments, info = model.transcribe(noise(1, 70.0), **TOLD)
    mixed = [segment.tokens for segment in segments]
    assert info.language == UNKNOWN_LANGUAGE and len(asked) == 2 and len(mixed) == 3
    monkeypatch.undo()
    german = [segment.tokens for segment in model.transcribe(noise(1, 70.0), "de", **TOLD)[0]]
    assert mixed[1:] == german[1:]


def test_a_context_is_part_of_every_prompt(model: WhisperModel) -> None:
    """Names in front of the audio change what random weights say, and a context beyond the room is one line."""
    plain, told, parts = (
        [segment.tokens for segment in model.transcribe(noise(1, 40.0), "en", **TOLD, **more)[0]]
        for more in ({}, {"initial_prompt": "Ada Babbage"}, {"initial_prompt": " Ada", "hotwords": "Babbage"})
    )
    assert told == parts and all(a != b for a, b in zip(plain, told, strict=True))
    with pytest.raises(UsageError, match=r"900 tokens, and this model has room for \d+; give less"):
        model.transcribe(noise(1), "en", **TOLD, initial_prompt="word " * 300)


CANNOT: dict[str, dict[str, Any]] = {
    "no cross-attention to read word times from": {"word_timestamps": True},
    "give a Whisper model to translate": {"task": "translate"},
    "this speech LLM hears all of the audio": {"audio_context": "full"},
    "does not know 'fr'": {"language": "fr"},
}


@pytest.mark.parametrize("line", CANNOT)
def test_what_it_cannot_do_is_one_line(line: str, model: WhisperModel) -> None:
    with pytest.raises(UsageError) as caught:
        list(model.transcribe(noise(1), **TOLD, **CANNOT[line])[0])
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_languages_are_asked_in_the_context(model: WhisperModel) -> None:
    engine = qwen_engine()
    features = engine.encode(probe_mel(engine.dims))
    assert say_language(engine, features, special(), ()) != say_language(engine, features, special(), [65, 66, 67])
