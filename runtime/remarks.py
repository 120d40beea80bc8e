"""Warnings about an audio file, said once although the file may be read twice.

The loudest frame of a file is found in a reading of its own (mel.py); what is wrong with the file is said in the other
one. Does not know: audio, who listens to the log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["silently", "warn"]

_is_silent: ContextVar[bool] = ContextVar("is_silent", default=False)


def warn(log: logging.Logger, message: str, *args: object) -> None:
    """Log a warning, but not inside `silently`."""
    if not _is_silent.get():
        log.warning(message, *args)


@contextlib.contextmanager
def silently() -> Iterator[None]:
    """No warnings of `warn` from this thread while inside."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)
