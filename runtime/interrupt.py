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
from collections.abc import Callable, Iterator, Mapping
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


def stop_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """The stop that a library turned into `error`, or None."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def end_at_once(number: int, _frame: object) -> None:
    """The handler of a command that has not begun: one line and the exit code."""
    with contextlib.suppress(OSError):
        os.write(2, b"specedge: terminated\n" if number == signal.SIGTERM else b"specedge: interrupted\n")
    os._exit(128 + number)


def on_signal(number: int, frame: FrameType | None) -> None:
    """The command's handler of both. Raises KeyboardInterrupt, for SIGTERM a TerminationSignal.

    Inside an import the signal comes again later; a second one ends the process.
    """
    while frame is not None and frame.f_globals.get("__name__") != "specedge.runtime.cli.main":
        if frame.f_code.co_filename == _IMPORTER:
            if number in _waiting:
                os._exit(128 + number)
            _come_again(number)
            return
        frame = frame.f_back
    raise _stop(number)


def _stop(number: int) -> KeyboardInterrupt:
    return TerminationSignal() if number == signal.SIGTERM else KeyboardInterrupt()


_DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def take_over() -> None:
    """`end_at_once` from here on, unless whoever started this process has these signals ignored."""
    _set({number: end_at_once for number, old in _handlers().items() if old == _DEFAULTS[number]})


def end_with(code: int) -> None:
    """The command is done: from here on a signal ends the process with `code`, silently."""
    ours = [number for number, handler in _handlers().items() if handler in (end_at_once, on_signal)]
    _set(dict.fromkeys(ours, lambda _number, _frame: os._exit(code)))


def _handlers() -> dict[int, Any]:
    """The handlers as they are; none in another thread than the main one, which cannot set them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in _DEFAULTS}


def _set(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Inside, both signals raise exceptions, unless the program around handles them."""
    before = {number: old for number, old in _handlers().items() if old in (_DEFAULTS[number], end_at_once)}
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = _unraisable(hook)
        _set(dict.fromkeys(before, on_signal))
        yield
    finally:
        _set(before)
        sys.unraisablehook = hook


@contextlib.contextmanager
def held_back() -> Iterator[list[KeyboardInterrupt]]:
    """Inside, the first Ctrl-C or SIGTERM waits in the list, for work that must not stop half way; a second one acts.

    In another thread than the main one, or where these signals are ignored, nothing changes.
    """
    came: list[KeyboardInterrupt] = []
    before = {number: old for number, old in _handlers().items() if callable(old)}

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(_stop(number))
        _set(before)

    try:
        _set(dict.fromkeys(before, note))
        yield came
    finally:
        _set(before)


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
