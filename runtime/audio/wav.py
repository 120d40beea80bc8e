"""Samples without a codec, raw or in a plain WAVE file, read front to back, also from a pipe that is being written.

FFmpeg gets the WAVE files that hold anything but plain PCM. Of the others its demuxer would read two seconds of a pipe
ahead, in case they are DTS, take RIFX for little-endian, and not tell that a file is cut short. It takes ten times as
long, too.
"""

from __future__ import annotations

import logging
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, UsageError

from ..console import LOSS, lost_seconds, warn

_log = logging.getLogger(__name__)
N_CHANNELS_MAX = 8
RATE_HZ_MIN = 1_000
RATE_HZ_MAX = 384_000
_IO_BYTES = 1 << 20
# A writer that cannot seek back leaves 0 or a placeholder near one of these (ffmpeg 0xFFFFFFFF, sox 0x7FFFFFFF less its
# header).
_PLACEHOLDER_BYTES = 0x7FFF0000
_DTYPES = {"u8": "u1", "s16": "i2", "s24": "i4", "s32": "i4", "f32": "f4", "f64": "f8"}
ENCODINGS = ("u8", *(f"{kind}{order}" for kind in ("s16", "s24", "s32", "f32", "f64") for order in ("le", "be")))
"""The sample encodings of raw PCM, by ffmpeg's names."""
_KINDS = {1: "s", 3: "f"}  # by the format tag of a WAVE file: PCM and IEEE float
_TAG_EXTENSIBLE = 0xFFFE
_LEFT_OUT_S = 0.1  # bytes behind the samples that are worth a word


class Block(NamedTuple):
    """Frames: samples [n_frames, n_channels] as u1, i2, i4, f4 or f8; `layout` names the channels for FFmpeg."""

    samples: NDArray[np.generic]
    rate_hz: int
    layout: str


def decode_samples(data: bytes, encoding: str) -> NDArray[np.generic]:
    """The samples [n] of a whole number of them, in the machine's own order; 24 bits become the upper ones of 32."""
    kind = encoding[:3]
    order: Literal["<", ">"] = ">" if encoding.endswith("be") else "<"
    if kind == "s24":
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        first = 0 if order == ">" else 1
        wide[:, first : first + 3] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        data = wide.tobytes()
    stored = np.frombuffer(data, np.dtype(_DTYPES[kind]).newbyteorder(order))
    return stored.astype(_DTYPES[kind], copy=False)


def to_float(samples: NDArray[np.generic]) -> NDArray[np.float32]:
    """Samples as float32, integers scaled to [-1, 1); floats as they are."""
    kind, n_bits = samples.dtype.kind, 8 * samples.dtype.itemsize
    if kind == "u":
        return (samples.astype(np.float32) - np.float32(128)) * np.float32(1 / 128)
    with np.errstate(over="ignore", invalid="ignore"):
        values = samples.astype(np.float32)
    return values * np.float32(2.0 ** (1 - n_bits)) if kind == "i" else values


def check_layout(name: str, n_channels: int, rate_hz: int) -> None:
    """AudioError unless the channel count and the rate (Hz) are ones that speech comes in."""
    if not 1 <= n_channels <= N_CHANNELS_MAX:
        raise AudioError(f"{name}: {n_channels} channels; specedge reads 1 to {N_CHANNELS_MAX}")
    if not RATE_HZ_MIN <= rate_hz <= RATE_HZ_MAX:
        raise AudioError(f"{name}: a sample rate of {rate_hz} Hz; specedge reads {RATE_HZ_MIN} to {RATE_HZ_MAX} Hz")


@dataclass(frozen=True)
class RawFormat:
    """How headerless PCM lies: one of ENCODINGS, the rate, interleaved channels. UsageError if that cannot be."""

    encoding: str
    rate_hz: int
    n_channels: int = 1

    def __post_init__(self) -> None:
        if self.encoding not in ENCODINGS:
            raise UsageError(f"raw format: unknown encoding {self.encoding!r}; expected one of {', '.join(ENCODINGS)}")
        try:
            check_layout("raw format", self.n_channels, self.rate_hz)
        except AudioError as error:
            raise UsageError(str(error)) from None

    @classmethod
    def parse(cls, text: str) -> RawFormat:
        """From ENCODING:RATE[:CHANNELS], such as "s16le:16000" or "f32le:48000:2"; UsageError otherwise."""
        encoding, *numbers = text.strip().lower().split(":")
        if not 1 <= len(numbers) <= 2 or not all(n.isascii() and n.isdigit() and len(n) <= 9 for n in numbers):
            raise UsageError(
                f"raw format {text!r}: expected ENCODING:RATE or ENCODING:RATE:CHANNELS, for example s16le:16000"
            )
        return cls(encoding, *(int(n) for n in numbers))

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of every channel."""
        return self.n_channels * (int(self.encoding[1:3].rstrip("le")) // 8)


def find_samples(head: bytes, name: str) -> tuple[int, int | None, RawFormat] | None:
    """Where in a WAVE file the samples begin, how many bytes of them it says there are, and how they lie.

    None, for FFmpeg to find out, where `head`, the file's first bytes, is not the whole header of plain PCM.
    Raises AudioError for channels and a rate that `check_layout` refuses.
    """
    order = {b"RIFF": "<", b"RF64": "<", b"RIFX": ">"}.get(head[:4])
    if order is None or head[8:12] != b"WAVE":
        return None
    at, raw, long_bytes = 12, None, None
    while at + 8 <= len(head):
        tag, size = struct.unpack_from(f"{order}4sI", head, at)
        at += 8
        if tag == b"data":
            said_bytes = size if 0 < size < _PLACEHOLDER_BYTES else long_bytes
            return None if raw is None else (at, said_bytes, raw)
        if tag == b"fmt " and size >= 16:
            raw = _plain_format(head[at : at + size], order, name)
        elif tag == b"ds64" and at + 16 <= len(head):
            (long_bytes,) = struct.unpack_from("<Q", head, at + 8)
        at += size + size % 2
    return None


def _plain_format(fmt: bytes, order: str, name: str) -> RawFormat | None:
    """What a `fmt ` chunk says of PCM, after Microsoft's WAVEFORMATEXTENSIBLE; None if it is none."""
    codec, n_channels, rate_hz, _, frame_bytes, n_bits = struct.unpack_from(f"{order}HHIIHH", fmt.ljust(16, b"\0"))
    if codec == _TAG_EXTENSIBLE and order == "<" and n_channels <= 2:  # FFmpeg knows what more channels are
        codec = int.from_bytes(fmt[24:26], "little")
    if n_bits == 24 and frame_bytes == 4 * n_channels:
        n_bits = 32  # padded
    ending = "le" if order == "<" else "be"
    encoding = "u8" if (codec, n_bits) == (1, 8) else f"{_KINDS.get(codec)}{n_bits}{ending}"
    if encoding not in ENCODINGS:
        return None
    check_layout(name, n_channels, rate_hz)
    return RawFormat(encoding, rate_hz, n_channels)


class ByteReader:
    """Full-length reads from a binary file, seekable or not; a short one means the end.

    `remaining`: the bytes from here to the end where that is known (the file can then seek), else None.
    Raises AudioError where the file cannot be read or gives no bytes.
    """

    def __init__(self, file: BinaryIO | IO[bytes], name: str, *, remaining: int | None = None) -> None:
        self.name = name
        self.remaining = remaining
        self._file = file
        self._head = b""

    def peek(self, n_bytes: int) -> bytes:
        """The next bytes, at most `n_bytes`, which `read` will give again."""
        if self.remaining is not None:  # files such as /proc/kmsg have no length, and reading would wait
            n_bytes = min(n_bytes, self.remaining)
        if len(self._head) < n_bytes:
            self._head += self._pull(n_bytes - len(self._head))
        return self._head[:n_bytes]

    def read(self, n_bytes: int) -> bytes:
        """The next `n_bytes` bytes; fewer only at the end."""
        if self.remaining is not None:
            n_bytes = min(n_bytes, self.remaining)
        block, self._head = self._head[:n_bytes], self._head[n_bytes:]
        if len(block) < n_bytes:
            block += self._pull(n_bytes - len(block))
        if self.remaining is not None:
            self.remaining -= len(block)
        return block

    def _pull(self, n_bytes: int) -> bytes:
        parts: list[bytes] = []
        while n_bytes > 0:
            try:
                part = self._file.read(min(n_bytes, _IO_BYTES))
            except (OSError, ValueError) as error:
                raise AudioError(f"{self.name}: cannot be read: {error}") from error
            if not isinstance(part, (bytes, bytearray, memoryview)):
                raise AudioError(
                    f"{self.name}: reading gave {type(part).__name__}, not bytes; open the file in binary mode"
                )
            if not part:
                break
            parts.append(bytes(part[:n_bytes]))
            n_bytes -= len(parts[-1])
        return b"".join(parts)


class PcmReader:
    """Blocks of PCM laid out as `raw` says. `duration_s`: of all there is, None where nobody knows.

    said_bytes: how many bytes of samples a WAVE file's header promises, None for all that come. It is said once, at the
    end, what is missing of them, or that something other than chunks lies behind them. Errors: AudioError.
    """

    def __init__(self, source: ByteReader, raw: RawFormat, said_bytes: int | None = None) -> None:
        self._source, self._raw, self._said_bytes = source, raw, said_bytes
        known = [limit for limit in (said_bytes, source.remaining) if limit is not None]
        self.duration_s = min(known) // raw.frame_bytes / raw.rate_hz if known else None

    def blocks(self, n_frames: int) -> Iterator[Block]:
        """All there is in blocks of `n_frames`, the last one shorter; part of a frame at the end is dropped."""
        raw, layout = self._raw, f"{self._raw.n_channels} channels"
        n_left = sys.maxsize if self._said_bytes is None else self._said_bytes
        is_ended = False
        while not is_ended:
            wanted = min(n_frames * raw.frame_bytes, n_left)
            data = self._source.read(wanted)
            n_left -= len(data)
            is_ended = len(data) < max(wanted, 1)
            if is_ended and self._said_bytes is not None:  # before the last block: who has that may ask for no more
                self._tell_rest(self._said_bytes, n_left)
            data = data[: len(data) - len(data) % raw.frame_bytes]
            if data:
                yield Block(decode_samples(data, raw.encoding).reshape(-1, raw.n_channels), raw.rate_hz, layout)

    def _tell_rest(self, said_bytes: int, missing_bytes: int) -> None:
        name, a_second = self._source.name, self._raw.frame_bytes * self._raw.rate_hz
        if missing_bytes:
            lost_seconds(_log, name, "cut short: the last", missing_bytes / a_second, said_bytes / a_second)
            return
        behind = self._source.read(_IO_BYTES)[said_bytes % 2 :]
        tag = behind[:4].decode("latin-1")
        is_chunk = tag.isascii() and tag.isprintable() and tag != "RIFF"
        if len(behind) > _LEFT_OUT_S * a_second and not is_chunk:
            message = "%s: its header ends the samples before the file does; what lies behind them is left out"
            warn(_log, message, name, level=LOSS)
