"""Live transcription: confirmed text is final, the buffer bounded, silence not decoded, block sizes without effect."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specedge.errors import Interrupted, UsageError
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.decode import DecodeOptions
from specedge.runtime.engine.engine import Engine
from specedge.runtime.longform import transcribe as transcribe_module
from specedge.runtime.longform.live import LiveTranscriber, LiveUpdate, split_units
from specedge.runtime.longform.transcribe import Transcription
from specedge.runtime.options import TranscribeOptions
from support.fake_engine import Script, ScriptedEngine, bundle, special_tokens, words
from support.noise import SAMPLES, noise, speech
from support.paths import DEMO

SPECIAL = special_tokens()
ENGLISH = TranscribeOptions(language="en")
PUMP = words(" the", " pump", " is", " on")
ZERO = words(" zero", " one")


def at(seconds: float) -> int:
    return SPECIAL.timestamp_begin + round(seconds / 0.02)


def babble(duration_s: float, seed: int = 0) -> NDArray[np.float32]:
    """Noise whose level changes ten times a second: speech, to a detector of energy."""
    rng = np.random.default_rng(seed)
    levels = np.repeat(rng.choice([0.001, 0.01, 0.1, 0.3], round(duration_s * 10)), 1600)
    return (levels * rng.standard_normal(len(levels))).astype(np.float32)


def silence(duration_s: float) -> NDArray[np.float32]:
    return np.zeros(round(duration_s * 16_000), np.float32)


def live(scripts: list[Script], *, n_frames: int = 1000, **given: Any) -> tuple[LiveTranscriber, ScriptedEngine]:
    engine = ScriptedEngine(SPECIAL, scripts)
    return LiveTranscriber(engine, bundle(SPECIAL, n_frames=n_frames), ENGLISH, **given), engine


def texts(updates: list[LiveUpdate]) -> list[tuple[str, str]]:
    return [(update.confirmed, update.tentative) for update in updates if not update.ends_utterance]


def test_text_is_tentative_until_its_utterance_ends() -> None:
    passes = [words(" the", " leak"), words(" the", " pump", " is"), PUMP, [*PUMP, *ZERO]]
    transcriber, engine = live([Script(tokens=[at(0), *said, at(0.9)]) for said in passes])
    updates = transcriber.feed(babble(3.0))
    assert texts(updates) == [("", " the leak"), ("", " the pump is"), ("", " the pump is on")]
    assert texts(transcriber.finish()) == [(" the pump is on zero one", "")] and len(engine.mels) == 4
    assert transcriber.finish() == []
    with pytest.raises(UsageError, match="is finished"):
        transcriber.feed(silence(1))


def test_a_look_is_decoded_once_and_the_last_pass_may_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that fails its tests confirms and shows nothing, and how long it gets is bounded."""
    loop, unlikely = words(" the") * 200, Script(tokens=[at(0), *ZERO, at(0.9)], logprob=-3.0)
    transcriber, engine = live([Script(tokens=[at(0), *loop], ends=False), unlikely, Script(tokens=[at(0), *PUMP])])
    asked: list[DecodeOptions] = []
    decode = transcribe_module.decoding

    def noting(engine: Any, features: Any, prompt: Any, options: DecodeOptions, *rest: Any, **named: Any) -> Any:
        asked.append(options)
        return decode(engine, features, prompt, options, *rest, **named)

    monkeypatch.setattr(transcribe_module, "decoding", noting)
    assert transcriber.feed(babble(2.0)) == []
    assert [(one.temperature, one.n_sample) for one in asked] == [(0.0, 57), (0.0, 82)]
    engine.scripts[2:] = [unlikely]
    assert texts(transcriber.finish()) != [] and [one.temperature for one in asked[2:]] == [0, 0.2, 0.4, 0.6, 0.8, 1.0]


def test_silence_is_not_decoded() -> None:
    transcriber, engine = live([Script(tokens=[at(0), *PUMP, at(0.9)])])
    assert transcriber.feed(silence(20)) == [] and transcriber.feed(noise(320_000, rms=0.001)) == []
    assert transcriber.finish() == [] and engine.mels == []


def test_a_second_of_silence_ends_an_utterance() -> None:
    transcriber, engine = live([Script(tokens=[at(0), *PUMP, at(0.9)])])
    quiet = noise(160_000, rms=0.0005)
    updates = transcriber.feed(np.concatenate([quiet[:48_000], babble(1.0), quiet]))
    assert "".join(update.confirmed for update in updates) == " the pump is on" and updates[-1].tentative == ""
    assert 2.0 <= updates[-1].start_s <= 3.0 and updates[-1].end_s <= 4.5
    n_passes = len(engine.mels)
    assert n_passes <= 3
    updates = transcriber.feed(np.concatenate([babble(1.0, seed=1), quiet]))
    assert "".join(update.confirmed for update in updates) == " the pump is on", "the same words again are new words"
    assert transcriber.finish() == []


def test_long_speech_is_cut_behind_a_segment_that_two_looks_agree_on() -> None:
    first = Script(tokens=[at(0), *PUMP, at(2), at(2), *ZERO, at(2.9)])
    moved = Script(tokens=[at(0), *PUMP, at(1), at(1), *ZERO, at(2.9)])
    again = Script(tokens=[at(0), *words(" on"), *ZERO, at(1), at(1), *PUMP, at(1.9)])
    transcriber, _ = live([first, first, moved, first, first, again, again], n_frames=600)
    assert texts(transcriber.feed(babble(4.0))) == [("", " the pump is on zero one")], "no cut before two thirds"
    assert texts(updates := transcriber.feed(babble(1.0, seed=1))) == [(" the pump is on", " zero one")]
    assert updates[0].segments[0].end == 2.0
    updates = transcriber.feed(babble(1.0, seed=2))
    assert texts(updates) == [("", " zero one the pump is on")], "a word heard again behind the cut is left out"
    assert updates[0].start_s >= 2.0, "times count from the start of the audio, and never run back"


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("", []),
        (" Call the crew, now.", [" Call", " the", " crew,", " now."]),
        ("私は猫。 ok", ["私", "は", "猫。", " ok"]),
    ],
)
def test_units(text: str, units: list[str]) -> None:
    assert split_units(text) == units


@settings(max_examples=4)
@given(cuts=st.lists(st.integers(1, 200_000), max_size=8))
def test_the_size_of_the_blocks_changes_nothing(cuts: list[int]) -> None:
    audio = np.concatenate([silence(1.5), babble(3.0), noise(40_000, rms=0.0005), babble(3.3, seed=1), silence(0.3)])
    scripts = [Script(tokens=[at(0), *PUMP[: 1 + i % 4], at(1), at(1), *ZERO, at(2)]) for i in range(20)]

    def run(blocks: list[NDArray[np.float32]]) -> list[LiveUpdate]:
        engine = ScriptedEngine(SPECIAL, scripts)
        return list(LiveTranscriber(engine, bundle(SPECIAL, n_frames=300), ENGLISH).updates(blocks))

    assert run(np.split(audio, sorted(cut % len(audio) for cut in cuts))) == run([audio])


def test_memory_stays_flat() -> None:
    scripts = [Script(tokens=[at(0), *PUMP, at(1), at(1), *ZERO, at(2)])]
    transcriber, engine = live(scripts, n_frames=300)
    blocks = [np.concatenate([babble(3.0, seed=i), silence(1.4)]) for i in range(4)]
    for block in blocks:
        transcriber.feed(block)
    engine.mels.clear()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for i in range(6):
            transcriber.feed(blocks[i % 4])
            engine.mels.clear()
        assert tracemalloc.get_traced_memory()[0] - before < 200_000
    finally:
        tracemalloc.stop()


def test_the_detected_language_is_kept_once_text_is_confirmed() -> None:
    engine = ScriptedEngine(SPECIAL, [Script(tokens=[at(0), *PUMP, at(1)])], language="de")
    transcriber = LiveTranscriber(engine, bundle(SPECIAL, n_frames=1000))
    transcriber.feed(babble(2.0))
    assert transcriber.language is None
    transcriber.feed(noise(32_000, rms=0.0005))
    assert transcriber.language == "de"


def test_after_an_interruption_the_rest_can_still_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    transcriber, engine = live([Script(tokens=[at(0), *PUMP, at(1)])])
    encode = engine.encode

    def interrupted(_: Any) -> Any:
        raise Interrupted("interrupted")

    monkeypatch.setattr(engine, "encode", interrupted)
    with pytest.raises(Interrupted):
        transcriber.feed(babble(1.5))
    monkeypatch.setattr(engine, "encode", encode)
    assert texts(transcriber.finish()) == [(" the pump is on", "")]


def test_audio_may_go_on_after_interruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    transcriber, engine = live([Script(tokens=[at(0), *PUMP, at(1)])], n_frames=300)
    encode = engine.encode

    def interrupted(_: Any) -> Any:
        raise Interrupted("interrupted")

    monkeypatch.setattr(engine, "encode", interrupted)
    for i in range(8):
        with contextlib.suppress(Interrupted):
            transcriber.feed(babble(1.0, seed=i))
    monkeypatch.setattr(engine, "encode", encode)
    assert "".join(update.confirmed for update in transcriber.finish()) == " the pump is on"
    assert engine.mels[0].shape == (80, 300)


def test_samples_that_are_no_numbers_are_silence() -> None:
    transcriber, engine = live([Script(tokens=[at(0), *PUMP, at(1)])])
    assert transcriber.feed(np.full(32_000, np.nan)) == [] and engine.mels == []
    assert transcriber.feed(babble(2.0)) != []


@pytest.mark.parametrize(
    "block", [np.zeros((10, 2), np.float32), np.zeros(10, np.int16), np.zeros((), np.float32), np.array(["a"])]
)
def test_blocks_that_cannot_be(block: Any) -> None:
    with pytest.raises(UsageError, match="expected mono float samples"):
        live([Script(tokens=PUMP)])[0].feed(block)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"step_s": 0.05}, ENGLISH, "step_s: got 0.05, expected 0.1 to 5 seconds"),
        ({"step_s": 6.0}, ENGLISH, "step_s: got 6.0"),
        ({"step_s": float("nan")}, ENGLISH, "step_s: got nan"),
        ({}, TranscribeOptions(clip_timestamps=(1.0, 2.0)), "live audio has no clips"),
        ({}, TranscribeOptions(language="xx"), "xx"),
    ],
)
def test_options_that_cannot_be_are_refused_before_any_audio(
    given: dict[str, Any], options: TranscribeOptions, message: str
) -> None:
    def untouched() -> Iterator[NDArray[np.float32]]:
        raise AssertionError("the audio was read")
        yield

    engine = ScriptedEngine(SPECIAL, [Script(tokens=PUMP)])
    with pytest.raises(UsageError, match=message):
        LiveTranscriber(engine, bundle(SPECIAL, n_frames=1000), options, **given).updates(untouched())


@pytest.fixture(scope="module")
def demo() -> tuple[Engine, Bundle]:
    opened = Bundle.open(DEMO)
    return Engine(opened, threads=2), opened


@pytest.mark.slow
@pytest.mark.parametrize("step_s", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("pad_s", [0.0, 2.0])
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_confirmed_text_is_the_files_text(
    demo: tuple[Engine, Bundle], path: Path, pad_s: float, step_s: float
) -> None:
    samples = np.concatenate([silence(pad_s), speech(path), silence(pad_s)])
    expected = "".join(segment.text for segment in Transcription(*demo, open_audio(samples), ENGLISH))
    updates = list(LiveTranscriber(*demo, ENGLISH, step_s=step_s).updates(np.array_split(samples, 50)))
    assert "".join(update.confirmed for update in updates) == expected and expected
    assert updates[-1].tentative == ""
