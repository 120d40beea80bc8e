"""Looking ahead in a stream changes nothing of what is read; a copied file outlives the one it was copied from."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime.errors import AudioError, UsageError
from specedge.runtime.held_audio import HeldAudio, SampleQueue, open_held
from support.sound import NOISE, read_all, wav_bytes


@given(
    n_samples=st.integers(0, 5000),
    start=st.integers(0, 6000),
    n_ahead=st.integers(0, 3000),
    steps=st.lists(st.integers(1, 2500), min_size=1, max_size=8),
)
def test_what_was_looked_at_is_read_again(n_samples: int, start: int, n_ahead: int, steps: list[int]) -> None:
    samples = NOISE[:n_samples]
    held = HeldAudio(SampleQueue(samples))
    assert np.array_equal(held.peek(start, n_ahead), samples[start : start + n_ahead])
    found = [held.read(step) for step in steps]
    while len(found[-1]):
        found.append(held.read(1000))
    wanted = [*steps, *[1000] * len(found)]
    n_full = next(i for i, block in enumerate(found) if len(block) < wanted[i])
    assert not any(len(block) for block in found[n_full + 1 :]), "only the last block is short"
    joined = np.concatenate(found)
    assert len(joined) == n_samples and joined.dtype == np.float32
    n_gone = min(start, n_samples)
    assert not joined[:n_gone].any() and np.array_equal(joined[n_gone:], samples[n_gone:])


def test_a_stream_that_was_not_looked_at_is_read_as_it_is() -> None:
    assert np.array_equal(HeldAudio(SampleQueue(NOISE)).read(len(NOISE) + 5), NOISE)


@pytest.mark.parametrize("name", ["wav", "flac"])
def test_a_copied_file_is_read_after_its_original_is_closed(tmp_path: Path, name: str) -> None:
    import soundfile

    path = tmp_path / f"a.{name}"
    soundfile.write(path, NOISE, 16_000, subtype="PCM_16")
    with open(path, "rb") as file:
        stream = open_held(file)
    path.unlink()
    with stream:
        assert stream.name == str(path) and stream.duration_s == len(NOISE) / 16_000
        assert len(read_all(stream)) == len(NOISE)


def test_closing_the_stream_ends_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    made = []
    spooled = tempfile.SpooledTemporaryFile

    def record(*args: object, **kwargs: object) -> object:
        made.append(spooled(*args, **kwargs))  # type: ignore[call-overload]
        return made[-1]

    monkeypatch.setattr("specedge.runtime.held_audio.tempfile.SpooledTemporaryFile", record)
    open_held(io.BytesIO(wav_bytes(NOISE))).close()
    with pytest.raises(AudioError):
        open_held(io.BytesIO(b"no sound at all"))
    assert [copy.closed for copy in made] == [True, True]


def test_errors_are_those_of_open_audio(tmp_path: Path) -> None:
    closed = io.BytesIO(wav_bytes(NOISE))
    closed.close()
    with pytest.raises(AudioError):
        open_held(closed)
    with pytest.raises(UsageError, match="expected a path"):
        open_held(7)  # type: ignore[arg-type]
    with pytest.raises(AudioError, match="no such file"):
        open_held(str(tmp_path / "none.wav"))
