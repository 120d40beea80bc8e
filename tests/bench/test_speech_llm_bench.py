"""The benchmarks of speech LLMs still run: bits on a few rows, a random checkpoint's shapes. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.qwen_checkpoints import SHAPES, qwen_config

HERE = Path(__file__).resolve().parent


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / f"{program}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_says_what_is_not_measured() -> None:
    done = _run("speech_llm_shape", "--help")
    assert done.returncode == 0 and "usage:" in done.stdout and " not measure" in done.stdout


@pytest.mark.slow
def test_rows_are_compared() -> None:
    done = _run("speech_llm_rows", "--rows", "200", "--threads", "1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] >= 200 and found["different"] == found["different_pasts"] == 0


@pytest.mark.parametrize("size", SHAPES)
def test_shapes_have_the_keys_of_a_config(size: str) -> None:
    thinker = qwen_config()["thinker_config"]
    for part, shape in zip(("audio_config", "text_config"), SHAPES[size], strict=True):
        assert shape.keys() <= thinker[part].keys()
