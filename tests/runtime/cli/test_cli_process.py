"""The command as a process: what it imports, Ctrl-C, pipes that close, disks that are full."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import wave
from pathlib import Path

import numpy as np
import pytest

from support.fake_cli import SENTENCE, wav

FAKE_CLI = Path(__file__).resolve().parents[2] / "support" / "fake_cli.py"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from specedge.runtime.cli.main import main; main(['--help']); "
        "sys.exit(any(m in sys.modules for m in ('numpy', 'onnxruntime', 'av', 'onnx', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=60).returncode == 0


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "specedge", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("specedge ") and done.stderr == ""


def _segments_after_ctrl_c(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Interrupt a transcription that has begun; what it printed and said after that."""
    assert process.stdout is not None and process.stderr is not None
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and time.monotonic() - started < 5
    return out, err


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_leaves_the_segments_printed(here: Path) -> None:
    command = [sys.executable, str(FAKE_CLI), "--delay", "0.05", "--", "transcribe", wav("a.wav", 600), "-f", "srt"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(4)][::3] == ["1\n", "\n"]
    out, err = _segments_after_ctrl_c(process)
    assert re.fullmatch(r"specedge: interrupted: a\.wav at 0:0\d of 10:00\n", err)
    assert out == "" or out.endswith("\n\n"), "only whole subtitles"


def _bursts(path: str, duration_s: int) -> str:
    """A file of sounds with pauses between them, which the detector takes for speech."""
    at_s = np.arange(duration_s * 16_000) / 16_000
    sound = 9000 * np.sin(2 * np.pi * 180 * at_s) * (at_s % 2 < 1.2)
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(sound.astype("<i2").tobytes())
    return path


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    ("number", "extra"), [(signal.SIGINT, []), (signal.SIGTERM, ["--batch-size", "2"])], ids=["windows", "batched"]
)
def test_a_signal_leaves_the_segments_done_in_files(here: Path, number: int, extra: list[str]) -> None:
    """Ctrl-C, and SIGTERM as a service manager or `timeout` sends it: both end in the same way."""
    command = [sys.executable, str(FAKE_CLI), "--signal", str(int(number)), "--", "transcribe", _bursts("a.wav", 120)]
    command += ["-o", "out", "-f", "json,srt", *extra]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 128 + number and done.stdout == ""
    assert re.search(
        r"^specedge: interrupted: a\.wav at \d:\d\d of 2:00; what is done is in .*\n\Z", done.stderr, re.MULTILINE
    )
    value = json.loads(Path("out/a.partial.json").read_text())
    assert value["interrupted"] is True and value["segments"]
    assert Path("out/a.partial.srt").read_text().count("-->") == len(value["segments"])
    assert sorted(os.listdir("out")) == ["a.partial.json", "a.partial.srt"], "nothing temporary"


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_before_the_first_segment_writes_nothing(here: Path) -> None:
    command = [sys.executable, str(FAKE_CLI), "--delay", "9", "--", "transcribe", wav("a.wav", 600), "-v", "-o", "out"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None and "model demo" in process.stderr.readline()
    time.sleep(0.3)
    out, err = _segments_after_ctrl_c(process)
    assert out == "" and err == "specedge: interrupted: a.wav at 0:00 of 10:00\n"
    assert os.listdir("out") == []


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_subtitles_of_a_live_pipe_come_while_it_is_open(here: Path) -> None:
    """The first window needs its 30 s and no more."""
    command = [sys.executable, str(FAKE_CLI), "--", "transcribe", "-", "--raw", "s16le:16000", "-f", "srt", "-q"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
    assert process.stdin is not None and process.stdout is not None
    for _ in range(40):
        process.stdin.write(b"\0\1" * 16_000)
    assert process.stdout.readline() == b"1\n" and b"00:00:00,000" in process.stdout.readline()
    assert process.poll() is None
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0 and err == b"" and out.count(b"-->") == 39, err


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_reader_that_goes_away_is_no_error(here: Path) -> None:
    command = [sys.executable, str(FAKE_CLI), "--", "transcribe", wav("a.wav", 120)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == SENTENCE
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=30) == 141
    process.stderr.close()
    assert err == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_behind_standard_output(here: Path) -> None:
    command = [sys.executable, str(FAKE_CLI), "--", "transcribe", wav("a.wav")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 5
    assert len(done.stderr.splitlines()) == 1 and "standard output: No space left" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_text_left_in_the_buffer_does_not_change_the_exit_code() -> None:
    code = (
        "import click, sys; from specedge.runtime.cli import main as cli\n"
        "@click.command()\ndef fails(): sys.stdout.write('text'); raise cli.UsageError('no')\n"
        "cli.fails = fails; cli._COMMANDS['fails'] = ('specedge.runtime.cli.main:fails', '')\n"
        "sys.exit(cli.main(['fails']))"
    )
    command, buffered = [sys.executable, "-c", code], {**os.environ, "PYTHONUNBUFFERED": ""}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=buffered, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "specedge: error: no\n")


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_help_into_a_pipe_that_is_closed() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "specedge", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(os.name == "nt", reason="POSIX shell")
def test_a_closed_standard_output(here: Path) -> None:
    command = f'exec "{sys.executable}" "{FAKE_CLI}" -- transcribe "{wav("a.wav")}" >&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 5 and "Traceback" not in done.stderr and "standard output is closed" in done.stderr


def test_text_that_the_terminal_cannot_show_is_replaced(here: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    code = (
        "import sys; from specedge.runtime.cli import main as cli, transcribe_files; cli._prepare_streams(); "
        "transcribe_files._print('l\\u00e4uft\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stdout == b"l?uft" + os.linesep.encode()
