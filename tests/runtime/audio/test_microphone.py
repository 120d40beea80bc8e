"""The microphone, with a stand-in for sounddevice: blocks, a bounded queue, and errors that say what to install."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from specedge.errors import AudioError
from specedge.runtime.audio import microphone


class PortAudioError(Exception):
    """As sounddevice's."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A sounddevice whose microphone gives `n_blocks` blocks when it is opened, numbered from 0."""
    module: Any = ModuleType("sounddevice")
    module.PortAudioError, module.n_blocks, module.opened, module.is_open = PortAudioError, 3, [], False

    class InputStream:
        def __init__(self, **given: Any) -> None:
            if given["device"] == "nothing":
                raise ValueError("No input device matching 'nothing'")
            module.opened.append(given)
            self._callback = given["callback"]

        def __enter__(self) -> None:
            module.is_open = True
            for i in range(module.n_blocks):
                self._callback(np.full((1600, 1), i, np.float32), 1600, None, None)

        def __exit__(self, *_: object) -> None:
            module.is_open = False

    module.InputStream = InputStream
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    monkeypatch.setattr(microphone, "_WAIT_S", 0.001)
    return module


def test_blocks_come_in_order_and_the_device_is_closed(device: Any) -> None:
    blocks = microphone.microphone_blocks("USB")
    assert [float(next(blocks)[0]) for _ in range(3)] == [0.0, 1.0, 2.0]
    assert device.is_open and device.opened[0]["samplerate"] == 16_000 and device.opened[0]["device"] == "USB"
    blocks.close()
    assert not device.is_open


def test_a_silent_device_is_an_error(device: Any) -> None:
    device.n_blocks = 0
    with pytest.raises(AudioError, match="no sound came for 5 s"):
        next(microphone.microphone_blocks())
    assert not device.is_open


def test_what_does_not_fit_is_dropped_with_one_warning(device: Any, caplog: pytest.LogCaptureFixture) -> None:
    device.n_blocks = microphone._QUEUE_BLOCKS + 5
    blocks = microphone.microphone_blocks()
    assert float(next(blocks)[0]) == 0.0
    blocks.close()
    assert len(caplog.records) == 1 and "some of it is lost" in caplog.text


def test_an_unknown_device(device: Any) -> None:
    with pytest.raises(AudioError, match="No input device matching 'nothing'.*lists the names"):
        next(microphone.microphone_blocks("nothing"))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(AudioError, match=r"pip install '\.\[mic\]'.*arecord"):
        next(microphone.microphone_blocks())


def test_without_portaudio_the_debian_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AudioError, match="PortAudio library not found.*apt install libportaudio2"):
        next(microphone.microphone_blocks())
