"""Ctrl-C and SIGTERM at any moment of a command: 130 or 143, one line or none, never a traceback."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from specedge.runtime.cli.errors import fail
from specedge.runtime.interrupt import TerminationSignal
from support.paths import samples

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")

# Says that Python's own start, which is nobody's but Python's, is behind it.
PROCESS = "import os, sys, specedge.__main__ as e; e.take_over(); os.write(1, b'.'); sys.exit(e.main())"
HOSTILE = Path(__file__).resolve().parents[1] / "support" / "hostile_command.py"


def signalled(number: int, delay_s: float, arguments: list[str]) -> tuple[int, str]:
    """The exit code and what was said of a command that gets a signal `delay_s` after its first line."""
    command = [sys.executable, "-c", PROCESS, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.read(1) == b"."
    time.sleep(delay_s)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    # A process that died of the signal is, in every shell, one that ended with 128 and its number.
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return code, err.decode().rstrip("\n")


def check(number: int, delay_s: float, arguments: list[str]) -> int:
    code, said = signalled(number, delay_s, arguments)
    assert code in (0, 128 + number), f"{code} after {delay_s:.3f} s: {said}"
    assert said.count("\n") == 0 and (not said or said.startswith("specedge: ")), f"after {delay_s:.3f} s: {said}"
    assert ("terminated" in said) <= (number == signal.SIGTERM)
    assert code or not said
    return code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_command_starts(number: int) -> None:
    recording = str(samples()[0])
    codes = [check(number, delay_s, ["transcribe", recording]) for delay_s in (0.0, 0.002, 0.02, 0.05, 0.1, 0.2)]
    assert codes[0] == 128 + number


@pytest.mark.stress
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("arguments", [[], ["--drafter", "auto"], ["-f", "json", "-o"]], ids=str)
def test_signals_at_random_moments(number: int, arguments: list[str], tmp_path: Path) -> None:
    draw = random.Random(number + len(arguments))
    recording = str(samples()[0])
    output = [str(tmp_path / "out")] if "-o" in arguments else []
    codes = Counter(
        check(number, draw.choice((0.05, 0.4, 1.5)) * draw.random(), ["transcribe", recording, *arguments, *output])
        for _ in range(100)
    )
    assert codes[128 + number] > 50, codes


@pytest.mark.parametrize("where", ["initialiser", "finaliser"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_where_an_exception_would_be_lost(where: str, number: int) -> None:
    """A native initialiser makes an ImportError of an exception, and nobody can catch one of a finaliser."""
    done = subprocess.run(
        [sys.executable, HOSTILE, where, str(int(number))], capture_output=True, text=True, timeout=60
    )
    word = "terminated" if number == signal.SIGTERM else "interrupted"
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"specedge: {word}\n")


def test_the_second_signal_in_an_import_ends_at_once() -> None:
    command = [sys.executable, HOSTILE, "twice", str(int(signal.SIGINT))]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "") and time.monotonic() - started < 20


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (TerminationSignal, 143)])
def test_a_library_s_error_that_came_of_a_stop_is_the_stop(
    stop: type[KeyboardInterrupt], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ImportError("initialization failed")
    error.__cause__ = SystemError("returned a result with an exception set")
    error.__cause__.__context__ = stop()
    assert fail(error, debug=False) == code
    assert "ImportError" not in capsys.readouterr().err


def test_ignored_signals_stay_ignored() -> None:
    """As nohup and a shell's `&` start it."""
    command = f"trap '' INT; exec '{sys.executable}' -c \"{PROCESS}\" --version"
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.read(1) == "."
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out.startswith("specedge ") and err == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ImportError("libonnx.so: failed to map segment from shared object"), 5),
        (RuntimeError("can't start new thread"), 5),
        (ImportError("cannot import name 'x'"), 1),
    ],
)
def test_a_library_that_finds_no_room_is_a_matter_of_memory(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail(error, debug=False) == code
    assert capsys.readouterr().err.count("\n") == 1
