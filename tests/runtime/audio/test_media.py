"""Containers and codecs: faster-whisper's very samples; of what is cut, damaged or joined all that is there."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from specedge.errors import AudioError
from specedge.runtime.audio.audio import SAMPLE_RATE, open_audio
from specedge.runtime.audio.mel import MelStream
from specedge.runtime.console import LOSS
from support.paths import shared
from support.sound import NOISE, Pipe, decode, encoded, wav_bytes

SPEECH_LIKE = (np.resize(NOISE, 192_000) * np.abs(np.sin(np.arange(192_000) / 7000)) ** 3).astype(np.float32)
DURATION_S = 12.0
FORMATS: dict[str, dict[str, Any]] = {
    "flac": {"format": "FLAC"},
    "vorbis": {"format": "OGG", "subtype": "VORBIS"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "mp3": {"format": "MP3", "bitrate_mode": "CONSTANT"},
    "mp3-vbr": {"format": "MP3", "bitrate_mode": "VARIABLE"},
}


@pytest.fixture(autouse=True)
def _warnings_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def _written(path: Path, kind: str, samples: NDArray[np.float32] = SPEECH_LIKE) -> bytes:
    soundfile.write(path, samples, SAMPLE_RATE, **FORMATS[kind])
    return path.read_bytes()


def _as_faster_whisper(source: Any) -> NDArray[np.float32]:
    audio = pytest.importorskip("faster_whisper.audio")
    samples: NDArray[np.float32] = audio.decode_audio(source)
    return samples


@pytest.mark.parametrize("name", ["jfk.flac", "stereo.wav", "multilingual.mp3"])
def test_recordings_have_faster_whisper_s_samples(name: str) -> None:
    path = shared("audio", name)
    with open_audio(path) as stream:
        assert stream.name == str(path)
        duration_s = stream.duration_s
    samples = decode(path)
    assert duration_s == pytest.approx(len(samples) / SAMPLE_RATE, abs=0.05)
    np.testing.assert_array_equal(samples, _as_faster_whisper(str(path)))


@pytest.mark.parametrize(
    ("container", "subtype"),
    [("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "PCM_U8"), ("WAV", "FLOAT"), ("WAVEX", "PCM_16"), ("WAV", "ULAW")]
    + [("WAV", "IMA_ADPCM"), ("FLAC", "PCM_24"), ("AIFF", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")],
)
@pytest.mark.parametrize("n_channels", [1, 2, 4, 6])
@pytest.mark.parametrize("rate_hz", [16_000, 44_100])
def test_files_of_all_kinds_have_faster_whisper_s_samples(
    container: str, subtype: str, n_channels: int, rate_hz: int
) -> None:
    if n_channels > (2 if subtype in ("MPEG_LAYER_III", "IMA_ADPCM") else 8):
        pytest.skip("the format has two channels at most")
    file = io.BytesIO()
    samples = np.stack([np.roll(NOISE[:20_000], 7 * i) for i in range(n_channels)], axis=1)
    soundfile.write(file, samples, rate_hz, format=container, subtype=subtype)
    expected = _as_faster_whisper(io.BytesIO(file.getvalue()))
    # Mono at 16 kHz is not rounded to 16 bits.
    is_kept = n_channels == 1 and rate_hz == SAMPLE_RATE and subtype in ("FLOAT", "PCM_24")
    found = decode(io.BytesIO(file.getvalue()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1 / 32768 if is_kept else 0)


@pytest.mark.parametrize(
    ("codec", "container"),
    [("aac", "mp4"), ("aac", "adts"), ("libopus", "webm"), ("alac", "mov"), ("mp2", "mpegts"), ("wavpack", "wv")],
)
@pytest.mark.parametrize("through", ["path", "object", "pipe"])
def test_containers_are_read(tmp_path: Path, codec: str, container: str, through: str) -> None:
    tone = np.sin(np.arange(3 * 48_000) * 2 * np.pi * 440 / 48_000).astype(np.float32) * np.float32(0.5)
    data = encoded(np.stack([tone, tone], axis=1), 48_000, codec, container)
    path = tmp_path / "x.wav"  # content decides
    path.write_bytes(data)
    with open_audio({"path": path, "object": io.BytesIO(data), "pipe": Pipe(data)}[through]) as stream:
        assert stream.duration_s == pytest.approx(3.0, abs=0.2)
    got = decode({"path": path, "object": io.BytesIO(data), "pipe": Pipe(data)}[through])
    np.testing.assert_array_equal(got, _as_faster_whisper(io.BytesIO(data)))
    assert abs(len(got) - 3 * SAMPLE_RATE) < 2000 and np.abs(got).max() == pytest.approx(0.5, abs=0.1)


def test_pyav_19_has_no_metadata_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    opens, data = av.open, encoded(NOISE[:16_000, None], SAMPLE_RATE, "aac", "adts")

    def open_of_19(file: Any, mode: str, options: Any) -> Any:
        return opens(file, mode, options=options)

    monkeypatch.setattr(av, "__version__", "19.0.2")
    monkeypatch.setattr(av, "open", open_of_19)
    assert len(decode(io.BytesIO(data))) > 15_000


def test_the_sound_of_a_video_is_read_or_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for n_samples in (32_000, 0):
        path = tmp_path / f"{n_samples}.mp4"
        with av.open(str(path), "w") as container:
            video = container.add_stream("mpeg4", rate=5)
            video.width = video.height = 32
            sound = container.add_stream("aac", rate=SAMPLE_RATE, layout="mono") if n_samples else None
            for _ in range(20):
                container.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), "rgb24")))
            container.mux(video.encode(None))
            if sound is not None:
                frame = av.AudioFrame.from_ndarray(np.resize(NOISE, (1, n_samples)), "flt", "mono")
                frame.sample_rate = SAMPLE_RATE
                container.mux([*sound.encode(frame), *sound.encode(None)])
    assert len(decode(tmp_path / "32000.mp4")) == pytest.approx(32_000, abs=2048) and not caplog.messages
    with pytest.raises(AudioError, match="has no sound track"):
        open_audio(tmp_path / "0.mp4")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_whole_file_has_its_length_and_no_warning(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    _written(tmp_path / "whole", kind)
    with open_audio(tmp_path / "whole") as stream:
        assert stream.duration_s == pytest.approx(DURATION_S, abs=0.01)
    assert len(decode(tmp_path / "whole")) == len(SPEECH_LIKE)
    assert not caplog.messages


@pytest.mark.parametrize("share", [0.25, 0.97])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_cut_file_is_read_as_far_as_it_goes(
    tmp_path: Path, kind: str, share: float, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    data = _written(tmp_path / "cut", kind)
    (tmp_path / "cut").write_bytes(data[: int(share * len(data))])
    got = decode(tmp_path / "cut")
    # The beginning of an Ogg file is its codebooks, and its pages are as long as a second.
    assert (share - 0.25) * DURATION_S < len(got) / SAMPLE_RATE < (share + 0.1) * DURATION_S
    assert [record.levelno for record in caplog.records] == [LOSS] and capfd.readouterr().err == ""
    if kind in ("vorbis", "opus"):
        assert "it ends inside a page" in caplog.messages[0]
    else:
        missing = re.search(r"(\S+) s of the 12\.[01] s that its header promises are missing", caplog.messages[0])
        assert missing and float(missing[1]) == pytest.approx(DURATION_S - len(got) / SAMPLE_RATE, abs=0.15)


def test_a_cut_container_says_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    data = encoded(SPEECH_LIKE[:, None], SAMPLE_RATE, "aac", "mp4", movflags="+faststart")
    assert len(decode(io.BytesIO(data))) == pytest.approx(len(SPEECH_LIKE), abs=2048) and not caplog.messages
    got = decode(io.BytesIO(data[: len(data) // 2]))
    missing = re.search(r"(\S+) s of the 12\.\d s that its header promises are missing", caplog.messages[0])
    assert missing and float(missing[1]) == pytest.approx(DURATION_S - len(got) / SAMPLE_RATE, abs=0.2)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("kind", ["flac", "mp3", "vorbis", "opus"])
def test_reading_goes_on_behind_damage(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    data = _written(tmp_path / "damaged", kind)
    middle, n_bytes = len(data) // 2, len(data) // 10
    junk = np.random.default_rng(3).bytes(n_bytes)
    (tmp_path / "damaged").write_bytes(data[:middle] + junk + data[middle + n_bytes :])
    got = decode(tmp_path / "damaged")
    assert 0.7 * len(SPEECH_LIKE) < len(got) < len(SPEECH_LIKE)
    if kind == "flac":
        np.testing.assert_allclose(got[-8000:], SPEECH_LIKE[-8000:], atol=1e-4)
    missing = re.search(r"(\S+) s of the 12\.0 s", caplog.messages[0])
    assert len(caplog.messages) == 1 and missing
    assert float(missing[1]) == pytest.approx(DURATION_S - len(got) / SAMPLE_RATE, abs=0.06)


@pytest.mark.parametrize("kind", ["flac", "mp3", "vorbis", "opus"])
def test_joined_files_are_read_to_the_end(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    data = _written(tmp_path / "one", kind)
    (tmp_path / "two").write_bytes(data + data)
    assert len(decode(tmp_path / "two")) / SAMPLE_RATE == pytest.approx(2 * DURATION_S, abs=0.2)
    assert not caplog.messages


@pytest.mark.parametrize("kind", ["flac", "mp3", "vorbis", "opus"])
def test_bytes_changed_anywhere_end_in_samples_or_in_one_line(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    data = _written(tmp_path / "bad", kind, SPEECH_LIKE[:48_000])
    rng = np.random.default_rng(7)
    for _ in range(40):
        damaged = bytearray(data)
        for at in rng.integers(0, len(damaged), rng.integers(1, 20)):
            damaged[at] = rng.integers(256)
        caplog.clear()
        try:
            got = decode(io.BytesIO(damaged[: rng.integers(1, len(damaged) + 1)]))
        except AudioError as error:
            assert "\n" not in str(error)
        else:
            assert np.isfinite(got).all() and len([m for m in caplog.messages if "NaN" not in m]) <= 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"<html>not found</html>" * 50, id="a web page"),
        pytest.param(bytes(5000), id="zeros"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + bytes(500), id="a picture"),
        pytest.param(np.arange(10_000, dtype="<i2").tobytes(), id="samples without a header"),
        pytest.param(b"abcd", id="four letters"),
        pytest.param(b"ffconcat version 1.0\nfile secret.flac\n", id="a list of files"),
        pytest.param(b"#EXTM3U\n#EXTINF:3,\nsecret.flac\n#EXT-X-ENDLIST\n", id="an HLS playlist"),
    ],
)
@pytest.mark.parametrize("name", ["x.txt", "x.mp3", "x.m3u8"])
def test_what_is_no_audio_is_said_to_be_none(
    tmp_path: Path, name: str, data: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """A playlist, above all, opens no other file."""
    soundfile.write(tmp_path / "secret.flac", NOISE, SAMPLE_RATE)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(AudioError, match="this is no audio") as caught:
        open_audio(tmp_path / name)
    assert "--raw" not in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(AudioError, match=r"this is no audio .*say how they lie: --raw s16le:16000$"):
        open_audio(Pipe(data))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("data", [b"\x1aE\xdf\xa3" + b"nonsense" * 8, b"\0\0\0\x20ftypM4A " + bytes(100)])
def test_what_begins_as_audio_and_is_none_has_ffmpeg_s_reason(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.mkv").write_bytes(data)
    with pytest.raises(AudioError, match=r"x\.mkv: this is no audio that FFmpeg can decode: Invalid data"):
        open_audio(tmp_path / "x.mkv")


def _cut_wav(path: Path) -> None:
    path.write_bytes(wav_bytes(NOISE)[:-1000])


def _flac_with_a_hole(path: Path) -> None:
    data = bytearray(_written(path, "flac"))
    data[len(data) // 2 : len(data) // 2 + 2000] = bytes(2000)
    path.write_bytes(data)


def _not_numbers(path: Path) -> None:
    samples = np.resize(NOISE, 160_000)
    samples[[10, 100_000]] = np.nan
    path.write_bytes(wav_bytes(samples))


@pytest.mark.parametrize("make", [_cut_wav, _flac_with_a_hole, _not_numbers])
def test_a_warning_is_said_once_although_a_file_is_read_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Any
) -> None:
    path = tmp_path / "a.bin"
    make(path)
    with open_audio(path) as stream:
        mels = MelStream(stream, 80, 100, again=stream.again)
        seek = 0
        while (n_frames := mels.window(seek)[1]) > 0:
            seek += n_frames
    assert seek > 100 and len(caplog.messages) == 1 and str(path) in caplog.messages[0]
