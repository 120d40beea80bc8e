"""Whose turn it is: passes that wait become one, errors go to whose they are, and nobody who leaves holds others up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from specedge.errors import SpecedgeError, Terminated
from specedge.runtime.engine.scheduler import Scheduler, Turn

WAIT_S = 30


class Machine:
    """Runs passes of strings; `log` has what was run together. The pass "hold" waits for `go`."""

    def __init__(self, *, merges: bool = True) -> None:
        self.scheduler = Scheduler(self._run, lambda: merges, lambda texts: len(texts) <= 4)
        self.log: list[list[str]] = []
        self.holding, self.go = threading.Event(), threading.Event()

    def run(self, name: str) -> Any:
        return list(self.scheduler.run([name]))

    def alone(self, name: str) -> None:
        with self.scheduler:
            self.log.append([name])

    def in_line(self, n: int) -> None:
        """Wait until so many callers stand in line."""
        until = time.monotonic() + WAIT_S
        while len(self.scheduler._line) < n:
            assert time.monotonic() < until
            time.sleep(0.001)

    def _run(self, passes: Sequence[Turn]) -> None:
        names = [name for asked in passes for name in asked.texts]
        self.log.append(names)
        if "hold" in names:
            self.holding.set()
            assert self.go.wait(WAIT_S)
        for bad, error in (("bad", SpecedgeError), ("stopped", Terminated), ("dead", KeyboardInterrupt)):
            if bad in names:
                raise error(bad)
        for asked in passes:
            asked.logits = [name.upper() for name in asked.texts]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def behind_hold(machine: Machine, pool: ThreadPoolExecutor, calls: Sequence[Callable[[], Any]]) -> list[Future[Any]]:
    """The calls, begun one after another while a pass is held, which then goes on."""
    held = pool.submit(machine.run, "hold")
    assert machine.holding.wait(WAIT_S)
    begun = []
    for n, call in enumerate(calls, 1):
        begun.append(pool.submit(call))
        machine.in_line(n)
    machine.go.set()
    assert held.result(WAIT_S) == ["HOLD"]
    return begun


def test_passes_that_wait_become_one_and_each_gets_its_own(pool: ThreadPoolExecutor) -> None:
    machine = Machine()
    names = "abcdef"
    begun = behind_hold(machine, pool, [lambda name=name: machine.run(name) for name in names])
    assert [one.result(WAIT_S) for one in begun] == [[name.upper()] for name in names]
    assert machine.log == [["hold"], ["a", "b", "c", "d"], ["e", "f"]], "as many as fit, first come first"


def test_an_error_is_only_that_of_whose_pass_it_was(pool: ThreadPoolExecutor) -> None:
    machine = Machine()
    good, bad, other = behind_hold(machine, pool, [lambda name=name: machine.run(name) for name in ("a", "bad", "b")])
    with pytest.raises(SpecedgeError, match="bad"):
        bad.result(WAIT_S)
    assert good.result(WAIT_S) == ["A"] and other.result(WAIT_S) == ["B"]
    assert machine.log == [["hold"], ["a", "bad", "b"], ["a"], ["bad"], ["b"]]


def test_a_stop_reaches_everyone_in_the_pass(pool: ThreadPoolExecutor) -> None:
    machine = Machine()
    begun = behind_hold(machine, pool, [lambda name=name: machine.run(name) for name in ("a", "stopped", "b")])
    for one in begun:
        with pytest.raises(Terminated):
            one.result(WAIT_S)
    assert len(machine.log) == 2 and machine.run("c") == ["C"]


def test_callers_taken_along_outlive_a_leader_that_dies(pool: ThreadPoolExecutor) -> None:
    machine = Machine()
    dead, *begun = behind_hold(machine, pool, [lambda name=name: machine.run(name) for name in ("dead", "a", "b")])
    with pytest.raises(KeyboardInterrupt):
        dead.result(WAIT_S)
    assert [one.result(WAIT_S) for one in begun] == [["A"], ["B"]]
    assert machine.log == [["hold"], ["dead", "a", "b"], ["a", "b"]]


def test_passes_wait_for_one_turn_of_anything_else(pool: ThreadPoolExecutor) -> None:
    machine = Machine()
    calls = [
        lambda: machine.alone("encode"),
        lambda: machine.alone("encode again"),
        lambda: machine.run("a"),
        lambda: machine.run("b"),
    ]
    for one in behind_hold(machine, pool, calls):
        one.result(WAIT_S)
    assert machine.log == [["hold"], ["encode"], ["a", "b"], ["encode again"]]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to a thread")
@pytest.mark.parametrize("what", ["pass", "turn"])
def test_ctrl_c_in_line_leaves_it(pool: ThreadPoolExecutor, what: str) -> None:
    machine = Machine()
    held = pool.submit(machine.run, "hold")
    assert machine.holding.wait(WAIT_S)

    def press() -> list[Future[Any]]:
        machine.in_line(1)
        others = [pool.submit(machine.run, "b")]
        machine.in_line(2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return others

    pressed = pool.submit(press)
    with pytest.raises(KeyboardInterrupt):
        if what == "turn":
            machine.alone("a")
        else:
            machine.run("a")
    assert len(machine.scheduler._line) == 1
    machine.go.set()
    assert held.result(WAIT_S) == ["HOLD"]
    assert [one.result(WAIT_S) for one in pressed.result(WAIT_S)] == [["B"]]
    assert machine.log == [["hold"], ["b"]]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to a thread")
def test_a_caller_who_leaves_waits_for_the_pass_that_has_its_rows(pool: ThreadPoolExecutor) -> None:
    machine = Machine()
    first = threading.Event()

    def hold_the_engine() -> None:
        with machine.scheduler:
            first.set()
            machine.in_line(2)

    def press() -> bool:
        assert machine.holding.wait(WAIT_S)  # main's pass is taken along by the held one
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.05)
        is_early = left.is_set()
        machine.go.set()
        return is_early

    left = threading.Event()
    holder = pool.submit(hold_the_engine)
    assert first.wait(WAIT_S)
    leader = pool.submit(machine.run, "hold")
    machine.in_line(1)
    pressed = pool.submit(press)
    with pytest.raises(KeyboardInterrupt):
        machine.run("a")
    left.set()
    assert pressed.result(WAIT_S) is False
    holder.result(WAIT_S)
    assert leader.result(WAIT_S) == ["HOLD"] and machine.log == [["hold", "a"]] and machine.run("b") == ["B"]


def test_a_forked_child_has_no_line() -> None:
    machine = Machine()
    held = threading.Event()

    def hold() -> None:
        machine.scheduler.acquire()  # and never released, as in a child that has not this thread
        held.set()
        machine.go.wait(WAIT_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(WAIT_S)
    machine.scheduler.forget_others()
    assert machine.run("a") == ["A"]
    with machine.scheduler:
        machine.scheduler.forget_others()
        assert machine.run("b") == ["B"]
    assert machine.scheduler._owner is None
    machine.go.set()
    holder.join()
