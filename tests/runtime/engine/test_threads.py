"""One rule for the number of threads: plain decoding and every drafter run with the same, whatever was calibrated."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from specedge import WhisperModel
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from specedge.runtime.device import Profile, save_profile, threads_allowed
from specedge.runtime.engine import engine as engine_module
from specedge.runtime.engine import speech
from specedge.runtime.engine.calibrate import PASS_ROWS
from support.paths import DEMO, samples

SAMPLE = str(samples()[0])
DRAFTERS = ("none", "auto", "tokenmap")


def profile(threads: int, pass_s: float) -> Profile:
    return Profile(threads=threads, pass_s={n: pass_s * (1 + n / 20) for n in PASS_ROWS}, encode_s=0.02, rounds=3)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of threads of each engine that was loaded."""
    seen: list[int] = []

    class Noted(engine_module.Engine):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            seen.append(self.threads)

    monkeypatch.setattr(speech, "Engine", Noted)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pass_s", "expected"),
    [
        ({}, threads_allowed()),
        ({4: 1e-3}, threads_allowed()),
        ({2: 2e-3, 4: 1e-3}, 4),
        ({2: 1e-3, 4: 2e-3, 5: 3e-3}, 2),
    ],
)
def test_auto_and_none_run_with_the_same_threads_and_give_the_same(
    pass_s: dict[int, float],
    expected: int,
    loaded: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`auto` alone took the quickest calibrated number, and the number of threads was part of the bits."""
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    bundle = Bundle.open(DEMO)
    for threads, seconds in pass_s.items():
        save_profile(bundle.timed_digest, profile(threads, seconds))
    found = []
    for drafter in DRAFTERS:
        assert main(["transcribe", SAMPLE, "-f", "json", "--drafter", drafter, "-m", str(bundle.path)]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said.pop("speculation")["lossless"] is True
        found.append(said)
    assert found == [found[0]] * len(DRAFTERS)
    WhisperModel(str(bundle.path))
    assert loaded == [expected] * (len(DRAFTERS) + 1)
