"""`specedge listen`: lines in a pipe, text in place on a terminal, Ctrl-C, and options that do not go together."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.models import store
from specedge.runtime import model as models
from specedge.runtime.audio import microphone
from specedge.runtime.cli import main
from specedge.runtime.cli.listen import LiveText
from support.fake_cli import fake_model
from support.fake_engine import scripted_drafter
from support.sound import wav_bytes

DIM, PLAIN, CLEAR = "\x1b[2m", "\x1b[0m", "\r\x1b[K"


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    loaded: list[Any] = []

    def load(path: Path, threads: int | None, budget_bytes: int | None = None) -> Any:
        loaded.append((path, threads or None))
        return fake_model()

    monkeypatch.setattr(models, "load", load)
    monkeypatch.setattr(models, "make_drafter", scripted_drafter)
    monkeypatch.setattr(models, "choose_bundle", lambda path, **_: path)
    monkeypatch.setattr(store, "default", lambda: Path("demo"))
    monkeypatch.setattr(store, "find", Path)
    return loaded


class Stdin:
    """Standard input that holds these bytes and is a pipe."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)

    def isatty(self) -> bool:
        return False


def loud(n_samples: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    levels = np.repeat(rng.choice([0.001, 0.3], n_samples // 1600 + 1), 1600)[:n_samples]
    return np.asarray(np.clip(levels * rng.standard_normal(n_samples), -1, 1), np.float32)


@pytest.mark.parametrize("is_raw", [False, True])
def test_standard_input_is_written_as_lines(
    is_raw: bool, model: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = loud(32_000)
    data = (samples * 32767).astype("<i2").tobytes() if is_raw else wav_bytes(samples)
    monkeypatch.setattr(sys, "stdin", Stdin(data))
    arguments = ["listen", "-", "-m", "small", "-l", "en", "-t", "2", *(["--raw", "s16le:16000"] if is_raw else [])]
    assert main.main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and captured.out.endswith("\n")
    assert captured.out.count("pump") >= 2 and not " ".join(captured.out.split()).replace("the pump is on", "").strip()
    assert model == [(Path("small"), 2)]


def test_ctrl_c_ends_the_microphone_and_writes_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def blocks(device: Any) -> Iterator[Any]:
        asked.append(device)
        yield from np.array_split(loud(16_000), 10)
        raise KeyboardInterrupt

    monkeypatch.setattr(microphone, "microphone_blocks", blocks)
    assert main.main(["listen", "--device", "3"]) == 130
    captured = capsys.readouterr()
    assert " ".join(captured.out.split()) == "the pump is on"
    demo, *rest = captured.err.splitlines()
    assert "bundled demo model" in demo and rest == ["specedge: listening; Ctrl-C ends", "specedge: interrupted"]
    assert asked == [3]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["talk.wav"], 2, "talk.wav: expected - for standard input"),
        (["--raw", "s16le:16000"], 2, "--raw is for standard input"),
        (["-", "--device", "x"], 2, "--device is for the microphone"),
        (["-", "--raw", "mp3"], 2, "raw format"),
        (["-", "-l", "klingon"], 2, "klingon"),
        (["-", "--step-s", "99"], 2, "--step-s"),
    ],
)
def test_arguments_that_cannot_be(
    arguments: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(wav_bytes(loud(16_000))))
    assert main.main(["listen", *arguments]) == code
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""


# ---- how it looks ----------------------------------------------------------------------------------------------


def test_a_pipe_gets_confirmed_lines_only() -> None:
    out = io.StringIO()
    text = LiveText(out)
    for confirmed, tentative in [("", " a"), (" a b", " c"), (" ", ""), (" c.", "")]:
        text.show(confirmed, tentative)
    text.close()
    assert out.getvalue() == "a b\nc.\n"


def test_a_terminal_is_redrawn_in_place() -> None:
    out = io.StringIO()
    text = LiveText(out, is_terminal=True, columns=16)
    text.show("", " one too")
    text.show(" one two", " three four five")
    text.show(" three four", "")
    text.close()
    assert out.getvalue().split(CLEAR)[1:] == [
        f"{DIM}one too{PLAIN}",
        f"one two{DIM} three f{PLAIN}",
        "one two three\nfour",
        "four\n",
    ]


@given(
    pieces=st.lists(
        st.tuples(st.text(alphabet=" ab中é", max_size=30), st.text(alphabet=" xy中", max_size=30)), max_size=8
    ),
    columns=st.integers(4, 20),
)
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(pieces: list[tuple[str, str]], columns: int) -> None:
    out = io.StringIO()
    text = LiveText(out, is_terminal=True, columns=columns)
    for confirmed, tentative in pieces:
        text.show(confirmed, tentative)
    text.close()
    drawn = out.getvalue().replace(DIM, "").replace(PLAIN, "")
    for line in re.split(r"\r\x1b\[K|\n", drawn):
        assert sum(2 if c == "中" else 1 for c in line) < columns
    # What stays on the screen: of each line what was drawn last, without what was dimmed.
    rows = [re.sub(r"\x1b\[2m.*", "", row.rpartition(CLEAR)[2]) for row in out.getvalue().split("\n")]
    assert "".join("".join(rows).split()) == "".join("".join(confirmed for confirmed, _ in pieces).split())
