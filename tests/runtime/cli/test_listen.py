"""`specedge listen`: lines in a pipe, text in place on a terminal, Ctrl-C, and options that do not go together."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.runtime.audio import microphone
from specedge.runtime.cli import main
from specedge.runtime.cli.listen import LiveLines, LiveText
from specedge.runtime.longform.live import LiveUpdate
from support.sound import wav_bytes

DIM, PLAIN, CLEAR = "\x1b[2m", "\x1b[0m", "\r\x1b[K"


pytestmark = pytest.mark.usefixtures("model")


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
    assert captured.err == "" and captured.out.endswith("\n") and captured.out.count("\n") == 1, "one utterance"
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
    assert captured.err.splitlines() == ["specedge: listening; Ctrl-C ends", "specedge: interrupted"]
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
    arguments: list[str], code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(wav_bytes(loud(16_000))))
    assert main.main(["listen", *arguments]) == code
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def update(confirmed: str, tentative: str, start_s: float = 0.0, end_s: float = 0.0, *, ends: bool = False) -> Any:
    return LiveUpdate(confirmed=confirmed, tentative=tentative, start_s=start_s, end_s=end_s, ends_utterance=ends)


UTTERANCES = [
    update("", " a", 1.0, 2.0),
    update(" a b", " c", 1.0, 3.0),
    update(" ", "", 2.0, 3.0),
    update(" c.", "", 2.5, 4.0),
    update("", "", 1.0, 4.0, ends=True),
    update("", " no", 5.0, 6.0),
    update("", "", 5.0, 6.0),
    update(" d", " e", 7.0, 8.0),
]


def test_json_lines_say_what_is_final() -> None:
    out = io.StringIO()
    lines = LiveLines(out, as_json=True)
    for one in UTTERANCES:
        lines.show(one)
    lines.close()
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(one["text"], one["final"]) for one in found] == [
        ("a", False), ("a b c", False), ("a b", False), ("a b c.", False), ("a b c.", True),
        ("no", False), ("d e", False), ("d", True),
    ]  # fmt: skip
    finals = [one for one in found if one["final"]]
    assert [(one["start"], one["end"]) for one in finals] == [(1.0, 4.0), (7.0, 8.0)]


def test_pauses_part_utterances_and_options_reach_the_detector(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speech, pause = loud(16_000), np.zeros(16_000 * 2, np.float32)
    samples = np.concatenate([speech, pause, speech, pause])

    def heard(*arguments: str) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "stdin", Stdin(wav_bytes(samples)))
        assert main.main(["listen", "-", "-q", "--json", *arguments]) == 0
        captured = capsys.readouterr()
        assert captured.err == "", "not even which model"
        found = [json.loads(line) for line in captured.out.splitlines()]
        return [one for one in found if one["final"]]

    first, second = heard()
    assert first["end"] < second["start"] + 0.1 and "pump" in first["text"] and "pump" in second["text"]
    assert len(heard("--vad-min-silence-duration-ms", "5000")) == 1
    assert heard("--vad-threshold", "1") == [] and len(heard("--hotwords", "pump")) == 2


def test_a_terminal_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "16")
    out = io.StringIO()
    text = LiveText(out)
    text.show(update("", " one too"))
    text.show(update(" one two", " three four five"))
    text.show(update(" three four", ""))
    text.close()
    assert out.getvalue().split(CLEAR)[1:] == [
        f"{DIM}one too{PLAIN}",
        f"one two{DIM}our five{PLAIN}",
        "one two three\nfour",
        "four\n",
    ]
