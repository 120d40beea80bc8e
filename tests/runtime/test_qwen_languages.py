"""A Qwen3-ASR of random weights: the language that it finds, its context, and what it cannot do."""

from __future__ import annotations

from typing import Any

import pytest

from specedge import WhisperModel
from specedge.errors import UsageError
from specedge.runtime.decoding.languages import UNKNOWN_LANGUAGE, detect_language
from specedge.runtime.engine.made_up import probe_mel
from specedge.runtime.text.speech_tokens import SpeechTokens
from support.qwen_checkpoints import noise, qwen_bundle, qwen_engine

TOLD: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 6, "drafter": "none"}


def special() -> SpeechTokens:
    tokens = qwen_bundle().manifest.tokens
    assert isinstance(tokens, SpeechTokens)
    return tokens


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

    monkeypatch.setattr("specedge.runtime.longform.transcribe.detect_language", say)
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
    assert detect_language(engine, features, special()) != detect_language(engine, features, special(), [65, 66, 67])
