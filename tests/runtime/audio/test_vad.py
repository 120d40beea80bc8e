"""Streams without their silences: times mapped back, equal for any reads, flat in memory; Silero's model."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specedge.errors import BundleError, ModelError
from specedge.models import catalogue, store
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.audio.vad import FRAME_SAMPLES, Piece, SileroDetector, Span
from specedge.runtime.longform.segments import Segment, Word
from specedge.runtime.longform.vad_filter import SpeechAudio, SpeechMap, VadOptions, find_speech
from support.exported import bundle
from support.noise import SAMPLES, speech


class Scripted:
    """A detector that says what it is told, some frames late."""

    def __init__(self, values: list[float], delay: int = 0) -> None:
        self._values, self._delay, self._n_heard, self._n_said = values, delay, 0, 0

    def push(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        self._n_heard += len(frames)
        return self._say(self._n_heard - self._delay)

    def finish(self, rest: NDArray[np.float32]) -> NDArray[np.float32]:
        return self._say(self._n_heard + bool(len(rest)))

    def _say(self, until: int) -> NDArray[np.float32]:
        said = self._values[self._n_said : max(until, self._n_said)]
        self._n_said += len(said)
        return np.array(said, np.float32)


def numbered(n_samples: int) -> NDArray[np.float32]:
    """Samples that tell where they are."""
    return np.arange(n_samples, dtype=np.float32) / np.float32(1 << 23)


def read(stream: SpeechAudio, sizes: list[int]) -> NDArray[np.float32]:
    out = []
    while len(block := stream.read(sizes[len(out) % len(sizes)])):
        out.append(block)
    return np.concatenate([np.zeros(0, np.float32), *out])


def segment(start: float, end: float, words: list[Word] | None = None) -> Segment:
    return Segment(
        id=0,
        seek=0,
        start=start,
        end=end,
        text=" word",
        tokens=[],
        avg_logprob=0.0,
        compression_ratio=1.0,
        no_speech_prob=0.0,
        words=words,
    )


def map_of(spans: list[Span]) -> SpeechMap:
    """The map of these spans, each in two pieces."""
    times = SpeechMap()
    for start, end in spans:
        times.add(Piece(start=start, end=(start + end) // 2, is_new=True))
        times.add(Piece(start=(start + end) // 2, end=end, is_new=False))
    return times


span_lists = st.lists(st.integers(0, 90_000), unique=True, max_size=12).map(
    lambda cuts: list(zip(*(iter(sorted(cuts)[: len(cuts) // 2 * 2]),) * 2, strict=True))
)


@given(
    values=st.lists(st.sampled_from([0.0, 0.4, 0.9]), max_size=60),
    repeat=st.sampled_from([1, 7, 30]),
    rest=st.integers(0, 511),
    delay=st.sampled_from([0, 5, 40]),
    sizes=st.lists(st.integers(1, 20_000), min_size=1, max_size=4),
    min_silence_ms=st.sampled_from([0, 200, 2000]),
)
@settings(max_examples=60)
def test_it_gives_the_samples_of_its_spans_for_any_reads(
    values: list[float], repeat: int, rest: int, delay: int, sizes: list[int], min_silence_ms: int
) -> None:
    values = [value for value in values for _ in range(repeat)]
    samples = numbered(max(len(values) * FRAME_SAMPLES + rest, 1))
    values = [*values, 0.9]
    options = VadOptions(min_silence_duration_ms=min_silence_ms)
    stream = SpeechAudio(open_audio(samples), options, detector=Scripted(values, delay))
    got = read(stream, [*sizes, 10_000])
    spans = stream.spans
    assert spans == find_speech(open_audio(samples), options, detector=Scripted(values, delay))
    np.testing.assert_array_equal(got, np.concatenate([samples[:0], *(samples[a:b] for a, b in spans)]))
    assert stream.n_samples == len(got) and stream.is_ended
    assert stream.duration_s == len(samples) / 16_000


def test_energy_spans_do_not_depend_on_the_reads() -> None:
    samples = np.pad(speech(SAMPLES[0]), (50_000, 70_123))
    results = []
    for sizes in ([1 << 20], [160], [7919, 31]):
        stream = SpeechAudio(open_audio(samples))
        results.append((stream.spans, read(stream, sizes).tobytes()))
        assert stream.name == "array"
    assert results[1][1] == results[0][1] == results[2][1] and len(results[0][1]) > 40_000


def test_audio_without_speech_is_an_empty_stream() -> None:
    stream = SpeechAudio(open_audio(np.zeros(100_000, np.float32)))
    assert len(stream.read(5)) == 0 and len(stream.read(5)) == 0
    assert stream.n_samples == 0 and stream.duration_s == 6.25
    assert stream.restored(segment(1.0, 2.0)) == segment(1.0, 2.0)


def test_memory_does_not_grow_with_the_length() -> None:
    class Endless:
        """Eight minutes: four seconds of babble, eight of hiss, and so on."""

        name, duration_s = "long", 480.0

        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            babble = np.repeat(rng.uniform(0.001, 0.3, 40), 1600) * rng.standard_normal(64_000)
            hiss = 1e-3 * rng.standard_normal(128_000)
            self.cycle = np.tile(np.concatenate([babble, hiss]), 2).astype(np.float32)
            self.at = 0

        def read(self, n_samples: int) -> NDArray[np.float32]:
            n = min(n_samples, 480 * 16_000 - self.at)
            start = self.at % 192_000
            self.at += n
            return self.cycle[start : start + n]

    source = Endless()
    stream = SpeechAudio(source)
    stream.read(480_000)
    tracemalloc.start()
    try:
        stream.read(480_000)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        while len(stream.read(160_000)):
            pass
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert source.at == 480 * 16_000 and 20 < len(stream.spans) < 100
    assert now - before < 500_000 and peak - before < 4_000_000


@given(spans=span_lists, times=st.lists(st.floats(0, 8), min_size=1, max_size=20))
def test_times_are_faster_whispers(spans: list[Span], times: list[float]) -> None:
    vad = pytest.importorskip("faster_whisper.vad", reason="faster-whisper is not installed")
    ours = map_of(spans)
    assert ours.spans == spans
    if not spans:
        return
    theirs = vad.SpeechTimestampsMap([{"start": start, "end": end} for start, end in spans], 16_000)
    borders = [end / 16_000 for end in theirs.chunk_end_sample]
    for time_s in [*times, *borders]:
        for is_end in (False, True):
            assert ours.original_time(time_s, is_end=is_end) == theirs.get_original_time(time_s, is_end=is_end)


def test_segments_and_words_as_faster_whisper_restores_them() -> None:
    theirs = pytest.importorskip("faster_whisper.transcribe", reason="faster-whisper is not installed")
    spans = [(16_000, 48_000), (80_000, 96_000), (160_000, 200_000)]
    words = [
        Word(start=a, end=b, word=" x", probability=1.0) for a, b in [(0.5, 1.9), (1.9, 2.4), (2.9, 3.3), (3.3, 4)]
    ]
    given = [segment(0.2, 2.0), segment(2.0, 3.0), segment(1.0, 5.0), segment(0.5, 4.0, words)]
    chunks = [{"start": start, "end": end} for start, end in spans]
    expected = theirs.restore_speech_timestamps([_theirs(theirs, item) for item in given], chunks, 16_000)
    for ours, other in zip([map_of(spans).restored(item) for item in given], expected, strict=True):
        assert (ours.start, ours.end) == (other.start, other.end)
        assert [(w.start, w.end) for w in ours.words or []] == [(w.start, w.end) for w in other.words or []]
    assert given[3].words == words, "the segment given stays as it is"


def _theirs(module: Any, item: Segment) -> Any:
    words = None if item.words is None else [module.Word(w.start, w.end, w.word, w.probability) for w in item.words]
    return module.Segment(
        id=0,
        seek=0,
        start=item.start,
        end=item.end,
        text="",
        tokens=[],
        avg_logprob=0.0,
        compression_ratio=1.0,
        no_speech_prob=0.0,
        words=words,
        temperature=0.0,
    )


@pytest.fixture
def silero() -> Path:
    package = pytest.importorskip("faster_whisper", reason="faster-whisper, which carries the model, is not installed")
    return Path(package.__file__).parent / "assets" / catalogue.FILES["silero-vad"].file_name


@pytest.mark.parametrize("n_extra", [0, 100, 470])
def test_silero_gives_faster_whispers_probabilities_and_spans(silero: Path, n_extra: int) -> None:
    from faster_whisper import vad

    samples = np.concatenate([np.pad(speech(path), (20_000, 45_000)) for path in SAMPLES])
    samples = samples[: len(samples) // 512 * 512 + n_extra - 512]
    detector = SileroDetector(silero)
    frames = samples[: len(samples) // 512 * 512].reshape(-1, 512)
    parts = [detector.push(frames[:50]), detector.push(frames[50:51]), detector.push(frames[51:])]
    ours = np.concatenate([*parts, detector.finish(samples[len(frames) * 512 :])])
    theirs = vad.get_vad_model()(np.pad(samples, (0, 512 - len(samples) % 512)))
    # faster-whisper clears the last 64 samples of the last frame, which are audio where little is missing to 512.
    np.testing.assert_allclose(ours[:-1], theirs[:-1], atol=1e-5)
    found = find_speech(open_audio(samples), detector=SileroDetector(silero))
    assert found == [(span["start"], span["end"]) for span in vad.get_speech_timestamps(samples)]
    assert found


def test_silero_is_found_in_the_store(silero: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="silero-vad is not installed; get it with `specedge models pull silero-vad`"):
        find_speech(open_audio(np.zeros(512, np.float32)), VadOptions(detector="silero"))
    target = store.file_path("silero-vad")
    target.parent.mkdir(parents=True)
    target.write_bytes(silero.read_bytes())
    assert find_speech(open_audio(np.zeros(512, np.float32)), VadOptions(detector="silero")) == []


def test_another_graph_is_refused() -> None:
    with pytest.raises(BundleError, match="not the Silero model expected: it takes"):
        SileroDetector(bundle("fp32").file("encoder.onnx"))
