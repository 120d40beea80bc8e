"""What a compressed file says of its own length, and whether its end is there.

FLAC: the count in STREAMINFO. Ogg (RFC 3533): the position on the last page, so that a file which breaks off inside a
page has lost an unknown rest; one that ends between two pages is taken for whole, since live recordings end so. MP3
(ISO/IEC 11172-3, 13818-3): the count in a Xing or Info frame, unless files were joined behind it; libsndfile stops
there then. Without such a frame the frames themselves are counted, because libsndfile guesses from the first one, which
with a variable rate may give several times too much.

Reads headers only and trusts none: numbers become counts to compare with, never sizes. Does not know: samples, codecs,
who decodes them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import BinaryIO, Literal

__all__ = ["StatedLength", "defect", "stated_length"]

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
class StatedLength:
    """`n_frames`: samples of each channel, None where nothing in the file says it. `is_cut`: that its end is missing.

    `goes_on`: that more audio follows behind what libsndfile will read.
    """

    n_frames: int | None
    is_cut: bool = False
    goes_on: bool = False


def stated_length(path: str, container: str, n_frames: int | None) -> StatedLength:
    """What the regular file `path` says; `container` ("FLAC", "OGG", "MP3") and `n_frames` are libsndfile's words.

    Anything else, and MP3 whose frames do not follow each other, states nothing. Never raises: a file that cannot be
    read states nothing either.
    """
    if container == "FLAC":
        return StatedLength(n_frames=n_frames)
    try:
        with open(path, "rb", buffering=_BUFFER_BYTES) as file:
            if container == "OGG" and _is_chained(file):
                return StatedLength(n_frames=None, goes_on=True)
            if container == "OGG":
                return StatedLength(n_frames=n_frames, is_cut=_ends_inside_a_page(file))
            if container == "MP3":
                return _mp3_length(file, n_frames)
    except OSError:
        pass
    return StatedLength(n_frames=None)


def defect(path: str) -> Literal["absent", "cut", "joined"] | None:
    """What libsndfile would get wrong of a file: no MP3 frames in it and not FLAC or Ogg either; an MP3 file of fewer
    bytes than its Xing or Info frame counts; files joined to the first one.

    None where all is well. Raises OSError.
    """
    with open(path, "rb", buffering=_BUFFER_BYTES) as file:
        head = file.read(4)
        if head in (b"fLaC", b"OggS"):
            return "joined" if head == b"OggS" and _is_chained(file) else None
        at = _first_mp3_frame(file, 0)
        if at is None:
            return "absent"
        xing = _xing(file, at)
        if xing is None:
            return None
        if at + xing.n_bytes > os.fstat(file.fileno()).st_size:
            return "cut"
        return "joined" if _goes_on(file, at, xing) else None


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


@dataclass(frozen=True, kw_only=True)
class _Xing:
    """A Xing or Info frame that counts frames: how many bytes there are from its beginning on, 0 if it does not say."""

    n_bytes: int


def _xing(file: BinaryIO, at: int) -> _Xing | None:
    frame = _mp3_frame(_bytes_at(file, at, 4))
    if frame is None:
        return None
    fields = _bytes_at(file, at + frame.xing_at, 16)
    if fields[:4] not in (b"Xing", b"Info") or len(fields) < 16 or not fields[7] & _XING_HAS_COUNT:
        return None
    return _Xing(n_bytes=int.from_bytes(fields[12:16], "big") if fields[7] & _XING_HAS_BYTES else 0)


def _goes_on(file: BinaryIO, at: int, xing: _Xing) -> bool:
    return xing.n_bytes > 0 and _first_mp3_frame(file, at + xing.n_bytes) is not None


def _mp3_length(file: BinaryIO, n_frames: int | None) -> StatedLength:
    at = _first_mp3_frame(file, 0)
    first = None if at is None else _mp3_frame(_bytes_at(file, at, 4))
    if at is None or first is None:
        return StatedLength(n_frames=None)
    xing = _xing(file, at)
    if xing is None:
        return _counted(file, at, first.kind)
    if _goes_on(file, at, xing):
        return StatedLength(n_frames=None, goes_on=True)
    return StatedLength(n_frames=n_frames)


def _counted(file: BinaryIO, at: int, kind: tuple[int, int]) -> StatedLength:
    """The frames of one kind that follow each other from `at` on; no length where something else comes between."""
    size = os.fstat(file.fileno()).st_size
    n_samples = 0
    while True:
        head = _bytes_at(file, at, 8)
        frame = _mp3_frame(head)
        if frame is None or frame.kind != kind:
            behind = _past_id3(file, at)
            if behind == at:
                is_end = len(head) < 4 or head.startswith(_END_TAGS) or not any(head)
                return StatedLength(n_frames=n_samples if is_end else None)
            at = behind
        elif at + frame.n_bytes > size:
            return StatedLength(n_frames=n_samples, is_cut=True)
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
