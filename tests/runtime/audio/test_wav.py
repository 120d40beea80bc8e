"""Plain PCM in WAVE files: soundfile's samples of good files, and a table of odd and bad ones."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from specedge.errors import AudioError, UsageError
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.audio.wav import Block, ByteReader, PcmReader, RawFormat, decode_samples, find_samples, to_float
from specedge.runtime.console import LOSS
from support.sound import Pipe, decode

SUBFORMAT_TAIL = bytes.fromhex("000000001000800000aa00389b71")


def chunk(tag: bytes, body: bytes, size: int | None = None, order: str = "<") -> bytes:
    return struct.pack(f"{order}4sI", tag, len(body) if size is None else size) + body + b"\0" * (len(body) % 2)


def fmt(
    tag: int = 1,
    n_channels: int = 1,
    rate_hz: int = 16000,
    bits: int = 16,
    align: int | None = None,
    extra: bytes = b"",
) -> bytes:
    align = n_channels * bits // 8 if align is None else align
    rate_bytes = min(rate_hz * align, 0xFFFFFFFF)
    return chunk(b"fmt ", struct.pack("<HHIIHH", tag, n_channels, rate_hz, rate_bytes, align, bits) + extra)


def riff(*chunks: bytes, magic: bytes = b"RIFF", size: int | None = None) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return struct.pack("<4sI", magic, len(body) if size is None else size) + body


def reader(data: bytes, *, seekable: bool = True) -> PcmReader:
    source = ByteReader(io.BytesIO(data), "x.wav", remaining=len(data) if seekable else None)
    found = find_samples(source.peek(4096), "x.wav")
    assert found is not None
    begins_at, said_bytes, raw = found
    source.read(begins_at)
    return PcmReader(source, raw, said_bytes)


def read_all(data: bytes, *, seekable: bool = True) -> NDArray[np.float32]:
    blocks: list[Block] = list(reader(data, seekable=seekable).blocks(1000))
    assert all(len(block.samples) == 1000 for block in blocks[:-1])
    return np.concatenate([to_float(block.samples) for block in blocks] or [np.zeros((0, 1), np.float32)])


SAMPLES = struct.pack("<4h", 0, 1, -32768, 32767)
EXPECTED = np.array([[0], [1], [-32768], [32767]], np.float32) / 32768


@pytest.mark.parametrize("seekable", [True, False])
@pytest.mark.parametrize("n_channels", [1, 2])
@pytest.mark.parametrize(
    ("container", "endian", "subtype"),
    [(c, "FILE", s) for c in ("WAV", "WAVEX") for s in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")]
    + [("WAV", "BIG", s) for s in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")]
    + [("RF64", "FILE", s) for s in ("PCM_16", "FLOAT")],
)
def test_samples_are_soundfiles(container: str, endian: str, subtype: str, n_channels: int, seekable: bool) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, (2345, n_channels))
    samples[:2] = [[-1.0], [1.0]]
    file = io.BytesIO()
    soundfile.write(file, samples, 22050, format=container, endian=endian, subtype=subtype)
    expected, rate_hz = soundfile.read(io.BytesIO(file.getvalue()), dtype="float32", always_2d=True)
    assert reader(file.getvalue(), seekable=seekable).duration_s == 2345 / rate_hz
    got = read_all(file.getvalue(), seekable=seekable)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("encoding", ["s16", "s24", "s32", "f32", "f64"])
def test_big_endian_is_little_endian_reversed(encoding: str) -> None:
    n_bytes = int(encoding[1:]) // 8
    raw = np.random.default_rng(0).integers(0, 256, 100 * n_bytes).astype(np.uint8)
    swapped = raw.reshape(-1, n_bytes)[:, ::-1].tobytes()
    little, big = decode_samples(raw.tobytes(), encoding + "le"), decode_samples(swapped, encoding + "be")
    np.testing.assert_array_equal(little, big)


EXTENSIBLE = struct.pack("<HHIH", 22, 16, 0, 1) + SUBFORMAT_TAIL


@pytest.mark.parametrize("seekable", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(riff(fmt(), chunk(b"data", SAMPLES)), id="plain"),
        pytest.param(riff(fmt(tag=0xFFFE, extra=EXTENSIBLE), chunk(b"data", SAMPLES)), id="extensible"),
        pytest.param(riff(chunk(b"LIST", b"odd"), fmt(extra=b"\0\0"), chunk(b"data", SAMPLES)), id="odd chunk first"),
        pytest.param(riff(fmt(), chunk(b"data", SAMPLES), chunk(b"LIST", b"tail")), id="chunk after the samples"),
        pytest.param(riff(fmt(), chunk(b"data", SAMPLES, 0xFFFFFFFF), size=0xFFFFFFFF), id="ffmpeg's placeholder"),
        pytest.param(riff(fmt(), chunk(b"data", SAMPLES, 0x7FFFFFD8), size=0x7FFFFFFC), id="sox's placeholder"),
        pytest.param(riff(fmt(), chunk(b"data", SAMPLES, 0), size=0), id="never closed, zero"),
        pytest.param(riff(fmt(), chunk(b"data", SAMPLES, 0), size=36), id="never closed, header only"),
        pytest.param(riff(fmt(), chunk(b"data", SAMPLES, 4000)), id="cut short"),
        pytest.param(riff(fmt(), chunk(b"data", SAMPLES + b"\1")[:-1]), id="half a sample at the end"),
        pytest.param(
            riff(
                chunk(b"ds64", struct.pack("<QQQI", 0, 8, 4, 0)),
                fmt(),
                chunk(b"data", SAMPLES, 0xFFFFFFFF),
                chunk(b"LIST", b"tail"),
                magic=b"RF64",
            ),
            id="RF64",
        ),
    ],
)
def test_what_the_header_does_not_say_right_is_read_all_the_same(data: bytes, seekable: bool) -> None:
    np.testing.assert_array_equal(read_all(data, seekable=seekable), EXPECTED)


@pytest.mark.parametrize("seekable", [True, False])
@pytest.mark.parametrize(
    ("size", "is_said"), [(None, False), (4000, True), (0x7FFFFFD8, False), (0xFFFFFFFF, False), (0, False)]
)
def test_missing_samples_are_said_once(
    size: int | None, is_said: bool, seekable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Encoders that write to a pipe leave placeholders for the length, which promise nothing."""
    read_all(riff(fmt(), chunk(b"data", SAMPLES, size), size=size), seekable=seekable)
    assert [record.levelno for record in caplog.records] == [LOSS] * is_said
    assert not is_said or "cut short: the last 0.1 s of the 0.1 s" in caplog.text


@pytest.mark.parametrize("seekable", [True, False])
@pytest.mark.parametrize("align", [0, 1, 4])
def test_the_bits_decide_where_the_block_alignment_does_not_fit(align: int, seekable: bool) -> None:
    """Issue 54: such files were refused."""
    data = riff(fmt(align=align), chunk(b"data", SAMPLES))
    np.testing.assert_array_equal(read_all(data, seekable=seekable), EXPECTED)


def test_24_bits_in_4_bytes_are_read() -> None:
    samples = np.random.default_rng(0).integers(-(1 << 23), 1 << 23, (500, 1), np.int32)
    data = riff(fmt(bits=24, align=4), chunk(b"data", (samples << 8).astype("<i4").tobytes()))
    np.testing.assert_array_equal(read_all(data), samples.astype(np.float32) / (1 << 23))


def test_a_header_beyond_the_head_is_ffmpegs() -> None:
    data = riff(chunk(b"bext", b"x" * 9000), fmt(), chunk(b"data", SAMPLES))
    np.testing.assert_array_equal(decode(io.BytesIO(data)), EXPECTED[:, 0])
    np.testing.assert_array_equal(decode(Pipe(data)), EXPECTED[:, 0])


@pytest.mark.parametrize("seekable", [True, False])
@pytest.mark.parametrize(
    ("behind", "is_said"),
    [
        (np.arange(-8000, 0, dtype="<i2").tobytes(), True),
        (riff(fmt(), chunk(b"data", bytes(9000))), True),
        (chunk(b"LIST", bytes(9000)), False),
        (bytes(100), False),
    ],
    ids=["a header never mended", "a second file", "a chunk", "a little"],
)
def test_samples_behind_the_samples_are_said_to_be_left_out(
    behind: bytes, is_said: bool, seekable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = riff(fmt(), chunk(b"data", SAMPLES)) + behind
    np.testing.assert_array_equal(read_all(data, seekable=seekable), EXPECTED)
    said = "x.wav: its header ends the samples before the file does; what lies behind them is left out"
    assert caplog.messages == [said] * is_said


# FFmpeg would make room for all that a label promises, as long as its list promises more.
LIE = chunk(b"LIST", b"INFO" + chunk(b"INAM", bytes(8), 0x7FFFFF00), 0x7FFFFFF0)
BAD = [
    ("4 bytes", b"RIFF", "no audio"),
    ("not WAVE", b"RIFF\0\0\0\0AVI " + b"\0" * 20, "no audio"),
    ("only the magic", riff(), "no audio"),
    ("no data", riff(fmt()), "no audio"),
    ("no format", riff(chunk(b"data", SAMPLES)), "no audio"),
    ("format cut short", riff(chunk(b"fmt ", b"\1\0\1\0"), chunk(b"data", SAMPLES)), "no audio"),
    ("extensible without its end", riff(fmt(tag=0xFFFE), chunk(b"data", SAMPLES)), "no audio samples"),
    ("0 channels", riff(fmt(n_channels=0, align=2), chunk(b"data", SAMPLES)), "0 channels"),
    ("9 channels", riff(fmt(n_channels=9), chunk(b"data", SAMPLES)), "9 channels"),
    ("65535 channels", riff(fmt(n_channels=65535, align=2), chunk(b"data", SAMPLES)), "65535 channels"),
    ("rate 0", riff(fmt(rate_hz=0), chunk(b"data", SAMPLES)), "0 Hz"),
    ("rate 4 GHz", riff(fmt(rate_hz=0xFFFFFFFF), chunk(b"data", SAMPLES)), "4294967295 Hz"),
    ("0 bits", riff(fmt(bits=0, align=2), chunk(b"data", SAMPLES)), "no audio samples"),
    ("40 bits", riff(fmt(bits=40), chunk(b"data", SAMPLES)), "no audio samples"),
    ("float of 16 bits", riff(fmt(tag=3), chunk(b"data", SAMPLES)), "no audio samples"),
    ("a chunk that points at itself", riff(chunk(b"LIST", b"", 0xFFFFFFF8), fmt()), "no audio"),
    ("a list that lies", riff(LIE), "longer than the file"),
    ("a list that lies beyond the head", riff(chunk(b"JUNK", bytes(5000)), fmt(), LIE), "longer than the file"),
    ("a list that lies behind samples", riff(fmt(7, bits=8), chunk(b"data", SAMPLES), LIE), "longer than the file"),
    ("a list that lies in AVI", riff(LIE).replace(b"WAVE", b"AVI "), "longer than the file"),
    ("a list that lies in RIFX", riff(chunk(b"LIST", b"INFO", 1 << 30, ">"), magic=b"RIFX"), "longer than the file"),
    ("a list that lies behind ID3", b"ID3\4" + bytes(5) + b"\1\0" + riff(fmt(), LIE), "longer than the file"),
]


@pytest.mark.parametrize("seekable", [True, False])
@pytest.mark.parametrize(("data", "words"), [pytest.param(d, w, id=name) for name, d, w in BAD])
def test_a_bad_header_is_refused_in_one_line(data: bytes, words: str, seekable: bool) -> None:
    with pytest.raises(AudioError) as caught:
        open_audio(io.BytesIO(data) if seekable else Pipe(data))
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
def test_a_tiny_file_that_claims_4_gib_allocates_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "claims.wav"
    path.write_bytes(riff(fmt(), chunk(b"data", SAMPLES * 12, 0xFFFFFFF0), size=0xFFFFFFFF))
    code = (
        "import sys, resource\n"
        "from specedge.runtime.audio.audio import open_audio\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)\n"
        "with open_audio(sys.argv[1]) as a: print(len(a.read(1 << 40)))\n"
        "with open_audio(open(sys.argv[1], 'rb')) as a: print(len(a.read(1 << 40)))\n"
        "with open_audio('-') as a: print(len(a.read(1 << 40)))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)], input=path.read_bytes(), capture_output=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout.split()) == (0, [b"48"] * 3), run.stderr.decode()[-400:]


@pytest.mark.parametrize(
    "text",
    ["", "s16le", "s16le:", "s16le:x", "s16le:16000:", "s16le:16000:1:1", "s17le:16000", "s16le:0", "s16le:16000:0"]
    + ["s16le:-8000", "s16le:16000:9", "s16le:99999999999999999999", "s16le:١٦٠٠٠", "s16le:384001"],
)
def test_a_raw_format_that_cannot_be_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="raw format"):
        RawFormat.parse(text)


def test_peeked_bytes_are_read_again() -> None:
    source = ByteReader(io.BytesIO(b"0123456789"), "x", remaining=10)
    assert source.peek(4) == b"0123" and source.remaining == 10
    assert source.read(2) == b"01" and source.read(9) == b"23456789"
