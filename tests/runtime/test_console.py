"""A line on a terminal, silence in a pipe."""

from __future__ import annotations

import io

import pytest

from specedge.runtime import console as module
from specedge.runtime.console import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    pipe = io.StringIO()
    with Progress(10, "s", "a", stream=pipe) as progress:
        progress.update(5)
    assert pipe.getvalue() == ""
    with Progress(10) as progress:
        progress.update(10)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_terminal_shows_share_and_amounts_and_is_wiped() -> None:
    terminal = Terminal()
    with Progress(10, "s", "talk.wav", stream=terminal) as progress:
        progress.update_to(5)
        assert "talk.wav" in terminal.getvalue() and "50%" in terminal.getvalue() and "5/10 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K") and "\n" not in terminal.getvalue()


def test_audio_shows_times_speed_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    terminal = Terminal()
    progress = Progress(576.0, "s", "talk.wav", stream=terminal, is_time=True)
    now[0] += 60.0
    progress.update_to(288.0)
    assert terminal.getvalue().endswith("]  50%  4:48/9:36  4.8x  1:00 left")
    terminal = Terminal()
    endless = Progress(None, "s", "stdin", stream=terminal, is_time=True)
    now[0] += 10.0
    endless.update_to(65.0)
    assert terminal.getvalue().endswith("stdin  1:05  6.5x")


def test_a_line_fits_the_terminal_and_gives_way_to_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    with Progress(600.0, label="12/20 " + "long" * 20, is_time=True, after="all 12:34 left") as progress:
        now[0] += 60.0
        progress.update_to(300.0)
        line = module.sys.stderr.getvalue().split("\x1b[K")[-1]
        assert len(line) <= 79 and line.endswith("left  all 12:34 left") and "[####" in line
        module.notify("warning")
        assert module.sys.stderr.getvalue().endswith(line + "\r\x1b[Kspecedge: warning\n")
        now[0] += 1.0
        progress.update_to(301.0)
        assert module.sys.stderr.getvalue().count("[####") == 2, "and is drawn again"


def test_a_label_cannot_write_control_characters() -> None:
    terminal = Terminal()
    Progress(10, label="a\x1b[2Jb\n", stream=terminal).update(1)
    assert "a?[2Jb?" in terminal.getvalue()


def test_a_terminal_that_goes_away_does_not_stop_the_work() -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(5, "gone")

    with Progress(10, stream=Gone()) as progress:
        progress.update(1)
        progress.update(1)
