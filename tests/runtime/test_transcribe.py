"""Windows, seeks and segments: scripted windows against what openai-whisper does with them."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.runtime.audio import open_audio
from specedge.runtime.decode import Speculation, WindowResult
from specedge.runtime.errors import UsageError
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.segments import Segment
from specedge.runtime.transcribe import (
    Transcription,
    compression_ratio,
    cut_window,
    transcribe,
)
from support.fake_engine import Script, ScriptedEngine, bundle, special_tokens, tokenizer, words

SPECIAL = special_tokens()
ENGLISH = special_tokens(multilingual=False)
PUMP = words(" the", " pump", " is", " on")
ZERO = words(" zero", " one")


def at(seconds: float) -> int:
    """The timestamp token of a time in the window."""
    return SPECIAL.timestamp_begin + round(seconds / 0.02)


def run(
    scripts: Sequence[Script],
    duration_s: float,
    *,
    language: str = "en",
    options_language: str | None = "en",
    n_prompt: int = 3,
    **given_options: Any,
) -> tuple[list[Segment], Transcription, ScriptedEngine]:
    """Transcribe silence of this length with scripted windows."""
    engine = ScriptedEngine(SPECIAL, scripts, n_prompt=n_prompt, language=language)
    audio = open_audio(np.zeros(round(duration_s * 16_000), np.float32))
    options = TranscribeOptions(language=options_language, **given_options)
    result = transcribe(engine, bundle(SPECIAL), audio, options)
    return list(result), result, engine


def spans(segments: Sequence[Segment]) -> list[tuple[float, float, str]]:
    return [(round(s.start, 3), round(s.end, 3), s.text) for s in segments]


def test_complete_segments_move_the_window_to_the_last_timestamp() -> None:
    first = Script(tokens=[at(0), *PUMP, at(2), at(2), *ZERO, at(5.5), at(5.5), *PUMP[:2]])
    second = Script(tokens=[at(0.5), *ZERO, at(3)])
    segments, result, engine = run([first, second], 34.0)
    assert spans(segments) == [
        (0.0, 2.0, " the pump is on"),
        (2.0, 5.5, " zero one"),
        (5.5, 8.5, " zero one"),  # a lone timestamp at the end, and no pair: one segment from the window's start
    ]
    assert [s.seek for s in segments] == [0, 0, 550]
    assert [s.id for s in segments] == [0, 1, 2]
    assert segments[0].tokens == [at(0), *PUMP, at(2)]
    assert len(engine.mels) == 2, "the second window ends the audio: a single timestamp says nothing follows"
    assert result.duration_s == 34.0 and result.speculation.passes == result.speculation.tokens


def test_a_single_timestamp_at_the_end_takes_the_whole_window() -> None:
    tokens = [at(0), *PUMP, at(2), at(3), *ZERO, at(4)]
    segments, _, engine = run([Script(tokens=tokens)], 31.0)
    assert spans(segments)[:2] == [(0.0, 2.0, " the pump is on"), (3.0, 4.0, " zero one")]
    assert [s.seek for s in segments] == [0, 0, 3000, 3000] and len(engine.mels) == 2


def test_a_window_without_a_pair_is_one_segment() -> None:
    segments, _, _ = run([Script(tokens=[at(0.4), *PUMP])], 12.0)
    assert spans(segments) == [(0.0, 0.4, " the pump is on")], "openai-whisper ends it at the last timestamp"
    segments, _, _ = run([Script(tokens=[at(0), *PUMP])], 12.0)
    assert spans(segments) == [(0.0, 12.0, " the pump is on")], "or at the end of the audio if that is 0"


def test_without_timestamps_every_window_is_a_segment() -> None:
    segments, _, engine = run([Script(tokens=PUMP), Script(tokens=ZERO)], 45.0, n_prompt=4, without_timestamps=True)
    assert spans(segments) == [(0.0, 30.0, " the pump is on"), (30.0, 45.0, " zero one")]
    assert [s.tokens for s in segments] == [PUMP, ZERO]


def test_silence_is_passed_over_unless_the_text_is_likely() -> None:
    silent = Script(tokens=[at(0), *PUMP, at(1), at(1)], no_speech_prob=0.8, logprob=-3.0)
    sure = Script(tokens=[at(0), *ZERO, at(2), at(2)], no_speech_prob=0.8, logprob=-0.1)
    segments, result, _ = run([silent, sure], 32.0)
    assert spans(segments) == [(30.0, 32.0, " zero one")]
    assert segments[0].no_speech_prob == pytest.approx(0.8, abs=1e-3)
    assert result.speculation.tokens > len(segments[0].tokens) + 1, "the silent window was decoded, and is counted"
    segments, _, _ = run([silent], 10.0, no_speech_threshold=None)
    assert segments and segments[0].avg_logprob < -1


@pytest.mark.parametrize("tokens", [[at(0), at(0)], [at(0), *words(" the"), at(0), at(0)], [at(0)], [at(1), at(1)]])
def test_no_window_is_decoded_for_ever(tokens: list[int]) -> None:
    """Whatever the model says, the seek advances."""
    _, _, engine = run([Script(tokens=tokens)], 95.0)
    assert len(engine.mels) <= 95 / 1.0


def test_a_model_that_never_ends_a_window() -> None:
    loop = Script(tokens=words(" the", " pump"), ends=False)
    segments, result, engine = run([loop], 40.0, n_prompt=4, without_timestamps=True)
    assert len(engine.mels) == 2 and all(len(s.tokens) == 224 for s in segments)
    assert segments[0].compression_ratio > 2.4


def test_segments_without_text_or_duration_are_left_out_and_ids_stay_dense() -> None:
    tokens = [at(0), *words(" the"), at(1), at(1), 32, at(2), at(2), *ZERO, at(3), at(3)]
    segments, _, _ = run([Script(tokens=tokens)], 3.0)
    assert [(s.id, s.text) for s in segments] == [(0, " the"), (1, " zero one")]


def test_the_language_is_detected_in_the_first_window() -> None:
    script = Script(tokens=[at(0), *PUMP, at(1), at(1)])
    segments, result, engine = run([script], 2.0, language="de", options_language=None)
    assert segments and result.language == "de"
    assert next(iter(result.language_probabilities)) == "de" and len(result.language_probabilities) == 3
    assert engine.widths.count(1) == 1 + 2 * (len(script.tokens)), "SOT alone is run once, in the first window"


def test_an_english_only_model_has_a_shorter_prompt() -> None:
    script = Script(tokens=[ENGLISH.timestamp_begin, *PUMP, ENGLISH.timestamp_begin + 50])
    engine = ScriptedEngine(ENGLISH, [script], n_prompt=1)
    result = transcribe(engine, bundle(ENGLISH), open_audio(np.zeros(32_000, np.float32)))
    assert [s.text for s in result] == [" the pump is on"] and result.language == "en"
    assert engine.widths[0] == 1


@pytest.mark.parametrize(
    ("special", "language", "task"),
    [
        (ENGLISH, "de", "transcribe"),
        (ENGLISH, None, "translate"),
        (SPECIAL, "ja", "transcribe"),
        (SPECIAL, "xx", "translate"),
    ],
)
def test_what_the_model_cannot_do_is_refused_at_once(special: Any, language: str | None, task: str) -> None:
    engine = ScriptedEngine(special, [Script(tokens=[])])
    with pytest.raises(UsageError):
        transcribe(
            engine,
            bundle(special),
            open_audio(np.zeros(16_000, np.float32)),
            TranscribeOptions(language=language, task=task),
        )


def test_segments_come_lazily_and_progress_is_told() -> None:
    script = Script(tokens=[at(0), *PUMP, at(10), at(10)])
    engine = ScriptedEngine(SPECIAL, [script])
    done: list[float] = []
    audio = open_audio(np.zeros(35 * 16_000, np.float32))
    result = transcribe(engine, bundle(SPECIAL), audio, TranscribeOptions(language="en"), on_progress=done.append)
    assert engine.mels == []
    next(result)
    assert len(engine.mels) == 1 and done == []
    next(result)
    assert len(engine.mels) == 2 and done == [10.0]
    result.close()
    with pytest.raises(StopIteration):
        next(result)
    assert len(engine.mels) == 2 and engine.n_open == 0


def test_audio_shorter_than_a_frame_has_no_segments() -> None:
    segments, result, engine = run([Script(tokens=PUMP)], 0.005)
    assert segments == [] and engine.mels == [] and result.duration_s == 0.0


def test_a_pair_at_the_start_of_the_window_does_not_hold_it() -> None:
    assert cut_window([at(0), *PUMP, at(0), at(0)], 3000, SPECIAL)[1] == 3000
    assert cut_window([*PUMP, at(0), at(0), *ZERO], 700, SPECIAL)[1] == 700


def test_a_segment_without_duration_is_left_out() -> None:
    # Only without the timestamp rules can a model say this.
    tokens = [at(1), *PUMP, at(1), at(1), *ZERO, at(2), at(2)]
    segments, _, _ = run([Script(tokens=tokens)], 2.0, n_prompt=4, without_timestamps=True)
    assert spans(segments) == [(1.0, 2.0, " zero one")]


def test_compression_ratio() -> None:
    assert compression_ratio("") == 0.0
    assert compression_ratio("na " * 100) > 10 > compression_ratio("The pump is on.")


def test_cut_window_of_a_model_with_another_precision() -> None:
    special = special_tokens()
    object.__setattr__(special, "time_precision_s", 0.04)
    begin = special.timestamp_begin
    pieces, n_advance = cut_window([begin, *PUMP, begin + 10, begin + 10], 1500, special)
    assert (pieces[0].end_s, n_advance) == (0.4, 40)


# ---- openai-whisper itself, where it is installed -------------------------------------------------------------


def whisper_windows() -> st.SearchStrategy[list[int]]:
    """Token sequences as the timestamp rules allow them: times grow, pairs close, the end may be unfinished."""

    @st.composite
    def window(draw: st.DrawFn) -> list[int]:
        step = draw(st.integers(0, 50))
        tokens = [SPECIAL.timestamp_begin + step]
        for _ in range(draw(st.integers(0, 4))):
            tokens += draw(st.lists(st.sampled_from([*PUMP, *ZERO, 32]), min_size=1, max_size=3))
            step += draw(st.integers(1, 350))
            tokens.append(SPECIAL.timestamp_begin + min(step, 1500))
            step = min(step + draw(st.sampled_from([0, 0, 7])), 1500)
            tokens.append(SPECIAL.timestamp_begin + step)
        return tokens[: len(tokens) - draw(st.integers(0, 2))] or tokens[:1]

    return window()


@settings(max_examples=60)
@given(
    windows=st.lists(whisper_windows(), min_size=1, max_size=6),
    silent=st.lists(st.sampled_from([0.01, 0.01, 0.9]), min_size=6, max_size=6),
    n_frames=st.integers(1, 9000),
)
def test_equal_to_openai_whispers_transcribe(windows: list[list[int]], silent: list[float], n_frames: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        theirs = _whisper_segments(patch, windows, silent, n_frames)
        ours = _our_segments(patch, windows, silent, n_frames)
    assert ours == theirs


def _our_segments(
    patch: pytest.MonkeyPatch, windows: list[list[int]], silent: list[float], n_frames: int
) -> list[tuple[Any, ...]]:
    calls: list[int] = []

    def decode(*_: Any) -> WindowResult:
        index = min(len(calls), len(windows) - 1)
        calls.append(index)
        return WindowResult(
            tokens=tuple(windows[index]),
            token_logprobs=(),
            sum_logprob=0.0,
            avg_logprob=-2.0 if silent[index] > 0.6 else -0.1,
            no_speech_prob=silent[index],
            temperature=0.0,
            finished=True,
            speculation=Speculation(),
        )

    class Mels:
        def __init__(self, *_: Any) -> None:
            pass

        def window(self, start_frame: int) -> tuple[Any, int]:
            return np.zeros((80, 3000), np.float32), max(0, min(3000, n_frames - start_frame))

    patch.setattr("specedge.runtime.transcribe.decode_window", decode)
    patch.setattr("specedge.runtime.transcribe.MelStream", Mels)
    stream: Any = None
    result = transcribe(
        ScriptedEngine(SPECIAL, [Script(tokens=[])]), bundle(SPECIAL), stream, TranscribeOptions(language="en")
    )
    return [(s.seek, s.start, s.end, s.text, s.tokens) for s in result]


def _whisper_segments(
    patch: pytest.MonkeyPatch, windows: list[list[int]], silent: list[float], n_frames: int
) -> list[tuple[Any, ...]]:
    torch = pytest.importorskip("torch")
    if "whisper" not in sys.modules:
        pytest.importorskip("whisper", reason="openai-whisper is not installed")
    module = sys.modules["whisper.transcribe"]
    ours = tokenizer(SPECIAL)
    fake_tokenizer = types.SimpleNamespace(
        timestamp_begin=SPECIAL.timestamp_begin, eot=SPECIAL.eot, decode=ours.decode, encode=ours.encode
    )
    patch.setattr(module, "get_tokenizer", lambda *args, **kwargs: fake_tokenizer)
    patch.setattr(module, "log_mel_spectrogram", lambda *args, **kwargs: torch.zeros(80, n_frames + 3000))
    calls: list[int] = []

    def decode(segment: Any, options: Any) -> Any:
        index = min(len(calls), len(windows) - 1)
        calls.append(index)
        return types.SimpleNamespace(
            tokens=windows[index],
            no_speech_prob=silent[index],
            avg_logprob=-2.0 if silent[index] > 0.6 else -0.1,
            compression_ratio=1.0,
            temperature=0.0,
        )

    model = types.SimpleNamespace(
        device=torch.device("cpu"),
        dims=types.SimpleNamespace(n_mels=80, n_audio_ctx=1500, n_text_ctx=448),
        is_multilingual=True,
        num_languages=99,
        decode=decode,
    )
    result = module.transcribe(model, "unused", language="en", temperature=0.0, fp16=False)
    return [(s["seek"], s["start"], s["end"], s["text"], s["tokens"]) for s in result["segments"] if s["text"] != ""]
