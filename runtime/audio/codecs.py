"""Compressed audio, through libsndfile (FLAC, MP3, Ogg, AIFF, ...) or else through the `ffmpeg` on PATH.

libsndfile ends a FLAC or MP3 file at its first damage; from there ffmpeg goes on, if there is one. What is missing in
between is not filled: what follows a hole comes early by as much. Left to ffmpeg from the start are files of which
libsndfile would read the first part only: MP3 and Ogg files that others were joined to, and cut MP3 files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError

from ..console import lost, lost_seconds, silently
from .wav import ByteReader, check_layout, open_wav

_log = logging.getLogger(__name__)

# Those that hold samples themselves: playlists (HLS, concat, DASH) can name other files of the machine.
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
_NO_SOUND = "matches no streams"  # of `-map`
_ESTIMATE = "Estimating duration from bitrate"
# Sound that ends before its file's duration by more than these has lost its end.
_MISSING_S, _MISSING_SHARE = 0.3, 0.001


class _Messages:
    """What ffmpeg says on stderr of `path`: the first error, without the path, and the duration it found. A thread
    reads it.

    `is_sound_s`: the duration is stated by the file, and is that of its sound rather than of its picture.
    """

    def __init__(self, pipe: IO[bytes], path: str) -> None:
        self._of_path = f"file:{path}: "
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
            self.reason = line[prefix.end() :].removeprefix(self._of_path)[:_REASON_CHARS]


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Kill ffmpeg and wait for it, so that no zombie stays."""
    if process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


class FfmpegReader:
    """Blocks of samples of the regular file `path`, which a process of ffmpeg decodes; it is killed on close.

    ffmpeg (https://ffmpeg.org/ffmpeg.html) may open local files only. It writes float WAV at the file's own rate and
    channels, so mono and resampling happen in one place for every format (audio.py). `name`: what messages call the
    file. `n_frames`: from the duration ffmpeg found, None if it found none.

    Raises AudioError where there is no ffmpeg, or with ffmpeg's own reason where it cannot decode the file.
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
        command = [program, "-nostdin", "-hide_banner", "-nostats", "-loglevel", "level+info"]
        command += ["-protocol_whitelist", "file,pipe", "-format_whitelist", _DEMUXERS, "-i", f"file:{path}"]
        command += ["-map", "0:a:0", "-vn", "-sn", "-dn", "-c:a", "pcm_f32le", "-f", "wav", "pipe:1"]
        pipe = subprocess.PIPE
        try:
            # A session of its own: Ctrl-C in the terminal must reach us first, and we end the child.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise AudioError(f"{name}: ffmpeg at {program} cannot be started: {error}") from error
        self._finalizer = weakref.finalize(self, _reap, self._process)
        assert self._process.stdout is not None and self._process.stderr is not None  # PIPE was asked for
        self._messages = _Messages(self._process.stderr, path)
        try:
            source = ByteReader(self._process.stdout, name)
            with self._stall_limit():
                if not source.peek(12):
                    raise self._failure()
                self._pcm = open_wav(source)
        except BaseException:
            self.close()
            raise
        self.n_channels = self._pcm.n_channels
        self.rate_hz = self._pcm.rate_hz
        self._messages.opened.wait(timeout=1.0)
        duration_s = self._messages.duration_s
        self.n_frames: int | None = None if duration_s is None else round(duration_s * self.rate_hz)

    def read(self, n_frames: int) -> NDArray[np.float32]:
        """The next frames, float32 [<= n_frames, n_channels]; fewer only at the end. AudioError if nothing came at all.

        A file that breaks off or is damaged further on gives what was decoded, and one logged warning.
        """
        with self._stall_limit():
            block = self._pcm.read(n_frames)
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
        """Kill ffmpeg if it still runs; safe to call again."""
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
        if _NO_SOUND in reason:
            return AudioError(f"{self._name}: has no sound track")
        return AudioError(f"{self._name}: not audio that can be decoded; ffmpeg says: {reason}")

    @contextlib.contextmanager
    def _stall_limit(self) -> Iterator[None]:
        """Inside, an ffmpeg that gives nothing is ended after a while."""

        def stop() -> None:
            self._stalled = True
            self._process.kill()

        timer = threading.Timer(_STALL_S, stop)
        timer.name, timer.daemon = "ffmpeg-stall", True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # its thread holds this reader, and whoever forgets one has ended ffmpeg


_OURS = ("specedge-", "ffmpeg-")  # how the names of our own threads begin


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Drop what is written to file descriptor 2 while inside, unless another thread might be writing there.

    libmpg123, inside libsndfile, reports damage there, and nothing in soundfile silences it.
    """
    saved = null = -1
    try:
        if _is_alone():
            with contextlib.suppress(OSError):  # stderr is closed, or there are no descriptors left
                saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 2)
        yield
    finally:
        if saved >= 0:
            os.dup2(saved, 2)
        for descriptor in (saved, null):
            if descriptor >= 0:
                os.close(descriptor)


def _is_alone() -> bool:
    current = threading.current_thread()
    return all(thread is current or thread.name.startswith(_OURS) for thread in threading.enumerate())


_OGG_BEGINS = 2
_OGG_PAGE_BYTES_MAX = 27 + 255 + 255 * 255
_MP3_SEARCH_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 18
_RATES_HZ = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_KBIT_MPEG1 = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_KBIT_MPEG2 = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_END_TAGS = (b"TAG", b"APETAGEX", b"LYRICS")
_XING_HAS_COUNT, _XING_HAS_BYTES = 1, 2


@dataclass(frozen=True, kw_only=True)
class _Scan:
    """What a file says of its own length. `container`: None for one that is none of these three.

    `counted`: samples of each channel of MP3 whose frames had to be counted, None where other things lie between them;
    `is_counted`: whether they had to be. `is_short`: MP3 of fewer bytes than its header counts. `ends_inside`: the file
    ends inside a frame or page. `goes_on`: other files were joined to the first, which is all that libsndfile reads.
    """

    container: Literal["FLAC", "OGG", "MP3"] | None
    is_counted: bool = False
    counted: int | None = None
    is_short: bool = False
    ends_inside: bool = False
    goes_on: bool = False


def _scan(path: str) -> _Scan:
    """Read the headers of the regular file `path`. Raises OSError.

    Ogg (RFC 3533): a file that ends inside a page is cut; one that ends between two is whole, since live recordings end
    so. MP3 (ISO/IEC 11172-3, 13818-3): a Xing or Info frame may count the frames; without one they are counted here,
    because libsndfile guesses from the first, which with a variable rate may give several times too much.
    """
    with open(path, "rb", buffering=_BUFFER_BYTES) as file:
        head = file.read(4)
        if head == b"fLaC":
            return _Scan(container="FLAC")
        if head == b"OggS":
            goes_on = _is_chained(file)
            return _Scan(container="OGG", goes_on=goes_on, ends_inside=not goes_on and _ends_inside_a_page(file))
        at = _first_mp3_frame(file, 0)
        if at is None:
            return _Scan(container=None)
        n_bytes = _xing_bytes(file, at)
        if n_bytes is None:
            return _counted(file, at)
        is_short = at + n_bytes > os.fstat(file.fileno()).st_size
        goes_on = n_bytes > 0 and _first_mp3_frame(file, at + n_bytes) is not None
        return _Scan(container="MP3", is_short=is_short, goes_on=goes_on)


def _is_chained(file: BinaryIO) -> bool:
    """Whether a stream begins behind pages of another one; False where the pages do not follow each other."""
    at, is_in_data = 0, False
    while (head := _bytes_at(file, at, 27))[:5] == b"OggS\0" and len(head) == 27:
        begins = bool(head[5] & _OGG_BEGINS)
        if begins and is_in_data:
            return True
        is_in_data = not begins
        at += 27 + head[26] + sum(file.read(head[26]))
    return False


def _ends_inside_a_page(file: BinaryIO) -> bool:
    size = os.fstat(file.fileno()).st_size
    file.seek(max(0, size - _OGG_PAGE_BYTES_MAX))
    tail = file.read(_OGG_PAGE_BYTES_MAX)
    start = tail.rfind(b"OggS\0")
    if start < 0:
        return False
    page = tail[start:]
    if len(page) < 27 or len(page) < 27 + page[26]:
        return True
    return len(page) < 27 + page[26] + sum(page[27 : 27 + page[26]])


@dataclass(frozen=True, kw_only=True)
class _Mp3Frame:
    """One frame's header: its length in the file, what it decodes to, and where a Xing header would lie in it."""

    kind: tuple[int, int]
    n_bytes: int
    n_samples: int
    xing_at: int


def _xing_bytes(file: BinaryIO, at: int) -> int | None:
    """Bytes of the MP3 stream by the Xing or Info frame at `at`, 0 if it does not say; None: no frame that counts."""
    frame = _mp3_frame(_bytes_at(file, at, 4))
    if frame is None:
        return None
    fields = _bytes_at(file, at + frame.xing_at, 16)
    if fields[:4] not in (b"Xing", b"Info") or len(fields) < 16 or not fields[7] & _XING_HAS_COUNT:
        return None
    return int.from_bytes(fields[12:16], "big") if fields[7] & _XING_HAS_BYTES else 0


def _counted(file: BinaryIO, at: int) -> _Scan:
    """Count the frames of one kind that follow each other from `at` on."""
    size = os.fstat(file.fileno()).st_size
    first = _mp3_frame(_bytes_at(file, at, 4))
    n_samples = 0
    while True:
        head = _bytes_at(file, at, 8)
        frame = _mp3_frame(head)
        if frame is None or first is None or frame.kind != first.kind:
            behind = _past_id3(file, at)
            if behind == at:
                is_end = len(head) < 4 or head.startswith(_END_TAGS) or not any(head)
                return _Scan(container="MP3", is_counted=True, counted=n_samples if is_end else None)
            at = behind
        elif at + frame.n_bytes > size:
            return _Scan(container="MP3", is_counted=True, counted=n_samples, ends_inside=True)
        else:
            n_samples += frame.n_samples
            at += frame.n_bytes


def _past_id3(file: BinaryIO, at: int) -> int:
    """Where the ID3v2 tags at `at` end."""
    while (tag := _bytes_at(file, at, 10))[:3] == b"ID3" and len(tag) == 10:
        has_footer = bool(tag[5] & 0x10)
        shifts = (21, 14, 7, 0)
        at += 10 + 10 * has_footer + sum((byte & 0x7F) << shift for byte, shift in zip(tag[6:], shifts, strict=True))
    return at


def _first_mp3_frame(file: BinaryIO, at: int) -> int | None:
    """Where the first MP3 frame from `at` on begins that another one follows, past ID3v2 tags; None: there is none.

    Looks through 64 KiB. Raises OSError.
    """
    at = _past_id3(file, at)
    head = _bytes_at(file, at, _MP3_SEARCH_BYTES)
    sync = head.find(b"\xff")
    while sync >= 0:
        frame = _mp3_frame(head[sync : sync + 4])
        if frame is not None:
            following = _mp3_frame(_bytes_at(file, at + sync + frame.n_bytes, 4))
            if following is not None and following.kind == frame.kind:
                return at + sync
        sync = head.find(b"\xff", sync + 1)
    return None


def _mp3_frame(head: bytes) -> _Mp3Frame | None:
    """The header in the first four bytes; None if it is none of layer III with a bit rate."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return None
    version, kbit_index, rate_index = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or not 1 <= kbit_index <= 14 or rate_index == 3:
        return None
    is_mpeg1, is_mono = version == 3, head[3] >> 6 == 3
    rate_hz = _RATES_HZ[version][rate_index]
    kbit = (_KBIT_MPEG1 if is_mpeg1 else _KBIT_MPEG2)[kbit_index - 1]
    side_bytes = (17 if is_mono else 32) if is_mpeg1 else (9 if is_mono else 17)
    return _Mp3Frame(
        kind=(version, rate_index),
        n_bytes=(144 if is_mpeg1 else 72) * 1000 * kbit // rate_hz + (head[2] >> 1 & 1),
        n_samples=1152 if is_mpeg1 else 576,
        xing_at=4 + side_bytes,
    )


def _bytes_at(file: BinaryIO, at: int, n_bytes: int) -> bytes:
    file.seek(at)
    return file.read(n_bytes)


# libsndfile drops the call's samples when a decoder fails inside it, so a small call loses little of a damaged file.
_CALL_FRAMES = 4096
_UNKNOWN_FRAMES = 1 << 62
# Encoders differ in whether the header's own frame and the decoder's delay count.
_MP3_TOLERANCE_S = 0.1


def open_sndfile(path: str, name: str) -> SndfileReader | None:
    """A reader of the regular file `path`; None without soundfile, or where libsndfile does not read it all.

    `name`: what messages call it. Raises AudioError for channels or a rate that speech does not come in.
    """
    try:
        import soundfile
    except (ImportError, OSError):
        return None

    class ForwardFile(soundfile.SoundFile):  # type: ignore[misc]
        """Read front to back: a seekable SoundFile seeks after each read, and MP3 then differs around every block."""

        def seekable(self) -> bool:
            return False

    try:
        scan = _scan(path)
    except OSError:
        return None
    if scan.container is None and path.lower().endswith(".mp3"):
        return None  # libsndfile takes for MP3 what it does not know and is called so
    if (scan.is_short or scan.goes_on) and shutil.which("ffmpeg") is not None:
        return None
    try:
        with hushed():
            file = ForwardFile(path)
    # TypeError and ValueError: soundfile itself looks at some extensions, such as .raw, and wants more arguments.
    except (RuntimeError, OSError, TypeError, ValueError):
        return None
    try:
        return SndfileReader(file, scan, path, name)
    except AudioError:
        file.close()
        raise


class SndfileReader:
    """Blocks of a file that libsndfile decodes, as wav.PcmReader. A loss is logged once, at the end of what is there.

    `n_frames`: what the file says, or libsndfile where it does not; None if neither knows.
    """

    is_float = True

    def __init__(self, file: Any, scan: _Scan, path: str, name: str) -> None:
        self.n_channels = int(file.channels)
        self.rate_hz = int(file.samplerate)
        check_layout(name, self.n_channels, self.rate_hz)
        # Encoders that wrote to a pipe leave the length open, which libsndfile reports as the largest number there is.
        n_frames = int(file.frames) if file.frames < _UNKNOWN_FRAMES else None
        self._stops_at_damage = file.format in ("FLAC", "MP3")
        self._scan = scan if scan.container == file.format else _Scan(container=None)
        is_right = self._scan.container is not None and not (scan.goes_on or scan.is_counted)
        # What the file promises; None where it does not say, or libsndfile would not know.
        self._stated = n_frames if is_right or file.format == "FLAC" else self._scan.counted
        self._is_mp3 = file.format == "MP3"
        self._tolerance = round(_MP3_TOLERANCE_S * self.rate_hz) if self._is_mp3 else 0
        self.n_frames: int | None = n_frames if file.format not in ("FLAC", "MP3", "OGG") else self._stated
        self._file = file
        self._path, self._name = path, name
        self._n_read = 0
        self._is_ended = False
        self._reason: str | None = None
        self._rest: FfmpegReader | None = None

    def read(self, n_frames: int) -> NDArray[np.float32]:
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
        self._file.close()
        if self._rest is not None:
            self._rest.close()

    def _next(self, n_frames: int) -> NDArray[np.float32]:
        if self._rest is not None:
            return _from_ffmpeg(self._rest, n_frames)
        try:
            with hushed() if self._is_mp3 else contextlib.nullcontext():
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
        n_frames = self._stated
        return self._reason is not None or (n_frames is not None and self._n_read < n_frames - self._tolerance)

    def _end(self) -> None:
        """Say once what is missing."""
        self._is_ended = True
        n_frames = self._stated
        if n_frames is not None and n_frames - self._n_read > self._tolerance:
            missing_s, said_s = (n_frames - self._n_read) / self.rate_hz, n_frames / self.rate_hz
            lost_seconds(_log, self._name, "cut short or damaged:", missing_s, said_s)
        elif self._scan.ends_inside:
            message = (
                "%s: cut short: it ends inside a frame; how much is missing cannot be known; reading what is there"
            )
            lost(_log, message, self._name)
        elif self._scan.goes_on:
            lost(_log, "%s: left out is more audio that was joined to its end; install ffmpeg to read it", self._name)
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
