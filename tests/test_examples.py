"""The programs in docs/examples run as they stand there, but on the small model of the tests in place of tiny.en."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge import DraftContext, Drafter, DraftTree, WhisperModel, decode_audio
from support.tree import ROOT

EXAMPLES = ROOT / "docs" / "examples"
SAMPLE = ROOT / "tests" / "assets" / "samples" / "maintenance.wav"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    bare = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert bare.returncode == 1 and f"python docs/examples/{path.name} " in bare.stderr and "Error" not in bare.stderr
    before, named, after = path.read_text(encoding="utf-8").partition('WhisperModel("tiny.en")')
    assert named and "tiny.en" not in after
    copy = tmp_path / path.name
    copy.write_text(f'{before}WhisperModel("demo"){after}', encoding="utf-8")
    done = subprocess.run([sys.executable, str(copy), str(SAMPLE)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "maintenance crew" in done.stdout


class Wrong(Drafter):
    """Always the same eight tokens."""

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        return DraftTree(list(range(1000, 1008))[:budget])


class Raises(Drafter):
    """Fails at the third pass."""

    n_calls = 0

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        self.n_calls += 1
        if self.n_calls == 3:
            raise ValueError("out of ideas")
        return DraftTree([7][:budget])


def test_no_drafter_of_one_s_own_changes_the_text() -> None:
    """The example's, a wrong one and one that raises, over audio in which a sentence comes twice."""
    model = WhisperModel("demo")
    samples = decode_audio(str(SAMPLE))
    audio = np.concatenate([samples, np.zeros(8000, np.float32), samples])
    repeats = runpy.run_path(str(EXAMPLES / "own_drafter.py"))["RepeatDrafter"]()

    def told(drafter: Any) -> tuple[list[Any], dict[str, Any]]:
        segments, info = model.transcribe(audio, language="en", drafter=drafter)
        return list(segments), dict(info.speculation)

    plain, _ = told("none")
    for drafter in (repeats, Wrong(), Raises()):
        found, speculation = told(drafter)
        assert found == plain
        assert speculation["lossless"]
    assert repeats.n_accepted > 0
