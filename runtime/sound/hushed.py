"""Keep what a C library writes to stderr by itself from the user, while one of its functions runs.

libmpg123, inside libsndfile, remarks on damage in lines of its own, and nothing in soundfile silences it. stderr is the
whole process's: where other threads run than specedge's own, which might write there at that moment, it is left alone.
Does not know: sound.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

__all__ = ["hushed"]

_OURS = ("specedge-", "ffmpeg-")  # how the names of our own threads begin


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """While inside, what is written to file descriptor 2 is dropped, if nobody but this thread can write there."""
    saved = null = -1
    try:
        if _is_alone():
            with contextlib.suppress(OSError):  # stderr is closed, or there are no descriptors left
                saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 2)
        yield
    finally:
        if saved >= 0:
            os.dup2(saved, 2)
        for descriptor in (saved, null):
            if descriptor >= 0:
                os.close(descriptor)


def _is_alone() -> bool:
    current = threading.current_thread()
    return all(thread is current or thread.name.startswith(_OURS) for thread in threading.enumerate())
