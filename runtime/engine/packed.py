"""Weights packed for this CPU, kept in the user's cache folder, and their resident pages given back while idle.

ONNX Runtime rearranges weights for its kernels each time a graph is loaded. The first load of a bundle saves the
result; later ones map it, which takes a fraction of the time and of the resident memory. An entry is a folder

    <cache>/prepacked/<bundle digest>-<ISA>-<ONNX Runtime version>-<layout>/
        encoder.onnx encoder.data ...   written by ONNX Runtime
        ready.json                      {"files": {name: [size, crc32]}}, written last

made under a temporary name and renamed, so several processes may start at once: one wins, the others drop theirs. An
entry that does not match its checksums is set aside as `.bad`, said once, and rebuilt. A folder that cannot be written
or a disk that is nearly full costs only speed. Beyond the byte budget the least recently used entries go. The checksums
guard against decay, not against somebody who can write the user's cache.

The encoder's weights are idle while the decoder runs, and the other way round. On Linux their mapped pages are dropped
meanwhile and come back from the system's file cache by page faults, so a process never holds both halves of a model.
Only mappings that appeared while a session was made are touched, and only if none of their pages was written.
"""

from __future__ import annotations

import contextlib
import ctypes
import filecmp
import functools
import json
import logging
import os
import re
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from specedge import leftovers

from ..device import isa, packed_folder, threads_allowed

log = logging.getLogger(__name__)
READY = "ready.json"
LAYOUT = 4  # changes with how entries are made, so that those of an earlier specedge are not used
UNUSABLE = "unusable"  # the key of the reason in ready.json
DEFAULT_BUDGET_BYTES = 8 << 30
BLOCK_BYTES = 1 << 20
SLICE_BYTES = 64 << 20  # large files are summed by several threads


def entry_path(bundle_digest: str, runtime_version: str, part: str = "") -> Path:
    """The entry of a bundle for this CPU and runtime, or of a `part` that is rarely needed; it need not exist."""
    return packed_folder() / f"{bundle_digest[:24]}-{isa().key}-{runtime_version}-{LAYOUT}{part}"


class Unusable(Exception):
    """Raised by a builder whose packed weights are no good; remembered, so that they are not made again."""


def lookup(entry: Path) -> Path | None:
    """The entry if it is there and whole, else None; a broken one is set aside."""
    try:
        ready = json.loads((entry / READY).read_text(encoding="utf-8"))
        if UNUSABLE in ready:
            return None
        expected = {str(name): (int(size), int(crc)) for name, (size, crc) in ready["files"].items()}
    except OSError:  # none yet, or a cache that cannot be read
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        expected = {}
    if not expected or any(Path(name).name != name for name in expected) or not _matches(entry, expected):
        set_aside(entry, "they do not match their checksums")
        return None
    with contextlib.suppress(OSError):
        os.utime(entry / READY)  # the mark of recent use that `evict` goes by
    _sweep(entry.parent)
    return entry


def refused(entry: Path) -> bool:
    """Whether these weights were found `Unusable` on this machine."""
    try:
        return UNUSABLE in json.loads((entry / READY).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def store(
    entry: Path, build: Callable[[Path], None], *, needed_bytes: int = 0, budget_bytes: int | None = None
) -> None:
    """Make the entry by `build(folder)` and publish it; an OSError, ResourceError too, is logged, other exceptions of
    `build` pass through.

    Nothing is built when `needed_bytes`, the most that it may take, exceeds the budget or the free disk space.
    """
    parent = entry.parent
    budget = budget_bytes if budget_bytes is not None else _budget_bytes()
    try:
        if needed_bytes > budget or budget <= 0:
            log.info("packed weights are not kept: they may take %d bytes, the budget is %d", needed_bytes, budget)
            return
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep(parent)
        if shutil.disk_usage(parent).free < needed_bytes:
            log.info("packed weights are not kept: less than %d bytes free in %s", needed_bytes, parent)
            return
        with leftovers.temporary_folder(_temporaries(parent)) as temporary:
            _fill(temporary, build)
            _publish(temporary, entry)
        evict(parent, keep=entry, budget_bytes=budget)
    except OSError as error:
        log.info("packed weights are not kept: %s", error)


def _fill(temporary: Path, build: Callable[[Path], None]) -> None:
    """Write what `build` makes with its checksums, or why it is unusable."""
    try:
        build(temporary)
    except Unusable as error:
        log.info("packed weights are not kept: %s", error)
        for path in temporary.iterdir():
            path.unlink()
        (temporary / READY).write_text(json.dumps({UNUSABLE: str(error)}), encoding="utf-8")
        return
    files = {path.name: _checksum(path) for path in sorted(temporary.iterdir())}
    (temporary / READY).write_text(json.dumps({"files": files}), encoding="utf-8")


def share(path: Path, twin: Path) -> None:
    """Make `path` a hard link to `twin` if both hold the same bytes."""
    link = path.with_suffix(".link")
    with contextlib.suppress(OSError):
        if filecmp.cmp(path, twin, shallow=False):
            os.link(twin, link)
            os.replace(link, path)


def _publish(temporary: Path, entry: Path) -> None:
    try:
        os.rename(temporary, entry)
    except OSError:
        if (entry / READY).exists():  # another process was first
            return
        _hide(entry, ".bad-")  # an entry that was not wholly removed
        os.rename(temporary, entry)


def evict(parent: Path, *, keep: Path, budget_bytes: int | None = None) -> None:
    """Remove least recently used entries, but not `keep`, until all fit $SPECEDGE_CACHE_BYTES, 8 GiB by default.

    A process that has an entry mapped keeps its pages.
    """
    budget = budget_bytes if budget_bytes is not None else _budget_bytes()
    entries = []
    for folder in parent.iterdir():
        if folder.name.startswith(".") or not folder.is_dir():
            continue
        try:
            size = sum(path.stat().st_size for path in folder.iterdir())
            used = (folder / READY).stat().st_mtime
        except OSError:  # half gone: the first to go
            size, used = 0, 0.0
        entries.append((used, size, folder))
    total = sum(size for _, size, _ in entries)
    for used, size, folder in sorted(entries):
        if total <= budget and used > 0:
            return
        if folder != keep:
            _hide(folder, ".old-")
            total -= size


def _hide(folder: Path, prefix: str) -> None:
    """Remove a folder that others may read: rename it first, so that it never looks like a whole entry."""
    hidden = folder.with_name(f"{prefix}{folder.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    try:
        os.rename(folder, hidden)
    except OSError:
        hidden = folder
    shutil.rmtree(hidden, ignore_errors=True)


def _budget_bytes() -> int:
    try:
        return int(os.environ["SPECEDGE_CACHE_BYTES"])
    except (KeyError, ValueError):
        return DEFAULT_BUDGET_BYTES


def _matches(entry: Path, expected: dict[str, tuple[int, int]]) -> bool:
    try:
        if any((entry / name).stat().st_size != size for name, (size, _) in expected.items()):
            return False
        return all(_checksum(entry / name)[1] == crc for name, (_, crc) in expected.items())
    except OSError:
        return False


def _checksum(path: Path) -> tuple[int, int]:
    """Size and checksum: a CRC over each block's sum and exclusive or. A CRC of every byte would slow each start."""
    size = path.stat().st_size
    slices = range(0, size, SLICE_BYTES)
    with ThreadPoolExecutor(threads_allowed()) as pool:
        parts = list(pool.map(lambda start: _slice_sums(path, start, min(SLICE_BYTES, size - start)), slices))
    return size, zlib.crc32(b"".join(parts))


def _slice_sums(path: Path, start: int, n_bytes: int) -> bytes:
    words = np.zeros(BLOCK_BYTES // 8, np.uint64)
    view = words.data.cast("B")
    sums = []
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while n_bytes > 0:
            n_read = file.readinto(view[: min(BLOCK_BYTES, n_bytes)]) or 0
            if n_read == 0:
                break
            view[n_read : -(-n_read // 8) * 8] = bytes(-n_read % 8)
            block = words[: -(-n_read // 8)]
            sums += [np.add.reduce(block), np.bitwise_xor.reduce(block)]
            n_bytes -= n_read
    return np.array(sums, np.uint64).tobytes()


def set_aside(entry: Path, reason: str) -> None:
    """Take an entry that cannot be used out of the way, and say so."""
    log.warning("%s: packed weights are damaged (%s); set aside, to be made again", entry, reason)
    bad = entry.with_name(f".bad-{entry.name}")
    try:
        shutil.rmtree(bad, ignore_errors=True)
        os.rename(entry, bad)
        os.utime(bad)  # kept for an hour from now
    except OSError:
        shutil.rmtree(entry, ignore_errors=True)


def _temporaries(parent: Path) -> leftovers.Names:
    return leftovers.Names(parent=parent, prefix=".new-", tokens="[0-9a-z_]+")


def _sweep(parent: Path) -> None:
    """Remove leftovers of killed processes, and damaged entries after an hour."""
    leftovers.sweep(_temporaries(parent))
    for folder in parent.glob(".old-*"):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in parent.glob(".bad-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > leftovers.STALE_S:
                shutil.rmtree(folder, ignore_errors=True)


MADV_DONTNEED = 4
# mallopt's numbers. With 1 MiB the heap still grew by 20 MB in an hour (ONNX Runtime 1.32).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 128 << 10
KEPT_TOP_BYTES = 4 << 20
_LOCK = threading.Lock()
_REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s*(.*)")
Range = tuple[int, int]


@dataclass(kw_only=True)
class MappedWeights:
    """The mappings of one session's data file, valid as long as the session lives."""

    ranges: list[Range] = field(default_factory=list)
    _checked: bool = False

    def release(self) -> None:
        """Drop the resident pages; the next use reads them again from the file cache."""
        if not self.ranges:
            return
        if not self._checked:
            written = [(start, stop) for start, stop, _, written_kb in _entries("/proc/self/smaps") if written_kb != 0]
            self.ranges = _joined([one for one in self.ranges if not any(_overlap(one, other) for other in written)])
            self._checked = True
        advise = getattr(_c_library(), "madvise", None)
        if advise is not None:
            for start, stop in self.ranges:
                advise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), MADV_DONTNEED)


@contextlib.contextmanager
def watch(data_path: Path) -> Iterator[MappedWeights]:
    """Collect what is mapped of `data_path` while inside; make a session inside and nothing else."""
    found = MappedWeights()
    if not sys.platform.startswith("linux"):
        yield found
        return
    path = str(data_path.resolve())
    with _LOCK:
        before = _mapped(path)
        yield found
        # The kernel joins neighbouring mappings, so earlier ones are cut out by address.
        found.ranges = [piece for entry in _mapped(path) for piece in _without(entry, before)]


def _mapped(path: str) -> list[Range]:
    return [(start, stop) for start, stop, name, _ in _entries("/proc/self/maps") if name == path]


def _overlap(a: Range, b: Range) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _joined(ranges: list[Range]) -> list[Range]:
    """Sorted, with neighbours in one: a third of the calls of madvise."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            start, _ = joined.pop()
        joined.append((start, stop))
    return joined


def _without(entry: Range, taken: list[Range]) -> list[Range]:
    """The parts of `entry` that none of `taken` covers."""
    pieces = [entry]
    for start, stop in taken:
        cut = [((a, min(b, start)), (max(a, stop), b)) for a, b in pieces]
        pieces = [piece for pair in cut for piece in pair if piece[0] < piece[1]]
    return pieces


def _entries(table: str) -> Iterator[tuple[int, int, str, int | None]]:
    """(start, stop, file, written kB) of each mapping of this process, as far as they can be read."""
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

    By default every freed block raises the size from which glibc maps, up to 32 MB. The encoder's buffers then lie in
    the heap, small blocks behind them keep it from shrinking, and reserved memory (RLIMIT_DATA) grows for an hour. Not
    for training, which becomes slower.
    """
    set_option = getattr(_c_library(), "mallopt", None)
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if set_option is None or "MALLOC_MMAP_THRESHOLD_" in os.environ or "mmap_threshold" in tunables:
        return
    set_option(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    set_option(M_TRIM_THRESHOLD, KEPT_TOP_BYTES)


def trim_heap() -> None:
    """Give back freed memory that glibc keeps: tens of megabytes after large buffers."""
    trim = getattr(_c_library(), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


@functools.cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    except OSError:
        return None
