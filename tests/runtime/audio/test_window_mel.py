"""Two band counts of one window from one spectrum, beside the mel that a stream of that band count gives."""

from __future__ import annotations

import numpy as np
import pytest

from specedge.runtime.audio.audio import open_audio
from specedge.runtime.audio.mel import MelStream, WindowMel
from support.noise import SAMPLES, speech

N_FRAMES = 1000


@pytest.mark.parametrize(("own", "other"), [(128, 80), (80, 128)])
def test_other_bands_of_a_window_are_those_of_a_stream_of_them(own: int, other: int) -> None:
    sound = speech(SAMPLES[0])
    with open_audio(sound) as stream, open_audio(sound) as twin:
        mels = MelStream(stream, own, N_FRAMES, again=stream.again)
        mels.keeps_power = True
        expected = MelStream(twin, other, N_FRAMES, again=twin.again)
        for start in (0, 130):
            mel, n_content_frames = mels.window(start)
            assert mels.last_power is not None
            found = WindowMel(mel, mels.last_power, mels.peak, n_content_frames)
            assert found(own) is mel
            wanted, _ = expected.window(start)
            got = found(other)
            assert got.shape == wanted.shape and got.dtype == np.float32
            assert np.all(got[:, n_content_frames:] == 0)
            # The peak of the other bands is estimated: only what lies below the floor can differ, and by little.
            assert np.abs(got - wanted).max() < 0.08
            assert (np.abs(got - wanted) > 1e-5).mean() < 0.6
