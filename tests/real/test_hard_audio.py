"""Audio that is hard for real tiny.en and base: what is said of it ends soon, lies inside it, and is not invented."""

from __future__ import annotations

import io
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from real import golden

from specedge import Segment, WhisperModel, decode_audio
from specedge.export.export import export_to
from specedge.runtime.bench.errors import units, word_errors
from support.noise import noise
from support.sound import wav_bytes

pytestmark = pytest.mark.real

RATE_HZ = 16_000
SPOKEN = "And so my fellow Americans ask not what your country can do for you ask what you can do for your country"
LONG = "long-en/Personal-STT-Benchmarking_groundtruth_v2.mp3"
SECONDS_S = np.arange(20 * RATE_HZ) / RATE_HZ
JFK: NDArray[np.float32] = decode_audio(str(golden.ROOT / golden.OWN))


def tones(*freqs_hz: float) -> NDArray[np.float32]:
    return np.sin(2 * np.pi * np.outer(freqs_hz, SECONDS_S)).sum(axis=0).astype(np.float32) * np.float32(0.1)


def music() -> NDArray[np.float32]:
    """A chord a second, each dying away."""
    chords = np.stack([tones(root, root * 5 / 4, root * 3 / 2) for root in (220.0, 174.6, 261.6, 196.0)])
    return np.asarray(chords[(SECONDS_S % 4).astype(int), np.arange(len(SECONDS_S))] * np.exp(-2 * (SECONDS_S % 1)))


def far() -> NDArray[np.float32]:
    """Quiet speech in a room that answers for half a second."""
    room = noise(RATE_HZ // 2, rms=0.05) * np.exp(-12 * SECONDS_S[: RATE_HZ // 2])
    room[0] = 1.0
    heard = np.convolve(JFK, room)[: len(JFK)].astype(np.float32)
    return np.float32(0.02) * heard / np.abs(heard).max() + noise(len(heard), rms=3e-4)


def telephone() -> NDArray[np.float32]:
    spectrum, freqs_hz = np.fft.rfft(JFK), np.fft.rfftfreq(len(JFK), 1 / RATE_HZ)
    return np.fft.irfft(spectrum * ((freqs_hz > 300) & (freqs_hz < 3400)), len(JFK)).astype(np.float32)


NOTHING_SAID = {
    "silence": np.zeros(20 * RATE_HZ, np.float32),
    "one sample": JFK[:1],
    "10 ms": JFK[60_000:60_160],
    "music": music(),
    "white noise": noise(20 * RATE_HZ, rms=0.1),
    "pink noise": noise(20 * RATE_HZ, rms=0.1, color="pink"),
    "hum": tones(50, 100, 150),
    "not a number": np.full(5 * RATE_HZ, np.nan, np.float32),
}
WORSE = {"clipped": np.clip(10 * JFK, -1, 1), "far": far(), "telephone": telephone()}
SOUNDS = NOTHING_SAID | WORSE | {"reversed": JFK[::-1], "one word over and over": np.tile(JFK[:12_000], 40)}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "whole windows, words": {"audio_context": "full", "word_timestamps": True},
    "speech alone": {"vad_filter": True},
}


@pytest.fixture(scope="module")
def model(real_models: Path, tmp_path_factory: pytest.TempPathFactory) -> WhisperModel:
    return WhisperModel(export_to(str(real_models / "tiny.en"), tmp_path_factory.mktemp("hard") / "tiny.en").path)


def heard(model: WhisperModel, audio: Any, duration_s: float, **options: Any) -> list[Segment]:
    """The segments, which cost a bounded number of passes and lie in the audio, one behind another."""
    started = time.perf_counter()
    found, info = model.transcribe(audio, **options)
    segments = list(found)
    n_windows = len({segment.seek for segment in segments}) + duration_s // 30 + 1
    assert info.speculation["passes"] <= n_windows * 6 * 225 and time.perf_counter() - started < 60 + duration_s
    assert sum(len(segment.tokens) for segment in segments) <= n_windows * 225
    times_s = [0.0, *(at_s for segment in segments for at_s in (segment.start, segment.end)), duration_s + 0.01]
    assert times_s == sorted(times_s)
    return segments


def text(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sound", SOUNDS)
def test_hard_sounds(sound: str, way: str, model: WhisperModel) -> None:
    samples = SOUNDS[sound]
    said = text(heard(model, samples, len(samples) / RATE_HZ, **WAYS[way]))
    live = "".join(update.confirmed for update in model.stream(np.array_split(samples, 20))) if way == "plain" else said
    if sound in NOTHING_SAID:
        assert said == live == ""
    elif sound in WORSE:
        assert max(word_errors([(SPOKEN, each)]).rate for each in (said, live)) <= 0.3


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 192_000])
def test_rates_of_8_to_192_khz(rate_hz: int, model: WhisperModel) -> None:
    n_samples = len(JFK) * rate_hz // RATE_HZ
    samples = np.interp(np.arange(n_samples) / rate_hz, np.arange(len(JFK)) / RATE_HZ, JFK).astype(np.float32)
    said = text(heard(model, io.BytesIO(wav_bytes(samples, rate_hz)), len(JFK) / RATE_HZ))
    assert word_errors([(SPOKEN, said)]).rate == 0


def test_three_hours_of_silence_and_speech(model: WhisperModel, tmp_path: Path) -> None:
    every_s, n_times = 150, 72
    with soundfile.SoundFile(tmp_path / "long.flac", "w", RATE_HZ, 1) as file:
        for place in range(n_times):
            at = (7 + place % 41) * RATE_HZ
            file.write(np.pad(JFK, (at, every_s * RATE_HZ - at - len(JFK))))
    segments = heard(model, str(tmp_path / "long.flac"), every_s * n_times)
    for place, said in itertools.groupby(segments, lambda segment: int(segment.start // every_s)):
        at_s, parts = place * every_s + 7 + place % 41, list(said)
        assert word_errors([(SPOKEN, text(parts))]).rate == 0
        assert at_s - 1 <= parts[0].start and parts[-1].end <= at_s + 13
    assert len({segment.start // every_s for segment in segments}) == n_times


def test_languages(real_models: Path, tmp_path: Path) -> None:
    rows = golden.SPEECH / "languages.jsonl"
    if not rows.is_file():
        pytest.skip(f"{rows} is not there")
    model = WhisperModel(export_to(str(real_models / "base"), tmp_path / "base").path)
    right = []
    for row in map(json.loads, rows.read_text("utf-8").splitlines()):
        samples = decode_audio(str(golden.SPEECH / row["audio"]))
        said = text(heard(model, samples, len(samples) / RATE_HZ, language=row["language"]))
        right.append(said and model.detect_language(samples)[0] == row["language"])
    assert np.mean([bool(each) for each in right]) >= 0.8


def n_edits(part: Sequence[str], whole: Sequence[str]) -> int:
    """The least edits of words that make `part` a part of `whole`."""
    row = np.zeros(len(whole) + 1, int)
    for n, word in enumerate(part, 1):
        diagonal = row[:-1] + np.array([word != other for other in whole])
        fresh = np.concatenate([[n], np.minimum(diagonal, row[1:] + 1)])
        row = np.minimum.accumulate(fresh - np.arange(len(fresh))) + np.arange(len(fresh))
    return int(row.min())


def test_the_text_of_a_cut_is_part_of_the_whole_s(model: WhisperModel) -> None:
    if not (golden.SPEECH / LONG).is_file():
        pytest.skip(f"{golden.SPEECH / LONG} is not there")
    samples = decode_audio(str(golden.SPEECH / LONG))
    whole, draw = units(text(heard(model, samples, len(samples) / RATE_HZ)), "en"), np.random.default_rng(0)
    off = []
    for _ in range(40):
        length_s = draw.uniform(1, 60)
        first = int(draw.uniform(0, len(samples) - length_s * RATE_HZ))
        cut = samples[first : first + int(length_s * RATE_HZ)]
        segments = heard(model, cut, len(cut) / RATE_HZ)
        words = units(text(segments), "en")
        off.append((n_edits(words, whole), len(words)))
        for a, b in itertools.pairwise(units(segment.text, "en") for segment in segments):
            assert not any(a[-n:] == b[:n] for n in range(3, len(b) + 1)), (a, b)
    # Other windows are other words to so small a model: in a cut the edges and one word in five, one in twenty in all.
    assert [each for each in off if each[0] > 2 + each[1] / 5] == []
    assert np.sum(off, axis=0)[0] <= np.sum(off, axis=0)[1] / 20
