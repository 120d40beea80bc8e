"""Ctrl-C and SIGTERM at any moment of a command: what is done is written first, then one line and a code, 130 or 143.

While the command starts, `end_at_once`: nothing has been done yet. While it runs, `unwinding`: the signal becomes an
exception, but never inside an import, where a library's native initialiser would turn it into an error of its own;
there the signal comes again a little later. `session.Canceller` stops a pass. Once the command is done, the exit code
is its own.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from specedge.errors import Interrupted, Terminated

_IMPORTER = "<frozen importlib._bootstrap>"
_AGAIN_S = 0.01
_waiting: set[int] = set()  # signals that came inside an import


class TerminationSignal(KeyboardInterrupt):
    """SIGTERM outside of a pass: raised as Ctrl-C is, so that no library takes it for an error of its own."""


def interruption(error: BaseException, message: str = "") -> Interrupted:
    """The user's error for a stop: Terminated for SIGTERM, else Interrupted."""
    if isinstance(error, (Terminated, TerminationSignal)):
        return Terminated(message or "terminated")
    return Interrupted(message or "interrupted")


def stop_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The stop that a library turned into `error`, or None."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, KeyboardInterrupt):
            return one
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            waiting += [one.__context__, one.__cause__]
    return None


def end_at_once(number: int, _frame: object) -> None:
    """The handler of a command that has not begun: one line and the exit code."""
    with contextlib.suppress(OSError):
        os.write(2, b"specedge: terminated\n" if number == signal.SIGTERM else b"specedge: interrupted\n")
    os._exit(128 + number)


def on_signal(number: int, frame: FrameType | None) -> None:
    """The command's handler of both. Raises KeyboardInterrupt, for SIGTERM a TerminationSignal."""
    if not _waits(number, frame):
        raise _stop(number)


def _stop(number: int) -> KeyboardInterrupt:
    return TerminationSignal() if number == signal.SIGTERM else KeyboardInterrupt()


_DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def take_over() -> None:
    """`end_at_once` from here on, unless whoever started this process has these signals ignored."""
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) == default:
            signal.signal(number, end_at_once)


def end_with(code: int) -> None:
    """The command is done: from here on a signal ends the process with `code`, silently."""
    for number in _DEFAULTS:
        if signal.getsignal(number) in (end_at_once, on_signal):
            signal.signal(number, lambda _number, _frame: os._exit(code))


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Inside, both signals raise exceptions, unless the program around handles them."""
    old = {number: signal.getsignal(number) for number in _DEFAULTS}
    taken = [number for number in old if old[number] in (_DEFAULTS[number], end_at_once)]
    if threading.current_thread() is not threading.main_thread():
        taken = []
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = _unraisable(hook)
        for number in taken:
            signal.signal(number, on_signal)
        yield
    finally:
        for number in taken:
            signal.signal(number, old[number])
        sys.unraisablehook = hook


@contextlib.contextmanager
def held_back() -> Iterator[list[KeyboardInterrupt]]:
    """Inside, the first Ctrl-C or SIGTERM waits in the list, for work that must not stop half way; a second one acts.

    In another thread than the main one, or where these signals are ignored, nothing changes.
    """
    came: list[KeyboardInterrupt] = []
    before = {number: handler for number in _DEFAULTS if callable(handler := signal.getsignal(number))}
    if threading.current_thread() is not threading.main_thread():
        before = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(_stop(number))
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield came
    finally:
        restore()


def _waits(number: int, frame: FrameType | None) -> bool:
    """Whether an import is under way, so that the signal must come again later; a second one ends the process."""
    if not _imports(frame):
        return False
    if number in _waiting:
        os._exit(128 + number)
    _come_again(number)
    return True


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_globals.get("__name__") != "specedge.runtime.cli.main":
        if frame.f_code.co_filename == _IMPORTER:
            return True
        frame = frame.f_back
    return False


def _come_again(number: int) -> None:
    main = threading.main_thread().ident or 0

    def later() -> None:
        time.sleep(_AGAIN_S)
        _waiting.discard(number)
        if hasattr(signal, "pthread_kill"):  # which also ends a sleep or a wait
            signal.pthread_kill(main, number)
        else:
            _thread.interrupt_main(signal.Signals(number))

    _waiting.add(number)
    # Not threading.Thread: the signal may have come while the main thread holds that module's locks.
    _thread.start_new_thread(later, ())


def _unraisable(hook: Callable[[Any], object]) -> Callable[[Any], object]:
    """A hook for exceptions in finalisers, which nobody can catch: a stop that was raised in one comes again."""

    def show(unraisable: Any) -> None:
        error = unraisable.exc_value
        if isinstance(error, KeyboardInterrupt):
            _come_again(signal.SIGTERM if isinstance(error, TerminationSignal) else signal.SIGINT)
        else:
            hook(unraisable)

    return show
