"""Chunks: nothing lost, none too long, cut at pauses where there are any."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime.audio.audio import open_audio
from specedge.runtime.batched import speech_chunks
from support.sound import NOISE

RATE = 16_000
MAX = 8000


@given(n_samples=st.integers(1, 40_000), ends=st.lists(st.integers(1, 40_000), max_size=12, unique=True).map(sorted))
def test_nothing_is_lost_and_cuts_are_at_pauses(n_samples: int, ends: list[int]) -> None:
    samples = NOISE[:n_samples]
    chunks = list(speech_chunks(open_audio(samples), MAX, lambda: [*ends, max([n_samples, *ends]) + 1]))
    assert np.array_equal(np.concatenate([samples[:0], *(c.samples for c in chunks)]), samples)
    at = 0
    for chunk in chunks:
        assert chunk.start_s == at / RATE and 0 < len(chunk.samples) <= MAX
        inside = [end for end in ends if at < end <= at + MAX]
        at += len(chunk.samples)
        if at < n_samples and inside:
            assert at == inside[-1], "the last pause that fits, as faster-whisper joins stretches"


def test_speech_without_a_pause_is_cut_where_it_is_quietest() -> None:
    samples = NOISE[:30_000].copy()
    samples[7000:8700] *= 0.001
    chunks = list(speech_chunks(open_audio(samples), 9000, lambda: [30_000]))
    assert 7000 < len(chunks[0].samples) < 8700


def test_audio_of_exactly_one_chunk_is_one() -> None:
    assert [len(c.samples) for c in speech_chunks(open_audio(NOISE[:MAX]), MAX, lambda: [30_000])] == [MAX]
