"""Samples out of bytes: raw PCM and RIFF/WAVE files.

After the "Multimedia Programming Interface and Data Specifications 1.0" (RIFF, WAVE), Microsoft's WAVEFORMATEXTENSIBLE
and EBU Tech 3306 (RF64: a `ds64` chunk carries 64-bit lengths); RIFX, the big-endian form, is read too. Every number in
a header is a claim: lengths are cut to the bytes that are there, channels and rate must lie within fixed limits, the
walk over the chunks is bounded, and no allocation is larger than the block that was asked for.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from typing import IO, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, UsageError

from ..console import lost_seconds

_log = logging.getLogger(__name__)
N_CHANNELS_MAX = 8
RATE_HZ_MIN = 1_000
RATE_HZ_MAX = 384_000
# A header of more chunks, or more bytes to read past on a pipe, than these is no header anybody wrote.
_N_CHUNKS_MAX = 1024
_SKIP_BYTES_MAX = 64 << 20
_IO_BYTES = 1 << 20
# A writer that cannot seek back leaves a placeholder near one of these (ffmpeg 0xFFFFFFFF, sox 0x7FFFFFFF less its
# header).
_PLACEHOLDER_BYTES = 0x7FFF0000
_TAG_PCM, _TAG_FLOAT, _TAG_ALAW, _TAG_MULAW, _TAG_EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
# The last 12 bytes of every KSDATAFORMAT_SUBTYPE GUID that stands for a plain format tag.
_SUBFORMAT_TAIL = bytes.fromhex("00001000800000aa00389b71")


_Kind = Literal["u", "s", "f"]
_SIZES: dict[_Kind, tuple[int, ...]] = {"s": (2, 3, 4), "f": (4, 8)}  # bytes of a sample


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How one sample lies in memory: `kind` u (offset binary), s (two's complement) or f (IEEE 754)."""

    kind: _Kind
    n_bytes: int
    big_endian: bool = False


ENCODINGS: dict[str, Encoding] = {"u8": Encoding(kind="u", n_bytes=1)} | {
    f"{kind}{8 * n_bytes}{'be' if big else 'le'}": Encoding(kind=kind, n_bytes=n_bytes, big_endian=big)
    for kind, sizes in _SIZES.items()
    for n_bytes in sizes
    for big in (False, True)
}
"""The sample encodings specedge reads itself, by ffmpeg's names."""


def decode_samples(block: bytes, encoding: str) -> NDArray[np.float32]:
    """Samples as float32 [n_samples], integers scaled to [-1, 1) exactly as libsndfile scales them.

    `block` is a whole number of samples. Float samples come out as they are: NaN, infinities and values beyond 1
    included.
    """
    layout = ENCODINGS[encoding]
    if layout.kind == "u":
        return (np.frombuffer(block, np.uint8).astype(np.float32) - np.float32(128)) * np.float32(1 / 128)
    order = ">" if layout.big_endian else "<"
    if layout.n_bytes == 3:
        # Three bytes become the upper three of an int32: the sign comes for free and the value is 256 times too large.
        wide = np.zeros((len(block) // 3, 4), np.uint8)
        first = 0 if layout.big_endian else 1
        wide[:, first : first + 3] = np.frombuffer(block, np.uint8).reshape(-1, 3)
        samples = wide.reshape(-1).view(f"{order}i4").astype(np.float32)
        return samples * np.float32(2.0**-31)
    stored = np.frombuffer(block, f"{order}{'f' if layout.kind == 'f' else 'i'}{layout.n_bytes}")
    if layout.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            return stored.astype(np.float32)
    return stored.astype(np.float32) * np.float32(2.0 ** -(8 * layout.n_bytes - 1))


def check_layout(name: str, n_channels: int, rate_hz: int) -> None:
    """AudioError unless the channel count and the rate (Hz) are ones that speech comes in."""
    if not 1 <= n_channels <= N_CHANNELS_MAX:
        raise AudioError(f"{name}: {n_channels} channels; specedge reads 1 to {N_CHANNELS_MAX}")
    if not RATE_HZ_MIN <= rate_hz <= RATE_HZ_MAX:
        raise AudioError(f"{name}: a sample rate of {rate_hz} Hz; specedge reads {RATE_HZ_MIN} to {RATE_HZ_MAX} Hz")


@dataclass(frozen=True)
class RawFormat:
    """How headerless PCM lies: a key of ENCODINGS, the rate, interleaved channels. UsageError if that cannot be."""

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

    def skip(self, n_bytes: int) -> bool:
        """Step over `n_bytes`; False if the end comes first. AudioError if a pipe would have to be read too far."""
        if self.remaining is not None and n_bytes > self.remaining:
            return False
        if self.remaining is None and n_bytes > _SKIP_BYTES_MAX:
            raise AudioError(f"{self.name}: a chunk of {n_bytes} bytes before the samples; the header is damaged")
        if self.remaining is not None and n_bytes > len(self._head):
            try:
                self._file.seek(n_bytes - len(self._head), 1)
            except (OSError, ValueError) as error:
                raise AudioError(f"{self.name}: cannot be read: {error}") from error
            self.remaining -= n_bytes
            self._head = b""
            return True
        while n_bytes > 0:
            block = self.read(min(n_bytes, _IO_BYTES))
            if not block:
                return False
            n_bytes -= len(block)
        return True

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
    """Blocks of interleaved samples from a ByteReader.

    `n_frames`: how many frames (one sample of every channel) there are, or are said to be on a pipe; None if unknown.
    `is_float`: the samples may hold NaN, infinities and values beyond 1.
    """

    def __init__(
        self, source: ByteReader, *, encoding: str, n_channels: int, rate_hz: int, n_bytes: int | None = None
    ) -> None:
        check_layout(source.name, n_channels, rate_hz)
        self.encoding = encoding
        self.n_channels = n_channels
        self.rate_hz = rate_hz
        self.is_float = ENCODINGS[encoding].kind == "f"
        self._source = source
        self._n_bytes_left = n_bytes
        self._frame_bytes = n_channels * ENCODINGS[encoding].n_bytes
        known = [limit for limit in (n_bytes, source.remaining) if limit is not None]
        self.n_frames: int | None = min(known) // self._frame_bytes if known else None
        self._n_bytes_said, self._is_short = n_bytes, False
        if n_bytes is not None and source.remaining is not None and n_bytes > source.remaining:
            self._tell_loss(n_bytes - source.remaining)

    def read(self, n_frames: int) -> NDArray[np.float32]:
        """The next frames, float32 [<= n_frames, n_channels]; fewer only at the end; part of a frame is dropped."""
        n_bytes = n_frames * self._frame_bytes
        if self._n_bytes_left is not None:
            n_bytes = min(n_bytes, self._n_bytes_left)
        block = self._source.read(n_bytes)
        if self._n_bytes_left is not None:
            self._n_bytes_left -= len(block)
            if len(block) < n_bytes and not self._is_short:  # a pipe, whose length shows at its end
                self._tell_loss(self._n_bytes_left)
        block = block[: len(block) - len(block) % self._frame_bytes]
        return decode_samples(block, self.encoding).reshape(-1, self.n_channels)

    def close(self) -> None:
        """The file belongs to whoever opened it."""

    def _tell_loss(self, n_missing_bytes: int) -> None:
        self._is_short = True
        bytes_a_second = self._frame_bytes * self.rate_hz
        missing_s, said_s = n_missing_bytes / bytes_a_second, (self._n_bytes_said or 0) / bytes_a_second
        lost_seconds(_log, self._source.name, "cut short: the last", missing_s, said_s)


def sniff(head: bytes) -> Literal["pcm", "law", "codec"] | None:
    """What a WAVE file holds by its first bytes: samples, A-law or mu-law, another codec; None: no WAVE file.

    "pcm" where the `fmt ` chunk lies beyond `head`: `open_wav` will say what it finds.
    """
    order = _byte_order(head)
    if order is None:
        return None
    at = 12
    while at + 8 <= len(head):
        tag, size = struct.unpack_from(f"{order}4sI", head, at)
        if tag == b"fmt ":
            codec = _codec(head[at + 8 : at + 8 + size], order)
            if codec in (_TAG_PCM, _TAG_FLOAT) or codec is None:
                return "pcm"
            return "law" if codec in (_TAG_ALAW, _TAG_MULAW) else "codec"
        at += 8 + size + size % 2
    return "pcm"


def open_wav(source: ByteReader) -> PcmReader:
    """A reader of the samples of the RIFF, RIFX or RF64 file that begins at `source`.

    PCM of 8, 16, 24 and 32 bits and IEEE float of 32 and 64 bits, plain or extensible. The length of the data is the
    smaller of what the header says and what is there; placeholders of writers that could not seek back, and a 0 in a
    file that was never closed, mean "to the end". Errors: AudioError.
    """
    name = source.name
    head = source.read(12)
    order = _byte_order(head)
    if order is None:
        raise AudioError(f"{name}: not a RIFF/WAVE file")
    (riff_bytes,) = struct.unpack_from(f"{order}I", head, 4)
    at, fmt, long_bytes = 12, b"", None
    for _ in range(_N_CHUNKS_MAX):
        chunk = source.read(8)
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
        if not source.skip(size - n_kept + size % 2):
            raise AudioError(f"{name}: the WAV header ends before any samples; the file is damaged or cut short")
        at += size + size % 2
    else:
        raise AudioError(f"{name}: over {_N_CHUNKS_MAX} chunks before the samples; the WAV header is damaged")
    encoding, n_channels, rate_hz = _parse_fmt(fmt, order, name)
    n_bytes: int | None = size
    if size == 0xFFFFFFFF and long_bytes is not None:
        n_bytes = long_bytes
    elif size >= _PLACEHOLDER_BYTES and (source.remaining is None or size > source.remaining):
        n_bytes = None
    elif size == 0xFFFFFFFF or (size == 0 and riff_bytes + 8 <= at):
        n_bytes = None
    return PcmReader(source, encoding=encoding, n_channels=n_channels, rate_hz=rate_hz, n_bytes=n_bytes)


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


def _parse_fmt(fmt: bytes, order: str, name: str) -> tuple[str, int, int]:
    """Encoding name, n_channels, rate_hz of a `fmt ` chunk; AudioError if they cannot be."""
    codec = _codec(fmt, order)
    if codec is None:
        raise AudioError(f"{name}: the WAV header has no complete format chunk before the samples; the file is damaged")
    if codec not in (_TAG_PCM, _TAG_FLOAT):
        raise AudioError(f"{name}: a WAV file in codec 0x{codec:04X}; convert it to PCM, for example with ffmpeg")
    _, n_channels, rate_hz, _, frame_bytes, n_bits = struct.unpack_from(f"{order}HHIIHH", fmt)
    check_layout(name, n_channels, rate_hz)
    n_bytes, rest = divmod(frame_bytes, n_channels)
    if rest or n_bytes == 0 or n_bytes != (n_bits + 7) // 8:
        raise AudioError(
            f"{name}: the WAV header says {n_bits} bits, {n_channels} channels and {frame_bytes} bytes a frame,"
            " which do not fit together; the file is damaged"
        )
    ending = "le" if order == "<" else "be"
    if codec == _TAG_FLOAT:
        encoding = f"f{n_bits}{ending}"
    else:
        encoding = "u8" if n_bytes == 1 else f"s{8 * n_bytes}{ending}"
    if encoding not in ENCODINGS:
        raise AudioError(f"{name}: WAV samples of {n_bits} bits; specedge reads PCM of 8 to 32 and float of 32 and 64")
    return encoding, n_channels, rate_hz
