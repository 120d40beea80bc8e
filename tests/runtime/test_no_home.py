"""A user without a home folder, as `docker run --user 12345` and systemd's DynamicUser have it: nothing is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import DEMO, samples

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX users")

PROCESS = """
import pwd, sys
def nobody(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = nobody
from specedge.__main__ import main
sys.exit(main())
"""


def run(*arguments: str, **variables: str) -> tuple[int, str, list[str]]:
    """Exit code, text and lines of a command without HOME, and all that specedge keeps by it."""
    forgotten = ("HOME", "SPECEDGE_HOME", "SPECEDGE_CACHE", "XDG_CACHE_HOME", "XDG_DATA_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in forgotten} | variables
    command = [sys.executable, "-c", PROCESS, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    lines = done.stderr.splitlines()
    assert len(lines) <= 1, lines
    return done.returncode, done.stdout, lines


@pytest.mark.slow
def test_the_default_model_and_a_folder_run(tmp_path: Path) -> None:
    recording = str(samples()[0])
    code, text, lines = run("transcribe", recording)
    assert (code, lines) == (0, []) and text
    assert run("transcribe", recording, "-m", str(DEMO)) == (0, text, [])
    # The advice of the message that names the variable is good.
    assert run("transcribe", recording, SPECEDGE_HOME=str(tmp_path / "home")) == (0, text, [])


def test_what_would_be_kept_is_not_and_that_is_said_once() -> None:
    code, text, (line,) = run("transcribe", str(samples()[0]), "--drafter", "ngram", "--remember")
    assert code == 0 and text
    assert "no-home" in line and line.endswith("nothing is learned in this run")


def test_what_needs_a_place_says_so() -> None:
    for arguments in (["models", "pull", "silero-vad"], ["cache", "show"], ["models", "show", "--path", "tiny"]):
        code, text, (line,) = run(*arguments)
        assert (code, text) in ((2, ""), (4, ""), (5, "")) and "internal" not in line


@pytest.mark.slow
def test_doctor() -> None:
    assert run("doctor")[0] == 0


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("of somebody")
    for home in (file, file / "below"):
        for arguments in (["disk"], ["disk", "--clear", "all", "--yes"], ["disk", "--learned"]):
            code, _, lines = run(*arguments, SPECEDGE_HOME=str(home))
            assert code in (0, 5) and not any("internal" in line for line in lines)
    assert file.read_text() == "of somebody"
