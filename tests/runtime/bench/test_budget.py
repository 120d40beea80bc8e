"""The bench keeps its time by the clock of a test, also with a model that never ends a text. No time is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.errors import UsageError
from specedge.runtime.bench import measure, rounds
from specedge.runtime.bench.measure import Findings, Plan
from specedge.runtime.bench.report import remarks
from specedge.runtime.bench.rounds import Timer
from support.fake_cli import SPECIAL, wav
from support.fake_engine import FakeState, Script, ScriptedEngine, bundle, words

N_TEXT_CTX = 16
PASS_S = 0.01
TEXT_S = N_TEXT_CTX // 2 * PASS_S  # a text that ends at the length limit


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Endless(ScriptedEngine):
    """A model that repeats itself for ever, is never sure, and takes `PASS_S` for a pass."""

    def __init__(self, clock: Clock) -> None:
        says = [SPECIAL.timestamp_begin, *words(" the", " pump") * N_TEXT_CTX]
        super().__init__(SPECIAL, [Script(tokens=says, logprob=-3.0, ends=False)], n_text_ctx=N_TEXT_CTX)
        self.clock = clock

    def forward(
        self, state: FakeState, ids: Sequence[int], logit_rows: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        self.clock.now_s += PASS_S
        return super().forward(state, ids, logit_rows)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=made))
    # The decoder's own time is not by this clock: nobody is behind by it.
    monkeypatch.setattr(rounds, "BEHIND", math.inf)
    return made


def benched(clock: Clock, files: Sequence[str], budget_s: float, **more: Any) -> Findings:
    opened = bundle(SPECIAL, n_text_ctx=N_TEXT_CTX)
    opened.digest, opened.path = "6b" * 32, Path("x")
    opened.manifest.name, opened.manifest.precision = "endless", "int8"
    opened.manifest.files, opened.manifest.graphs = {}, {}
    plan = Plan(files=tuple(files), drafters=("none", "ngram"), **more)
    return measure.bench(Endless(clock), opened, plan, timer=Timer(budget_s, clock))


def test_fewer_files_are_heard_where_all_would_take_too_long(clock: Clock, tmp_path: Path) -> None:
    files = [wav(tmp_path / f"{i}.wav", 3.0) for i in range(9)]
    budget_s = 13 * TEXT_S
    found = benched(clock, files, budget_s, references=("the pump",) * 9)
    assert found.files == tuple(files[:2]) and clock.now_s < budget_s
    assert found.n_rounds == 2 and found.rows["none"].audio_s == pytest.approx(6.0)
    assert found.rows["none"].word_error_rate is not None
    assert any("2 of 9 files; 2 of 5 rounds" in remark for remark in remarks(found))


def test_a_long_file_is_heard_up_to_a_window(clock: Clock, tmp_path: Path) -> None:
    budget_s = 13 * TEXT_S
    found = benched(clock, [wav(tmp_path / "a.wav", 200.0)], budget_s, references=("the pump",))
    assert found.n_windows == 2 and clock.now_s < budget_s and found.lossless
    assert found.rows["none"].audio_s == pytest.approx(60.0) and found.rows["none"].word_error_rate is None
    assert any("the first 60.0 s of the audio, up to 2 windows of" in remark for remark in remarks(found))


def test_too_little_for_one_window_is_said(clock: Clock, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not get through one window in .* give a larger --budget"):
        benched(clock, [wav(tmp_path / "a.wav", 3.0)], 2 * TEXT_S)
    assert clock.now_s <= 2 * TEXT_S
