"""Sentences out of transcripts of every format, and what is said of those that are none."""

from __future__ import annotations

import json
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from specedge.errors import UsageError
from specedge.runtime.text import transcripts
from specedge.runtime.text.transcripts import find_transcripts, read_sentences, token_sentences
from support import exported

WHISPER_JSON = json.dumps(
    {"text": " x", "segments": [{"text": " And so my"}, {"text": " fellow Americans."}, {"text": " Ask not."}]}
)
SRT = (
    "1\n00:00:00,000 --> 00:00:01,500\n<i>And so</i>\nmy\n\n2\n00:00:01,500 --> 00:00:02,000\nfellow &amp; Americans.\n"
)
FORMATS = {
    "a.txt": ("One line.\n\n  two   lines\r\n", ["One line.", "two lines"]),
    "bom.txt": ("\ufeffOne line.", ["One line."]),
    "a.srt": (SRT, ["And so my fellow & Americans."]),
    "a.vtt": ("WEBVTT\n\nNOTE no\n\n00:01.000 --> 00:02.000 line:0\n<v Bob>Hi.\n", ["Hi."]),
    "a.tsv": ("start\tend\ttext\n0\t10\tAnd so\n10\t20\tmy friends.\n", ["And so my friends."]),
    "cv.tsv": ("path\tsentence\tage\nx.mp3\tHello.\t5\n", ["Hello."]),
    "a.json": (WHISPER_JSON, ["And so my fellow Americans.", "Ask not."]),
    "list.json": ('["One.", {"text": "Two."}]', ["One.", "Two."]),
    "a.jsonl": ('{"text": "One"}\n\n"Two"\n{"sentence": "Three."}\n', ["One", "Two", "Three."]),
    "a.ndjson": ('{"segments": [{"text": " a"}, {"text": " b."}]}', ["a b."]),
    "silence.srt": ("1\n00:00:00,000 --> 00:00:01,500\n[Music]\n\n2\n00:00:02,000 --> 00:00:03,000\n♪ la ♪\n", []),
    "chinese.tsv": ("start\tend\ttext\n0\t10\t今天\n10\t20\t天气很好。\n", ["今天天气很好。"]),
}


def _never(error: Exception) -> None:
    raise error


def _write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize("name", FORMATS)
def test_each_format(tmp_path: Path, name: str) -> None:
    content, expected = FORMATS[name]
    assert list(read_sentences([_write(tmp_path, name, content)], report=_never)) == expected


def test_bare_sentences_are_counted_as_whisper_writes_them() -> None:
    tokenizer = exported.bundle().tokenizer
    found = token_sentences(["get me a latte", "Get me a latte", "get me a latte?", "今天"], tokenizer)
    said = [" Get me a latte.", " Get me a latte", " get me a latte?", "今天"]
    assert list(found) == [tokenizer.encode(text) for text in said]


@pytest.mark.parametrize("name", FORMATS)
def test_standard_input_and_other_names_are_recognised(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, expected = FORMATS[name]
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(content.encode())))
    assert list(read_sentences(["-"], report=_never)) == expected
    assert list(read_sentences([_write(tmp_path, "x.transcript", content)], report=_never)) == expected


BAD = {
    "utf16.txt": ("x".encode("utf-16"), "no text in UTF-8"),
    "latin.txt": (b"fine\ncaf\xe9", "line 3 is not UTF-8"),
    "zero.txt": (b"a\0b", "no text in UTF-8"),
    "bad.json": (b'{"text":', "no JSON"),
    "other.json": (b'{"words": 3}', "found no text"),
    "deep.json": (b"[" * 100_000, "no JSON"),
    "bad.jsonl": (b'"fine"\n{]\n', "line 2: no JSON"),
    "bad.tsv": (b"a\tb\n1\t2\n", "no column named text"),
    "short.tsv": (b"start\tend\ttext\n1\n", "line 2 has 1 columns, expected 3"),
    "bad.srt": (b"nothing here\n", "no cue in this file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_alone_and_passed_over_among_others(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    bad, good = _write(tmp_path, name, content), _write(tmp_path, "good.txt", "Good.")
    with pytest.raises(UsageError, match=message):
        list(read_sentences([bad], report=_never))
    errors: list[Exception] = []
    assert list(read_sentences([bad, good], report=errors.append)) == ["Good."]
    assert len(errors) == 1 and str(errors[0]).startswith(bad)


def test_a_file_that_vanished(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read .*gone.txt: No such file"):
        list(read_sentences([str(tmp_path / "gone.txt")], report=_never))


def test_long_lines_are_cut_and_bytes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "_LINE_BYTES", 15)
    content = "word " * 9 + "ü" * 30 + "\nlast"
    n_bytes = 0

    def count(n: int) -> None:
        nonlocal n_bytes
        n_bytes += n

    found = list(read_sentences([_write(tmp_path, "x.txt", content)], report=_never, on_bytes=count))
    assert n_bytes == len(content.encode())
    assert found[:3] == ["word word word"] * 3
    assert "".join(found).replace(" ", "") == content.replace(" ", "").replace("\n", "")


def test_a_large_file_is_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "_WHOLE_BYTES", 3)
    sentences = read_sentences([_write(tmp_path, "x.jsonl", '"One."\n"Two."\n{]\n')], report=_never)
    assert next(sentences) == "One."
    assert next(sentences) == "Two."
    with pytest.raises(UsageError, match="line 3"):
        next(sentences)


def test_folders_take_one_format_of_each_transcript(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.srt", "a.json", "a.txt", "sub/a.vtt", "notes.md", ".hidden.txt"):
        _write(tmp_path, name, "x")
    found = [Path(p).relative_to(tmp_path).as_posix() for p in find_transcripts([str(tmp_path)])]
    assert found == ["a.json", "b.txt", "sub/a.vtt"]
    assert find_transcripts(["-", str(tmp_path / "a.srt")]) == ["-", str(tmp_path / "a.srt")]


def test_sources_that_cannot_be(tmp_path: Path) -> None:
    for sources, message in (
        ([str(tmp_path)], "no transcript in this folder"),
        ([str(tmp_path / "x")], "no such file or folder"),
    ):
        with pytest.raises(UsageError, match=message):
            find_transcripts(sources)
