"""A line on a terminal, silence in a pipe."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from specedge.runtime import console as module
from specedge.runtime.console import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    made = Terminal()
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=made))
    return made


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be changed."""
    at = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: at[0])
    return at


def test_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10) as progress:
        progress.update(10)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_lines_in_a_log(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    with Progress(10, "steps", "a", every_s=5.0) as progress:
        for _ in range(8):
            now[0] += 1
            progress.update(1)
    assert capsys.readouterr().err.splitlines() == ["a   50%  5/10 steps  0:05 left", "a   80%  8/10 steps  0:02 left"]


def test_a_terminal_shows_share_and_amounts_and_is_wiped(terminal: Terminal) -> None:
    with Progress(10, "weights", "talk.wav") as progress:
        progress.update_to(5)
        assert terminal.getvalue() == "\r\x1b[Ktalk.wav   50%  5/10 weights"
    assert terminal.getvalue().endswith("\r\x1b[K") and "\n" not in terminal.getvalue()


def test_audio_shows_times_speed_and_what_is_left(terminal: Terminal, now: list[float]) -> None:
    progress = Progress(576.0, "s", "talk.wav")
    now[0] += 60.0
    progress.update_to(288.0)
    assert terminal.getvalue().endswith("   50%  4:48/9:36  4.8x  1:00 left")
    endless = Progress(None, "s", "stdin")
    now[0] += 10.0
    endless.update_to(65.0)
    assert terminal.getvalue().endswith("stdin  1:05  6.5x")


def test_a_line_fits_the_terminal_and_gives_way_to_a_message(terminal: Terminal, now: list[float]) -> None:
    with Progress(600.0, "s", "12/20 " + "long" * 20) as progress:
        now[0] += 60.0
        progress.update_to(300.0)
        line = terminal.getvalue().split("\x1b[K")[-1]
        assert len(line) <= 79 and line.endswith("1:00 left")
        module.notify("warning")
        assert terminal.getvalue().endswith(line + "\r\x1b[Kspecedge: warning\n")
        now[0] += 1.0
        progress.update_to(301.0)
        assert terminal.getvalue().count("left") == 2, "and is drawn again"


def test_a_label_cannot_write_control_characters(terminal: Terminal) -> None:
    Progress(10, label="a\x1b[2Jb\n").update(1)
    assert "a?[2Jb?" in terminal.getvalue()


def test_a_terminal_that_goes_away_does_not_stop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(5, "gone")

    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=Gone()))
    with Progress(10) as progress:
        progress.update(1)
        progress.update(1)
