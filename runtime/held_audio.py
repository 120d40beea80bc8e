"""Audio whose beginning may be looked at before it is read, and files that the caller may close again.

Finding the language needs the first windows before decoding starts; a pipe gives them only once. What was looked at is
held until it is read, a few windows at most. `open_held` copies a file object, so that
`with open(...) as f: segments, info = model.transcribe(f)` may read its segments after the block, as in faster-whisper.
Does not know: windows, mel, languages.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.audio import AudioSource, AudioStream, open_audio
from specedge.runtime.errors import AudioError, ResourceError

__all__ = ["HeldAudio", "SampleQueue", "open_held"]

_MEMORY_BYTES = 16 << 20
_READ_SAMPLES = 1 << 16


class _Stream(Protocol):
    """The part of an AudioStream that is needed here."""

    @property
    def name(self) -> str: ...
    @property
    def duration_s(self) -> float | None: ...
    def read(self, n_samples: int, /) -> NDArray[np.float32]: ...


class HeldAudio:
    """Reads like the AudioStream `stream`, which stays the caller's to close; `peek` looks ahead.

    Samples before the place that was looked at are let go: they read as zeros. Errors: what the stream's `read` raises.
    """

    def __init__(self, stream: _Stream) -> None:
        self.name, self.duration_s = stream.name, stream.duration_s
        self._stream = stream
        self._at = 0  # of the next sample to be read
        self._held_from = 0
        self._held = np.zeros(0, np.float32)

    def peek(self, start: int, n_samples: int) -> NDArray[np.float32]:
        """Samples [start, start + n_samples), fewer at the end; once, and before anything is read."""
        while self._held_from < start:
            n_wanted = min(start - self._held_from, _READ_SAMPLES)
            n_came = len(self._stream.read(n_wanted))
            self._held_from += n_came
            if n_came < n_wanted:
                break
        self._held = self._stream.read(n_samples)
        return self._held

    def read(self, n_samples: int) -> NDArray[np.float32]:
        """The next samples, as `AudioStream.read` gives them."""
        n_gone = min(n_samples, max(0, self._held_from - self._at))
        parts = [np.zeros(n_gone, np.float32)]
        first = max(0, self._at + n_gone - self._held_from)
        parts.append(self._held[first : first + n_samples - n_gone])
        n_missing = n_samples - n_gone - len(parts[1])
        if n_missing:
            self._held = self._held[:0]
            parts.append(self._stream.read(n_missing))
        block = np.concatenate(parts)
        self._at += len(block)
        return block


@dataclass
class SampleQueue:
    """Samples float32 [n_samples] at hand, read like an AudioStream."""

    left: NDArray[np.float32]
    name: str = "array"
    duration_s: float | None = None

    def read(self, n_samples: int) -> NDArray[np.float32]:
        """The next samples, fewer only at the end."""
        block, self.left = self.left[:n_samples], self.left[n_samples:]
        return block


def open_held(source: AudioSource) -> AudioStream:
    """`open_audio`, but a file object that can seek is copied first, from where it stands; closing ends the copy.

    Raises AudioError, UsageError and ResourceError, as `open_audio`.
    """
    if isinstance(source, np.ndarray) or not _is_seekable(source):
        return open_audio(source)
    file = cast(BinaryIO, source)
    with contextlib.ExitStack() as stack:
        try:
            copy = stack.enter_context(tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES))
            shutil.copyfileobj(file, copy)
        except TypeError:
            raise AudioError(f"{_name(file)}: was opened as text, expected a binary file: open(..., 'rb')") from None
        except OSError as error:
            raise ResourceError(f"{_name(file)}: cannot be copied: {error.strerror or error}") from None
        copy.seek(0)
        stream = open_audio(cast(BinaryIO, copy))
        stream.name = _name(file)
        stream.on_close(stack.pop_all().close)
    return stream


def _is_seekable(source: Any) -> bool:
    try:
        return bool(source.seekable())
    except (AttributeError, OSError, ValueError):  # a path, or a closed file, of which open_audio says what is wrong
        return False


def _name(file: Any) -> str:
    name = getattr(file, "name", None)
    return name if isinstance(name, str) and name else "audio"
