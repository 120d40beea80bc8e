"""Blocks of sound from a microphone, through the package sounddevice (extra [mic]) and the system's PortAudio.

Sound that comes while the program is busy waits in a bounded queue; what does not fit is dropped, with one logged
warning.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError

_SAMPLE_RATE = 16_000
_BLOCK_SAMPLES = 1600
_QUEUE_BLOCKS = 600
# How often the wait for sound looks up, so that Ctrl-C is seen everywhere and a device that went away is noticed.
_WAIT_S = 0.5
_N_WAITS_MAX = 10
_log = logging.getLogger(__name__)


def microphone_blocks(device: str | int | None = None) -> Generator[NDArray[np.float32], None, None]:
    """Mono float32 blocks [1600] at 16 kHz from an input device, for ever; None is the system's default device.

    `device`: a number or part of a name, as sounddevice takes them. Close the iterator to close the device.
    Raises AudioError when there is no sounddevice, no PortAudio, no such device, or no sound comes for 5 s.
    """
    sounddevice = _sounddevice()
    waiting: queue.Queue[NDArray[np.float32]] = queue.Queue(_QUEUE_BLOCKS)
    has_warned = False

    def keep(block: NDArray[np.float32], _n_frames: int, _time: Any, _status: Any) -> None:
        nonlocal has_warned
        try:
            waiting.put_nowait(block[:, 0].copy())
        except queue.Full:
            if not has_warned:
                _log.warning("microphone: this machine is slower than the speech; some of it is lost")
            has_warned = True

    try:
        wanted = {"samplerate": _SAMPLE_RATE, "blocksize": _BLOCK_SAMPLES, "channels": 1, "dtype": "float32"}
        stream = sounddevice.InputStream(device=device, callback=keep, **wanted)
    except (sounddevice.PortAudioError, ValueError) as error:
        raise AudioError(f"microphone: {error}; `python -m sounddevice` lists the names that --device takes") from None
    with stream:
        n_waits = 0
        while n_waits < _N_WAITS_MAX:
            try:
                block = waiting.get(timeout=_WAIT_S)
            except queue.Empty:
                n_waits += 1
                continue
            n_waits = 0
            yield block
    raise AudioError("microphone: no sound came for 5 s; is it plugged in and allowed for this program?")


def _sounddevice() -> Any:
    try:
        import sounddevice
    except ImportError:
        raise AudioError(
            "microphone: this needs the package sounddevice: pip install '.[mic]' in specedge's source, or pipe raw "
            "sound in: arecord -f S16_LE -r 16000 -t raw | specedge listen - --raw s16le:16000"
        ) from None
    except OSError as error:  # the package is there, PortAudio is not
        raise AudioError(
            f"microphone: the system's PortAudio is missing ({error}); on Debian and Ubuntu: apt install libportaudio2"
        ) from None
    return sounddevice
