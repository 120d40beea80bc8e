"""`WhisperModel` as a program uses it: what is known when, what is accepted, and which errors come at the call."""

from __future__ import annotations

import dataclasses
import inspect
import io
import logging
import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specedge
from specedge.errors import AudioError, ModelError, UsageError
from specedge.runtime.audio.mel import log_mel
from specedge.runtime.decoding.drafter import DraftContext, DraftTree, EmptyDrafter
from specedge.runtime.longform.segments import Segment
from support import exported
from support.sound import Pipe, wav_bytes

RATE = 16_000


def noise(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """Noise under an envelope of its own, so that windows differ: float32 [n_samples]."""
    rng = np.random.default_rng(seed)
    n = round(seconds * RATE)
    knots = np.arange(round(seconds) + 2)
    envelope = 0.3 * np.interp(np.arange(n) / RATE, knots, rng.random(len(knots)))
    return (rng.standard_normal(n) * envelope).astype(np.float32)


SOUND = noise(7.0)


@pytest.fixture(scope="module")
def model() -> specedge.WhisperModel:
    return specedge.WhisperModel(str(exported.bundle().path), cpu_threads=1)


@pytest.fixture(scope="module")
def english() -> specedge.WhisperModel:
    return specedge.WhisperModel(exported.bundle(variant="en").path, cpu_threads=1)


def texts(model: specedge.WhisperModel, audio: Any, **options: Any) -> list[Segment]:
    return list(model.transcribe(audio, **{"temperature": 0.0, "no_speech_threshold": None, **options})[0])


class Counting:
    """A listener that counts its calls and keeps the last value."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def __call__(self, value: float) -> None:
        self.values.append(value)


def test_the_language_is_known_at_once_and_nothing_is_decoded_until_asked_for(model: specedge.WhisperModel) -> None:
    listener = Counting()
    segments, info = model.transcribe(SOUND, on_progress=listener, temperature=0, no_speech_threshold=None)
    assert isinstance(segments, types.GeneratorType)
    assert info.language in model.supported_languages
    assert info.all_language_probs is not None and info.all_language_probs[0] == (
        info.language,
        info.language_probability,
    )
    assert sum(p for _, p in info.all_language_probs) == pytest.approx(1)
    assert info.duration == 7.0 and info.duration_after_vad == 7.0 and info.vad_options is None
    assert listener.values == [] and info.speculation == {}
    first = next(segments)
    assert first.id == 1 and isinstance(first, specedge.Segment) and info.speculation["passes"] > 0
    so_far = info.speculation["passes"]
    rest = list(segments)
    assert [s.id for s in rest] == list(range(2, len(rest) + 2)) and rest
    assert info.speculation["passes"] > so_far and info.speculation["drafter"] == "auto"
    assert listener.values[-1] == 7.0 == info.duration


def test_detecting_the_language_changes_nothing_else(model: specedge.WhisperModel) -> None:
    segments, info = model.transcribe(SOUND, temperature=0, no_speech_threshold=None)
    assert list(segments) == texts(model, SOUND, language=info.language)


def test_a_window_that_was_looked_at_is_not_encoded_again(
    model: specedge.WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = model.engine
    mels = Counting()
    encode = inner.encode
    monkeypatch.setattr(inner, "encode", lambda mel: (mels(float(mel.sum())), encode(mel))[1])
    texts(model, SOUND, language="en")
    given = list(mels.values)
    mels.values.clear()
    texts(model, SOUND)
    assert mels.values == given and len(given) >= 4


def test_a_given_language_may_be_a_name(model: specedge.WhisperModel) -> None:
    _, info = model.transcribe(SOUND, language="German")
    assert (info.language, info.language_probability, info.all_language_probs) == ("de", 1.0, None)


def test_a_language_that_is_no_text_is_a_usage_error(model: specedge.WhisperModel) -> None:
    with pytest.raises(UsageError, match="language: got .*, expected a text"):
        model.transcribe(SOUND, language=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["path", "Path", "BytesIO", "pipe", "int16", "wav of int16"])
def test_any_source_gives_the_same(model: specedge.WhisperModel, tmp_path: Path, kind: str) -> None:
    as_int16 = "16" in kind
    samples = np.round(SOUND * 32767).astype(np.int16) if as_int16 else SOUND
    data = wav_bytes(samples, subtype="PCM_16" if as_int16 else "FLOAT")
    path = tmp_path / "a.wav"
    path.write_bytes(data)
    source = {
        "path": str(path),
        "Path": path,
        "BytesIO": io.BytesIO(data),
        "pipe": Pipe(data),
        "int16": samples,
        "wav of int16": str(path),
    }[kind]
    expected = texts(model, samples.astype(np.float32) / 32768 if as_int16 else samples)
    assert texts(model, source) == expected and expected


def test_a_file_may_be_closed_before_its_segments_are_read(model: specedge.WhisperModel, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"skipped" + wav_bytes(SOUND))
    with open(path, "rb") as file:
        file.seek(7)
        segments, info = model.transcribe(file, temperature=0, no_speech_threshold=None)
    assert list(segments) == texts(model, SOUND) and info.duration == 7.0


def test_a_pipe_s_length_is_filled_in_when_it_is_known(model: specedge.WhisperModel) -> None:
    data = bytearray(wav_bytes(SOUND, subtype="PCM_16"))
    data[40:44] = b"\xff\xff\xff\xff"  # a recorder that did not know how long it would run
    segments, info = model.transcribe(Pipe(bytes(data)), language="en", temperature=0)
    assert info.duration != 7.0
    list(segments)
    assert info.duration == 7.0


def test_detect_language_of_audio_and_of_features(model: specedge.WhisperModel) -> None:
    from_audio = model.detect_language(SOUND[:RATE])
    mel = log_mel(SOUND[:RATE], model.bundle.manifest.dims.n_mels, 200)
    assert from_audio == model.detect_language(features=mel)
    assert from_audio[:2] == from_audio[2][0] and len(from_audio[2]) == len(model.supported_languages)
    several = model.detect_language(SOUND, language_detection_segments=3, language_detection_threshold=1.0)
    firsts = [model.detect_language(SOUND[i * 2 * RATE : (i + 1) * 2 * RATE + 400])[0] for i in range(3)]
    assert several[0] in firsts and firsts.count(several[0]) == max(map(firsts.count, firsts))
    with pytest.raises(UsageError, match="expected audio or features"):
        model.detect_language()
    with pytest.raises(UsageError, match=r"shape \[3, 7\]"):
        model.detect_language(features=np.zeros((3, 7), np.float32))


def test_an_english_model_says_english(english: specedge.WhisperModel, caplog: pytest.LogCaptureFixture) -> None:
    assert english.supported_languages == ["en"] and not english.is_multilingual
    assert english.detect_language(SOUND) == ("en", 1.0, [("en", 1.0)])
    with caplog.at_level(logging.INFO):
        segments, info = english.transcribe(SOUND, language="de", multilingual=True, temperature=0)
    assert (info.language, info.language_probability, info.all_language_probs) == ("en", 1.0, None)
    assert "language='de' is ignored" in caplog.text and "multilingual=True is ignored" in caplog.text
    assert list(segments) == list(english.transcribe(SOUND, temperature=0)[0])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task": "sing"}, "task"),
        ({"language": "klingon"}, "unknown language"),
        ({"beam_size": 0}, "beam_size"),
        ({"beam_size": "five"}, "beam_size: got 'five', expected a whole number"),
        ({"beam_size": 2.5}, "beam_size: got 2.5, expected a whole number"),
        ({"no_speech_threshold": "x"}, "no_speech_threshold: got 'x', expected a number"),
        ({"hotwords": ["a", "b"]}, "hotwords: .* expected a text"),
        ({"drafter": 5}, "drafter: got 5"),
        ({"temperature": []}, "temperature"),
        ({"temperature": "hot"}, "temperature: got 'hot', expected a number"),
        ({"clip_timestamps": "3,2"}, "clip_timestamps"),
        ({"clip_timestamps": "now"}, "clip_timestamps: got 'now', expected times"),
        ({"chunk_length": 30}, "windows are 2 s long"),
        ({"drafter": "oracle"}, "drafter"),
        ({"token_map": "a.tmap", "drafter": "none"}, "token_map"),
        ({"log_prob_threshold": -2.0, "logprob_threshold": -3.0}, "one option"),
        ({"initial_prompt": [1, "two"]}, "initial_prompt: .* expected a text"),
    ],
)
def test_what_cannot_be_is_said_at_the_call(model: specedge.WhisperModel, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        model.transcribe(SOUND, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("audio", ["nothing.wav", np.zeros((2, 3), np.float32), io.BytesIO()])
def test_bad_audio_is_said_at_the_call(model: specedge.WhisperModel, audio: Any) -> None:
    with pytest.raises(AudioError):
        model.transcribe(audio)


def test_an_empty_array_has_no_segments(model: specedge.WhisperModel) -> None:
    empty, batched = np.zeros(0, np.float32), specedge.BatchedInferencePipeline(model)
    segments, info = model.transcribe(empty, word_timestamps=True)
    assert list(segments) == [] and info.duration == 0 and info.language
    for uses_vad in (True, False):
        assert list(batched.transcribe(empty, vad_filter=uses_vad)[0]) == []
    with pytest.raises(AudioError, match="array: holds no audio samples"):
        model.align(empty, "text")


def test_a_model_is_closed_and_opened_again() -> None:
    with specedge.WhisperModel(str(exported.bundle().path), cpu_threads=1) as opened:
        copy = pickle.loads(pickle.dumps(opened))
        assert texts(copy, SOUND) == texts(opened, SOUND) and copy.threads == 1
    with pytest.raises(UsageError, match="is closed"):
        opened.transcribe(SOUND)
    opened.close()


def test_a_file_opened_as_text_is_refused(model: specedge.WhisperModel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("no sound")
    with open(tmp_path / "a.txt", encoding="utf-8") as file, pytest.raises(AudioError, match="binary"):
        model.transcribe(file)  # type: ignore[arg-type]


def test_other_ways_to_say_the_same(model: specedge.WhisperModel) -> None:
    def options(**given: Any) -> Any:
        return model.transcribe(SOUND, language="en", **given)[1].transcription_options

    assert options(logprob_threshold=-2.0) == options(log_prob_threshold=-2.0)
    assert options(logprob_threshold=None).log_prob_threshold is None
    assert options(clip_timestamps="1,2.5") == options(clip_timestamps=[1, 2.5])
    assert options(clip_timestamps="") == options(clip_timestamps=[]) == options()
    assert options(temperature=0.4) == options(temperature=[0.4])
    assert options(initial_prompt=iter([5, 6])).initial_prompt == (5, 6)
    assert options(suppress_tokens="-1") == options(beam_size=1.0, best_of=np.int64(5)) == options()
    assert model.stream(language="en", temperature=0.0).language == "en"
    assert options(suppress_tokens=[]).suppress_tokens == () and options(suppress_tokens=None).suppress_tokens is None


def test_a_program_may_change_what_it_gets(model: specedge.WhisperModel) -> None:
    changed, kept = (model.transcribe(SOUND, temperature=0.0, no_speech_threshold=None)[0] for _ in range(2))
    for segment, other in zip(changed, kept, strict=True):
        assert segment == other
        segment.text, segment.start = segment.text.strip(), segment.start + 60
        segment.tokens.clear()
    word = specedge.Word(0.5, 1.0, " on", 0.9)
    segment = Segment(1, 0, 0.5, 1.0, " on", [5], -0.1, 1.0, 0.0, [word], 0.2)
    with pytest.warns(DeprecationWarning):
        assert segment._asdict()["words"] == [{"start": 0.5, "end": 1.0, "word": " on", "probability": 0.9}]


def test_a_drafter_of_one_s_own_goes_with_beams(model: specedge.WhisperModel) -> None:
    class Guess(EmptyDrafter):
        name = "guess"

        def propose(self, context: DraftContext, budget: int) -> DraftTree:
            return DraftTree([100, 200][:budget])

    # At temperature 0 alone: there are no beams above it.
    beams: dict[str, Any] = {"language": "en", "beam_size": 2, "temperature": 0.0}
    plain = list(model.transcribe(SOUND, **beams)[0])
    segments, info = model.transcribe(SOUND, drafter=Guess(), **beams)
    assert list(segments) == plain and info.speculation["drafter"] == "guess" and info.speculation["evaluated"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"device": "cuda"}, "expected 'cpu' or 'auto'"),
        ({"device_index": 1}, "device_index"),
        ({"compute_type": "float16"}, "expected default"),
        ({"compute_type": "float32"}, "weights of .* are int8"),
        ({"cpu_threads": -1}, "cpu_threads"),
        ({"cpu_threads": 100_000}, "threads"),
        ({"num_workers": 0}, "num_workers"),
        ({"files": {}}, "files"),
        ({"revision": "main"}, "revision"),
    ],
)
def test_a_model_that_cannot_be_is_one_line(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        specedge.WhisperModel(str(exported.bundle().path), **arguments)
    assert "\n" not in str(caught.value)


def test_what_has_no_effect_is_accepted() -> None:
    model = specedge.WhisperModel(
        str(exported.bundle().path), "cpu", 0, "int8", 1, num_workers=4, local_files_only=True, use_auth_token="x"
    )
    assert model.path == exported.bundle().path


def test_a_model_that_is_not_installed_says_how_to_get_it() -> None:
    with pytest.raises(ModelError, match="specedge models pull whisper-small"):
        specedge.WhisperModel("small")


def test_stream_refuses_what_is_no_option(model: specedge.WhisperModel) -> None:
    with pytest.raises(UsageError, match="no option"):
        model.stream([SOUND], beams=3)
    with pytest.raises(UsageError, match="unknown language"):
        model.stream([SOUND], language="klingon")


def test_a_stream_that_is_dropped_or_fails_closes_its_drafter(
    model: specedge.WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr("specedge.runtime.drafters.ngram.NgramDrafter.close", lambda self: closed.append(self.name))
    updates = model.stream([SOUND[:RATE]] * 4, drafter="ngram", language="en", temperature=(0.0,))
    next(iter(updates))
    updates.close()
    assert closed == ["ngram"]
    live = model.stream(drafter="ngram", language="en")
    with pytest.raises(UsageError):
        live.feed(np.zeros((2, 2), np.float32))
    live.close()
    live.close()
    assert closed == ["ngram"] * 2
    with pytest.raises(UsageError):
        model.stream(drafter="ngram", step_s=-1.0)
    assert closed == ["ngram"] * 3


def test_a_drafter_that_is_made_already_takes_no_other_drafter_s_options(model: specedge.WhisperModel) -> None:
    with pytest.raises(UsageError, match="token_map: goes with the name of a drafter"):
        model.transcribe(SOUND, drafter=EmptyDrafter(), token_map="x")


def test_live_text_comes_from_blocks_given_at_once_or_one_by_one(model: specedge.WhisperModel) -> None:
    blocks = [SOUND[i : i + 4000] for i in range(0, 3 * RATE, 4000)]
    updates = list(model.stream(blocks, language="en", temperature=(0.0,)))
    live = model.stream(language="en", temperature=(0.0,))
    assert [u for block in blocks for u in live.feed(block)] + live.finish() == updates
    with pytest.raises(UsageError):
        model.stream(blocks, step_s=0.0)


def test_the_signature_of_transcribe_is_that_of_the_options() -> None:
    parameters = inspect.signature(specedge.WhisperModel.transcribe).parameters
    fields = {field.name: field for field in dataclasses.fields(specedge.TranscribeOptions)}
    fields |= {field.name: field for field in dataclasses.fields(specedge.DrafterOptions)}
    del fields["name"], fields["token_maps"]  # drafter, token_map
    assert fields.keys() <= parameters.keys()
    assert set(parameters) - fields.keys() == {
        "self", "audio", "log_progress", "vad_filter", "vad_parameters", "chunk_length", "drafter", "token_map",
        "logprob_threshold", "on_progress",
    }  # fmt: skip
    # As in faster-whisper: a penalty of 1 is none, and times are a text.
    theirs = {"length_penalty": 1, "clip_timestamps": "0"}
    assert {name: parameters[name].default for name in fields} == {
        name: theirs.get(name, field.default) for name, field in fields.items()
    }
