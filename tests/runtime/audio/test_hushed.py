"""What libmpg123 writes to stderr by itself does not reach the user, and nothing of anybody else is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

RATE = 16_000
DECODE = "import sys; from specedge import decode_audio; print(len(decode_audio(sys.argv[1])))"
BESIDE = """
import os, sys, threading
from specedge import decode_audio
stop = threading.Event()
def talk():
    while not stop.wait(0.0002):
        os.write(2, b"mine\\n")
        lines.append(1)
lines, thread = [], threading.Thread(target=talk)
thread.start()
print(len(decode_audio(sys.argv[1])))
stop.set()
thread.join()
print(len(lines))
"""
INSIDE = """
import os, sys
from specedge.runtime.audio.codecs import hushed
os.write(2, b"before,")
try:
    with hushed():
        os.write(2, b"inside,")
        raise RuntimeError
except RuntimeError:
    os.write(2, b"after")
n_open = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
for _ in range(100):
    with hushed():
        pass
assert not n_open or len(os.listdir("/proc/self/fd")) == n_open
os.close(2)
with hushed():
    pass
print("done")
"""


@pytest.fixture
def noisy(tmp_path: Path) -> Path:
    """An mp3 with damage in its middle."""
    path = tmp_path / "noisy.mp3"
    at_s = np.arange(8 * RATE) / RATE
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * 200 * at_s * (1 + 0.1 * at_s)), RATE, format="MP3")
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(2)
    for start in range(len(data) // 5, len(data) - 400, len(data) // 9):
        data[start : start + 300] = rng.bytes(300)
    path.write_bytes(data)
    return path


def run(code: str, *arguments: str | Path) -> tuple[str, str]:
    """What a process without an ffmpeg on PATH prints and says."""
    environment = {**os.environ, "PATH": "/nowhere"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


def test_a_damaged_mp3_is_read_without_a_word_of_the_library_s(noisy: Path) -> None:
    out, err = run(DECODE, noisy)
    assert int(out) > 0
    assert "mpg123" not in err and "Illegal" not in err and len(err.splitlines()) <= 1, err


def test_other_threads_of_the_program_may_write_all_the_time(noisy: Path) -> None:
    out, err = run(BESIDE, noisy)
    n_lines = int(out.split()[1])
    assert err.count("mine\n") == n_lines > 0


def test_only_what_is_inside_is_held_back() -> None:
    assert run(INSIDE) == ("done\n", "before,after")
