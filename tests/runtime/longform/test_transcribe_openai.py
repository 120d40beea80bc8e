"""The long form against openai-whisper's own `transcribe`, both told by the same scripts what each window says."""

from __future__ import annotations

import hashlib
import sys
import types
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.runtime.decoding.decode import Speculation, WindowResult
from specedge.runtime.decoding.passes import Decoding
from specedge.runtime.longform.segments import Word
from specedge.runtime.longform.transcribe import Transcription, compression_ratio, spoken_text
from specedge.runtime.longform.windows import Piece
from specedge.runtime.options import TranscribeOptions
from support.fake_engine import Script, ScriptedEngine, bundle, special_tokens, tokenizer, words

SPECIAL = special_tokens()
TOKENIZER = tokenizer(SPECIAL)
SAID = words(" the", " pump", " is", " on", " zero", " one")
MAX_CALLS = 40
N_TEXT_CTX = 32


@dataclass(frozen=True, kw_only=True)
class Said:
    """One answer of the decoder."""

    tokens: tuple[int, ...]
    no_speech_prob: float
    avg_logprob: float


class TooLong(Exception):
    """openai-whisper decodes the same window again and again."""


@st.composite
def answers(draw: st.DrawFn) -> Said:
    """Token sequences as the timestamp rules allow them: times grow, pairs close, the end may be unfinished."""
    step = draw(st.integers(0, 50))
    tokens = [SPECIAL.timestamp_begin + step]
    for _ in range(draw(st.integers(0, 4))):
        text = draw(st.lists(st.sampled_from([*SAID, 32]), min_size=1, max_size=6))
        tokens += text * draw(st.sampled_from([1, 1, 1, 12]))
        step += draw(st.integers(1, 350))
        tokens.append(SPECIAL.timestamp_begin + min(step, 1500))
        step = min(step + draw(st.sampled_from([0, 0, 7])), 1500)
        tokens.append(SPECIAL.timestamp_begin + step)
    return Said(
        tokens=tuple(tokens[: len(tokens) - draw(st.integers(0, 2))] or tokens[:1]),
        no_speech_prob=draw(st.sampled_from([0.01, 0.01, 0.9])),
        avg_logprob=draw(st.sampled_from([-0.1, -0.1, -0.5, -2.0])),
    )


def clips() -> st.SearchStrategy[tuple[float, ...]]:
    return st.lists(st.floats(0, 60, allow_nan=False), max_size=5).map(lambda times: tuple(sorted(times)))


options = st.builds(
    TranscribeOptions,
    language=st.just("en"),
    temperature=st.sampled_from([(0.0,), (0.0, 0.4, 0.8), (0.6,)]),
    condition_on_previous_text=st.booleans(),
    initial_prompt=st.sampled_from([None, "the pump", "the pump is on the pump is on the pump is on"]),
    carry_initial_prompt=st.booleans(),
    clip_timestamps=st.one_of(st.just((0.0,)), clips()),
    compression_ratio_threshold=st.sampled_from([2.4, 1.0, None]),
    log_prob_threshold=st.sampled_from([-1.0, None]),
    no_speech_threshold=st.sampled_from([0.6, None]),
)


@settings(max_examples=50, deadline=None)
@given(said=st.lists(answers(), min_size=1, max_size=8), n_frames=st.integers(1, 9000), given_options=options)
def test_equal_to_openai_whispers_transcribe(said: list[Said], n_frames: int, given_options: TranscribeOptions) -> None:
    assert_equal(said, n_frames, given_options)


@settings(max_examples=50, deadline=None)
@given(
    said=st.lists(answers(), min_size=1, max_size=8),
    n_frames=st.integers(1, 9000),
    given_options=options,
    threshold_s=st.sampled_from([None, 0.5, 2.0]),
)
def test_equal_to_openai_whispers_transcribe_with_words(
    said: list[Said], n_frames: int, given_options: TranscribeOptions, threshold_s: float | None
) -> None:
    timed = replace(given_options, word_timestamps=True, hallucination_silence_threshold=threshold_s)
    assert_equal(said, n_frames, timed)


def assert_equal(said: list[Said], n_frames: int, given_options: TranscribeOptions) -> None:
    # In a clip that ends behind the audio openai-whisper decodes nothing for ever; here it ends with the audio.
    times = tuple(min(time_s, n_frames / 100) for time_s in given_options.clip_timestamps)
    given_options = replace(given_options, clip_timestamps=times)
    with pytest.MonkeyPatch.context() as patch:
        try:
            theirs = whisper_segments(patch, said, n_frames, given_options)
        except TooLong:
            return
        ours = our_segments(patch, said, n_frames, given_options)
    assert ours == theirs


def fake_words(start_s: float, end_s: float, tokens: tuple[int, ...], offset_s: float) -> tuple[Word, ...]:
    """Words that depend on the piece alone: short, long and improbable ones, and pauses before and after them."""
    digest = hashlib.sha256(repr((round(start_s, 3), round(end_s, 3), tokens)).encode()).digest()
    text = [token for token in tokens if token < SPECIAL.eot]
    at = start_s + digest[0] / 64
    result = []
    for token, byte in zip(text[:12], digest[1:], strict=False):
        length = (0.05, 0.3, 0.4, 2.6)[byte % 4] if digest[31] % 2 else 0.3
        result.append(
            Word(start=at, end=at + length, word=TOKENIZER.decode([token]), probability=0.1 if byte % 3 else 0.9)
        )
        at += length + (byte // 64) / 4
    return tuple(result)


def our_segments(
    patch: pytest.MonkeyPatch, said: list[Said], n_frames: int, given_options: TranscribeOptions
) -> list[Any]:
    calls: list[Any] = []

    def decode(
        _engine: Any, _features: Any, prompt: list[int], decode_options: Any, _guard: Any, **_: Any
    ) -> Decoding[WindowResult]:
        answer = said[len(calls) % len(said)]
        earlier = prompt[: prompt.index(SPECIAL.sot)]
        calls.append((decode_options.temperature, earlier[1:]))
        return WindowResult(
            tokens=answer.tokens,
            token_logprobs=(),
            sum_logprob=0.0,
            avg_logprob=answer.avg_logprob,
            no_speech_prob=answer.no_speech_prob,
            temperature=decode_options.temperature,
            finished=True,
            speculation=Speculation(),
        )
        yield ()  # it wants no passes

    class Mels:
        n_content_frames = n_frames
        last_power, sound, floor = None, (0, 3000), -1.0

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def window(self, start_frame: int, limit: int | None) -> tuple[Any, int]:
            n_here = max(0, min(3000, n_frames - start_frame))
            return np.zeros((80, 3000), np.float32), n_here if limit is None else min(n_here, limit)

        def ends_before(self, frame: int) -> bool:
            return n_frames <= frame

    def time_words(_engine: Any, _features: Any, pieces: list[Piece], /, **given: Any) -> list[Piece]:
        offset_s = given["time_offset_s"]
        calls.append(("words", given["last_speech_s"], given["n_content_frames"], offset_s))
        return [replace(p, words=fake_words(p.start_s, p.end_s, p.tokens, offset_s)) for p in pieces]

    patch.setattr("specedge.runtime.longform.transcribe.decoding", decode)
    patch.setattr("specedge.runtime.longform.transcribe.MelStream", Mels)
    patch.setattr("specedge.runtime.longform.transcribe.time_words", time_words)
    patch.setattr("specedge.runtime.longform.transcribe.require_align", lambda *_: None)
    # Where all temperatures fail openai-whisper keeps the last text, and times are where the model says.
    patch.setattr("specedge.runtime.longform.transcribe.settle", lambda pieces, *_: pieces)
    patch.setattr("specedge.runtime.longform.transcribe._badness", lambda attempt, _: -attempt.last_temperature)
    stream: Any = types.SimpleNamespace(again=None)
    result = Transcription(
        ScriptedEngine(SPECIAL, [Script(tokens=[])]),
        bundle(SPECIAL, n_text_ctx=N_TEXT_CTX),
        stream,
        given_options,
    )
    segments = [
        (s.seek, s.start, s.end, s.text, s.tokens, s.temperature, s.compression_ratio, len(s.words or ()))
        for s in result
    ]
    return [calls, segments]


def whisper_segments(
    patch: pytest.MonkeyPatch, said: list[Said], n_frames: int, given_options: TranscribeOptions
) -> list[Any]:
    torch = pytest.importorskip("torch")
    if "whisper" not in sys.modules:
        pytest.importorskip("whisper", reason="openai-whisper is not installed")
    module = sys.modules["whisper.transcribe"]
    fake_tokenizer = types.SimpleNamespace(
        timestamp_begin=SPECIAL.timestamp_begin, eot=SPECIAL.eot, decode=TOKENIZER.decode, encode=TOKENIZER.encode
    )
    patch.setattr(module, "get_tokenizer", lambda *args, **kwargs: fake_tokenizer)
    patch.setattr(module, "log_mel_spectrogram", lambda *args, **kwargs: torch.zeros(80, n_frames + 3000))
    calls: list[Any] = []
    n_decoded = 0

    def decode(segment: Any, decode_options: Any) -> Any:
        nonlocal n_decoded
        n_decoded += 1
        if n_decoded > MAX_CALLS:
            raise TooLong
        answer = said[len(calls) % len(said)]
        limit = N_TEXT_CTX // 2 - 1
        calls.append((decode_options.temperature, list(decode_options.prompt)[-limit:]))
        return types.SimpleNamespace(
            tokens=list(answer.tokens),
            no_speech_prob=answer.no_speech_prob,
            avg_logprob=answer.avg_logprob,
            compression_ratio=compression_ratio(spoken_text(answer.tokens, TOKENIZER)),
            temperature=decode_options.temperature,
        )

    def add_word_timestamps(*, segments: list[dict[str, Any]], num_frames: int, **given: Any) -> None:
        offset_s = segments[0]["seek"] / 100
        calls.append(("words", given["last_speech_timestamp"], num_frames, offset_s))
        for segment in segments:
            timed = fake_words(segment["start"], segment["end"], tuple(segment["tokens"]), offset_s)
            segment["words"] = [vars(word).copy() for word in timed]

    patch.setattr(module, "add_word_timestamps", add_word_timestamps)
    model = types.SimpleNamespace(
        device=torch.device("cpu"),
        dims=types.SimpleNamespace(n_mels=80, n_audio_ctx=1500, n_text_ctx=N_TEXT_CTX),
        is_multilingual=True,
        num_languages=99,
        decode=decode,
    )
    names = ("condition_on_previous_text", "initial_prompt", "carry_initial_prompt", "compression_ratio_threshold")
    names += ("no_speech_threshold", "word_timestamps", "hallucination_silence_threshold", "temperature")
    given = {name: getattr(given_options, name) for name in names}
    given |= {"logprob_threshold": given_options.log_prob_threshold, "clip_timestamps": given_options.clip_timestamps}
    result = module.transcribe(model, "unused", language="en", fp16=False, **given)
    segments = [
        (
            *(s[key] for key in ("seek", "start", "end", "text", "tokens", "temperature", "compression_ratio")),
            len(s.get("words", ())),
        )
        for s in result["segments"]
        if s["text"] != ""
    ]
    return [calls, segments]
