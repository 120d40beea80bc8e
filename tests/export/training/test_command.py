"""The training command: its clock, its shards, and a run that two processes share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("torch", reason="the training extra is not installed")
pytest.importorskip("transformers", reason="the test extra is not installed")

from specedge.errors import UsageError  # noqa: E402
from specedge.export.training.corpus import RATE_HZ, Utterance, list_lines, write_shard  # noqa: E402
from specedge.models.recipe.data import Pool  # noqa: E402
from specedge.models.recipe.network import MODELS  # noqa: E402
from specedge.models.recipe.train import Task, main, refresh, run  # noqa: E402
from specedge.models.recipe.trainer import Plan, Progress  # noqa: E402


def _speech(folder: Path, voice: str = "flite:slt", n: int = 20) -> Path:
    rng = np.random.default_rng(0)
    items = []
    for text in list_lines("notes.train")[:n]:
        samples = (rng.standard_normal(RATE_HZ) * 3000).astype(np.int16)
        items.append(Utterance(samples=samples, text=text, voice=voice, source="notes", start=320, end=RATE_HZ - 320))
    (folder / "train").mkdir(parents=True, exist_ok=True)
    write_shard(folder / "train", f"train-{voice.replace(':', '-')}", items)
    return folder


def test_new_shards_are_taken_in_once_and_held_out_voices_never(tmp_path: Path) -> None:
    pool = Pool()
    _speech(tmp_path)
    known = refresh(pool, tmp_path, set())
    assert known == {"train/train-flite-slt"} and len(pool.items) == 20
    _speech(tmp_path, "espeak:en-us+m3")
    _speech(tmp_path, "festival:ked")
    known |= refresh(pool, tmp_path, known)
    assert len(known) == 3
    assert {item.voice for item in pool.items} == {"flite:slt", "festival:ked"} and len(pool.items) == 40
    assert refresh(pool, tmp_path, known) == set()


def test_nothing_to_train_on_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no shards to train on"):
        refresh(Pool(), tmp_path, set())


class _Counting:
    """Stands in for a trainer and its team: counts steps, and gets a SIGTERM in the middle of an agreement."""

    def __init__(self, out: Path) -> None:
        self.progress, self.pool, self.out = Progress(), Pool(), out
        self.plan = Plan(size=MODELS["micro"])
        self.team, self.rank, self.saved = self, 0, 0

    def step(self) -> None:
        self.progress.step += 1

    def rate(self) -> float:
        return 0.0

    def save(self) -> None:
        self.saved += 1

    def agree(self, words: dict[str, Any]) -> dict[str, Any]:
        if self.progress.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return dict(words)


def test_a_run_told_to_end_between_two_steps_ends_and_saves(tmp_path: Path) -> None:
    """A SIGTERM that came while the processes agreed on the next step was once forgotten."""
    trainer = _Counting(tmp_path)
    task = Task(plan=trainer.plan, speech=_speech(tmp_path / "speech"), out=tmp_path, steps=1000)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        run(task, trainer)  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert (trainer.progress.step, trainer.saved) == (4, 1)


@pytest.mark.parametrize("more", [[], ["--model", "demo-draft-same", "--from", "."]])
def test_a_decoder_alone_needs_a_checkpoint_that_has_one(tmp_path: Path, more: list[str]) -> None:
    given = ["--speech", str(tmp_path), "--out", str(tmp_path / "run"), "--steps", "1", "--teacher", ".", *more]
    result = CliRunner().invoke(main, [*given, "--decoder-only"])
    assert result.exit_code == 2 and "name it by --from" in result.output


def test_full_windows_are_for_a_decoder_alone(tmp_path: Path) -> None:
    given = ["--speech", str(tmp_path), "--out", str(tmp_path / "run"), "--steps", "1", "--full-windows"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 2 and "--full-windows is for --decoder-only" in result.output


@pytest.mark.slow
def test_two_processes_train_and_the_checkpoint_starts_another_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "specedge.models.recipe.train", "--model", "micro", "--threads", "1"]
    command += ["--speech", str(_speech(tmp_path / "speech"))]
    first = [*command, "--out", str(tmp_path / "one"), "--steps", "2", "--workers", "2"]
    subprocess.run(first, check=True, timeout=300, capture_output=True)
    second = [*command, "--out", str(tmp_path / "two"), "--steps", "3", "--from", str(tmp_path / "one" / "hf")]
    subprocess.run(second, check=True, timeout=300, capture_output=True)
    row = json.loads((tmp_path / "two" / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert row["step"] == 3 and row["fraction"] == 1.0 and row["continued"]
    assert row["token"] > 0 and np.isfinite(row["token"])
    assert (tmp_path / "two" / "hf" / "model.safetensors").is_file()
    third = [*command, "--out", str(tmp_path / "three"), "--from", str(tmp_path / "one" / "hf"), "--decoder-only"]
    for steps in (["2"], ["4", "--back-to", "0.5"]):  # the second call takes the first one's run up
        subprocess.run([*third, "--steps", *steps], check=True, timeout=300, capture_output=True)
    row = json.loads((tmp_path / "three" / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert row["step"] == 4 and np.isfinite(row["token"])
