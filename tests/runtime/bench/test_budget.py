"""The bench keeps its time by the clock of a test, also with a model that never ends a text. No time is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.errors import UsageError
from specedge.runtime.bench import measure, rounds
from specedge.runtime.bench.measure import Findings, Part, Plan, as_much_as_fits
from specedge.runtime.bench.report import remarks
from specedge.runtime.bench.rounds import Heard, OutOfTime, TimedEngine, Timer
from specedge.runtime.decoding.statistics import Speculation
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


def test_a_text_that_fails_is_not_decoded_at_other_temperatures(clock: Clock, tmp_path: Path) -> None:
    found = benched(clock, [wav(tmp_path / "a.wav", 3.0)], 1000 * TEXT_S, rounds=5)
    assert clock.now_s < 26 * TEXT_S  # of one window at all temperatures, five samples above 0
    assert set(found.rows) == {"none", "ngram"} and found.n_rounds == found.recommendation.rounds == 5
    assert found.lossless and found.rows["ngram"].tokens == found.rows["none"].tokens == N_TEXT_CTX // 2
    assert not [remark for remark in remarks(found) if "--budget" in remark]


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


def windows_of(clock: Clock, timer: Timer, n_windows: int, seconds: Callable[[int], float]) -> Any:
    """A listener to sounds of so many windows, of which the i-th takes seconds(i)."""

    def listen(source: str, goes_on: Callable[[int], bool]) -> Heard:
        started, n_done = clock.now_s, 0
        while n_done < n_windows:
            until_s = clock.now_s + seconds(n_done)
            while clock.now_s < until_s:
                timer.check()
                clock.now_s += 1.0
            n_done += 1
            if not goes_on(n_done):
                break
        took_s = clock.now_s - started
        return Heard(
            segments=[], counted=Speculation(), encoder_s=0.0, total_s=took_s, duration_s=n_done * 30.0,
            is_whole=n_done == n_windows,
        )  # fmt: skip

    return listen


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([1, 1, 1], [Part("x"), Part("y"), Part("z")]),
        ([4, 4, 4], [Part("x")]),  # the time is up in the last window of it
        ([5, 5, 5], [Part("x", 2)]),
        ([2, 99, 2], [Part("x", 1)]),
        ([15, 15, 15], [Part("x", 1)]),
        ([21, 1, 1], []),
    ],
)
def test_what_plain_decoding_gets_through_is_measured(seconds: list[int], expected: list[Part[str]]) -> None:
    clock = Clock()
    timer = Timer(1000.0, clock)
    listen = windows_of(clock, timer, 3, lambda i: seconds[i])
    parts, heard = as_much_as_fits("xyz", listen, timer, enough_s=10.0, limit_s=20.0)
    assert parts == expected and [one.duration_s for one in heard] == [30.0 * (part.n_windows or 3) for part in parts]
    assert timer.left_s > 900


def test_an_engine_with_a_timer_is_the_engine_until_the_time_is_up() -> None:
    clock = Clock()
    timer = Timer(10.0, clock)
    engine: Any = TimedEngine(Endless(clock), timer)
    assert (engine.n_at_once, engine.threads) == (3, 1)
    state = engine.start(engine.encode(np.zeros((80, 3000), np.float32)))
    with timer.within(3 * PASS_S), pytest.raises(OutOfTime):
        for _ in range(9):
            engine.forward(state, [SPECIAL.sot])
    assert clock.now_s == pytest.approx(3 * PASS_S)
    engine.forward(state, [SPECIAL.sot])
    clock.now_s = 10.0
    with pytest.raises(OutOfTime):
        engine.encode(np.zeros((80, 3000), np.float32))
