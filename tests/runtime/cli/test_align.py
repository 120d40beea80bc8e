"""`specedge align`: words with their times in each format, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specedge.runtime.cli.main import main
from support.paths import samples

TEXT = "Call the maintenance crew\nto generator two."


@pytest.fixture
def recording() -> str:
    return next(str(path) for path in samples() if path.name == "maintenance.wav")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_json_has_every_word(recording: str, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", recording, str(text)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == TEXT and found["language"] == "en"
    words = [word for segment in found["segments"] for word in segment["words"]]
    assert "".join(word["word"] for word in words).strip() == TEXT.replace("\n", " ")
    assert all(0 <= word["start"] <= word["end"] <= 3 and 0 < word["probability"] <= 1 for word in words)


def test_subtitles_get_new_times_and_a_file(recording: str, text: Path, tmp_path: Path) -> None:
    first, again = tmp_path / "first.srt", tmp_path / "again.srt"
    assert main(["align", recording, str(text), "-f", "srt", "-o", str(first)]) == 0
    assert first.read_text().count("-->") == 2 and "to generator two." in first.read_text()
    assert main(["align", recording, str(first), "-f", "srt", "-o", str(again), "--max-words-per-line", "1"]) == 0
    assert again.read_text().count("-->") == 7


def test_a_text_that_nobody_says_is_warned_of(
    recording: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("Call the maintenance crew\nto generator two.\nZebras purr xylophones quietly beyond Kathmandu.")
    assert main(["align", recording, str(text)]) == 0
    assert capsys.readouterr().err == ""
    assert main(["align", recording, str(other)]) == 0
    assert "1 of 3 lines do not seem to be spoken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("no.wav", "{text}"), 3, "no.wav: no such file"),
        (("{recording}", "no.txt"), 2, "no.txt"),
        (("{recording}", "{empty}"), 2, "holds no words"),
        (("-", "-"), 2, "'-' is given twice"),
        (("{recording}", "{text}", "-m", "nonesuch"), 4, "no model 'nonesuch'"),
        (("{recording}", "{text}", "-l", "klingon"), 2, "unknown language"),
        (("{recording}", "{text}", "-f", "srt", "-o", "{text}"), 2, "would replace the input"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...],
    code: int,
    message: str,
    recording: str,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    names = {"recording": recording, "text": str(text), "empty": str(empty)}
    assert main(["align", *(argument.format(**names) for argument in arguments)]) == code
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and not said.out
    assert text.read_text() == TEXT
