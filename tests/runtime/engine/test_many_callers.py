"""Callers who start, stop and cancel as they like: each finished text is the one alone, and nothing is left behind."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

import specedge
from specedge.errors import Interrupted, UsageError
from specedge.runtime.engine import scheduler
from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.kv_cache import MAX_TEXTS
from specedge.runtime.engine.scheduler import Scheduler, Turn
from support import exported
from support.paths import DEMO, samples

RATE = 16_000
WAIT_S = 60
N_CALLERS = 16


class Counted(Scheduler):
    """A scheduler that counts turns, and how many went by while a call was in line."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(self._counted, engine._merges, engine._can_share)
        self._engine = engine
        self.n_turns = self.longest_wait = self.most_texts = 0
        self._asked: dict[int, int] = {}

    def run(self, texts: Sequence[Any]) -> Sequence[Any]:
        self._asked[id(texts)] = self.n_turns
        return super().run(texts)

    def acquire(self, timeout: float = -1) -> bool:
        before = self.n_turns
        has = super().acquire(timeout)
        self.longest_wait = max(self.longest_wait, self.n_turns - before)
        self.n_turns += 1
        return has

    def _counted(self, passes: Sequence[Turn]) -> None:
        waits = [self.n_turns - self._asked.pop(id(one.texts), self.n_turns) for one in passes]
        self.longest_wait = max(self.longest_wait, *waits)
        self.most_texts = max(self.most_texts, sum(len(one.texts) for one in passes))
        self.n_turns += 1
        self._engine._run_passes(passes)


def sounds(n: int) -> list[Any]:
    rng = np.random.default_rng(5)
    return [
        (rng.standard_normal(round(RATE * rng.uniform(1, 8))) * rng.uniform(0.05, 0.4)).astype("f4") for _ in range(n)
    ]


def read(segments: Any) -> list[Any]:
    return [(segment.tokens, segment.avg_logprob, segment.start, segment.end) for segment in segments]


def check_that_nothing_is_left(engine: Engine) -> None:
    gc.collect()
    assert len(engine._kv_cache.free) + len(engine._kv_cache.spare) == MAX_TEXTS, "places that nobody gave back"
    assert engine._budget.held_bytes == 0
    assert engine.lock._owner is None and not engine.lock._line and not engine.lock._in_flight
    assert not engine.canceller.running


def speech() -> list[Any]:
    """Ends of the bundled recordings."""
    recordings = [specedge.decode_audio(str(path)) for path in samples()]
    return [sample[round(len(sample) * start) :] for sample in recordings for start in (0, 0.3, 0.6)]


def play(
    model: specedge.WhisperModel, audio: list[Any], options: Sequence[dict[str, Any]], n_texts: int, seed: int
) -> Counted:
    """`N_CALLERS` threads that begin `n_texts` texts each, and leave some of them."""
    common = {"temperature": 0.0, "no_speech_threshold": None, "language": "en"}
    alone = [[read(model.transcribe(one, **common, **chosen)[0]) for one in audio] for chosen in options]
    assert all(any(texts) for texts in alone)
    counted = model.engine.lock = Counted(model.engine)
    start = threading.Barrier(N_CALLERS)
    n_read = []

    def call(number: int) -> None:
        rng = random.Random(1000 * seed + number)
        start.wait(WAIT_S)
        for _ in range(n_texts):
            which, how = rng.randrange(len(audio)), rng.randrange(len(options))
            fate = rng.choice(("read", "read", "read", "stop", "stop", "drop", "cancel"))
            try:
                segments, _ = model.transcribe(audio[which], **common, **options[how])
                if fate == "read":
                    assert read(segments) == alone[how][which]
                    n_read.append(number)
                elif fate == "cancel":
                    model.engine.cancel()
                    time.sleep(rng.uniform(0, 0.002))
                    model.engine.reset()
                else:
                    if rng.random() < 0.7:
                        next(segments, None)
                    if fate == "stop":
                        segments.close()
                del segments
            except Interrupted:  # somebody cancelled
                model.engine.reset()

    with ThreadPoolExecutor(N_CALLERS) as pool:
        for one in [pool.submit(call, number) for number in range(N_CALLERS)]:
            one.result(timeout=1800)
    assert n_read and counted.most_texts > 1
    # Everyone in line has one turn before a newcomer, and between two turns that must be alone there may be a pass.
    assert counted.longest_wait <= 2 * N_CALLERS
    check_that_nothing_is_left(model.engine)
    for how, chosen in enumerate(options):
        assert read(model.transcribe(audio[0], **common, **chosen)[0]) == alone[how][0]
    return counted


def test_sixteen_callers_who_come_and_go() -> None:
    model = specedge.WhisperModel(str(exported.bundle().path), cpu_threads=1)
    play(model, sounds(6), [{"max_new_tokens": 12}, {"max_new_tokens": 12, "drafter": "ngram"}], n_texts=3, seed=0)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(3))
def test_sixteen_callers_of_every_kind_for_long(seed: int) -> None:
    model = specedge.WhisperModel(str(DEMO), cpu_threads=1 + seed % 2)
    drafters = [{"drafter": name} for name in ("none", "none", "tokenmap", "ctc", "auto", "ngram")]
    play(model, speech(), [*drafters, {"beam_size": 3}, {"word_timestamps": True}], n_texts=12, seed=seed)


def test_windows_wait_for_room_and_say_the_same() -> None:
    opened = exported.bundle()
    model = specedge.WhisperModel(str(opened.path), cpu_threads=1, budget_bytes=1)
    audio = sounds(8)
    options: dict[str, Any] = {"temperature": 0.0, "no_speech_threshold": None, "max_new_tokens": 6}
    alone = [read(model.transcribe(one, **options)[0]) for one in audio]
    most, held = [], model.engine._budget.hold

    def hold(window: Any, n_bytes: int) -> None:
        held(window, n_bytes)
        most.append(len(model.engine._budget._held))

    model.engine._budget.hold = hold  # type: ignore[method-assign]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda one: read(model.transcribe(one, **options)[0]), audio)) == alone
    assert max(most) < 8, "all windows were in work at once"
    check_that_nothing_is_left(model.engine)


def test_who_has_a_window_goes_on_and_who_stops_holds_nobody_up() -> None:
    made = Engine(exported.bundle(), threads=1, budget_bytes=1)
    mel = exported.noise_mel(80, 200)
    kept = [made.encode(mel) for _ in range(3)]
    state = made.start(kept[0])
    forks = [made.fork(state) for _ in range(4)]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(made.encode, mel).result(WAIT_S), "though nobody gives anything back"
    n_bytes = made._budget.held_bytes
    for fork in forks:
        made.release(fork)
    assert made._budget.held_bytes == n_bytes > 0
    made.release(state)
    assert made._budget.held_bytes < n_bytes
    kept.clear()
    del state, forks, fork
    check_that_nothing_is_left(made)


def test_room_is_for_the_next_as_soon_as_a_text_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_IDLE_S", 1e6)
    monkeypatch.setattr(scheduler, "_LOOKS_S", 1e6)
    made = Engine(exported.bundle(), threads=1, budget_bytes=1)
    mel = exported.noise_mel(80, 200)
    window = made.encode(mel)
    state = made.start(window)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(made.encode, mel)
        with pytest.raises(TimeoutError):
            other.result(0.05)
        made.release(state)
        other.result(WAIT_S)


def test_two_who_come_at_once_do_not_find_the_same_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_IDLE_S", 1e6)
    made = Engine(exported.bundle(), threads=1, budget_bytes=1)
    mel = exported.noise_mel(80, 200)
    with ThreadPoolExecutor(2) as pool:
        with made.lock:  # both come while somebody else is at the encoder
            both = [pool.submit(made.encode, mel) for _ in range(2)]
            time.sleep(0.1)
        done, waits = wait(both, WAIT_S, FIRST_COMPLETED)
        (kept,), (second,) = [one.result() for one in done], waits
        with pytest.raises(TimeoutError):
            second.result(0.1)
        made._budget.drop(id(kept))
        second.result(WAIT_S)


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="budget_bytes: got 0, expected 1 or more"):
        Engine(exported.bundle(), threads=1, budget_bytes=0)
