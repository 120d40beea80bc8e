"""Rounds of random SIGKILLs of workers, driver and scheduler (tests/kills/fleet.py)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.tree import ROOT


@pytest.mark.stress
def test_every_file_has_one_whole_result_whoever_is_killed() -> None:
    command = [sys.executable, str(ROOT / "tests/kills/fleet.py"), "--rounds", "5", "--limit-s", "900"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
