"""Live audio by a speech LLM: what was heard is not heard again, and no bit of what is said differs for it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.runtime.audio.audio import open_audio
from specedge.runtime.decoding.languages import say_language
from specedge.runtime.engine import speech
from specedge.runtime.engine.exactness import rows_are_exact
from specedge.runtime.engine.speech import SpeechEngine
from specedge.runtime.longform import live
from specedge.runtime.longform.live import LiveTranscriber
from specedge.runtime.longform.segments import Segment
from specedge.runtime.longform.transcribe import Transcription
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.text.speech_tokens import SpeechTokens
from support.qwen_checkpoints import qwen_bundle
from support.sound import wav_bytes

OPTIONS = TranscribeOptions(language="en", temperature=(0.0,), max_new_tokens=5)
STEP_S = 3.0


class CountingEngine(SpeechEngine):
    """It notes the rows that its decoder runs and the mel frames that its encoder hears."""

    def __init__(self) -> None:
        super().__init__(qwen_bundle(), threads=1)
        self.n_rows = self.n_frames = 0

    def forward(self, state: Any, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> NDArray[np.float32]:
        self.n_rows += len(ids)
        return super().forward(state, ids, logit_rows)


class Passage(list[Segment]):
    """What was said of a buffer."""

    language: str | None = None


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> CountingEngine:
    found, encode = CountingEngine(), speech.encoder_output

    def counted(session: Any, windows: NDArray[np.float32], *sizes: int) -> NDArray[np.float32]:
        found.n_frames += windows.shape[2]
        return encode(session, windows, *sizes)

    monkeypatch.setattr(speech, "encoder_output", counted)
    rows_are_exact(found, qwen_bundle())  # runs rows, where no test before has asked
    found.n_rows = found.n_frames = 0
    return found


def talk(seconds: float) -> NDArray[np.float32]:
    """Noise whose level changes ten times a second: speech, to a detector of energy."""
    rng = np.random.default_rng(0)
    levels = np.repeat(rng.choice([0.001, 0.01, 0.1, 0.3], round(seconds * 10)), 1600)
    return (levels * rng.standard_normal(len(levels))).astype(np.float32)


def test_what_live_audio_says_is_what_each_buffer_says_alone(
    engine: CountingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buffer of 24 s, heard in steps of 3 s: ids and log-probabilities are those of an engine that knows nothing."""
    buffers: list[NDArray[np.float32]] = []
    said: list[Passage] = []

    def noted(engine: Any, bundle: Any, audio: Any, *args: Any, **more: Any) -> Passage:
        buffers.append(audio.read(1 << 20))
        passage = Transcription(engine, bundle, open_audio(buffers[-1]), *args, **more)
        said.append(Passage(passage))
        said[-1].language = passage.language
        return said[-1]

    listener = LiveTranscriber(engine, qwen_bundle(), OPTIONS, step_s=STEP_S)
    monkeypatch.setattr(live, "Transcription", noted)
    assert list(listener.updates([talk(24.0)]))
    n_rows, n_frames = engine.n_rows, engine.n_frames
    engine.n_rows = engine.n_frames = 0
    alone = [list(Transcription(engine, qwen_bundle(), open_audio(samples), OPTIONS)) for samples in buffers]
    assert said == alone and len(said) >= 8
    assert n_frames < 0.7 * engine.n_frames and n_rows < 0.7 * engine.n_rows


def test_rows_that_are_not_exact_are_not_recalled(engine: CountingEngine) -> None:
    tokens = qwen_bundle().manifest.tokens
    assert isinstance(tokens, SpeechTokens)
    features, engine.is_exact = engine.encode(np.zeros((80, 900), np.float32)), False
    for _ in range(2):
        engine.n_rows = 0
        say_language(engine, features, tokens, ())
        assert engine.n_rows > features.n_audio


@pytest.mark.slow
def test_memory_does_not_grow_with_the_audio(engine: CountingEngine, tmp_path: Path) -> None:
    """Nothing of a window stays but its text, though stretches and rows of the last one do."""
    peaks = []
    for n_minutes in (1, 2, 8):  # the first fills caches, and what other tests left is collected
        (tmp_path / "a.wav").write_bytes(wav_bytes(np.tile(talk(30.0), 2 * n_minutes)))
        gc.collect()
        tracemalloc.start()
        with open_audio(tmp_path / "a.wav") as audio:
            for _ in Transcription(engine, qwen_bundle(), audio, OPTIONS):
                pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert engine.n_frames >= 11 * 6_000 * 0.9
    assert peaks[2] < peaks[1] + (4 << 20)  # 6 minutes of samples would be 23 MB, of mel 12 MB
