"""SIGTERM ends a command as Ctrl-C does, with an exit code of its own: what is done is written first.

Does not know: passes, files. `session.Canceller` stops what runs.
"""

from __future__ import annotations

from specedge.runtime.errors import Interrupted, Terminated

__all__ = ["TerminationSignal", "interruption", "on_sigterm"]


class TerminationSignal(KeyboardInterrupt):
    """SIGTERM outside of a pass: raised as Ctrl-C is, so that nobody takes it for an error of his own."""


def interruption(error: BaseException, message: str = "") -> Interrupted:
    """What a stop by `error` is to the user: Terminated for SIGTERM, else Interrupted; by default with its own line."""
    if isinstance(error, (Terminated, TerminationSignal)):
        return Terminated(message or "terminated")
    return Interrupted(message or "interrupted")


def on_sigterm(_number: int, _frame: object) -> None:
    """The command's signal handler. Raises TerminationSignal."""
    raise TerminationSignal
