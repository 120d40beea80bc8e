"""One model, several threads and several calls at once: each text is the one it would be alone."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import specedge
from specedge.errors import Interrupted
from specedge.runtime.longform.segments import Segment
from specedge.runtime.model import SharedEngine
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


def n_states_at_hand(model: specedge.WhisperModel) -> int:
    return len(model.engine._engine._decoder._spare)  # type: ignore[attr-defined]


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
    frame = segments.gi_frame.f_locals["self"]
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
    assert n_states_at_hand(model) == 1
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
    assert n_states_at_hand(model) == 1


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


class Slow:
    """An engine that notices two calls at once, and a call for one text in the middle of another."""

    threads = 3
    n_paths = 4

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.log: list[tuple[str, Any]] = []
        self.canceled = threading.Event()

    def encode(self, mel: Any) -> Any:
        return self._call("encode", mel)

    def start(self, features: Any) -> Any:
        if features is None:
            raise ValueError("no features")
        return self._call("start", features)

    fork = start

    def forward(self, state: Any, ids: Any, logit_rows: Any = None) -> Any:
        return self._call("forward", state)

    def release(self, state: Any) -> Any:
        return self._call("release", state)

    def align(self, rows: int, *, heads: int) -> int:
        self._call("align", rows)
        return rows * heads

    def cancel(self) -> None:
        self.canceled.set()

    def _call(self, name: str, what: Any) -> Any:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.log.append((name, what))
        self.canceled.wait(0.01)
        self.inside -= 1
        return what


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def shared(slow: Slow) -> SharedEngine:
    return SharedEngine(slow)  # type: ignore[arg-type]


def test_every_method_waits_for_its_turn_but_cancel_does_not(slow: Slow, shared: SharedEngine) -> None:
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(shared.encode, 1), pool.submit(shared.encode, 2)]
        futures += [pool.submit(shared.align, 2, heads=3) for _ in range(2)]
        assert [future.result(timeout=10) for future in futures] == [1, 2, 6, 6]
    assert slow.most == 1 and (shared.threads, shared.n_paths) == (3, 4)
    shared.start("a text")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(shared.cancel).result(timeout=10)
    shared.release("a text")
    assert slow.canceled.is_set() and not hasattr(shared, "nothing")


def test_a_text_is_not_disturbed_from_start_to_release(slow: Slow, shared: SharedEngine) -> None:
    start = threading.Barrier(3)

    def decode(text: str) -> None:
        start.wait(timeout=10)
        for _ in range(3):
            shared.start(text)
            shared.forward(text, [1])
            shared.fork(text)
            shared.release(text)
            shared.forward(text, [1])
            shared.release(text)
            shared.encode(text)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(decode, "abc"))
    kept = [(name, text) for name, text in slow.log if name != "encode"]
    assert len(kept) == 54
    for first in range(0, 54, 6):
        assert len({text for _, text in kept[first : first + 6]}) == 1


def test_a_text_that_was_not_released_or_not_begun_holds_nobody_up(slow: Slow, shared: SharedEngine) -> None:
    with pytest.raises(ValueError, match="no features"):
        shared.start(None)
    shared.start("a")
    shared.fork("a")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(shared.give_up).result(timeout=10)  # not that thread's texts
        waiting = pool.submit(shared.encode, "b")
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.05)
        shared.give_up()
        assert waiting.result(timeout=10) == "b"


def test_a_release_that_fails_holds_nobody_up(
    slow: Slow, shared: SharedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(state: Any) -> None:
        raise OSError("gone")

    monkeypatch.setattr(slow, "release", fail)
    shared.start("a")
    with pytest.raises(OSError, match="gone"):
        shared.release("a")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(shared.encode, "b").result(timeout=10) == "b"


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
    slow: Slow, shared: SharedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specedge.runtime.model._FORK_WAITS_S", 0.2)
    release = threading.Event()

    def hold() -> None:
        shared.start("a text")
        release.wait(timeout=30)
        shared.release("a text")

    holder = threading.Thread(target=hold)
    holder.start()
    while not slow.log:
        time.sleep(0.001)
    child = _forked(shared)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child has a lock of its own"
    release.set()
    holder.join()
    assert shared.encode("c") == "c", "and the parent its own again"


def _forked(shared: SharedEngine) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.alarm(10)
        os._exit(0 if shared.encode("b") == "b" else 3)
    return child
