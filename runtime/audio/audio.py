"""Any audio in, blocks of mono 16 kHz float32 out, in memory that does not grow with the length.

Content decides what a file is, never its extension: PCM in WAV, and raw PCM as a RawFormat says, are read by wav.py,
everything else by PyAV (media.py). Pipes and file objects are read front to back: PCM as it comes, other formats from a
temporary file, because containers such as MP4 need to be read out of order.

The samples are faster-whisper's: FFmpeg's resampler mixes the channels and changes the rate in 16-bit integers. Mono
integers and PCM at the wanted rate stay as they are. NaN and infinite samples become 0, floats on the scale of 16-bit
integers are divided by 32768, and of two channels that cancel each other the louder one is taken, each with one logged
warning. A file that breaks off gives what is there, with a warning; one without a sample is an error.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import stat
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, overload

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, AudioNotFoundError, ResourceError, UsageError, refuse
from specedge.leftovers import Names, temporary_file

from ..console import silently, warn
from .media import MediaReader, Resampler
from .wav import Block, ByteReader, PcmReader, find_samples, to_float
from .wav import RawFormat as RawFormat

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
_SPOOL_BYTES_MAX = 2 << 30
_FLOAT_PEAK_MAX = 16.0  # floats that are louder are none of [-1, 1]
_AUDIBLE_POWER = 1e-6  # mean of a sample at -60 dB of full scale
_CANCELLED = 0.01  # of the louder channel's power
_EXTENSIONS = frozenset(
    ".3gp .aac .aif .aifc .aiff .alac .amr .ape .au .avi .caf .flac .flv .m2ts .m4a .m4b .m4v .mka .mkv .mov .mp2 .mp3"
    " .mp4 .mpeg .mpg .mts .oga .ogg .ogv .opus .ra .rf64 .snd .spx .w64 .wav .wave .webm .wma .wmv".split()
)


class _ArrayReader:
    """Blocks of a caller's array [n_samples], which is never copied whole. Raises AudioError for any other array."""

    def __init__(self, samples: NDArray[Any]) -> None:
        if samples.ndim != 1 or samples.dtype.name not in _ARRAY_TYPES:
            raise AudioError(
                f"array: shape {samples.shape} of {samples.dtype}; expected mono [n_samples] at {SAMPLE_RATE} Hz,"
                " float in [-1, 1] or int16"
            )
        self.duration_s: float | None = len(samples) / SAMPLE_RATE
        self._samples = samples

    def blocks(self, n_frames: int) -> Iterator[Block]:
        dtype = np.float32 if self._samples.dtype.kind == "f" else np.int16
        for at in range(0, len(self._samples), n_frames):
            with np.errstate(over="ignore", invalid="ignore"):
                block = self._samples[at : at + n_frames].astype(dtype)
            yield Block(block[:, None], SAMPLE_RATE, "mono")


_Reader = _ArrayReader | PcmReader | MediaReader


def quietest(samples: NDArray[np.float32], n_quiet: int) -> int:
    """The middle of the `n_quiet` samples in a row that have the least energy; of fewer samples their end."""
    if len(samples) <= n_quiet:
        return len(samples)
    energy = np.concatenate([[0.0], np.cumsum(np.square(samples, dtype=np.float64))])
    return int(np.argmin(energy[n_quiet:] - energy[:-n_quiet])) + n_quiet // 2


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


class AudioStream(contextlib.AbstractContextManager["AudioStream"]):
    """Float32 samples, by default mono at 16 kHz, read front to back. Made by `open_audio`; a context manager.

    `name`: what messages call it. `duration_s`: seconds, None where it is not known before the end; for files cut short
    and for pipes it is what the header says. `is_ended`: whether the source is decoded to its end, so that `read_s` is
    its true duration; or closed. Raises AudioError, also from `read`: a file may turn bad anywhere.
    """

    def __init__(
        self,
        reader: _Reader,
        *,
        name: str,
        max_duration_s: float,
        rate_hz: int,
        n_channels: int,
        block_frames: int,
        resources: contextlib.ExitStack,
        reopen: Callable[[], AudioStream] | None,
    ) -> None:
        self.name = name
        self._rate_hz, self._n_channels = rate_hz, n_channels
        self._reopen = reopen
        self.duration_s: float | None = reader.duration_s
        self._is_coded = isinstance(reader, MediaReader)
        self._blocks = reader.blocks(block_frames)
        self._resources = resources
        self._max_duration_s = max_duration_s
        self._check_length(reader.duration_s or 0.0)
        self._n_read: dict[int, int] = {}  # frames by their rate
        self._is_repeat = self.is_ended = False
        self._warned: set[str] = set()
        self._scale: float | None = None
        self._channel: int | None = None  # the one that is taken of two that cancel each other
        self._resampler = Resampler(rate_hz, n_channels)
        self._ready: list[NDArray[np.float32]] = []
        # The first block is decoded now, so that a source that cannot be read fails where it is opened.
        while not self._ready and not self.is_ended:
            self._fetch()
        if not self._ready and not isinstance(reader, _ArrayReader):  # of a program's empty array there is no text
            raise AudioError(f"{name}: {NO_SAMPLES}")

    def read(self, n_samples: int) -> NDArray[np.float32]:
        """The next samples, float32 [<= n_samples] in about [-1, 1]; fewer only at the end, then empty."""
        n_ready = sum(len(block) for block in self._ready)
        while n_ready < n_samples and not self.is_ended:
            n_ready += self._fetch()
        return take(self._ready, n_samples)

    @property
    def read_s(self) -> float:
        """Seconds of the source decoded so far."""
        return sum(n_frames / rate_hz for rate_hz, n_frames in self._n_read.items())

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

    def close(self) -> None:
        """Close what was opened here; a file object that was passed in stays open."""
        self.is_ended = True
        self._ready = []
        self._resources.close()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _fetch(self) -> int:
        """Decode one block into `_ready`; how many samples came."""
        with silently() if self._is_repeat else contextlib.nullcontext():
            block = next(self._blocks, None)
            if block is None:
                self.is_ended = True
                samples = self._resampler.finish()
            else:
                self._n_read[block.rate_hz] = self._n_read.get(block.rate_hz, 0) + len(block.samples)
                self._check_length(self.read_s)
                samples = self._converted(block)
        if len(samples):
            self._ready.append(samples)
        return len(samples)

    def _check_length(self, duration_s: float) -> None:
        if duration_s > self._max_duration_s:
            raise AudioError(f"{self.name}: longer than {self._max_duration_s / 3600:g} h; cut it into parts")

    def _converted(self, block: Block) -> NDArray[np.float32]:
        """The block at the wanted rate and channels."""
        is_float = block.samples.dtype.kind == "f"
        if is_float:
            block = block._replace(samples=self._clean(block.samples))
        if self._n_channels == 1 and block.samples.shape[1] == 2:
            block = self._without_cancelling(block)
        n_channels = block.samples.shape[1]
        if n_channels == 1 and block.rate_hz == self._rate_hz and not (is_float and self._is_coded):
            samples = np.clip(to_float(block.samples), np.float32(-1), np.float32(1))
            return samples[:, 0] if self._n_channels == 1 else samples[:, [0, 0]]
        if n_channels < self._n_channels:
            block = Block(block.samples[:, [0, 0]], block.rate_hz, "stereo")
        return self._resampler.resample(block)

    def _clean(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Floats without NaN and infinity, on the scale of 1."""
        finite = np.isfinite(samples)
        if not finite.all():
            self._warn_once("holds samples that are NaN or infinite; they are read as silence")
            samples = np.where(finite, samples, samples.dtype.type(0))
        peak = float(np.abs(samples).max(initial=0))
        if self._scale is None and (peak > _FLOAT_PEAK_MAX or (peak > 1 and (samples == np.rint(samples)).all())):
            self._scale = 1 / 32768
            self._warn_once("its float samples are on the scale of 16-bit integers; they are divided by 32768")
        return samples if self._scale is None else samples * samples.dtype.type(self._scale)

    def _without_cancelling(self, block: Block) -> Block:
        """The louder of two channels where their mean would be next to nothing, here and in what follows."""
        if self._channel is None:
            samples = to_float(block.samples)
            powers = np.square(samples).mean(axis=0)
            if powers.max() > _AUDIBLE_POWER and np.square(samples.mean(axis=1)).mean() < _CANCELLED * powers.max():
                self._channel = int(powers.argmax())
                side = ("left", "right")[self._channel]
                self._warn_once(f"its two channels cancel each other (antiphase); the {side} one is taken")
        return block if self._channel is None else Block(block.samples[:, [self._channel]], block.rate_hz, "mono")

    def _warn_once(self, what: str) -> None:
        if what not in self._warned:
            warn(_log, "%s: %s", self.name, what)
        self._warned.add(what)


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
    reader: _Reader
    layout: dict[str, Any] = {"max_duration_s": max_duration_s, "rate_hz": rate_hz, "n_channels": n_channels}
    reopen: Callable[[], AudioStream] | None = functools.partial(open_audio, source, raw=raw, name=name, **layout)
    try:
        if isinstance(source, np.ndarray):
            if raw is not None:
                raise UsageError("a raw format is for files and pipes; an array already holds samples")
            name, reader = "array", _ArrayReader(source)
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


def _open_path(path: str, name: str, raw: RawFormat | None, resources: contextlib.ExitStack) -> _Reader:
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
    return _open_bytes(source, path if is_regular else None, raw, resources)


def _open_bytes(
    source: ByteReader, path: str | None, raw: RawFormat | None, resources: contextlib.ExitStack
) -> _Reader:
    """A reader of whatever begins at `source`; `path` is that of a regular file that holds just these bytes."""
    # Raw PCM may come from a microphone, whose first bytes should not wait for a full head.
    head = source.peek(_HEAD_BYTES if raw is None else 1)
    if not head:
        raise AudioError(f"{source.name}: is empty")
    if raw is not None:
        return PcmReader(source, raw)
    if (found := find_samples(head, source.name)) is not None:
        begins_at, said_bytes, raw = found
        source.read(begins_at)
        return PcmReader(source, raw, said_bytes)
    try:
        file = open(path or _spool(source, resources), "rb")
        resources.callback(weakref.finalize(resources, file.close))
        reader = MediaReader(file, source.name)
        resources.callback(reader.close)
        return reader
    except AudioError as error:
        if path is not None:
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
    """From where the file stands to its end; None for none, and where nobody can know: for a pipe, and /dev/zero."""
    try:
        if not file.seekable():
            return None
        at: int = file.tell()
        end: int = file.seek(0, os.SEEK_END)
        file.seek(at)
    except (AttributeError, OSError, ValueError):
        return None
    return end - at if end > at else None


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
    resources.callback(stream._resources.close)  # before the copy goes
    stream._resources = resources
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
    samples = np.concatenate(blocks or [np.zeros(0, np.float32)])
    return (samples[:, 0].copy(), samples[:, 1].copy()) if split_stereo else samples


def expand_folders(
    names: Sequence[str], *, notify: Callable[[str], None], report: Callable[[Exception], None] = refuse
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
            found = _audio_files(name)
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


def _audio_files(folder: str) -> list[str]:
    def stop(error: OSError) -> None:
        raise AudioError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from None

    paths: list[Path] = []
    for place, folders, files in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(place, name) for name in files if is_audio_name(name)]
    return [str(path) for path in sorted(paths) if path.is_file()]


def is_audio_name(name: str) -> bool:
    """Whether this is no hidden file, and its extension is one that audio has."""
    return not os.path.basename(name).startswith(".") and os.path.splitext(name)[1].lower() in _EXTENSIONS
