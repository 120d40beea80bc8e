"""Recordings and options on which whole transcriptions are compared with openai-whisper's and faster-whisper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.audio.audio import open_audio
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.longform.transcribe import Transcription
from specedge.runtime.options import TranscribeOptions

Samples = NDArray[np.float32]

RATE_HZ = 16_000
SAMPLES_FOLDER = Path(__file__).resolve().parents[2] / "tests" / "assets" / "samples"
# Sums in float32 in another order: what differs by less is the same.
TOLERANCES = {"avg_logprob": 2e-3, "no_speech_prob": 2e-3, "compression_ratio": 1e-9}
# openai-whisper's names, where they are not ours.
_OPENAI_NAMES = {"log_prob_threshold": "logprob_threshold", "max_new_tokens": "sample_len"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A recording, options in our names, and which of the others has the same semantics for them."""

    name: str
    audio: Callable[[], Samples]
    options: dict[str, Any] = field(default_factory=dict)
    openai: bool = True
    faster: bool = True


@dataclass(frozen=True, kw_only=True)
class Line:
    """A segment as it is compared."""

    seek: int
    start: float
    end: float
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float

    @property
    def exact(self) -> tuple[Any, ...]:
        return self.seek, round(self.start, 4), round(self.end, 4), self.tokens, self.temperature

    @classmethod
    def of(cls, segment: Any) -> Line:
        """From a segment with attributes, ours or faster-whisper's, or openai-whisper's dictionary."""
        get = segment.__getitem__ if isinstance(segment, dict) else lambda name: getattr(segment, name)
        values = {name: get(name) for name in cls.__dataclass_fields__}
        return cls(**{**values, "tokens": tuple(values["tokens"])})


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two transcriptions of a case: why they differ, or None, and the greatest differences of their figures."""

    case: str
    peer: str
    n_segments: int
    difference: str | None
    greatest: dict[str, float]


def compare(case: Case, peer: str, ours: Sequence[Line], theirs: Sequence[Line]) -> Comparison:
    """Segment by segment; the first that differs is told. Ours end with the audio or the clip, theirs may end later."""
    ends = (len(case.audio()) / RATE_HZ, *case.options.get("clip_timestamps", ()))
    difference = None
    if len(ours) != len(theirs):
        difference = f"{len(ours)} segments, {peer} has {len(theirs)}"
    greatest = dict.fromkeys(TOLERANCES, 0.0)
    for i, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our.end < their.end and any(abs(our.end - end_s) < 0.01 for end_s in ends):
            their = replace(their, end=our.end)
        if our.exact != their.exact:
            difference = f"segment {i}: {our.exact}, {peer}: {their.exact}"
            break
        for name, tolerance in TOLERANCES.items():
            off = abs(getattr(our, name) - getattr(their, name))
            greatest[name] = max(greatest[name], off)
            if off > tolerance:
                difference = difference or f"segment {i}: {name} is off by {off:.2g}"
    return Comparison(case=case.name, peer=peer, n_segments=len(ours), difference=difference, greatest=greatest)


def ours(engine: Any, bundle: Bundle, case: Case) -> list[Line]:
    """This runtime's segments of a case. Where all temperatures fail the last text counts, as in openai-whisper."""
    badness = "specedge.runtime.longform.transcribe._badness"
    with mock.patch(badness, lambda attempt, _: -attempt.last_temperature), open_audio(case.audio()) as stream:
        result = Transcription(engine, bundle, stream, TranscribeOptions(**case.options, audio_context="full"))
        return [Line.of(segment) for segment in result]


def openai_options(case: Case) -> dict[str, Any]:
    """The case's options for `whisper.transcribe`."""
    options = {_OPENAI_NAMES.get(name, name): value for name, value in case.options.items()}
    if "suppress_tokens" in options:
        options["suppress_tokens"] = list(options["suppress_tokens"])
    # Nothing asked for means one sample there, five here.
    return {"best_of": TranscribeOptions().best_of, **options}


def faster_options(case: Case) -> dict[str, Any]:
    """The case's options for `faster_whisper.WhisperModel.transcribe`."""
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in case.options.items()}
    return {"beam_size": 1, **options}


# ------------------------------------------------------------------------------------------------- recordings


def sample(name: str) -> Callable[[], Samples]:
    def load() -> Samples:
        with open_audio(SAMPLES_FOLDER / f"{name}.wav") as stream:
            return stream.read(60 * RATE_HZ)

    return load


def silence(seconds: float) -> Callable[[], Samples]:
    return lambda: np.zeros(round(seconds * RATE_HZ), np.float32)


def noise(seconds: float, level: float = 0.1, seed: int = 0) -> Callable[[], Samples]:
    return lambda: (level * np.random.default_rng(seed).standard_normal(round(seconds * RATE_HZ))).astype(np.float32)


def tones(seconds: float, seed: int = 0) -> Callable[[], Samples]:
    """Gliding harmonics under an envelope with pauses: something that a model of random weights reacts to."""

    def make() -> Samples:
        t_s = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
        rng = np.random.default_rng(seed)
        phase = 2 * np.pi * (140 * t_s + 20 * np.sin(2 * np.pi * 0.3 * t_s + seed))
        voice = np.sum([np.sin(k * phase) / k for k in range(1, 12)], axis=0)
        envelope = np.clip(np.sin(2 * np.pi * 0.21 * t_s + seed), 0, 1)
        return np.asarray(0.2 * voice * envelope + 1e-3 * rng.standard_normal(len(t_s)), np.float32)

    return make


def joined(*parts: Callable[[], Samples]) -> Callable[[], Samples]:
    return lambda: np.concatenate([part() for part in parts])


MAINTENANCE, NOTES = sample("maintenance"), sample("notes")
LONG = joined(MAINTENANCE, silence(1.5), NOTES, silence(0.7), MAINTENANCE, silence(4), NOTES, MAINTENANCE, NOTES)
QUIET_END = joined(LONG, lambda: NOTES() * np.float32(0.003), silence(3))
# No model passes these, so every temperature is tried.
NEVER = {"log_prob_threshold": 0.0, "no_speech_threshold": None}


def demo_cases() -> list[Case]:
    """For the demo model: 10 s windows, English.

    faster-whisper is left out where it differs by design: it counts the prompt among the new tokens, hears the language
    of a short file with zeros behind it, has no carried prompt, and a search for beams of its own.
    """
    en = {"language": "en"}
    greedy = {**en, "temperature": (0.0,)}
    return [
        Case(name="short", audio=MAINTENANCE, options=greedy),
        Case(name="fallback by default", audio=MAINTENANCE, options={**en, "best_of": 1}),
        Case(name="long", audio=LONG, options=greedy),
        Case(name="long, quiet end", audio=QUIET_END, options=greedy),
        Case(name="long, each window alone", audio=LONG, options={**greedy, "condition_on_previous_text": False}),
        Case(name="cut within a word", audio=lambda: LONG()[:137_531], options=greedy),
        Case(name="exactly one window", audio=lambda: LONG()[:160_000], options=greedy),
        Case(name="one hop more", audio=lambda: LONG()[:160_160], options=greedy),
        Case(name="silence", audio=silence(7), options=greedy),
        Case(name="long silence", audio=silence(31), options=greedy),
        Case(name="noise", audio=noise(6), options=greedy),
        Case(name="speech in noise", audio=lambda: LONG() + noise(60, 0.02)()[: len(LONG())], options=greedy),
        Case(name="language detected", audio=MAINTENANCE, options={"temperature": (0.0,)}, faster=False),
        Case(name="initial prompt", audio=LONG, options={**greedy, "initial_prompt": "Generator two, Maria."}),
        Case(
            name="prompt carried",
            audio=LONG,
            options={**greedy, "initial_prompt": "Generator two, Maria.", "carry_initial_prompt": True},
            faster=False,
        ),
        Case(
            name="prompt longer than the room",
            audio=LONG,
            options={**greedy, "initial_prompt": "The pump is on and the valve is closed. " * 30},
        ),
        Case(name="hotwords", audio=LONG, options={**greedy, "hotwords": "generator turbine"}, openai=False),
        Case(name="without timestamps", audio=LONG, options={**greedy, "without_timestamps": True}),
        Case(name="any first timestamp", audio=LONG, options={**greedy, "max_initial_timestamp": 0.0}, faster=False),
        Case(
            name="late first timestamp",
            audio=joined(noise(3, 0.001), LONG),
            options={**greedy, "max_initial_timestamp": 5.0},
        ),
        Case(name="a clip", audio=LONG, options={**greedy, "clip_timestamps": (2.5, 9.0)}),
        Case(name="clips", audio=LONG, options={**greedy, "clip_timestamps": (0.0, 3.0, 5.0, 5.0, 8.0, 19.0, 21.5)}),
        Case(name="translate", audio=LONG, options={**greedy, "task": "translate"}),
        Case(name="nothing suppressed", audio=LONG, options={**greedy, "suppress_tokens": (50362,)}),
        Case(name="text suppressed", audio=LONG, options={**greedy, "suppress_tokens": (-1, 262, 11, 13)}),
        Case(name="few tokens", audio=LONG, options={**greedy, "max_new_tokens": 9}, faster=False),
        Case(name="beams", audio=LONG, options={**greedy, "beam_size": 3}, faster=False),
        Case(name="repetition penalty", audio=LONG, options={**greedy, "repetition_penalty": 1.3}, openai=False),
        Case(name="no repeated pair", audio=LONG, options={**greedy, "no_repeat_ngram_size": 2}, openai=False),
        Case(name="multilingual", audio=LONG, options={**greedy, "multilingual": True}, openai=False),
        Case(
            name="language by vote",
            audio=LONG,
            options={"temperature": (0.0,), "language_detection_segments": 2, "language_detection_threshold": 1.0},
            openai=False,
        ),
        Case(name="strict silence", audio=QUIET_END, options={**greedy, "no_speech_threshold": 1e-6}),
        Case(
            name="forced fallback",
            audio=LONG,
            options={**en, **NEVER, "temperature": (0.0, 0.2, 0.4, 0.6), "best_of": 1},
            faster=False,
        ),
        Case(
            name="best of three",
            audio=LONG,
            options={**en, **NEVER, "temperature": (0.0, 0.8), "best_of": 3},
            faster=False,
        ),
        Case(
            name="repetition fails",
            audio=LONG,
            options={**en, "compression_ratio_threshold": 0.9, "temperature": (0.0, 0.2, 0.4), "best_of": 1},
            faster=False,
        ),
    ]


def random_cases() -> list[Case]:
    """For small models of random weights, whose windows are short and whose text is noise.

    There is no silence among them: this runtime has no text where nothing sounds, and such a model has some. Without
    timestamps such a model may say some all the same; a segment that begins with text then starts before the audio in
    openai-whisper, and at its window's start here. So they are suppressed in that case.
    """
    en = {"language": "en"}
    greedy = {**en, "temperature": (0.0,), "log_prob_threshold": None, "no_speech_threshold": None}
    hot = {**en, **NEVER, "best_of": 1}
    text_alone = {"without_timestamps": True, "suppress_tokens": (-1, *range(899, 1000))}
    cases = [
        Case(name="tones", audio=tones(9.3), options=greedy),
        Case(name="tones, defaults", audio=tones(5.1, 1), options={**en, "best_of": 1}),
        Case(name="noise", audio=noise(6.05), options=greedy),
        Case(name="alone", audio=tones(8, 2), options={**greedy, "condition_on_previous_text": False}),
        Case(name="prompt", audio=tones(8, 3), options={**greedy, "initial_prompt": "the"}),
        Case(name="no timestamps", audio=tones(7, 4), options={**greedy, **text_alone}),
        Case(name="clips", audio=tones(9, 5), options={**greedy, "clip_timestamps": (0.5, 2.2, 3.0, 7.7)}),
        Case(name="language", audio=tones(7, 6), options={"temperature": (0.0,)}),
        Case(name="fallback", audio=tones(8, 7), options={**hot, "temperature": (0.0, 0.2, 0.4)}),
        Case(name="hot", audio=tones(8, 8), options={**hot, "temperature": (0.6, 1.0)}),
        Case(name="translate", audio=tones(6, 9), options={**greedy, "task": "translate"}),
    ]
    return [Case(name=f"random: {c.name}", audio=c.audio, options=c.options, faster=False) for c in cases]
