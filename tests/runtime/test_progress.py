"""A line on a terminal, silence in a pipe."""

from __future__ import annotations

import io

import pytest

from specedge.runtime import progress as module
from specedge.runtime.progress import Progress


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


def test_an_unknown_total_shows_a_count() -> None:
    terminal = Terminal()
    Progress(None, "files", stream=terminal).update(3)
    assert "3 files" in terminal.getvalue() and "%" not in terminal.getvalue()


def test_redraws_are_rare_and_more_than_the_total_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    terminal = Terminal()
    progress = Progress(10, stream=terminal)
    for _ in range(1000):
        progress.update(1)
        now[0] += 0.001
    assert 9 <= terminal.getvalue().count("\r") <= 12
    assert "100%" in terminal.getvalue()


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
