"""Decode a file with the `ffmpeg` on PATH: a separate process, read through a pipe, killed and reaped on close.

The command is a list (no shell), may open local files only, and only through demuxers that hold samples themselves:
playlists (HLS, concat, DASH) can name other files of the machine and are refused. ffmpeg writes float WAV at the file's
own rate and channels, which the bounded reader of wav.py reads, so mono and resampling happen in one place for every
format (audio.py).

Knows nothing of rates, mono or models. ffmpeg's options: https://ffmpeg.org/ffmpeg.html,
https://ffmpeg.org/ffmpeg-formats.html.
"""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import threading
import time
import weakref
from typing import IO

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.errors import AudioError
from specedge.runtime.sound.remarks import lost, lost_seconds
from specedge.runtime.sound.wav import ByteReader, PcmReader, open_wav

__all__ = ["FfmpegReader"]

_log = logging.getLogger(__name__)

_DEMUXERS = (
    "aac,ac3,aiff,amr,amrnb,amrwb,ape,asf,au,avi,caf,dsf,dts,dtshd,eac3,flac,flv,gsm,matroska,mlp,mov,mp3,mpc,mpc8,mpeg,mpegts,"
    "mxf,nistsphere,nut,ogg,oma,rm,shn,sox,spdif,tak,truehd,tta,voc,w64,wav,wtv,wv,xwma"
)
_STALL_S = 20.0
_REASON_CHARS = 160
_LINE_BYTES = 4096
_PREFIX = re.compile(r"^(?:\[(?!(?:error|fatal|panic)\])[^\]]*\] )*\[(?:error|fatal|panic)\] ")
_DURATION = re.compile(r"^\[info\]   Duration: (\d+):(\d\d):(\d\d\.\d+),")
_OTHER_STREAM = re.compile(r"^\[info\] +Stream #0:\d+.*: (?:Video|Subtitle|Data): (?!.*\(attached pic\))")
_ESTIMATE = "Estimating duration from bitrate"
# Sound that ends before its file's duration by more than these has lost its end.
_MISSING_S, _MISSING_SHARE = 0.3, 0.001


class _Messages:
    """What ffmpeg says on stderr: the first error, and the duration it found. Bounded, filled by a thread.

    `is_sound_s`: that the duration is stated by the file, and is that of its sound rather than of its picture.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self.reason: str | None = None
        self.duration_s: float | None = None
        self.is_sound_s = True
        self.opened = threading.Event()
        self._thread = threading.Thread(target=self._drain, args=(pipe,), name="ffmpeg-messages", daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(timeout=2.0)

    def _drain(self, pipe: IO[bytes]) -> None:
        try:
            while line := pipe.readline(_LINE_BYTES):
                self._take(line.decode("utf-8", "replace").rstrip())
        except (OSError, ValueError):
            pass  # closed under us by close(): there is nobody left to tell
        finally:
            self.opened.set()

    def _take(self, line: str) -> None:
        if self.duration_s is None and (match := _DURATION.match(line)):
            hours, minutes, seconds = match.groups()
            self.duration_s = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        if line.startswith("[info] Output #0"):
            self.opened.set()
        if _ESTIMATE in line or _OTHER_STREAM.match(line):
            self.is_sound_s = False
        if self.reason is None and (prefix := _PREFIX.match(line)):
            self.reason = line[prefix.end() :][:_REASON_CHARS]


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Kill and wait, so that no zombie stays; safe to call again."""
    if process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


class FfmpegReader:
    """Blocks of samples of one local file, decoded by ffmpeg.

    `path`: a regular file. `name`: what messages call it. `n_frames`: from the duration ffmpeg found, None if it found
    none. Errors: AudioError where there is no ffmpeg, or with ffmpeg's own reason where it cannot decode the file.
    """

    is_float = True

    def __init__(self, path: str, name: str) -> None:
        program = shutil.which("ffmpeg")
        if program is None:
            raise AudioError(
                f"{name}: this format needs ffmpeg, and none is on PATH; install it, or convert the file to WAV"
            )
        self._name = name
        self._n_frames_read = 0
        self._stalled = False
        self._reading_since: float | None = None
        self._closed = threading.Event()
        command = [program, "-nostdin", "-hide_banner", "-nostats", "-loglevel", "level+info"]
        command += ["-protocol_whitelist", "file,pipe", "-format_whitelist", _DEMUXERS, "-i", f"file:{path}"]
        command += ["-map", "0:a:0", "-vn", "-sn", "-dn", "-c:a", "pcm_f32le", "-f", "wav", "pipe:1"]
        try:
            # A session of its own: Ctrl-C in the terminal must reach us first, and we end the child.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise AudioError(f"{name}: ffmpeg at {program} cannot be started: {error}") from error
        self._finalizer = weakref.finalize(self, _reap, self._process)
        assert self._process.stdout is not None and self._process.stderr is not None  # PIPE was asked for
        self._messages = _Messages(self._process.stderr)
        threading.Thread(
            target=_watch, args=(weakref.ref(self), self._closed), name="ffmpeg-watch", daemon=True
        ).start()
        try:
            self._pcm = self._open(ByteReader(self._process.stdout, name))
        except BaseException:
            self.close()
            raise
        self.n_channels = self._pcm.n_channels
        self.rate_hz = self._pcm.rate_hz
        self._messages.opened.wait(timeout=1.0)
        duration_s = self._messages.duration_s
        self.n_frames: int | None = None if duration_s is None else round(duration_s * self.rate_hz)

    def _open(self, source: ByteReader) -> PcmReader:
        self._reading_since = time.monotonic()
        if not source.peek(12):
            raise self._failure()
        pcm = open_wav(source)
        self._reading_since = None
        return pcm

    def read(self, n_frames: int) -> NDArray[np.float32]:
        """The next frames, float32 [<= n_frames, n_channels]; fewer only at the end. AudioError if nothing came at all.

        A file that breaks off or is damaged further on gives what was decoded, and one logged warning.
        """
        self._reading_since = time.monotonic()
        block = self._pcm.read(n_frames)
        self._reading_since = None
        self._n_frames_read += len(block)
        if len(block) < n_frames:
            if self._n_frames_read == 0 or self._stalled:
                raise self._failure()
            if self._ended_badly():
                reason = self._messages.reason or "no reason given"
                lost(_log, "%s: ffmpeg stopped early (%s); reading what it decoded", self._name, reason)
            else:
                self._tell_loss()
        return block

    def _tell_loss(self) -> None:
        """ffmpeg ends well at the end of a file that was cut."""
        said_s = self._messages.duration_s
        if said_s is None or not self._messages.is_sound_s:
            return
        missing_s = said_s - self._n_frames_read / self.rate_hz
        if missing_s > max(_MISSING_S, _MISSING_SHARE * said_s):
            lost_seconds(_log, self._name, "cut short or damaged:", missing_s, said_s)

    def close(self) -> None:
        """Kill ffmpeg if it still runs and reap it; safe to call again."""
        self._closed.set()
        if self._finalizer.alive:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            self._messages.join()
            self._finalizer()

    def _ended_badly(self) -> bool:
        try:
            return self._process.wait(timeout=2.0) != 0
        except subprocess.TimeoutExpired:
            return False

    def _failure(self) -> AudioError:
        self._ended_badly()
        self._messages.join()
        if self._stalled:
            return AudioError(f"{self._name}: ffmpeg gave nothing for {_STALL_S:.0f} s and was stopped")
        reason = self._messages.reason or "no audio came out"
        return AudioError(f"{self._name}: not audio that can be decoded; ffmpeg says: {reason}")

    def _check_stall(self) -> None:
        since = self._reading_since
        if since is not None and time.monotonic() - since > _STALL_S:
            self._stalled = True
            self._process.kill()


def _watch(reader: weakref.ref[FfmpegReader], closed: threading.Event) -> None:
    """End an ffmpeg that keeps a read waiting; holds no reference, so a forgotten reader can still be collected."""
    while not closed.wait(1.0):
        alive = reader()
        if alive is None:
            return
        alive._check_stall()
        del alive
