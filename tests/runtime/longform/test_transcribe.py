"""Windows, seeks and segments: scripted windows against what openai-whisper does with them."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specedge.errors import Interrupted, UsageError
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.decoding.drafter import Drafter, DraftTree
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.longform.segments import Segment
from specedge.runtime.longform.transcribe import Transcription
from specedge.runtime.longform.windows import cut_window
from specedge.runtime.options import TranscribeOptions
from support.fake_cli import fake_model
from support.fake_engine import HashEngine, Script, ScriptedEngine, bundle, special_tokens, words

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
    audio = open_audio(np.full(round(duration_s * 16_000), 0.01, np.float32))
    options = TranscribeOptions(language=options_language, **given_options)
    result = Transcription(engine, bundle(SPECIAL), audio, options)
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


@pytest.mark.parametrize("is_timed", [True, False])
def test_a_prefix_is_the_beginning_of_the_text(is_timed: bool) -> None:
    """And the rules see it: a text may end at once behind it, and a timestamp closes what it began."""
    end = [at(2), at(2)] if is_timed else []
    for said, text in ((ZERO, " the pump zero one"), ([], " the pump")):
        script = Script(tokens=[*said, *end])
        found, _, _ = run([script], 2.0, prefix="the pump", n_prompt=6, without_timestamps=not is_timed)
        assert spans(found) == [(0.0, 2.0, text)]
        assert found[0].tokens == [*([at(0)] if is_timed else []), *PUMP[:2], *said, *end[:1]]


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


@pytest.mark.slow
def test_a_model_that_never_ends_a_window() -> None:
    loop = Script(tokens=words(" the", " pump"), ends=False)
    segments, result, engine = run([loop], 40.0, n_prompt=4, without_timestamps=True)
    assert len(engine.mels) == 2 and all(len(s.tokens) == 224 for s in segments)
    assert segments[0].compression_ratio > 2.4


def test_the_language_is_detected_in_the_first_window() -> None:
    script = Script(tokens=[at(0), *PUMP, at(1), at(1)])
    segments, result, engine = run([script], 2.0, language="de", options_language=None)
    assert segments and result.language == "de"
    assert next(iter(result.language_probabilities)) == "de" and len(result.language_probabilities) == 3
    assert engine.widths.count(1) == 1 + 2 * (len(script.tokens)), "SOT alone is run once, in the first window"


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
        Transcription(
            engine,
            bundle(special),
            open_audio(np.full(16_000, 0.01, np.float32)),
            TranscribeOptions(language=language, task=task),
        )


def test_segments_come_lazily_and_progress_is_told() -> None:
    script = Script(tokens=[at(0), *PUMP, at(10), at(10)])
    engine = ScriptedEngine(SPECIAL, [script])
    done: list[float] = []
    audio = open_audio(np.full(35 * 16_000, 0.01, np.float32))
    result = Transcription(engine, bundle(SPECIAL), audio, TranscribeOptions(language="en"), on_progress=done.append)
    assert engine.mels == []
    next(result)
    assert len(engine.mels) == 1 and done == []
    next(result)
    assert len(engine.mels) == 2 and done == [10.0]
    result.close()
    with pytest.raises(StopIteration):
        next(result)
    assert len(engine.mels) == 2 and engine.n_open == 0


@pytest.mark.parametrize("duration_s", [0.005, 5.0, 70.0])
def test_nothing_to_hear_has_no_segments_and_no_language(duration_s: float) -> None:
    engine = ScriptedEngine(SPECIAL, [Script(tokens=PUMP)])
    audio = open_audio(np.zeros(int(duration_s * 16_000), np.float32))
    result = Transcription(engine, bundle(SPECIAL), audio, TranscribeOptions(window_end="pause"))
    result.find_language()
    assert list(result) == [] and engine.mels == [] and result.language is None
    assert result.duration_s == int(duration_s)


def test_a_window_of_one_piece_starts_where_the_model_says_if_it_is_trusted_with_that() -> None:
    said = [at(1.5), *PUMP, at(3)]

    def times(**more: bool) -> tuple[float, float]:
        (piece,) = cut_window(said, 700, SPECIAL, time_offset_s=10.0, **more).pieces
        return piece.start_s, piece.end_s

    assert times() == (10.0, 13.0) and times(keeps_start=True) == (11.5, 13.0)
    assert cut_window([at(5), *PUMP], 300, SPECIAL, keeps_start=True).pieces[0].start_s == 0.0


@pytest.mark.parametrize(
    ("own_s", "options", "latest_s", "start_s"),
    [
        (1.0, {}, 1.0, 0.0),
        (None, {}, 1.0, 0.0),
        (8.0, {}, 8.0, 0.5),
        (8.0, {"max_initial_timestamp": 0.5}, 0.5, 0.0),
        (8.0, {"max_initial_timestamp": None}, None, 0.0),
    ],
)
def test_a_checkpoint_that_allows_late_starts_itself_has_its_own_limit(
    own_s: float | None, options: dict[str, Any], latest_s: float | None, start_s: float
) -> None:
    own = None if own_s is None else round(own_s / SPECIAL.time_precision_s)
    made = bundle(SPECIAL, n_frames=1000, max_initial_timestamp_index=own)
    asked = TranscribeOptions(language="en", **options)
    limit = window_rules(asked, made.manifest, made.tokenizer).max_initial_timestamp_index
    assert limit == (None if latest_s is None else round(latest_s / SPECIAL.time_precision_s))
    script = Script(tokens=[at(0.5), *PUMP, at(3)])
    noise = np.random.default_rng(0).standard_normal(4 * 16000).astype(np.float32)
    first = next(Transcription(ScriptedEngine(SPECIAL, [script]), made, open_audio(noise), asked))
    assert (first.start, first.end) == (start_s, 3.0)


class _Learner(Drafter):
    """A drafter that notes what it is told."""

    name = "learner"

    def __init__(self) -> None:
        self.ended: list[tuple[int, ...]] = []

    def begin(self, window: Any) -> None:
        pass

    def propose(self, context: Any, budget: int) -> Any:
        return DraftTree([])

    def observe(self, verdict: Any) -> None:
        pass

    def end(self, tokens: tuple[int, ...]) -> None:
        self.ended.append(tokens)


def test_a_failed_attempt_is_decoded_again_and_not_learned_from() -> None:
    good = Script(tokens=[at(0), *ZERO, at(2), at(2)], logprob=-1e-6)
    bad = Script(tokens=[at(0), *PUMP, at(1), at(1)], logprob=-3.0, again=good)
    engine, learner = ScriptedEngine(SPECIAL, [bad]), _Learner()
    audio = open_audio(np.full(32_000, 0.01, np.float32))
    options = TranscribeOptions(language="en", best_of=1)
    said = Transcription(engine, bundle(SPECIAL), audio, options, drafter=learner)
    assert [(s.text, s.temperature) for s in said] == [(" zero one", 0.2)]
    assert said.speculation.tokens == len([*bad.tokens, *good.tokens]) + 2, "what was thrown away is counted too"
    assert learner.ended == [(), tuple(good.tokens)]
    assert len(engine.mels) == 1, "the window is encoded once"


def test_clips_are_windows_of_their_own() -> None:
    script = Script(tokens=[at(0), *PUMP, at(1)])
    segments, result, engine = run([script], 60.0, clip_timestamps=(2.0, 4.0, 40.0, 41.0, 70.0, 80.0))
    assert [(s.seek, s.start) for s in segments] == [(200, 2.0), (4000, 40.0)]
    assert result.duration_s == 60.0
    assert not engine.mels[0][:, 200:].any(), "behind the clip's end there is nothing"


def test_each_window_may_have_its_language() -> None:
    one = Script(tokens=[at(0), *PUMP, at(1)], language="de")
    two = Script(tokens=[at(0), *ZERO, at(1)], language="fr")
    segments, result, engine = run([one, two], 50.0, options_language=None, multilingual=True)
    assert result.language == "de"
    spoken = [SPECIAL.language_of(prompt[prompt.index(SPECIAL.sot) + 1]) for prompt in engine.prompts]
    assert spoken == ["de", "fr"]


@pytest.mark.parametrize(("languages", "n_said"), [("dfff", 1), ("dddd", 0)])
def test_a_change_of_language_is_said_once(languages: str, n_said: int, caplog: pytest.LogCaptureFixture) -> None:
    scripts = [Script(tokens=[at(0), *PUMP, at(1)], language={"d": "de", "f": "fr"}[one]) for one in languages]
    _, result, engine = run(scripts, 110.0, options_language=None)
    said = [line for line in caplog.messages if "--multilingual" in line]
    assert result.language == "de" and len(said) == n_said and all("30.0 s: sounds like fr" in line for line in said)
    spoken = {SPECIAL.language_of(prompt[prompt.index(SPECIAL.sot) + 1]) for prompt in engine.prompts}
    assert spoken == {"de"}, "and nothing else changes"


class _Slow:
    """An hour and more of audio that is made as it is read."""

    name = "slow"
    duration_s = None

    def __init__(self, n_samples: int) -> None:
        self._n_left = n_samples

    def again(self) -> Any:
        return _Slow(self._n_left)

    def close(self) -> None:
        pass

    def read(self, n_samples: int) -> Any:
        n_here = min(n_samples, self._n_left)
        self._n_left -= n_here
        return np.full(n_here, 1e-3, np.float32)


def test_memory_does_not_grow_with_the_audio() -> None:
    engine = HashEngine(SPECIAL, n_text_ctx=48, eot_bias=8.0)
    peaks = []
    for n_minutes in (1, 2, 20):  # the first fills caches, and what other tests left is collected
        audio: Any = _Slow(n_minutes * 60 * 16_000)
        gc.collect()
        tracemalloc.start()
        options = TranscribeOptions(language="en", temperature=(0.0,), no_speech_threshold=None)
        n_before = engine.n_passes
        for _ in Transcription(engine, bundle(SPECIAL, n_text_ctx=48), audio, options):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert engine.n_passes - n_before > 2 * n_minutes
    assert peaks[2] < peaks[1] + (4 << 20)  # garbage in wait; 18 minutes of samples would be 69 MB, of mel 35 MB


def test_a_stopped_transcription_ends_before_its_next_pass() -> None:
    engine, made = fake_model()
    audio = open_audio(np.full(4 * 16_000, 0.01, np.float32))
    said = Transcription(engine, made, audio, TranscribeOptions(language="en"))
    assert next(said).text
    n_calls = engine.n_calls
    said.stop()
    with pytest.raises(Interrupted, match="stopped"):
        list(said)
    assert engine.n_calls == n_calls


def test_a_stop_reaches_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, made = fake_model()
    said = Transcription(engine, made, open_audio(np.full(16_000, 0.01, np.float32)), TranscribeOptions(language="en"))
    stopped: list[int] = []
    monkeypatch.setattr(engine, "canceller", SimpleNamespace(stop_running=stopped.append), raising=False)
    encode = engine.encode
    monkeypatch.setattr(engine, "encode", lambda mel: (said.stop(), encode(mel))[1])
    with pytest.raises(Interrupted):
        list(said)
    assert stopped == [threading.get_ident()] and engine.n_calls == 0


@pytest.mark.parametrize("level_db", [None, -100.0])
def test_a_window_without_energy_is_silence_whatever_the_model_says(level_db: float | None) -> None:
    """Issue 54: models write a sentence over digital silence, and are sure of it."""
    rng = np.random.default_rng(0)
    quiet = np.zeros(30 * 16_000) if level_db is None else rng.normal(0, 10 ** (level_db / 20), 30 * 16_000)
    speech = rng.normal(0, 0.1, 16_000)
    engine = ScriptedEngine(SPECIAL, [Script(tokens=PUMP)])
    audio = open_audio(np.concatenate([quiet, quiet, speech, quiet]).astype(np.float32))
    done: list[float] = []
    result = Transcription(engine, bundle(SPECIAL), audio, TranscribeOptions(language="en"), on_progress=done.append)
    segments = list(result)
    assert segments and all(60.0 <= segment.start < 61.0 for segment in segments), segments
    assert len(engine.mels) == 1 and done == sorted(done) and done[-1] == result.duration_s == 91.0


def test_windows_begin_where_sound_follows_digital_silence() -> None:
    """Issue 56: sentences at 20 s and 163 s in digital silence were lost, doubled, and began 24 s too early."""
    rng = np.random.default_rng(0)
    audio = np.zeros(300 * 16_000, np.float32)
    for start_s in (20, 163):
        audio[start_s * 16_000 : (start_s + 5) * 16_000] = rng.normal(0, 0.1, 5 * 16_000)
    engine = ScriptedEngine(SPECIAL, [Script(tokens=PUMP)])
    result = Transcription(engine, bundle(SPECIAL), open_audio(audio), TranscribeOptions(language="en"))
    seeks = [segment.seek for segment in result]
    assert len(engine.mels) == 2 and set(seeks) == {1950, 16250}
    # Half a second of silence stays at both ends.
    assert all((mel != 0.0).any(axis=0).nonzero()[0].max() < 605 for mel in engine.mels)
