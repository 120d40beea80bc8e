"""Audio on its way to a transcription: files that may be closed meanwhile, and a look ahead.

`open_held` copies a file object, so that `with open(...) as f: segments, info = model.transcribe(f)` may read its
segments after the block, as with faster-whisper. `HeldAudio` gives its beginning twice. Does not know: windows, mel,
languages.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.errors import AudioError, ResourceError
from specedge.runtime.sound.audio import AudioSource, AudioStream, open_audio, temporary_copy

__all__ = ["HeldAudio", "open_held"]


class _Stream(Protocol):
    """The part of an AudioStream that is needed here."""

    def read(self, n_samples: int, /) -> NDArray[np.float32]: ...


class HeldAudio:
    """Reads like `stream`; `peek` looks at its beginning. Errors: what the stream's `read` raises."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._held = np.zeros(0, np.float32)

    def peek(self, n_samples: int) -> NDArray[np.float32]:
        """The next samples, fewer at the end, which will be read again."""
        n_missing = n_samples - len(self._held)
        if n_missing > 0:
            self._held = np.concatenate([self._held, self._stream.read(n_missing)])
        return self._held[:n_samples]

    def read(self, n_samples: int) -> NDArray[np.float32]:
        """The next samples, as `AudioStream.read` gives them."""
        block, self._held = self._held[:n_samples], self._held[n_samples:]
        n_missing = n_samples - len(block)
        return np.concatenate([block, self._stream.read(n_missing)]) if n_missing else block


@contextlib.contextmanager
def open_held(source: AudioSource) -> Iterator[AudioStream]:
    """`open_audio`, but a file object that can seek is first copied to a temporary file, from where it stands.

    Raises AudioError, UsageError and ResourceError, as `open_audio`.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(source, np.ndarray) or not _is_seekable(source):
            yield stack.enter_context(open_audio(source))
            return
        file = cast(BinaryIO, source)
        name = getattr(file, "name", None)
        name = name if isinstance(name, str) and name else "audio"
        stream = stack.enter_context(open_audio(_copy(file, name, stack)))
        stream.name = name
        yield stream


def _copy(file: BinaryIO, name: str, stack: contextlib.ExitStack) -> Path:
    try:
        path = stack.enter_context(temporary_copy())
        with open(path, "wb") as copy:
            shutil.copyfileobj(file, copy)
            if not copy.tell():
                raise AudioError(f"{name}: is empty")
    except TypeError:
        raise AudioError(f"{name}: was opened as text, expected a binary file: open(..., 'rb')") from None
    except OSError as error:
        raise ResourceError(f"{name}: the temporary copy in {tempfile.gettempdir()} failed: {error.strerror}") from None
    return path


def _is_seekable(source: Any) -> bool:
    try:
        return bool(source.seekable())
    except (AttributeError, OSError, ValueError):  # a path, or a closed file, of which open_audio says what is wrong
        return False
