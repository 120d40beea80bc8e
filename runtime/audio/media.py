"""Containers and codecs through PyAV, which carries FFmpeg's libraries with it, and FFmpeg's resampler.

The samples are those of faster-whisper's `decode_audio`: packets that cannot be decoded are left out, and the resampler
gives 16-bit integers. A file is opened by what it holds, never by its name, and only by demuxers that hold samples
themselves: playlists (HLS, concat, DASH) can name other files of the machine.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError

from ..console import LOSS, lost_seconds, warn
from .wav import Block, check_layout

if TYPE_CHECKING:
    import av

_log = logging.getLogger(__name__)
_DEMUXERS = (
    "aac,ac3,aiff,amr,amrnb,amrwb,ape,asf,au,avi,caf,dsf,dts,dtshd,eac3,flac,flv,gsm,matroska,mlp,mov,mp3,mpc,mpc8,mpeg,mpegts,"
    "mxf,nistsphere,nut,ogg,oma,rm,shn,sox,spdif,tak,truehd,tta,voc,w64,wav,wtv,wv,xwma"
)
_OPTIONS = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "none"}
# Formats whose length FFmpeg guesses from the bit rate, MP3 unless a first frame of no sound counts the others.
_GUESSED = frozenset({"aac", "ac3", "eac3", "amr", "amrnb", "amrwb", "dts", "dtshd", "gsm", "mpeg", "mpegts", "truehd"})
_COUNT_TAGS = (b"Xing", b"Info", b"VBRI")
_COUNT_WITHIN_BYTES = 4096
_LISTS = re.compile(rb"LIST(.{4})INFO", re.DOTALL)
_READ_BYTES = 1 << 20
_OGG_PAGE_BYTES_MAX = 27 + 255 + 255 * 255
_FAILURES_MAX = 10_000  # of packets in a row: there is no sound any more
# Sound that ends before its file's duration by more than these has lost its end.
_MISSING_S, _MISSING_SHARE = 0.15, 0.001
_FORMATS = {"u1": "u8", "i2": "s16", "i4": "s32", "f4": "flt", "f8": "dbl"}


class MediaReader:
    """Blocks of the first sound track of a seekable file, which stays the caller's to close.

    `name`: what messages call the file. `duration_s`: what it says, or a guess by its bit rate; None if neither.
    Raises AudioError, with FFmpeg's reason, for what cannot be decoded.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        import av

        self._name = name
        head = _head_behind_tags(file)
        self._is_counted = any(tag in head for tag in _COUNT_TAGS)
        if head[:4] in (b"RIFF", b"RIFX", b"RF64", b"BW64"):
            _check_lists(file, name, "big" if head[:4] == b"RIFX" else "little")
        self._reason = "it ends inside a page" if head[:4] == b"OggS" and _ends_inside_a_page(file) else ""
        file.seek(0)
        # Labels may be in any encoding, which PyAV 19 bears without being told.
        labels: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}
        try:
            self._container = av.open(file, "r", options=_OPTIONS, **labels)
        except (av.FFmpegError, OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise AudioError(f"{name}: this is no audio that FFmpeg can decode: {reason}") from None
        if not self._container.streams.audio:
            self._container.close()
            raise AudioError(f"{name}: has no sound track")
        self._stream = self._container.streams.audio[0]
        self._stated_s = self._said()
        self.duration_s = self._stated_s
        if self.duration_s is None and self._container.duration is not None:
            self.duration_s = self._container.duration / av.time_base

    def blocks(self, n_frames: int) -> Iterator[Block]:
        """All that can be decoded, in blocks of about `n_frames`. What is missing is said once, at its end."""
        n_decoded = 0.0
        for _, alike in itertools.groupby(self._decoded(), lambda one: (one.samples.dtype, one.rate_hz, one.layout)):
            waiting: list[NDArray[np.generic]] = []
            n_waiting = 0
            for block in alike:
                check_layout(self._name, block.samples.shape[1], block.rate_hz)
                n_decoded += len(block.samples) / block.rate_hz
                n_waiting += len(block.samples)
                waiting.append(block.samples)
                if n_waiting >= n_frames:
                    yield block._replace(samples=np.concatenate(waiting))
                    waiting, n_waiting = [], 0
            if waiting:
                yield block._replace(samples=np.concatenate(waiting))
        self._tell_loss(n_decoded)

    def close(self) -> None:
        """Close what reads the file; a second call does nothing."""
        self._container.close()

    def _decoded(self) -> Iterator[Block]:
        """The frames; packets that cannot be decoded are left out."""
        import av

        packets = self._container.demux(self._stream)
        n_failures = 0
        while n_failures < _FAILURES_MAX:
            try:
                packet = next(packets)
                frames = packet.decode()
            except (StopIteration, av.error.EOFError):
                return
            except (av.FFmpegError, OSError) as error:
                n_failures += 1
                self._reason = self._reason or error.strerror or str(error)
                packets = self._container.demux(self._stream)  # the old one has ended with its error
                continue
            n_failures = 0
            for frame in frames:
                samples = frame.to_ndarray()
                samples = samples.T if frame.format.is_planar else samples.reshape(-1, frame.layout.nb_channels)
                yield Block(samples, frame.sample_rate, frame.layout.name)

    def _said(self) -> float | None:
        """Seconds of sound by the file's own word; None where it has none, or its picture may be meant."""
        stream, container = self._stream, self._container
        name = container.format.name
        if name in _GUESSED or (name == "mp3" and not self._is_counted):
            return None
        if stream.duration is not None and stream.time_base is not None:
            return float(stream.duration * stream.time_base)
        others = [one for one in container.streams if one is not stream and one.type != "attachment"]
        return None if others or container.duration is None else container.duration / 1_000_000

    def _tell_loss(self, decoded_s: float) -> None:
        stated_s = self._stated_s
        if stated_s is not None and stated_s - decoded_s > max(_MISSING_S, _MISSING_SHARE * stated_s):
            lost_seconds(_log, self._name, "cut short or damaged:", stated_s - decoded_s, stated_s)
        elif self._reason:
            message = "%s: cut short or damaged (%s); reading what is there"
            warn(_log, message, self._name, self._reason, level=LOSS)


def _head_behind_tags(file: BinaryIO) -> bytes:
    """The first bytes behind an ID3 tag; those of MP3 may say how long it is."""
    tag = file.read(10)
    at = 0
    if tag[:3] == b"ID3" and len(tag) == 10:
        at = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(tag[6:], (21, 14, 7, 0), strict=True))
    file.seek(at)
    return file.read(_COUNT_WITHIN_BYTES)


def _check_lists(file: BinaryIO, name: str, order: Literal["big", "little"]) -> None:
    """AudioError for a list of labels longer than the file: FFmpeg makes room for what it promises, wherever it is."""
    n_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    data = b""
    while block := file.read(_READ_BYTES):
        data = data[-11:] + block
        if any(int.from_bytes(size, order) > n_bytes for size in _LISTS.findall(data)):
            raise AudioError(f"{name}: a list of labels in it is longer than the file; it is damaged or cut short")


def _ends_inside_a_page(file: BinaryIO) -> bool:
    """Whether the last page of an Ogg file (RFC 3533) is longer than what there is of it."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _OGG_PAGE_BYTES_MAX))
    tail = file.read()
    page = tail[max(tail.rfind(b"OggS\0"), 0) :]
    return len(page) < 27 or len(page) < 27 + page[26] + sum(page[27 : 27 + page[26]])


class Resampler:
    """FFmpeg's, from blocks of any layout to float32 of 16-bit samples at `rate_hz`, as faster-whisper has them.

    n_channels: 1 [n_samples], 2 [n_samples, 2].
    """

    def __init__(self, rate_hz: int, n_channels: int) -> None:
        self._rate_hz, self._n_channels = rate_hz, n_channels
        self._source: tuple[Any, ...] | None = None
        self._resampler: av.AudioResampler | None = None

    def resample(self, block: Block) -> NDArray[np.float32]:
        """What is ready once `block` is taken."""
        import av

        source = (block.samples.dtype, block.rate_hz, block.layout)
        done = self._floats([])
        if source != self._source:
            done = self.finish()
            layout = "mono" if self._n_channels == 1 else "stereo"
            self._source, self._resampler = source, av.AudioResampler(format="s16", layout=layout, rate=self._rate_hz)
        assert self._resampler is not None
        packed = np.ascontiguousarray(block.samples).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format=_FORMATS[packed.dtype.str[1:]], layout=block.layout)
        frame.sample_rate = block.rate_hz
        frame.pts = None
        return np.concatenate([done, self._floats(self._resampler.resample(frame))])

    def finish(self) -> NDArray[np.float32]:
        """What is left when no block follows."""
        frames = [] if self._resampler is None else self._resampler.resample(None)
        self._source = self._resampler = None
        return self._floats(frames)

    def _floats(self, frames: list[av.AudioFrame]) -> NDArray[np.float32]:
        """The samples of the frames, which are none where a block was shorter than the resampler's delay."""
        samples = np.concatenate([np.zeros(0, np.int16), *[frame.to_ndarray().reshape(-1) for frame in frames]])
        floats: NDArray[np.float32] = samples.astype(np.float32) * np.float32(1 / 32768)
        return floats if self._n_channels == 1 else floats.reshape(-1, 2)


def values_of_bytes(codec_name: str) -> NDArray[np.int16]:
    """What each of the 256 bytes stands for [256] in a codec of FFmpeg's with a byte a sample, such as "pcm_mulaw"."""
    import av

    codec: Any = av.CodecContext.create(codec_name, "r")
    codec.layout, codec.sample_rate = "mono", 8000
    (frame,) = codec.decode(av.Packet(bytes(range(256))))
    return np.asarray(frame.to_ndarray()[0], np.int16)
