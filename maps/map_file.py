"""The bytes of a token map, out of reach of whoever replaces, cuts or overwrites the file while it is in use.

A mapped file that somebody truncates ends the process (SIGBUS), and `cp` over a file truncates it. So a map up to 64 MB
is read. A larger one is copied to a file without a name, beside it or else in the temporary folder, and that is mapped:
memory stays bounded, for the pages are the disk's, and where the file system shares blocks (Btrfs, XFS) a copy costs
nothing. Reading piece by piece was the other way: no copy, but contents that change after they were checked.
A file that changes while it is read is found by its checksums. Does not know: what is in a map.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import stat
import tempfile
from typing import BinaryIO

from specedge.runtime.errors import ResourceError

__all__ = ["held_bytes"]

READ_BYTES = 64 << 20
_COPY_BYTES = 1 << 20


def held_bytes(path: str | os.PathLike[str]) -> bytes | mmap.mmap:
    """All bytes of a file, which nobody else can change. Raises OSError; ResourceError where no room is for a copy."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a pipe would wait for a writer
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return _copied(file, path) if size > READ_BYTES else file.read(size)


def _copied(file: BinaryIO, path: str | os.PathLike[str]) -> mmap.mmap:
    """A mapped copy without a name."""
    places = (os.path.dirname(os.path.realpath(path)), tempfile.gettempdir())
    for place in places:
        try:
            with tempfile.TemporaryFile(buffering=0, prefix=".specedge-", dir=place) as copy:
                file.seek(0)
                _fill(copy, file)
                return mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            reason = error.strerror
    raise ResourceError(
        f"{os.fspath(path)}: a map of this size is used by a copy, and there is no room for one in {places[0]} or "
        f"{places[1]}: {reason}; set TMPDIR to a folder with room"
    )


def _fill(copy: BinaryIO, file: BinaryIO) -> None:
    if hasattr(os, "copy_file_range"):
        with contextlib.suppress(OSError):  # between file systems, or on an old one: what is missing is copied below
            while os.copy_file_range(file.fileno(), copy.fileno(), 1 << 30):
                pass
    shutil.copyfileobj(file, copy, _COPY_BYTES)
