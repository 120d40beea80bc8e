"""What is written: openai-whisper's fields, sane numbers, and files that are old or new but never half."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specedge.errors import ResourceError
from specedge.files import write_atomic
from specedge.runtime.decoding.statistics import Speculation
from specedge.runtime.longform.segments import Segment, Word
from specedge.runtime.model import new_info
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.output.formats import FORMATS, KINDS, Transcript, render, speculation_fields, to_json
from support import openai_whisper


def segment(**changes: Any) -> Segment:
    values = {
        "id": 0,
        "seek": 0,
        "start": 0.1 + 0.2,
        "end": 3.2800000000000002,
        "text": " Die Pumpe läuft.",
        "tokens": [50364, 1, 2, 50514],
        "temperature": 0.0,
        "avg_logprob": -0.123456789012,
        "compression_ratio": 1.2345678901,
        "no_speech_prob": 1.23456789e-12,
    }
    return Segment(**{**values, **changes})


def transcript(*segments: Segment) -> Transcript:
    info = replace(new_info(11.0, TranscribeOptions()), language="de")
    info.speculation = speculation_fields(
        Speculation(passes=4, tokens=4), encoder_s=0.12345, total_s=1.0, n_words=0, duration_s=0.0
    )
    return Transcript(text="".join(s.text for s in segments), segments=segments, info=info)


def test_json_is_one_line_of_ascii() -> None:
    text = to_json(transcript(segment()))
    assert text.endswith("\n") and text.count("\n") == 1 and text.isascii()


@pytest.mark.parametrize("words", [None, [], [Word(start=0.1 + 0.2, end=1.0, word=" Düse", probability=1 / 3)]])
def test_json_begins_with_openai_whispers_bytes(words: list[Word] | None) -> None:
    """Numbers unrounded, words last, and after the language what is ours."""
    segments = [segment(words=words), segment(id=1, text=' \U0001f44d\t"x"')]
    whole = transcript(*segments)
    theirs = openai_whisper.written("json", segments, text=whole.text)
    assert theirs.endswith(', "language": "en"}')
    ours = to_json(whole).replace('"language": "de"', '"language": "en"')
    assert ours.startswith(theirs[:-1] + ', "duration": 11.0, "speculation": {')


def test_json_says_that_it_was_interrupted() -> None:
    assert json.loads(to_json(replace(transcript(segment()), interrupted=True)))["interrupted"] is True
    assert "interrupted" not in json.loads(to_json(transcript(segment())))


def test_json_holds_no_nan() -> None:
    text = to_json(transcript(segment(avg_logprob=math.nan, no_speech_prob=math.inf, end=-math.inf)))
    value = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert value["segments"][0]["avg_logprob"] is None and value["segments"][0]["end"] is None


def test_speculation_fields() -> None:
    counted = Speculation(
        drafter="x",
        proposed=9,
        evaluated=8,
        accepted=6,
        bonus=1,
        passes=3,
        tokens=9,
        decoder_s=2.5,
        draft_s=0.5,
    )
    fields = speculation_fields(counted, encoder_s=1.23456, total_s=2.0, n_words=6, duration_s=4.0)
    assert fields["calls_per_word"] == 0.5 and fields["decoder_real_time_factor"] == 0.75
    assert fields["acceptance_rate"] == 0.75 and fields["tokens_per_pass"] == 3.0
    assert fields["encoder_s"] == 1.235 and fields["lossless"] is True
    assert fields["choice"] is None
    chosen = replace(counted, drafter="auto", choice="tokenmap by what rows cost here")
    fields = speculation_fields(chosen, encoder_s=0, total_s=0, n_words=0, duration_s=0)
    assert (fields["drafter"], fields["choice"]) == ("auto", "tokenmap by what rows cost here")
    assert Speculation(choice="a").plus(Speculation(choice="b")).choice == "b"
    empty = speculation_fields(Speculation(), encoder_s=0, total_s=0, n_words=0, duration_s=0)
    assert empty["acceptance_rate"] is empty["calls_per_word"] is empty["decoder_real_time_factor"] is None


def test_tsv_has_whole_milliseconds_and_no_tabs_in_the_text() -> None:
    text = render("tsv", transcript(segment(text=" a\tb"), segment(start=3661.0, end=3662.0004, text=" c")))
    assert text == "start\tend\ttext\n300\t3280\ta b\n3661000\t3662000\tc\n"


def test_lrc_is_a_line_with_minutes_and_hundredths() -> None:
    text = render("lrc", transcript(segment(text=" a\nb"), segment(start=59.996, text=" c"), segment(start=6001.5)))
    assert text == "[00:00.30]a b\n[01:00.00]c\n[100:01.50]Die Pumpe läuft.\n"


@pytest.mark.parametrize("format", FORMATS)
def test_a_transcript_takes_the_place_of_one_in_its_format(format: str) -> None:
    for made in (transcript(), transcript(segment(), segment())):
        text = render(format, made).encode()
        assert not text or KINDS[format].begins(text)
    others = [b'{"speaker": "Jo"}', b"\x89TMAP1\r\n" + bytes(9), b"RIFF\x24\0\0\0WAVEfmt ", b"a,b\n1,2\n"]
    assert [KINDS[format].begins(other) for other in others] == [format == "txt", False, False, format == "txt"]


@pytest.mark.parametrize(
    ("format", "theirs"),
    [
        ("json", b'{\n "text": " a",\n "segments": []}'),
        ("srt", b"\xef\xbb\xbf1\r\n00:00:00,000 --> 00:00:02,000\r\na\r\n"),
        ("vtt", b"\xef\xbb\xbfWEBVTT - a talk\n\n"),
        ("tsv", b"start\tend\ttext\n"),
        ("lrc", b"[by:whisper.cpp]\n[00:00.00]a\n"),
    ],
)
def test_transcripts_of_other_programs_are_transcripts(format: str, theirs: bytes) -> None:
    assert KINDS[format].begins(theirs)


def test_a_file_is_written_with_the_usual_permissions_and_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_atomic(target, "old\n")
    write_atomic(target, "ü\n")
    assert target.read_bytes() == b"\xc3\xbc\n"
    assert os.listdir(tmp_path) == ["a.txt"]
    if os.name == "posix":
        plain = tmp_path / "b.txt"
        plain.touch()
        assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(ResourceError, match=os.strerror(code)):
        write_atomic(target, "new")
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_an_interrupt_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "a.txt", "new")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["missing/a.txt", "file/a.txt", "folder"])
def test_a_place_that_cannot_be_written_is_a_resource_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResourceError, match="cannot write"):
        write_atomic(tmp_path / name, "text")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_full_disk_is_a_resource_error(tmp_path: Path) -> None:
    """The system's own limit on file size: the write fails half way, as on a full disk."""
    resource = pytest.importorskip("resource")
    import subprocess
    import sys

    code = (
        "import resource, signal, sys\n"
        "from specedge.errors import ResourceError\n"
        "from specedge.runtime.output.formats import write_atomic\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    write_atomic(sys.argv[1], 'x' * 100_000)\n"
        "except ResourceError as error:\n    sys.exit(error.exit_code)\n"
    )
    assert resource is not None
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.txt")], timeout=60)
    assert done.returncode == 5 and os.listdir(tmp_path) == []
