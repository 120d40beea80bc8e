"""One driver at a time on an output folder.

On a disk the system holds the lock, and takes it back however the driver ends. An object store has no locks, nor have
some network disks: there the driver writes an object again and again with a growing number, and a second driver that
finds one looks whether the number grows. No clock is read, so clocks may differ.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from specedge.errors import ResourceError, UsageError

from .places import DiskFolder, Folder

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["locked"]

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
FILE = ".lock"
BEAT_S = 10.0


@contextlib.contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """Hold the folder. Raises UsageError where another driver does, ResourceError where nothing can be written."""
    with contextlib.ExitStack() as stack:
        has_locks = isinstance(folder, DiskFolder) and stack.enter_context(_on_disk(Path(folder.url, FILE)))
        if not has_locks:
            stack.enter_context(_in_store(folder))
        yield


def _owner() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _refusal(folder: str, owner: str) -> UsageError:
    return UsageError(f"{folder}: {owner} is at work on this output folder; wait for it, or give another -o")


@contextlib.contextmanager
def _on_disk(path: Path) -> Iterator[bool]:
    """Hold the lock while the block lasts; gives False where the disk knows no locks."""
    try:
        file = open(path, "a+")
    except OSError as error:
        reason = error.strerror or error
        raise ResourceError(f"{path.parent}: cannot be written to ({reason}); choose another -o") from None
    with file:
        refused = _try_lock(file.fileno())
        if refused is None:
            file.truncate(0)
            file.write(_owner())
            file.flush()
        elif refused.errno not in _NO_LOCKS:
            file.seek(0)
            raise _refusal(str(path.parent), file.read().strip() or "another driver")
        yield refused is None


def _try_lock(descriptor: int) -> OSError | None:
    """Lock a file that is open for writing; why that was not possible."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error
    return None


@contextlib.contextmanager
def _in_store(folder: Folder) -> Iterator[None]:
    found = _beat(folder)
    if found is not None:
        time.sleep(3 * BEAT_S)
        now = _beat(folder)
        if now is not None and now != found:
            raise _refusal(folder.url, str(now.get("owner", "another driver")))
    token, ended = secrets.token_hex(8), threading.Event()

    def beat(number: int) -> None:
        folder.write(FILE, json.dumps({"owner": _owner(), "token": token, "number": number}).encode())

    def go_on() -> None:
        number = 0
        while not ended.wait(BEAT_S):
            number += 1
            with contextlib.suppress(Exception):  # the next beat comes soon
                beat(number)

    beat(0)
    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        folder.remove(FILE)


def _beat(folder: Folder) -> dict[str, object] | None:
    """What the lock says; None where there is none."""
    try:
        value = json.loads(folder.read(FILE))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None
