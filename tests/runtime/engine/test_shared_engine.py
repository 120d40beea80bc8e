"""One model, several threads and several calls at once: each text is the one it would be alone."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import specedge
from specedge.errors import Interrupted
from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.engine.engine import Engine, Features, State
from specedge.runtime.engine.kv_cache import MAX_TEXTS
from specedge.runtime.engine.scheduler import Turn
from specedge.runtime.longform.segments import Segment
from support import exported

RATE = 16_000
OPTIONS: dict[str, Any] = {"temperature": 0.0, "no_speech_threshold": None}
SOUNDS = [
    (np.random.default_rng(seed).standard_normal(round(RATE * seconds)) * 0.1 * (seed + 1)).astype(np.float32)
    for seed, seconds in enumerate((5.0, 7.3, 3.0, 6.1))
]


@pytest.fixture(scope="module")
def model() -> specedge.WhisperModel:
    return specedge.WhisperModel(str(exported.bundle().path), cpu_threads=1)


@pytest.fixture(scope="module")
def alone(model: specedge.WhisperModel) -> list[list[Segment]]:
    """Each text by itself, one after another."""
    found = [list(model.transcribe(sound, **OPTIONS)[0]) for sound in SOUNDS]
    assert all(found) and len({tuple(s.tokens[1] for s in segments) for segments in found}) > 1
    return found


def n_texts_in_work(engine: Engine) -> int:
    """How many places nobody has given back."""
    return MAX_TEXTS - len(engine._kv_cache.free) - len(engine._kv_cache.spare)


def test_four_threads_get_what_each_would_get_alone(model: specedge.WhisperModel, alone: list[list[Segment]]) -> None:
    start = threading.Barrier(4)

    def work(index: int) -> list[list[Segment]]:
        start.wait(timeout=30)
        return [list(model.transcribe(SOUNDS[(index + k) % 4], **OPTIONS)[0]) for k in range(3)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    for index, texts in enumerate(found):
        assert texts == [alone[(index + k) % 4] for k in range(3)]


def test_interleaved_generators_of_one_thread(model: specedge.WhisperModel, alone: list[list[Segment]]) -> None:
    generators = [model.transcribe(sound, **OPTIONS)[0] for sound in SOUNDS]
    found: list[list[Segment]] = [[] for _ in SOUNDS]
    while any(len(found[i]) < len(alone[i]) for i in range(4)):
        for i, generator in enumerate(generators):
            found[i] += [segment for segment in [next(generator, None)] if segment is not None]
    assert found == alone


@pytest.mark.parametrize("how", ["closed before the first segment", "closed midway", "dropped"])
def test_a_generator_that_is_stopped_leaves_the_model_to_the_others(
    model: specedge.WhisperModel, alone: list[list[Segment]], how: str
) -> None:
    segments: Any = model.transcribe(SOUNDS[0], **OPTIONS)[0]
    frame = segments.gi_frame.f_locals["call"]
    source = frame.source
    if how != "closed before the first segment":
        next(segments)
    if how == "dropped":
        del segments, frame
        gc.collect()
    else:
        segments.close()
        assert next(segments, None) is None
    assert source.is_ended and not len(source.read(10))
    assert n_texts_in_work(model.engine) == 0
    assert list(model.transcribe(SOUNDS[1], **OPTIONS)[0]) == alone[1]


def test_threads_that_stop_midway_disturb_nobody(model: specedge.WhisperModel, alone: list[list[Segment]]) -> None:
    start = threading.Barrier(4)

    def work(index: int) -> list[Segment]:
        start.wait(timeout=30)
        if index % 2:
            for _ in range(3):
                segments = model.transcribe(SOUNDS[index], **OPTIONS)[0]
                next(segments)
                segments.close()
            return []
        return list(model.transcribe(SOUNDS[index], **OPTIONS)[0])

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    assert found == [alone[0], [], alone[2], []]
    assert n_texts_in_work(model.engine) == 0


def test_an_error_in_the_middle_of_a_pass_gives_the_lock_back(
    model: specedge.WhisperModel, alone: list[list[Segment]]
) -> None:
    segments = model.transcribe(SOUNDS[0], **OPTIONS)[0]
    next(segments)
    model.engine.cancel()
    try:
        with pytest.raises(Interrupted):
            list(segments)
    finally:
        model.engine.reset()
    with ThreadPoolExecutor(1) as pool:  # another thread: a lock that this one kept would stop it
        other = pool.submit(lambda: list(model.transcribe(SOUNDS[2], **OPTIONS)[0]))
        assert other.result(timeout=60) == alone[2]


class Slow(Engine):
    """An engine that notices two passes at once, and keeps a log of calls and passes by thread."""

    def __init__(self) -> None:
        super().__init__(exported.bundle(), threads=1)
        self.inside = self.most = self.n_merged = 0
        self.log: list[tuple[str, int]] = []

    def start(self, features: Features, factors: Any = None, **more: Any) -> State:
        self._note("start")
        return super().start(features, factors, **more)

    def forward(self, state: State, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> Any:
        self._note("forward")
        return super().forward(state, ids, logit_rows)

    def release(self, state: State) -> None:
        self._note("release")
        super().release(state)

    def _note(self, name: str) -> None:
        self.log.append((name, threading.get_ident()))

    def _run_passes(self, passes: Sequence[Turn]) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self._note("pass")
        self.n_merged += len(passes) > 1
        time.sleep(0.001)
        super()._run_passes(passes)
        self.inside -= 1


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def window(slow: Slow) -> Features:
    return slow.encode(exported.noise_mel(80, 200))


def decode(slow: Slow, window: Features) -> tuple[int, ...]:
    tokens = exported.bundle().manifest.tokens
    rules = RuleSet(tokens, space_ids=[], suppressed=[], timestamps=False, max_initial_timestamp_index=None)
    options = DecodeOptions(rules=rules, n_text_ctx=64, n_sample=4, temperature=0.7, best_of=2)
    return decode_window(slow, window, tokens.prompt("en", "transcribe", False), options).tokens


def test_calls_wait_for_a_text_in_work_but_cancel_does_not(slow: Slow, window: Features) -> None:
    calls: list[Callable[[], object]] = [
        lambda: slow.encode(exported.noise_mel(80, 200)),
        lambda: slow.project(window.hidden),
        lambda: slow.align(window, [1, 2]),
        lambda: decode(slow, window),
    ]
    with ThreadPoolExecutor(5) as pool:
        with slow.lock:
            waiting = [pool.submit(call) for call in calls]
            with pytest.raises(TimeoutError):
                waiting[0].result(timeout=0.05)
            pool.submit(slow.cancel).result(timeout=10)
            pool.submit(slow.reset).result(timeout=10)
            assert not any(one.done() for one in waiting)
        for one in waiting:
            one.result(timeout=30)


def test_texts_of_several_threads_are_in_work_at_once_and_passes_are_not(slow: Slow, window: Features) -> None:
    start = threading.Barrier(3)

    def work() -> list[tuple[int, ...]]:
        start.wait(timeout=10)
        return [decode(slow, window) for _ in range(3)]

    with ThreadPoolExecutor(3) as pool:
        found = [future.result(timeout=60) for future in [pool.submit(work) for _ in range(3)]]
    assert len({text for texts in found for text in texts}) == 1 and slow.most == 1
    leaders = [thread for name, thread in slow.log if name == "pass"]
    n_changes = sum(one != other for one, other in itertools.pairwise(leaders))
    assert n_changes + slow.n_merged > 3, "threads took turns by the text"
    assert [name for name, _ in slow.log].count("release") == 27  # of the prompt and of two samples
    assert n_texts_in_work(slow) == 0


def test_a_text_that_cannot_begin_or_end_holds_nobody_up(
    slow: Slow, window: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("gone")

    for name in ("start", "forward", "release"):
        with monkeypatch.context() as patch:
            patch.setattr(slow, name, fail)
            with pytest.raises(OSError, match="gone"):
                decode(slow, window)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(decode, slow, window).result(timeout=30)


FORKS = """
import os, sys, threading, time, warnings
import numpy as np
from specedge import WhisperModel
warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads, in newer versions of Python
model = WhisperModel(sys.argv[1], cpu_threads=2)
sound = (np.random.default_rng(3).standard_normal(16_000 * 4) * 0.1).astype(np.float32)
texts = lambda: list(model.transcribe(sound, temperature=0.0, no_speech_threshold=None)[0])
alone, stop = texts(), threading.Event()
def work():
    while not stop.is_set():
        assert texts() == alone
workers = [threading.Thread(target=work) for _ in range(2)]
for worker in workers:
    worker.start()
for i in range(int(sys.argv[2])):
    time.sleep(0.01 * (i % 7))
    child = os.fork()
    if not child:
        os._exit(0 if texts() == alone else 3)
    until = time.monotonic() + 60
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done or time.monotonic() > until:
            break
        time.sleep(0.002)
    if not done:
        os.kill(child, 9)
        print(f"fork {i} hangs")
        os._exit(1)
    if status:
        print(f"fork {i}: {os.waitstatus_to_exitcode(status)}")
        os._exit(1)
stop.set()
for worker in workers:
    worker.join()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("n_forks", [4, pytest.param(150, marks=pytest.mark.stress)])
def test_a_child_that_was_forked_while_other_threads_transcribe(n_forks: int) -> None:
    command = [sys.executable, "-c", FORKS, str(exported.bundle().path), str(n_forks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_waits_for_a_text_and_gives_up_on_one_that_never_ends(
    slow: Slow, window: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specedge.runtime.engine.engine._FORK_WAITS_S", 0.2)
    expected = decode(slow, window)
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with slow.lock:
            held.set()
            release.wait(timeout=30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(timeout=10)
    child = _forked(slow, window, expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child has a lock of its own"
    release.set()
    holder.join()
    assert decode(slow, window) == expected, "and the parent its own again"


def _forked(slow: Slow, window: Features, expected: tuple[int, ...]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.alarm(30)
        os._exit(0 if decode(slow, window) == expected else 3)
    return child
