"""What is wrong with a file is said once, although the file is read twice."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import soundfile

from specedge.runtime.audio.audio import open_audio
from specedge.runtime.audio.mel import MelStream
from support.sound import NOISE, wav_bytes


def _cut_wav(path: Path) -> None:
    path.write_bytes(wav_bytes(NOISE.astype(np.float32), 16_000)[:-1000])


def _flac_with_a_hole(path: Path) -> None:
    soundfile.write(path, np.resize(NOISE, 160_000), 16_000, format="FLAC")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 2000] = bytes(2000)
    path.write_bytes(data)


def _not_numbers(path: Path) -> None:
    samples = np.resize(NOISE, 160_000).astype(np.float32)
    samples[[10, 100_000]] = np.nan
    soundfile.write(path, samples, 16_000, format="WAV", subtype="FLOAT")


@pytest.mark.parametrize("make", [_cut_wav, _flac_with_a_hole, _not_numbers])
def test_a_warning_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, make: object) -> None:
    path = tmp_path / "a.bin"
    make(path)  # type: ignore[operator]
    with caplog.at_level(logging.WARNING), open_audio(path) as stream:
        mels = MelStream(stream, 80, 100, again=stream.again)
        seek = 0
        while (n_frames := mels.window(seek)[1]) > 0:
            seek += n_frames
    assert seek > 100 and len(caplog.messages) == 1 and str(path) in caplog.messages[0]
