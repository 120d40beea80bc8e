"""Looking ahead in a stream changes nothing of what is read; a copied file outlives the one it was copied from."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.errors import AudioError, UsageError
from specedge.runtime.audio.audio import open_audio, open_held
from specedge.runtime.audio.mel import HeldAudio
from support.sound import NOISE, read_all, wav_bytes


@given(
    n_samples=st.integers(1, 5000),
    peeks=st.lists(st.integers(0, 3000), max_size=3),
    steps=st.lists(st.integers(1, 2500), min_size=1, max_size=8),
)
def test_what_was_looked_at_is_read_again(n_samples: int, peeks: list[int], steps: list[int]) -> None:
    samples = NOISE[:n_samples]
    held = HeldAudio(open_audio(samples))
    for n_ahead in peeks:
        assert np.array_equal(held.peek(n_ahead), samples[:n_ahead])
    found = [held.read(step) for step in steps]
    while len(found[-1]):
        found.append(held.read(1000))
    wanted = [*steps, *[1000] * len(found)]
    n_full = next(i for i, block in enumerate(found) if len(block) < wanted[i])
    assert not any(len(block) for block in found[n_full + 1 :]), "only the last block is short"
    assert np.array_equal(np.concatenate(found), samples)


@pytest.mark.parametrize("name", ["wav", "flac"])
def test_a_copied_file_is_read_after_its_original_is_closed(tmp_path: Path, name: str) -> None:
    import soundfile

    path = tmp_path / f"a.{name}"
    soundfile.write(path, NOISE, 16_000, subtype="PCM_16")
    with contextlib.ExitStack() as stack:
        with open(path, "rb") as file:
            stream = stack.enter_context(open_held(file))
        path.unlink()
        assert stream.name == str(path) and stream.duration_s == len(NOISE) / 16_000
        assert len(read_all(stream)) == len(NOISE)


def test_the_copy_goes_with_the_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with open_held(io.BytesIO(wav_bytes(NOISE))) as stream:
        assert len(list(tmp_path.iterdir())) == 1
        again = stream.again()
        assert again is not None and np.array_equal(read_all(again), NOISE)
        again.close()
    assert not list(tmp_path.iterdir())
    for data in (b"no sound at all", b""):
        with pytest.raises(AudioError), open_held(io.BytesIO(data)):
            pass
    assert not list(tmp_path.iterdir())


def test_errors_are_those_of_open_audio(tmp_path: Path) -> None:
    closed = io.BytesIO(wav_bytes(NOISE))
    closed.close()
    with pytest.raises(AudioError), open_held(closed):
        pass
    with pytest.raises(UsageError, match="expected a path"), open_held(7):  # type: ignore[arg-type]
        pass
    with pytest.raises(AudioError, match="no such file"), open_held(str(tmp_path / "none.wav")):
        pass
