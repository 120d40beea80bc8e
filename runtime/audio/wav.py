"""Samples out of bytes: raw PCM and RIFF/WAVE files, read front to back, also from a pipe that is being written.

After the "Multimedia Programming Interface and Data Specifications 1.0" (RIFF, WAVE), Microsoft's WAVEFORMATEXTENSIBLE
and EBU Tech 3306 (RF64: a `ds64` chunk carries 64-bit lengths); RIFX, the big-endian form, is read too. Every number in
a header is a claim: lengths are cut to the bytes that are there, channels and rate must lie within fixed limits, the
walk over the chunks is bounded, and no allocation is larger than the block that was asked for.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, UsageError

from ..console import lost, lost_seconds

_log = logging.getLogger(__name__)
N_CHANNELS_MAX = 8
RATE_HZ_MIN = 1_000
RATE_HZ_MAX = 384_000
# A header of more chunks, or more bytes to read past, than these is no header anybody wrote.
_N_CHUNKS_MAX = 1024
_SKIP_BYTES_MAX = 64 << 20
_IO_BYTES = 1 << 20
# A writer that cannot seek back leaves a placeholder near one of these (ffmpeg 0xFFFFFFFF, sox 0x7FFFFFFF less its
# header).
_PLACEHOLDER_BYTES = 0x7FFF0000
_TAG_PCM, _TAG_FLOAT, _TAG_EXTENSIBLE = 1, 3, 0xFFFE
# The last 12 bytes of every KSDATAFORMAT_SUBTYPE GUID that stands for a plain format tag.
_SUBFORMAT_TAIL = bytes.fromhex("00001000800000aa00389b71")
_LEFT_OUT_S = 0.1  # bytes behind the samples that are worth a word
_DTYPES = {"u8": "u1", "s16": "i2", "s24": "i4", "s32": "i4", "f32": "f4", "f64": "f8"}
ENCODINGS = ("u8", *(f"{kind}{order}" for kind in ("s16", "s24", "s32", "f32", "f64") for order in ("le", "be")))
"""The sample encodings of raw PCM, by ffmpeg's names."""


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

    def skip(self, n_bytes: int) -> int:
        """Read past `n_bytes`; how many there were, at most 64 MiB."""
        n_left = min(n_bytes, _SKIP_BYTES_MAX)
        while n_left > 0 and (block := self.read(min(n_left, _IO_BYTES))):
            n_left -= len(block)
        return min(n_bytes, _SKIP_BYTES_MAX) - n_left

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
    """Blocks of raw PCM laid out as `raw` says. `duration_s`: of all there is, None for a pipe."""

    def __init__(self, source: ByteReader, raw: RawFormat) -> None:
        self.duration_s: float | None = None
        self._source = source
        self._take(raw, None, f"{raw.n_channels} channels")

    def blocks(self, n_frames: int) -> Iterator[Block]:
        """All there is in blocks of `n_frames`, the last one shorter; part of a frame at the end is dropped."""
        while block := self._read(n_frames):
            yield block

    def _take(self, raw: RawFormat, n_bytes: int | None, layout: str) -> None:
        """Samples follow, `n_bytes` of them as the header says, None for all."""
        self._raw, self._layout = raw, layout
        self._n_bytes = self._n_left = n_bytes
        known = [limit for limit in (n_bytes, self._source.remaining) if limit is not None]
        duration_s = min(known) // raw.frame_bytes / raw.rate_hz if known else None
        self.duration_s = duration_s if self.duration_s is None else self.duration_s + (duration_s or 0.0)

    def _read(self, n_frames: int) -> Block | None:
        raw = self._raw
        wanted = n_frames * raw.frame_bytes
        data = self._source.read(wanted if self._n_left is None else min(wanted, self._n_left))
        if self._n_left is not None:
            self._n_left -= len(data)
            if len(data) < min(wanted, self._n_left + len(data)):
                a_second = raw.frame_bytes * raw.rate_hz
                missing_s, said_s = self._n_left / a_second, (self._n_bytes or 0) / a_second
                lost_seconds(_log, self._source.name, "cut short: the last", missing_s, said_s)
                self._n_left = 0  # so that it is said once
        data = data[: len(data) - len(data) % raw.frame_bytes]
        samples = decode_samples(data, raw.encoding).reshape(-1, raw.n_channels)
        return Block(samples, raw.rate_hz, self._layout) if len(samples) else None


def sniff(head: bytes) -> Literal["pcm", "codec"] | None:
    """What a WAVE file holds by its first bytes: samples, or a codec's data; None: no WAVE file.

    "pcm" where the `fmt ` chunk lies beyond `head`: `WavReader` will say what it finds.
    """
    order = _byte_order(head)
    if order is None:
        return None
    at = 12
    while at + 8 <= len(head):
        tag, size = struct.unpack_from(f"{order}4sI", head, at)
        if tag == b"fmt ":
            return "pcm" if _codec(head[at + 8 : at + 8 + size], order) in (_TAG_PCM, _TAG_FLOAT, None) else "codec"
        at += 8 + size + size % 2
    return "pcm"


class WavReader(PcmReader):
    """The samples of the RIFF, RIFX or RF64 file that begins at `source`, and of those that were joined to it.

    PCM of 8, 16, 24 and 32 bits and IEEE float of 32 and 64 bits, plain or extensible; the bits decide where the block
    alignment does not fit them. The length of the data is the smaller of what the header says and what is there;
    placeholders of writers that could not seek back, and a 0 in a file that was never closed, mean "to the end". Bytes
    behind the data that are no chunk are said to be left out. Errors: AudioError.
    """

    def __init__(self, source: ByteReader) -> None:
        self.duration_s = None
        self._source = source
        self._open()

    def blocks(self, n_frames: int) -> Iterator[Block]:
        yield from super().blocks(n_frames)
        while self._n_bytes is not None and self._n_left == 0 and self._goes_on():
            self._open()
            yield from super().blocks(n_frames)

    def _open(self) -> None:
        source, name = self._source, self._source.name
        head = source.read(12)
        order = _byte_order(head)
        if order is None:
            raise AudioError(f"{name}: not a RIFF/WAVE file")
        (riff_bytes,) = struct.unpack_from(f"{order}I", head, 4)
        at, fmt, long_bytes, is_whole = 12, b"", None, True
        for _ in range(_N_CHUNKS_MAX):
            chunk = source.read(8) if is_whole else b""
            if len(chunk) < 8:
                raise AudioError(f"{name}: the WAV header ends before any samples; the file is damaged or cut short")
            tag, size = struct.unpack(f"{order}4sI", chunk)
            at += 8
            if tag == b"data":
                break
            n_kept = min(size, 40) if tag in (b"fmt ", b"ds64") else 0
            body = source.read(n_kept)
            if tag == b"fmt " and not fmt:
                fmt = body
            elif tag == b"ds64" and len(body) >= 16:
                (long_bytes,) = struct.unpack_from(f"{order}Q", body, 8)
            n_rest = size - n_kept + size % 2
            is_whole = source.skip(n_rest) == n_rest
            at += size + size % 2
        else:
            raise AudioError(f"{name}: over {_N_CHUNKS_MAX} chunks before the samples; the WAV header is damaged")
        raw, is_low, layout = _parse_fmt(fmt, order, name, source)
        n_bytes: int | None = size
        is_beyond = source.remaining is None or size > source.remaining
        if size == 0xFFFFFFFF:
            n_bytes = long_bytes
        elif (size >= _PLACEHOLDER_BYTES and is_beyond) or (size == 0 and riff_bytes + 8 <= at):
            n_bytes = None
        self._order, self._shift = order, 8 if is_low else 0
        self._take(raw, n_bytes, layout)

    def _read(self, n_frames: int) -> Block | None:
        block = super()._read(n_frames)
        if block is None or not self._shift:
            return block
        return block._replace(samples=block.samples.astype(np.int32) << self._shift)

    def _goes_on(self) -> bool:
        """Whether another WAVE file follows; what else is there is stepped over, with a word if it is no chunk."""
        source = self._source
        if (self._n_bytes or 0) % 2 and source.peek(1) == b"\0":
            source.read(1)
        for _ in range(_N_CHUNKS_MAX):
            head = source.peek(12)
            if _byte_order(head) is not None:
                return True
            if len(head) < 8:
                return False
            tag, size = struct.unpack_from(f"{self._order}4sI", head)
            is_chunk = tag.isascii() and tag.decode("ascii").isprintable()
            if not is_chunk or (source.remaining is not None and 8 + size > source.remaining):
                break
            source.skip(8 + size + size % 2)
        n_bytes = source.remaining
        if n_bytes is None:
            n_bytes = source.skip(_SKIP_BYTES_MAX)
        left_s = n_bytes / (self._raw.frame_bytes * self._raw.rate_hz)
        if left_s > _LEFT_OUT_S:
            message = "%s: its header ends the samples before the file does: %d bytes behind them, %.1f s, are left out"
            lost(_log, message, source.name, n_bytes, left_s)
        return False


def _byte_order(head: bytes) -> Literal["<", ">"] | None:
    if len(head) < 12 or head[8:12] != b"WAVE":
        return None
    if head[:4] in (b"RIFF", b"RF64"):
        return "<"
    return ">" if head[:4] == b"RIFX" else None


def _codec(fmt: bytes, order: str) -> int | None:
    """The format tag, looked up in the sub-format where it is extensible; None if the chunk is too short to say."""
    if len(fmt) < 16:
        return None
    (tag,) = struct.unpack_from(f"{order}H", fmt)
    if tag != _TAG_EXTENSIBLE:
        return int(tag)
    if len(fmt) < 40:
        return None
    # The GUID's first 32 bits are a little-endian number in RIFF and follow the file's order in RIFX; its tail is
    # fixed.
    (tag,) = struct.unpack_from(f"{order}H", fmt, 24 if order == "<" else 26)
    return int(tag) if fmt[28:40] == _SUBFORMAT_TAIL or order == ">" else _TAG_EXTENSIBLE


def _parse_fmt(fmt: bytes, order: str, name: str, source: ByteReader) -> tuple[RawFormat, bool, str]:
    """The layout of a `fmt ` chunk, whether 24 bits are the lower ones of 32, and its channels; AudioError."""
    codec = _codec(fmt, order)
    if codec is None:
        raise AudioError(f"{name}: the WAV header has no complete format chunk before the samples; the file is damaged")
    if codec not in (_TAG_PCM, _TAG_FLOAT):
        raise AudioError(f"{name}: a WAV file in codec 0x{codec:04X}; convert it to PCM, for example with ffmpeg")
    _, n_channels, rate_hz, _, frame_bytes, n_bits = struct.unpack_from(f"{order}HHIIHH", fmt)
    check_layout(name, n_channels, rate_hz)
    n_bytes, is_low = -(-n_bits // 8), False
    if n_bytes == 3 and frame_bytes == 4 * n_channels:
        n_bytes = 4
        lowest = np.frombuffer(source.peek(4096), np.uint8)[0 if order == "<" else 3 :: 4]
        is_low = bool(lowest.any())
    ending = "le" if order == "<" else "be"
    encoding = "u8" if n_bytes == 1 else f"s{8 * n_bytes}{ending}"
    if codec == _TAG_FLOAT:
        encoding = f"f{n_bits}{ending}"
    if encoding not in ENCODINGS:
        raise AudioError(f"{name}: WAV samples of {n_bits} bits; specedge reads PCM of 8 to 32 and float of 32 and 64")
    mask = int.from_bytes(fmt[20:24], "little" if order == "<" else "big") if len(fmt) >= 40 else 0
    layout = f"{mask:#x}" if mask.bit_count() == n_channels else f"{n_channels} channels"
    return RawFormat(encoding, rate_hz, n_channels), is_low, layout
