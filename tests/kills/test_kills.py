"""The lane of kills, a few of each kind; 1,000 are run by `python tests/kills/kills.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def _kills(*arguments: str) -> dict[str, int]:
    command = [sys.executable, str(Path(__file__).with_name("kills.py")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.stress
def test_nothing_is_torn_or_left_over_by_kills() -> None:
    assert _kills("--kills", "50")["kills"] == 50


def test_a_map_build_that_is_killed_before_its_calls_leaves_nothing() -> None:
    found = _kills("--kills", "10", "--only", "maps")
    assert found["kills"] == 10 and found["at_calls"] > 0
