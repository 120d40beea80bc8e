"""`specedge fleet`: what it hands on, what it says, and its exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import specedge.fleet
from specedge.fleet import Record
from specedge.runtime.cli.main import main


def _given(monkeypatch: pytest.MonkeyPatch, *records: Record | BaseException) -> dict[str, Any]:
    """Stand in for the library; what it was asked."""
    asked: dict[str, Any] = {}

    def transcribe(paths: Any, out: str, **options: Any) -> Iterator[Record]:
        asked.update(options, paths=paths, out=out)
        for record in records:
            if isinstance(record, BaseException):
                raise record
            yield record

    monkeypatch.setattr(specedge.fleet, "transcribe", transcribe)
    return asked


DONE = Record(path="a.wav", state="done", duration_s=61.0)
OLD = Record(path="b.wav", state="done", duration_s=61.0, is_new=False)
COPY = Record(path="e.wav", state="done", duration_s=61.0, is_new=False, is_duplicate=True)
BAD = Record(path="c.wav", state="failed", error="c.wav: this is no audio")
POISON = Record(path="d.wav", state="quarantined", error="d.wav: ends the process that transcribes it, by SIGKILL")


def test_every_file_is_counted_and_bad_ones_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = _given(monkeypatch, DONE, OLD, COPY, BAD, POISON)
    assert main("fleet talks -o out -m small --local 3 --batch-size 4 -l de -f txt,srt".split()) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "specedge: failed: c.wav: this is no audio"
    assert lines[1] == "specedge: quarantined: d.wav: ends the process that transcribes it, by SIGKILL"
    assert lines[2].startswith(
        "specedge: 1 done, 1 duplicate, 1 there already, 1 failed, 1 quarantined: 1:01 of audio in 0:0"
    )
    assert asked["paths"] == ("talks",) and asked["out"] == "out"
    assert asked["formats"] == ("txt", "srt")
    assert (asked["model"], asked["n_workers"], asked["batch_size"], asked["language"]) == ("small", 3, 4, "de")


def test_a_run_that_is_stopped_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _given(monkeypatch, OLD, KeyboardInterrupt())
    assert main(["fleet", "talks", "-o", "out"]) == 130
    assert capsys.readouterr().err == "specedge: 0 done, 1 there already; the same command goes on\n"


def test_all_that_is_well_is_0_and_quiet_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _given(monkeypatch, OLD)
    assert main(["fleet", "talks", "-o", "out", "-q"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["talks"], "Missing option '-o'"),
        (["talks", "-o", "out", "--local", "2", "--cluster", "tcp://h:1"], "--local and --cluster are two ways to run"),
        (["talks", "-o", "out", "--cluster", "host"], "--cluster: got 'host', expected the address of a scheduler"),
        (["-", "-o", "out"], "standard input cannot be read by a fleet"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "a.wav").write_bytes(b"sound")
    assert main(["fleet", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_its_libraries_the_command_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _given(monkeypatch, ModuleNotFoundError("No module named 'distributed'", name="distributed"))
    assert main(["fleet", "talks", "-o", "out"]) == 2
    assert "this needs distributed, which is not installed: pip install '.[fleet]'" in capsys.readouterr().err
