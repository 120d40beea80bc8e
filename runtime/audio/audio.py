"""Any audio in, blocks of mono 16 kHz float32 out, in memory that does not grow with the length.

Content decides what a file is, never its extension: WAV is read by wav.py, FLAC, MP3, Ogg and AIFF by libsndfile,
everything else by the `ffmpeg` on PATH (codecs.py). Raw PCM is read as a RawFormat says. Pipes and file objects are
read front to back: WAV and raw PCM as they come, other formats from a temporary file, because containers such as MP4
need to be read out of order.

NaN and infinite samples become 0 with one logged warning, float samples are clipped to +-1, channels are averaged, and
soxr (quality "HQ") changes the rate as a stream. A file that breaks off gives what is there, with a warning; one
without a sample is an error. openai-whisper has ffmpeg do all this through 16-bit integers; here nothing is rounded.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import shutil
import stat
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, cast, overload

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, AudioNotFoundError, ResourceError, UsageError
from specedge.leftovers import Names, temporary_file

from ..console import silently, warn
from .codecs import FfmpegReader, open_sndfile
from .mel import Samples
from .wav import ByteReader, PcmReader, RawFormat, open_wav, sniff

__all__ = [
    "NO_SAMPLES",
    "SAMPLE_RATE",
    "STDIN",
    "AudioSource",
    "AudioStream",
    "HeldAudio",
    "RawFormat",
    "decode_audio",
    "expand_folders",
    "is_audio_name",
    "open_audio",
    "open_held",
    "take",
]

SAMPLE_RATE = 16_000
AudioSource = str | os.PathLike[str] | BinaryIO | NDArray[Any]
"""What `open_audio` takes."""
_log = logging.getLogger(__name__)
STDIN = "-"
NO_SAMPLES = "holds no audio samples"
"""How the message of the AudioError for audio without any samples ends."""
_ARRAY_TYPES = {"float16", "float32", "float64", "int16"}
_MAX_DURATION_S = 24 * 3600.0
_MAX_RATE_HZ = 768_000
_BLOCK_FRAMES = 16_384
_READ_SAMPLES = 1 << 20
_HEAD_BYTES = 4096
_MAGIC_BYTES = 16
_SPOOL_BYTES_MAX = 2 << 30
_EXTENSIONS = frozenset(
    ".3gp .aac .aif .aifc .aiff .alac .amr .ape .au .avi .caf .flac .flv .m2ts .m4a .m4b .m4v .mka .mkv .mov .mp2 .mp3"
    " .mp4 .mpeg .mpg .mts .oga .ogg .ogv .opus .ra .rf64 .snd .spx .w64 .wav .wave .webm .wma .wmv".split()
)


class _ArrayReader:
    """Blocks of a caller's array [n_samples], which is never copied whole. Raises AudioError for any other array."""

    n_channels = 1

    def __init__(self, samples: NDArray[Any], *, rate_hz: int) -> None:
        if samples.ndim != 1 or samples.dtype.name not in _ARRAY_TYPES:
            raise AudioError(
                f"array: shape {samples.shape} of {samples.dtype}; expected mono [n_samples] at {rate_hz} Hz,"
                " float in [-1, 1] or int16"
            )
        self.is_float = samples.dtype.kind == "f"
        self.n_frames: int | None = len(samples)
        self.rate_hz = rate_hz
        self._samples = samples
        self._at = 0

    def read(self, n_frames: int) -> NDArray[np.float32]:
        with np.errstate(over="ignore", invalid="ignore"):
            block = self._samples[self._at : self._at + n_frames].astype(np.float32)
        self._at += len(block)
        return (block if self.is_float else block * np.float32(1 / 32768))[:, None]

    def close(self) -> None:
        self._samples = self._samples[:0]


def take(waiting: list[NDArray[np.float32]], n_samples: int) -> NDArray[np.float32]:
    """Remove the first `n_samples` from `waiting`, fewer where there are fewer, and return them joined."""
    out: list[NDArray[np.float32]] = []
    n_left = n_samples
    while n_left > 0 and waiting:
        block = waiting[0]
        out.append(block[:n_left])
        n_left -= len(out[-1])
        if len(out[-1]) < len(block):
            waiting[0] = block[len(out[-1]) :]
        else:
            del waiting[0]
    return np.concatenate(out) if out else np.zeros(0, np.float32)


# At which byte, and with what.
_SIGNATURES = (
    (0, (b"fLaC", b"OggS", b"ID3", b".snd", b"caff", b"#!AMR", b"\x1aE\xdf\xa3", b"riff")),
    (0, (b"\xff\xf1", b"\xff\xf9", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", b"FLV\x01", b"wvPk", b"MAC ", b".RMF")),
    (4, (b"ftyp",)),
    (8, (b"WAVE", b"AIFF", b"AIFC", b"AVI ")),
)


def _begins_as_media(head: bytes) -> bool:
    """Whether a file of sound or video begins with these 16 bytes, whatever it is called."""
    return any(head.startswith(signatures, at) for at, signatures in _SIGNATURES)


class _BlockReader(Protocol):
    """Frames at the source's own rate and channels; see wav.PcmReader."""

    n_channels: int
    rate_hz: int
    n_frames: int | None
    is_float: bool

    def read(self, n_frames: int) -> NDArray[np.float32]: ...
    def close(self) -> None: ...


class AudioStream:
    """Float32 samples, by default mono at 16 kHz, read front to back. Made by `open_audio`; a context manager.

    `name`: what messages call it. `duration_s`: seconds, None where it is not known before the end; for files cut short
    and for pipes it is what the header says. Raises AudioError, also from `read`: a file may turn bad anywhere.
    """

    def __init__(
        self,
        reader: _BlockReader,
        *,
        name: str,
        max_duration_s: float,
        rate_hz: int = SAMPLE_RATE,
        n_channels: int = 1,
        block_frames: int = _BLOCK_FRAMES,
        resources: contextlib.ExitStack | None = None,
        reopen: Callable[[], AudioStream] | None = None,
    ) -> None:
        self.name = name
        self._n_channels = n_channels
        self._reopen = reopen
        self.duration_s: float | None = None if reader.n_frames is None else reader.n_frames / reader.rate_hz
        self._reader = reader
        self._block_frames = block_frames
        self._resources = contextlib.ExitStack() if resources is None else resources
        self._resources.callback(reader.close)
        self._max_duration_s = max_duration_s
        self._n_frames_max = max_duration_s * reader.rate_hz
        self._check_length(reader.n_frames or 0)
        self._n_frames_read = 0
        self._has_warned = self._is_repeat = self._is_ended = False
        self._resampler: Any = None
        if reader.rate_hz != rate_hz:
            self._resampler = _new_resampler(reader.rate_hz, rate_hz, n_channels, name)
        self._ready: list[NDArray[np.float32]] = []
        # The first block is decoded now, so that a source that cannot be read fails where it is opened.
        while not self._ready and not self._is_ended:
            self._fetch()
        if not self._ready:
            raise AudioError(f"{name}: {NO_SAMPLES}")

    def read(self, n_samples: int) -> NDArray[np.float32]:
        """The next samples, float32 [<= n_samples] in about [-1, 1]; fewer only at the end, then empty."""
        n_ready = sum(len(block) for block in self._ready)
        while n_ready < n_samples and not self._is_ended:
            n_ready += self._fetch()
        return take(self._ready, n_samples)

    @property
    def read_s(self) -> float:
        """Seconds of the source decoded so far."""
        return self._n_frames_read / self._reader.rate_hz

    @property
    def is_ended(self) -> bool:
        """Whether the source is decoded to its end, so that `read_s` is its true duration; or closed."""
        return self._is_ended

    def again(self) -> AudioStream | None:
        """The same audio from its beginning in a stream of its own; None for pipes and file objects, read once only.

        Errors: as `open_audio`; a file may have gone since.
        """
        if self._reopen is None:
            return None
        with silently():
            stream = self._reopen()
        stream._is_repeat = True
        return stream

    def close_with(self, resources: contextlib.ExitStack) -> None:
        """Close `resources` behind this stream."""
        resources.callback(self._resources.close)
        self._resources = resources

    def close(self) -> None:
        """Close what was opened here; a file object that was passed in stays open."""
        self._is_ended = True
        self._ready = []
        self._resources.close()

    def __enter__(self) -> AudioStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _fetch(self) -> int:
        """Decode one block into `_ready`; how many 16 kHz samples came."""
        with silently() if self._is_repeat else contextlib.nullcontext():
            block = self._reader.read(self._block_frames)
        self._is_ended = len(block) < self._block_frames
        self._n_frames_read += len(block)
        self._check_length(self._n_frames_read)
        if self._reader.is_float:
            block = self._clean(block)
        mixed = _mono(block) if self._n_channels == 1 else block[:, [0, min(1, block.shape[1] - 1)]]
        if self._resampler is not None:
            mixed = self._resampler.resample_chunk(mixed, last=self._is_ended)
        if len(mixed):
            self._ready.append(mixed)
        return len(mixed)

    def _check_length(self, n_frames: int) -> None:
        if n_frames > self._n_frames_max:
            raise AudioError(f"{self.name}: longer than {self._max_duration_s / 3600:g} h; cut it into parts")

    def _clean(self, block: NDArray[np.float32]) -> NDArray[np.float32]:
        finite = np.isfinite(block)
        if not finite.all():
            if not (self._has_warned or self._is_repeat):
                warn(_log, "%s: holds samples that are NaN or infinite; they are read as silence", self.name)
            self._has_warned = True
            block = np.where(finite, block, np.float32(0))
        return np.clip(block, np.float32(-1), np.float32(1))


def _mono(block: NDArray[np.float32]) -> NDArray[np.float32]:
    mono = block[:, 0].copy()
    for channel in range(1, block.shape[1]):
        mono += block[:, channel]
    return mono if block.shape[1] == 1 else mono / np.float32(block.shape[1])


def open_audio(
    source: AudioSource,
    *,
    raw: RawFormat | None = None,
    max_duration_s: float = _MAX_DURATION_S,
    rate_hz: int = SAMPLE_RATE,
    n_channels: int = 1,
    block_frames: int = _BLOCK_FRAMES,
    name: str | None = None,
) -> AudioStream:
    """Open a path, "-" (standard input), a binary file object, or an array float or int16 [n_samples] at 16 kHz.

    `raw`: read headerless PCM laid out like this. `max_duration_s`: longer audio is refused, or stops with an error
    where the length shows only while reading. `n_channels`: 1 averages all channels, 2 gives the first two as
    [n_samples, 2], of which a lone one is both. `block_frames`: how many frames are waited for at a time; few where the
    audio is being recorded. `name`: what messages call a path, by default the path itself.

    Raises AudioError (missing, unreadable, undecodable, empty, too long), UsageError (not a source at all) and
    ResourceError (no room for the temporary copy of a pipe).
    """
    resources = contextlib.ExitStack()
    reader: _BlockReader
    layout: dict[str, Any] = {"max_duration_s": max_duration_s, "rate_hz": rate_hz, "n_channels": n_channels}
    reopen: Callable[[], AudioStream] | None = functools.partial(open_audio, source, raw=raw, name=name, **layout)
    try:
        if isinstance(source, np.ndarray):
            if raw is not None:
                raise UsageError("a raw format is for files and pipes; an array already holds samples")
            name, reader = "array", _ArrayReader(source, rate_hz=SAMPLE_RATE)
        elif isinstance(source, (str, os.PathLike)) and os.fspath(source) != STDIN:
            path = os.fspath(source)
            name = name or path
            reader = _open_path(path, name, raw, resources)
            if not os.path.isfile(path):
                reopen = None
        else:
            reopen = None
            file, name = (_stdin(), "stdin") if isinstance(source, (str, os.PathLike)) else (source, _name_of(source))
            reader = _open_bytes(ByteReader(file, name, remaining=_n_bytes_left(file)), None, raw, resources)
        return AudioStream(reader, name=name, block_frames=block_frames, resources=resources, reopen=reopen, **layout)
    except BaseException:
        resources.close()
        raise


def _open_path(path: str, name: str, raw: RawFormat | None, resources: contextlib.ExitStack) -> _BlockReader:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise AudioError(f"{name}: is a folder; name an audio file")
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            raise AudioError(f"{name}: is a device, not an audio file; to record, pipe raw samples to standard input")
        file = resources.enter_context(open(path, "rb"))
    except FileNotFoundError:
        hint = "; specedge reads local files, so download it first" if "://" in path else ""
        raise AudioNotFoundError(f"{name}: no such file{hint}") from None
    except PermissionError:
        raise AudioError(f"{name}: permission denied") from None
    except (OSError, ValueError) as error:
        raise AudioError(f"{name}: cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    is_regular = stat.S_ISREG(status.st_mode)
    source = ByteReader(file, name, remaining=status.st_size if is_regular else None)
    reader = _open_bytes(source, path if is_regular else None, raw, resources)
    if not isinstance(reader, PcmReader):
        file.close()  # the decoder has opened the path itself
    return reader


def _open_bytes(
    source: ByteReader, path: str | None, raw: RawFormat | None, resources: contextlib.ExitStack
) -> _BlockReader:
    """A reader of whatever begins at `source`; `path` is that of a regular file that holds just these bytes."""
    # Raw PCM may come from a microphone, whose first bytes should not wait for a full head.
    head = source.peek(_HEAD_BYTES if raw is None else 1)
    if not head:
        raise AudioError(f"{source.name}: is empty")
    if raw is not None:
        return PcmReader(source, encoding=raw.encoding, n_channels=raw.n_channels, rate_hz=raw.rate_hz)
    kind = sniff(head)
    if kind == "pcm":
        return open_wav(source)
    is_file = path is not None
    if path is None:
        path = _spool(source, resources)
    # libsndfile's decoders of the rarer WAV codecs have a record of overflows (ADPCM); those go to a process of their
    # own.
    reader = None if kind == "codec" else open_sndfile(path, source.name)
    try:
        if reader is None and kind is None and shutil.which("ffmpeg") is None and not _begins_as_media(head):
            raise AudioError(
                f"{source.name}: this is no audio: it begins as no sound or video file does; what is rarer needs an "
                "ffmpeg on PATH"
            )
        return reader or FfmpegReader(path, source.name)
    except AudioError as error:
        if is_file:
            raise
        raise AudioError(
            f"{error}; if these are samples without a header, say how they lie: --raw s16le:16000"
        ) from None


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise AudioError("stdin: is closed; pipe audio into it, or name a file")
    if sys.stdin.isatty():
        raise AudioError("stdin: is a terminal; pipe audio into it, for example: specedge transcribe - < talk.wav")
    return sys.stdin.buffer


def _name_of(file: object) -> str:
    if not hasattr(file, "read"):
        raise UsageError(
            f"cannot read audio from {type(file).__name__}; expected a path, a binary file object or a NumPy array"
        )
    name = getattr(file, "name", None)
    return name if isinstance(name, str) and name else "audio"


def _n_bytes_left(file: Any) -> int | None:
    """From where the file stands to its end; None for what is no file that can seek."""
    try:
        if not file.seekable() or _is_device(file):
            return None
        at: int = file.tell()
        end: int = file.seek(0, os.SEEK_END)
        file.seek(at)
    except (AttributeError, OSError, ValueError):
        return None
    return max(0, end - at)


def _is_device(file: BinaryIO) -> bool:
    """Whether it is one such as /dev/zero, which can be sought and has no end."""
    try:
        return not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # bytes in memory
        return False


def _spool(source: ByteReader, resources: contextlib.ExitStack) -> str:
    """Copy what is left of `source` to a temporary file that goes when `resources` do; its path."""
    try:
        names = Names(parent=Path(tempfile.gettempdir()), prefix="specedge-audio-")
        held = temporary_file(names)
        path = held.__enter__()
        remove = weakref.finalize(resources, held.__exit__, None, None, None)
        resources.callback(remove)
        with open(path, "wb") as copy:
            n_bytes = 0
            while block := source.read(1 << 20):
                n_bytes += len(block)
                if source.remaining is None and n_bytes > _SPOOL_BYTES_MAX:
                    raise AudioError(f"{source.name}: over {_SPOOL_BYTES_MAX >> 30} GiB; save it as a file first")
                copy.write(block)
    except OSError as error:
        reason = "no space left" if error.errno == errno.ENOSPC else error.strerror
        raise ResourceError(f"{source.name}: the temporary copy in {tempfile.gettempdir()} failed: {reason}") from error
    return str(path)


def _new_resampler(from_hz: int, to_hz: int, n_channels: int, name: str) -> Any:
    try:
        import soxr
    except (ImportError, OSError) as error:
        raise AudioError(f"{name}: {from_hz} Hz must be resampled by soxr: pip install soxr ({error})") from error
    return soxr.ResampleStream(from_hz, to_hz, n_channels, dtype="float32", quality="HQ")


class HeldAudio:
    """Reads like `stream`; `peek` looks ahead."""

    def __init__(self, stream: Samples) -> None:
        self._stream = stream
        self._held = np.zeros(0, np.float32)

    def peek(self, n_samples: int) -> NDArray[np.float32]:
        """The next samples, fewer at the end, which will be read again."""
        n_missing = n_samples - len(self._held)
        if n_missing > 0:
            self._held = np.concatenate([self._held, self._stream.read(n_missing)])
        return self._held[:n_samples]

    def read(self, n_samples: int) -> NDArray[np.float32]:
        block, self._held = self._held[:n_samples], self._held[n_samples:]
        n_missing = n_samples - len(block)
        return np.concatenate([block, self._stream.read(n_missing)]) if n_missing else block


def open_held(source: AudioSource) -> AudioStream:
    """`open_audio`, but a file object that can seek is first copied to a temporary file, from where it stands.

    So `with open(...) as f: segments, info = model.transcribe(f)` may read its segments after the block, as with
    faster-whisper. Raises AudioError, UsageError and ResourceError, as `open_audio`.
    """
    n_bytes = _n_bytes_left(source)
    if n_bytes is None:
        return open_audio(source)
    name = _name_of(source)
    resources = contextlib.ExitStack()
    try:
        copy = _spool(ByteReader(cast(BinaryIO, source), name, remaining=n_bytes), resources)
        stream = open_audio(copy, name=name)
    except BaseException:
        resources.close()
        raise
    stream.close_with(resources)
    return stream


@overload
def decode_audio(
    input_file: AudioSource, sampling_rate: int = ..., split_stereo: Literal[False] = ...
) -> NDArray[np.float32]: ...


@overload
def decode_audio(
    input_file: AudioSource, sampling_rate: int = ..., *, split_stereo: Literal[True]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...


def decode_audio(
    input_file: AudioSource, sampling_rate: int = 16_000, split_stereo: bool = False
) -> NDArray[np.float32] | tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A whole file as float32 [n_samples] at `sampling_rate` Hz, channels averaged; with `split_stereo` (left, right).

    `input_file`: what `open_audio` takes. One channel is left and right alike; of more than two the first two are.
    Raises AudioError, ResourceError, UsageError as `open_audio`.
    """
    if not 1 <= sampling_rate <= _MAX_RATE_HZ:
        raise UsageError(f"sampling_rate: got {sampling_rate!r}, expected 1 to {_MAX_RATE_HZ} Hz")
    blocks = []
    with open_audio(input_file, rate_hz=sampling_rate, n_channels=2 if split_stereo else 1) as stream:
        while len(block := stream.read(_READ_SAMPLES)):
            blocks.append(block)
    samples = np.concatenate(blocks)
    return (samples[:, 0].copy(), samples[:, 1].copy()) if split_stereo else samples


def expand_folders(
    names: Sequence[str], *, notify: Callable[[str], None], report: Callable[[Exception], None]
) -> list[str]:
    """`names` with every folder replaced by the audio files in it.

    `notify` is told how many each folder holds; `report` gets the AudioError of a folder that holds none or cannot be
    read. Raises that error when the folder is the only name.
    """
    files: list[str] = []
    for name in names:
        if name == STDIN or not os.path.isdir(name):
            files.append(name)
            continue
        try:
            found = list(_audio_files(name))
            if not found:
                raise AudioError(f"{name}: no audio file is in this folder")
        except AudioError as error:
            if len(names) == 1:
                raise
            report(error)
            continue
        notify(f"{name}: {len(found)} audio file{'s' if len(found) > 1 else ''}")
        files += found
    return files


def _audio_files(folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise AudioError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from None

    paths = []
    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(place, name) for name in files if not name.startswith(".")]
    for path in sorted(paths):
        if path.is_file() and _is_audio(path):
            yield str(path)


def is_audio_name(name: str) -> bool:
    """Whether the extension of `name` is one that audio has."""
    return os.path.splitext(name)[1].lower() in _EXTENSIONS


def _is_audio(path: Path) -> bool:
    if is_audio_name(path.name):
        return True
    try:
        with open(path, "rb") as file:
            head = file.read(_MAGIC_BYTES)
    except OSError:
        return False
    return _begins_as_media(head)
