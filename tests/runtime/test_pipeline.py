"""`specedge.pipeline`: transformers' inputs and results over the bundled model."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr

from specedge import AudioError, SpeechRecognition, UsageError, WhisperModel, pipeline
from specedge.runtime import pipeline as home
from specedge.runtime.audio.audio import decode_audio
from support.paths import samples

TEXT = " Call the maintenance crew to generator two."


@pytest.fixture(scope="module")
def recording() -> Path:
    return next(path for path in samples() if path.name == "maintenance.wav")


@pytest.fixture(scope="module")
def recognise() -> SpeechRecognition:
    return pipeline("automatic-speech-recognition", model="demo", generate_kwargs={"language": "en"})


def test_every_kind_of_input_gives_the_text(recognise: SpeechRecognition, recording: Path) -> None:
    samples = decode_audio(recording)
    at_48_khz = soxr.resample(samples, 16_000, 48_000)
    found = recognise(
        [
            str(recording),
            recording.read_bytes(),
            samples,
            {"array": at_48_khz, "sampling_rate": 48_000, "path": None},
            {"raw": (at_48_khz * 32767).astype(np.int16), "sampling_rate": np.int64(48_000)},
        ]
    )
    assert found == [{"text": TEXT}] * 5


def test_timestamps_of_segments_and_of_words(recognise: SpeechRecognition, recording: Path) -> None:
    found = recognise(recording, return_timestamps=True)
    (chunk,) = found["chunks"]
    assert found["text"] == chunk["text"] == TEXT and chunk["timestamp"] == pytest.approx((0.06, 2.56), abs=0.1)
    found = recognise(recording, return_timestamps="word")
    assert found["text"] == "".join(chunk["text"] for chunk in found["chunks"]) == TEXT
    times = [time for chunk in found["chunks"] for time in chunk["timestamp"]]
    assert times == sorted(times) and len(times) == 14


def test_batches_and_shorter_pieces(recognise: SpeechRecognition, recording: Path) -> None:
    pause = np.zeros(16_000, np.float32)
    samples = decode_audio(recording)
    twice = np.concatenate([samples, pause, samples])
    for more in ({"batch_size": 2, "chunk_length_s": 4}, {"chunk_length_s": 4}):
        found = recognise(twice, return_timestamps=True, **more)
        assert found["text"] == TEXT * 2
        assert found["chunks"][1]["timestamp"][0] > 3


def test_options_of_generate_reach_the_model(monkeypatch: pytest.MonkeyPatch, recognise: SpeechRecognition) -> None:
    calls: list[dict[str, Any]] = []

    def transcribe(self: WhisperModel, audio: Any, **named: Any) -> Any:
        calls.append(named)
        return iter(()), None

    monkeypatch.setattr(WhisperModel, "transcribe", transcribe)
    given = {"language": "de", "task": "translate", "num_beams": 3, "temperature": (0.0, 0.5)}
    assert recognise(np.zeros(9, np.float32), return_timestamps=True, generate_kwargs=given) == {
        "text": "",
        "chunks": [],
    }
    expected = {"language": "de", "task": "translate", "beam_size": 3, "temperature": (0.0, 0.5)}
    assert calls == [{"word_timestamps": False, **expected}]
    monkeypatch.undo()
    assert set(home._GENERATE.values()) <= set(inspect.signature(WhisperModel.transcribe).parameters)


@pytest.mark.parametrize(
    ("audio", "named", "kind", "said"),
    [
        ({"array": [0.0]}, {}, UsageError, "a dict with 'array'; expected 'raw' or 'array', and 'sampling_rate'"),
        ({}, {}, UsageError, "a dict with no keys; expected"),
        (
            {"raw": np.zeros(9, np.float32), "sampling_rate": 0},
            {},
            UsageError,
            "sampling_rate: got 0, expected 1000 to",
        ),
        ({"raw": np.zeros((9, 2)), "sampling_rate": 8000}, {}, AudioError, "shape (9, 2) of float64; expected mono"),
        ("gone.wav", {}, AudioError, "gone.wav"),
        (b"nonsense", {}, AudioError, "audio: "),
        (None, {}, UsageError, "expected"),
        ("a", {"return_timestamps": "char"}, UsageError, "return_timestamps: got 'char', expected True, False or"),
        ("a", {"generate_kwargs": {"top_k": 5}}, UsageError, "generate_kwargs: 'top_k' is none of language, task"),
        ("a", {"batch_size": 0}, UsageError, "batch_size"),
    ],
)
def test_inputs_that_cannot_be(
    audio: Any, named: dict[str, Any], kind: type[Exception], said: str, recognise: SpeechRecognition
) -> None:
    with pytest.raises(kind) as caught:
        recognise(audio, **named)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_other_tasks_and_devices_are_refused() -> None:
    with pytest.raises(UsageError, match="task: got 'text-generation', expected 'automatic-speech-recognition'"):
        pipeline("text-generation")
    with pytest.raises(UsageError, match="device: got 'cuda:0', expected 'cpu'"):
        pipeline("automatic-speech-recognition", "demo", device="cuda:0")
