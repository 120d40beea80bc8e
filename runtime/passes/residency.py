"""Give back the resident pages of mapped weights while other weights are at work (Linux; elsewhere nothing happens).

The encoder's weights are idle while the decoder runs, and the other way round. Packed weights are mapped from a file,
so their pages can be dropped and come back from the system's file cache at the price of a page fault: a process then
never holds both halves of a model. Only mappings that appeared while a session was made are touched, under a lock that
all sessions share, so that an address can never belong to somebody else; and only if no page of them was written.
Large blocks of the C library are kept out of its heap, so that what is reserved shrinks with what is used.

Knows addresses and files, nothing of ONNX Runtime.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MADV_DONTNEED = 4
# mallopt's numbers. A window needs blocks from hundreds of KiB up to the size of the arena; the rest is small. From
# 1 MiB on was too late: the heap still grew by 20 MB in an hour (ONNX Runtime 1.32).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 128 << 10
KEPT_TOP_BYTES = 4 << 20
_LOCK = threading.Lock()
_REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s*(.*)")


Range = tuple[int, int]


@dataclass(kw_only=True)
class MappedWeights:
    """The mappings of one session's data file; `release` drops their pages. Valid as long as the session lives."""

    ranges: list[Range] = field(default_factory=list)
    _checked: bool = False

    def release(self) -> None:
        """Drop the resident pages; the next use reads them again from the file cache."""
        if not self.ranges:
            return
        if not self._checked:
            written = [(start, stop) for start, stop, _, written_kb in _entries("/proc/self/smaps") if written_kb != 0]
            self.ranges = [mine for mine in self.ranges if not any(_overlap(mine, other) for other in written)]
            self._checked = True
        for start, stop in self.ranges:
            _madvise(start, stop - start)


@contextlib.contextmanager
def watch(data_path: Path) -> Iterator[MappedWeights]:
    """Collect what is mapped of `data_path` while inside; make the session inside and nothing else."""
    found = MappedWeights()
    if not sys.platform.startswith("linux"):
        yield found
        return
    path = str(data_path.resolve())
    with _LOCK:
        before = _mapped(path)
        yield found
        # The kernel joins neighbouring mappings, so what was there before is cut out by address, not by entry.
        found.ranges = [piece for entry in _mapped(path) for piece in _without(entry, before)]


def _mapped(path: str) -> list[Range]:
    return [(start, stop) for start, stop, name, _ in _entries("/proc/self/maps") if name == path]


def _overlap(a: Range, b: Range) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _without(entry: Range, taken: list[Range]) -> list[Range]:
    """The parts of `entry` that none of `taken` covers."""
    pieces = [entry]
    for start, stop in taken:
        cut = [((a, min(b, start)), (max(a, stop), b)) for a, b in pieces]
        pieces = [piece for pair in cut for piece in pair if piece[0] < piece[1]]
    return pieces


def _entries(table: str) -> Iterator[tuple[int, int, str, int | None]]:
    """(start, stop, file, written kB) of each mapping of this process; nothing where they cannot be read."""
    try:
        lines = Path(table).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    current: tuple[int, int, str] | None = None
    written_kb: int | None = None
    for line in lines:
        match = _REGION.match(line)
        if match:
            if current is not None:
                yield *current, written_kb
            current, written_kb = (int(match[1], 16), int(match[2], 16), match[3]), None
        elif line.startswith("Anonymous:"):
            written_kb = int(line.split()[1])
    if current is not None:
        yield *current, written_kb


@functools.cache
def map_large_blocks() -> None:
    """Have glibc map every large block by itself, in the whole process, unless its environment says how.

    By default a block that was freed raises the size from which glibc maps, up to 32 MB. Then the buffers that the
    encoder needs once a window lie in the heap, small things come to lie behind them, and the heap's end cannot fall
    again: reserved memory, which RLIMIT_DATA counts, grows for an hour while resident memory does not. Not for
    processes that do more with large blocks than transcribe: training becomes slower.
    """
    set_option = getattr(_c_library(), "mallopt", None)
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if set_option is None or "MALLOC_MMAP_THRESHOLD_" in os.environ or "mmap_threshold" in tunables:
        return
    set_option(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    set_option(M_TRIM_THRESHOLD, KEPT_TOP_BYTES)


def trim_heap() -> None:
    """Give back freed memory that the C library keeps: tens of megabytes after large buffers."""
    trim = getattr(_c_library(), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def _madvise(address: int, n_bytes: int) -> None:
    advise = getattr(_c_library(), "madvise", None)
    if advise is not None:
        advise(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), MADV_DONTNEED)


@functools.cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    except OSError:
        return None
