"""Warnings about an audio file, said once although the file may be read twice.

A file that breaks off is transcribed as far as it goes, and that is a success; but nobody should take a part for the
whole, so `lost` speaks on a level of its own, which the command shows even with --quiet.

The loudest frame of a file is found in a reading of its own (mel.py); what is wrong with the file is said in the other
one. Does not know: audio, who listens to the log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["LOSS", "lost", "lost_seconds", "silently", "warn"]

LOSS = (logging.WARNING + logging.ERROR) // 2
_is_silent: ContextVar[bool] = ContextVar("is_silent", default=False)


def warn(log: logging.Logger, message: str, *args: object) -> None:
    """Log a warning, but not inside `silently`."""
    if not _is_silent.get():
        log.warning(message, *args)


def lost(log: logging.Logger, message: str, *args: object) -> None:
    """Log a warning that audio is missing, but not inside `silently`."""
    if not _is_silent.get():
        log.log(LOSS, message, *args)


def lost_seconds(log: logging.Logger, name: str, what: str, missing_s: float, said_s: float) -> None:
    """Log how much of the audio `name` is missing; `what` comes before the seconds, such as "cut short: the last"."""
    lost(
        log,
        "%s: %s %.1f s of the %.1f s that its header promises are missing; reading what is there",
        *(name, what, missing_s, said_s),
    )


@contextlib.contextmanager
def silently() -> Iterator[None]:
    """No warnings of `warn` and `lost` from this thread while inside."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)
