"""The benchmarks run and end with their JSON; what they measure is not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.exported import bundle
from support.noise import SAMPLES
from support.paths import DEMO

HERE = Path(__file__).resolve().parent
PROGRAMS = ("lossless", "papers", "peers", "phrases", "soak")


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    """A set of the two recordings, of which one has no text."""
    path, rows = tmp_path / "some.jsonl", [{"audio": str(SAMPLES[0]), "text": "a word"}, {"audio": str(SAMPLES[1])}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / f"{program}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _json(program: str, *arguments: object) -> dict[str, Any]:
    done = _run(program, *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["benchmark"] == program
    return found


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_help_says_what_is_not_measured(program: str) -> None:
    done = _run(program, "--help")
    assert done.returncode == 0
    assert "usage:" in done.stdout and " not " in f" {done.stdout.lower()} "


@pytest.mark.slow
def test_peers(speech: Path) -> None:
    given = (DEMO, speech, "--ours", "ngram", "--rounds", 1, "--threads", 1, "--contexts", "full,auto")
    found = _json("peers", *given)
    rows = found["sets"][str(speech)]
    assert set(rows) == {f"specedge {name}" for name in ("none, full", "ngram, full", "none, auto", "ngram, auto")}
    assert found["different"] == 0 and rows["specedge none, full"]["times_base"] == 1.0
    assert all(row["peak_mb"] > 10 for row in rows.values())


@pytest.mark.slow
def test_phrases(speech: Path) -> None:
    rows = [json.loads(line) | {"slots": {"what": "word"}} for line in speech.read_text().splitlines()]
    speech.write_text("".join(json.dumps(row) + "\n" for row in rows))
    commands = speech.with_name("commands.txt")
    commands.write_text("a (word|pump)\n")
    found = _json("phrases", DEMO, speech, "--bias", commands, "--only", commands, "--foreign", speech)
    assert set(found["ways"]) == {"plain", "bias", "only"} and found["ways"]["only"]["commands"] == 2


@pytest.mark.slow
def test_lossless(speech: Path) -> None:
    for given in (("--tokens", 1), ("-m", DEMO, speech)):
        found = _json("lossless", *given)
        assert found["tokens"] > 20 and found["runs"] > 5 and found["accepted"] > 0
        assert found["different"] == found["dropped"] == found["failures"] == 0
    found = _json("lossless", "-m", bundle("int8").path, speech)  # silence stands in for the rest of its windows
    assert found["runs"] > 1 and found["different"] == 0
