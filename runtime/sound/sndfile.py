"""Decode what libsndfile knows (FLAC, MP3, Ogg, AIFF, ...) through `soundfile`, and say what a broken file has lost.

libsndfile ends a FLAC or MP3 file at its first damage. From there the `ffmpeg` on PATH goes on, if there is one: it
skips what was read. Ogg files go on past damage by themselves. What is missing in between is not filled: what follows a
hole comes early by as much.

Left to ffmpeg from the start, where there is one, are MP3 and Ogg files that others were joined to, of which libsndfile
reads the first, and MP3 files that are seen to be cut, of which it says more. What libmpg123, inside libsndfile, writes
to stderr about damage is held back (`hushed`).

Does not know: mono, the rate of models. soundfile is imported only when a file needs it.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.errors import AudioError
from specedge.runtime.sound.ffmpeg import FfmpegReader
from specedge.runtime.sound.hushed import hushed
from specedge.runtime.sound.remarks import lost, lost_seconds, silently
from specedge.runtime.sound.stated_length import defect, stated_length
from specedge.runtime.sound.wav import check_layout

__all__ = ["SndfileReader", "open_sndfile"]

_log = logging.getLogger(__name__)

# libsndfile drops the call's samples when a decoder fails inside it, so a small call loses little of a damaged file.
_CALL_FRAMES = 4096
_UNKNOWN_FRAMES = 1 << 62
# Encoders differ in whether the header's own frame and the decoder's delay count.
_MP3_TOLERANCE_S = 0.1


def open_sndfile(path: str, name: str) -> SndfileReader | None:
    """A reader if soundfile is installed and libsndfile knows the content of the regular file `path`; see the module.

    `name`: what messages call it. Errors: AudioError for channels or a rate that speech does not come in.
    """
    try:
        import soundfile
    except (ImportError, OSError):
        return None

    class ForwardFile(soundfile.SoundFile):  # type: ignore[misc]
        """Read front to back: a seekable SoundFile seeks after each read, and MP3 then differs around every block."""

        def seekable(self) -> bool:
            return False

    if _is_for_ffmpeg(path):
        return None
    try:
        with hushed():
            file = ForwardFile(path)
    # TypeError and ValueError: soundfile itself looks at some extensions, such as .raw, and wants more arguments.
    except (RuntimeError, OSError, TypeError, ValueError):
        return None
    try:
        return SndfileReader(file, path, name)
    except AudioError:
        file.close()
        raise


def _is_for_ffmpeg(path: str) -> bool:
    """Whether libsndfile would leave out what was joined, or libmpg123 talk to stderr in vain.

    libsndfile takes what it does not know for MP3 if it is called so.
    """
    try:
        found = defect(path)
    except OSError:
        return False
    if found == "absent":
        return path.lower().endswith(".mp3")
    return found is not None and shutil.which("ffmpeg") is not None


class SndfileReader:
    """Blocks of a file that libsndfile decodes; see wav.PcmReader. A loss is logged once, at the end of what is there.

    `n_frames`: what the file says, or libsndfile where it does not; None if neither knows.
    """

    is_float = True

    def __init__(self, file: Any, path: str, name: str) -> None:
        self.n_channels = int(file.channels)
        self.rate_hz = int(file.samplerate)
        check_layout(name, self.n_channels, self.rate_hz)
        # Encoders that wrote to a pipe leave the length open, which libsndfile reports as the largest number there is.
        n_frames = int(file.frames) if file.frames < _UNKNOWN_FRAMES else None
        self._stops_at_damage = file.format in ("FLAC", "MP3")
        self._hushed: Callable[[], contextlib.AbstractContextManager[None]]
        self._hushed = hushed if file.format == "MP3" else contextlib.nullcontext
        self._stated = stated_length(path, file.format, n_frames)
        self._tolerance = round(_MP3_TOLERANCE_S * self.rate_hz) if file.format == "MP3" else 0
        self.n_frames: int | None = n_frames if file.format not in ("FLAC", "MP3", "OGG") else self._stated.n_frames
        self._file = file
        self._path, self._name = path, name
        self._n_read = 0
        self._is_ended = False
        self._reason: str | None = None
        self._rest: FfmpegReader | None = None

    def read(self, n_frames: int) -> NDArray[np.float32]:
        """The next frames, float32 [<= n_frames, n_channels]; fewer only at the end."""
        parts = [np.zeros((0, self.n_channels), np.float32)]
        while n_frames > 0 and not self._is_ended:
            part = self._next(min(n_frames, _CALL_FRAMES))
            parts.append(part)
            n_frames -= len(part)
            self._n_read += len(part)
            if not len(part):
                self._end()
        return np.concatenate(parts)

    def close(self) -> None:
        """Close the file and end an ffmpeg that went on."""
        self._file.close()
        if self._rest is not None:
            self._rest.close()

    def _next(self, n_frames: int) -> NDArray[np.float32]:
        if self._rest is not None:
            return _from_ffmpeg(self._rest, n_frames)
        try:
            with self._hushed():
                part: NDArray[np.float32] = self._file.read(n_frames, dtype="float32", always_2d=True)
        except (RuntimeError, OSError) as error:
            self._reason = str(error)
            part = np.zeros((0, self.n_channels), np.float32)
        if not len(part) and self._stops_at_damage and self._is_short():
            self._rest = _beyond(self._path, self._name, self._n_read, self.n_channels, self.rate_hz)
            if self._rest is not None:
                return _from_ffmpeg(self._rest, n_frames)
        return part

    def _is_short(self) -> bool:
        n_frames = self._stated.n_frames
        return self._reason is not None or (n_frames is not None and self._n_read < n_frames - self._tolerance)

    def _end(self) -> None:
        """Say once what is missing."""
        self._is_ended = True
        stated = self._stated
        missing_s = (0 if stated.n_frames is None else stated.n_frames - self._n_read) / self.rate_hz
        if stated.n_frames is not None and missing_s * self.rate_hz > self._tolerance:
            lost_seconds(_log, self._name, "cut short or damaged:", missing_s, stated.n_frames / self.rate_hz)
        elif stated.is_cut:
            message = (
                "%s: cut short: it ends inside a frame; how much is missing cannot be known; reading what is there"
            )
            lost(_log, message, self._name)
        elif stated.goes_on:
            message = "%s: more audio was joined to its end, which needs ffmpeg, and none is on PATH; it is left out"
            lost(_log, message, self._name)
        elif self._reason is not None:
            lost(_log, "%s: cut short or damaged (%s); reading what is there", self._name, self._reason)


def _from_ffmpeg(rest: FfmpegReader, n_frames: int) -> NDArray[np.float32]:
    try:
        with silently():
            return rest.read(n_frames)
    except AudioError:
        return np.zeros((0, rest.n_channels), np.float32)


def _beyond(path: str, name: str, n_frames: int, n_channels: int, rate_hz: int) -> FfmpegReader | None:
    """ffmpeg behind the first `n_frames` of a file; None without ffmpeg, or where it reads another layout."""
    try:
        reader = FfmpegReader(path, name)
    except AudioError:
        return None
    if (reader.n_channels, reader.rate_hz) != (n_channels, rate_hz):
        reader.close()
        return None
    while n_frames > 0 and (n_skipped := len(_from_ffmpeg(reader, min(n_frames, 1 << 16)))):
        n_frames -= n_skipped
    return reader
