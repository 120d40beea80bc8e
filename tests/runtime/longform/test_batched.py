"""`BatchedInferencePipeline`: each piece's text is the one of that piece alone, at its place in the audio."""

from __future__ import annotations

import bisect
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import GeneratorType, ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specedge
from specedge.errors import AudioError, UsageError
from specedge.runtime.audio.audio import AudioStream, open_audio
from specedge.runtime.audio.vad import VadOptions
from specedge.runtime.longform.segments import Segment
from support import exported

RATE = 16_000
SOUND = (np.random.default_rng(4).standard_normal(7 * RATE) * 0.3).astype(np.float32)
SPANS_S = ((0.5, 1.25), (2.0, 3.0), (3.5, 5.25), (6.0, 6.5))
ALONE: dict[str, Any] = {
    "temperature": 0.0,
    "without_timestamps": True,
    "condition_on_previous_text": False,
    "compression_ratio_threshold": None,
    "log_prob_threshold": None,
    "no_speech_threshold": None,
}


class Speech:
    """A SpeechAudio that knows where the speech is."""

    def __init__(self, stream: AudioStream, options: VadOptions) -> None:
        self.name, self.duration_s, self.options = stream.name, stream.duration_s, options
        samples = stream.read(1 << 30)
        spans = [(round(a * RATE), round(b * RATE)) for a, b in SPANS_S]
        self._left = np.concatenate([samples[a:b] for a, b in spans])
        self._ends_s = np.cumsum([(b - a) / RATE for a, b in spans]).tolist()
        self._removed_s = [a - sum(y - x for x, y in SPANS_S[:i]) for i, (a, _) in enumerate(SPANS_S)]
        self.n_samples = len(self._left)
        self.ends = np.cumsum([b - a for a, b in spans])

    def read(self, n_samples: int) -> NDArray[np.float32]:
        block, self._left = self._left[:n_samples], self._left[n_samples:]
        return block

    def original_time(self, t_s: float, is_end: bool = False) -> float:
        find = bisect.bisect_left if is_end else bisect.bisect_right
        return t_s + self._removed_s[min(find(self._ends_s, t_s - 1e-6 * is_end), len(SPANS_S) - 1)]

    def restored(self, segment: Segment) -> Segment:
        return replace(
            segment, start=self.original_time(segment.start), end=self.original_time(segment.end, is_end=True)
        )


@pytest.fixture(scope="module")
def model() -> specedge.WhisperModel:
    return specedge.WhisperModel(str(exported.bundle().path), cpu_threads=1)


@pytest.fixture
def pipeline(model: specedge.WhisperModel, monkeypatch: pytest.MonkeyPatch) -> specedge.BatchedInferencePipeline:
    """With speech where SPANS_S says, whatever the samples."""
    fake = ModuleType("specedge.runtime.longform.vad_filter")
    fake.SpeechAudio = Speech  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "specedge.runtime.longform.vad_filter", fake)
    return specedge.BatchedInferencePipeline(model=model)


def part(*spans_s: tuple[float, float]) -> NDArray[np.float32]:
    return np.concatenate([SOUND[round(a * RATE) : round(b * RATE)] for a, b in spans_s])


def test_each_text_is_that_of_its_piece_alone(
    pipeline: specedge.BatchedInferencePipeline, model: specedge.WhisperModel
) -> None:
    segments, info = pipeline.transcribe(SOUND, language="en", batch_size=4)
    assert isinstance(segments, GeneratorType) and info.speculation == {}
    found = list(segments)
    # Windows are 2 s: 0.75 s and 1 s of speech fit into one, 1.75 s and 0.5 s do not.
    pieces = [part(*SPANS_S[:2]), part(SPANS_S[2]), part(SPANS_S[3])]
    expected = [list(model.transcribe(piece, language="en", **ALONE)[0]) for piece in pieces]
    assert [s.tokens for s in found] == [s.tokens for text in expected for s in text]
    assert [s.text for s in found] == [s.text for text in expected for s in text]
    assert [s.id for s in found] == list(range(1, len(found) + 1))
    speech = Speech(open_audio(SOUND), VadOptions())
    assert [(s.start, s.end, s.seek) for s in found] == [
        (
            pytest.approx(speech.original_time(s.start + offset_s)),
            pytest.approx(speech.original_time(s.end + offset_s, is_end=True)),
            s.seek + round(100 * offset_s),
        )
        for text, offset_s in zip(expected, (0.0, 1.75, 3.5), strict=True)
        for s in text
    ]
    assert found[0].start >= 0.5 and len(found) >= 3
    assert (info.duration, info.duration_after_vad) == (7.0, 4.0)
    assert info.vad_options == VadOptions(max_speech_duration_s=2.0, min_silence_duration_ms=160)
    assert info.speculation["tokens"] >= sum(len(s.tokens) for s in found)


def test_the_language_is_found_in_the_speech(
    pipeline: specedge.BatchedInferencePipeline, model: specedge.WhisperModel
) -> None:
    segments, info = pipeline.transcribe(SOUND)
    assert (info.language, info.language_probability) == model.detect_language(part(*SPANS_S))[:2]
    assert [s.tokens for s in segments] == [s.tokens for s in pipeline.transcribe(SOUND, info.language)[0]]


def test_clips_are_pieces_of_their_own(
    pipeline: specedge.BatchedInferencePipeline, model: specedge.WhisperModel
) -> None:
    done: list[float] = []
    clips = [{"start": 3.0, "end": 4.5}, {"start": 1.0, "end": 2.0}, {"start": 6.5, "end": 9.0}]
    segments, info = pipeline.transcribe(SOUND, "en", clip_timestamps=clips, on_progress=done.append)
    found = list(segments)
    expected = [list(model.transcribe(part(span), "en", **ALONE)[0]) for span in ((3, 4.5), (1, 2), (6.5, 7))]
    assert [s.tokens for s in found] == [s.tokens for text in expected for s in text]
    assert [(s.start, s.end) for s in found] == [
        (pytest.approx(s.start + start_s), pytest.approx(s.end + start_s))
        for text, start_s in zip(expected, (3.0, 1.0, 6.5), strict=True)
        for s in text
    ]
    assert (info.duration, info.duration_after_vad, info.vad_options) == (7.0, 3.0, None)
    assert done == [4.5, 2.0, 7.0]
    for bad in ({"start": 2, "end": 1}, {"begin": 1}, 5):
        with pytest.raises(UsageError, match="clip_timestamps"):
            pipeline.transcribe(SOUND, "en", clip_timestamps=[bad])  # type: ignore[list-item]


def test_without_finding_speech_the_audio_must_be_one_chunk(
    pipeline: specedge.BatchedInferencePipeline, model: specedge.WhisperModel
) -> None:
    short = SOUND[: 2 * RATE]
    segments, info = pipeline.transcribe(short, vad_filter=False)
    assert info.language == model.detect_language(short)[0] and info.duration == info.duration_after_vad == 2.0
    alone = model.transcribe(short, info.language, **ALONE)[0]
    assert [(s.tokens, s.start, s.end) for s in segments] == [(s.tokens, s.start, s.end) for s in alone]
    with pytest.raises(UsageError, match=r"longer than a chunk \(2 s\)"):
        pipeline.transcribe(SOUND, vad_filter=False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"chunk_length": 30}, "chunk_length"),
        ({"task": "sing"}, "task"),
        ({"language": "klingon"}, "unknown language"),
    ],
)
def test_what_cannot_be_is_said_at_the_call(
    pipeline: specedge.BatchedInferencePipeline, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        pipeline.transcribe(SOUND, **options)
    with pytest.raises(AudioError):
        pipeline.transcribe("nothing.wav")


@pytest.mark.parametrize("options", [{}, {"without_timestamps": False, "language": None, "multilingual": True}])
def test_the_number_of_pieces_at_once_changes_no_text(
    pipeline: specedge.BatchedInferencePipeline, model: specedge.WhisperModel, options: dict[str, Any]
) -> None:
    encoded: list[int] = []
    engine = model.engine
    original = engine.encode_all

    def count(mels: Any, **how: Any) -> Any:
        encoded.append(len(mels))
        return original(mels, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "encode_all", count)
        patch.setattr(engine, "encode", lambda mel: original([mel])[0])  # of a language's window: not counted
        found = [
            list(
                pipeline.transcribe(
                    SOUND, **{"language": "en", "batch_size": size, "audio_context": "full", **options}
                )[0]
            )
            for size in (1, 2, 8)
        ]
    assert found[0] == found[1] == found[2] and len(found[0]) >= 3
    assert encoded == [1, 1, 1, 2, 1, 3]


def test_audio_that_turns_bad_costs_no_text_before_it(
    pipeline: specedge.BatchedInferencePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(pipeline.transcribe(SOUND, "en")[0])
    real = specedge.runtime.batched.speech_chunks

    def breaking(*args: Any) -> Any:
        for i, chunk in enumerate(real(*args)):
            if i == 2:
                raise AudioError("x.wav: gone")
            yield chunk

    monkeypatch.setattr(specedge.runtime.batched, "speech_chunks", breaking)
    segments, _ = pipeline.transcribe(SOUND, "en", batch_size=8)
    found = []
    with pytest.raises(AudioError, match="gone"):
        found.extend(segment for segment in segments)
    n_last = sum(segment.seek >= 350 for segment in expected)
    assert found == expected[: len(expected) - n_last] != []


def test_one_that_stops_early_leaves_the_model_to_others(
    pipeline: specedge.BatchedInferencePipeline, model: specedge.WhisperModel
) -> None:
    segments, _ = pipeline.transcribe(SOUND, "en", batch_size=8)
    first = next(segments)
    segments.close()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: next(pipeline.transcribe(SOUND, "en")[0]))
        assert other.result(timeout=20) == first
