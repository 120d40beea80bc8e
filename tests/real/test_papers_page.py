"""Every command of the papers' page, on published models: as it stands there, but trained for a few steps alone."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from real import golden

from support.tree import ROOT

pytestmark = pytest.mark.real

PAGE = (ROOT / "docs" / "papers.md").read_text("utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
CHECKPOINTS = {"whisper-base": "base", "whisper-tiny.en": "tiny.en"}
INSTALLED = {"base": "base", "tiny.en": "tiny.en", "tiny": "base-b"}  # another model of tiny's vocabulary
FEW = ["--steps", "3", "--hours", "0.1", "--threads", "2"]


def test_every_command_of_the_page_runs(real_models: Path, tmp_path: Path) -> None:
    environment = os.environ | {"SPECEDGE_HOME": str(tmp_path / "home"), "SPECEDGE_CACHE": str(tmp_path / "cache")}

    def run(*words: str) -> None:
        command = [sys.executable, "-m", "specedge", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0 and "Traceback" not in done.stderr, (shlex.join(words), done.stderr[-2000:])

    for folder in ("talks", "transcripts"):
        (tmp_path / folder).mkdir()
    for number in range(60):  # windows enough to hold some out
        shutil.copy(golden.ROOT / golden.OWN, tmp_path / "talks" / f"{number}.flac")
    shutil.copy(golden.ROOT / golden.OWN, tmp_path / "shift.wav")
    (tmp_path / "transcripts" / "texts.txt").write_text("Ask not what your country can do for you.\n" * 20)
    for name, folder in INSTALLED.items():
        run("export", str(real_models / folder), "--name", name)
    assert len(COMMANDS) >= 20
    for line in COMMANDS:
        words = [
            str(real_models / CHECKPOINTS[word]) if word in CHECKPOINTS else word for word in shlex.split(line)[1:]
        ]
        run(*words, *(FEW if words[0] == "train" else ()))
