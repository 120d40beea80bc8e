"""Weights packed for this CPU, in the user's cache folder, and freed memory given back to the system.

ONNX Runtime rearranges weights for its kernels each time a graph is loaded. The first load of a bundle saves the
result; later ones map it, which takes a fraction of the time and of the memory. An entry is a folder

    <cache>/prepacked/<bundle digest>-<ISA>-<ONNX Runtime version>-<layout>/
        encoder.onnx encoder.data ...   written by ONNX Runtime
        ready.json                      {"files": {name: [size, checksum]}}, written last

made under a temporary name and renamed, so several processes may start at once: one wins, the others drop theirs. An
entry that does not match its checksums is set aside as `.bad`, said once, and made again. A folder that cannot be
written or a disk that is nearly full costs only speed. Beyond the byte budget the least recently used entries go. The
checksums guard against decay, not against somebody who can write the user's cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import filecmp
import functools
import json
import logging
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from specedge import leftovers

from ..device import isa, packed_folder

log = logging.getLogger(__name__)
READY = "ready.json"
LAYOUT = 5  # changes with how entries are made, so that those of an earlier specedge are not used
UNUSABLE = "unusable"  # the key of the reason in ready.json
DEFAULT_BUDGET_BYTES = 8 << 30
BLOCK_BYTES = 1 << 20
# mallopt's numbers. With 1 MiB the heap still grew by 20 MB in an hour (ONNX Runtime 1.32).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 128 << 10
KEPT_TOP_BYTES = 4 << 20


class Unusable(Exception):
    """Raised by a builder whose packed weights are no good; remembered, so that they are not made again."""


def entry_path(bundle_digest: str, runtime_version: str, part: str = "") -> Path:
    """The entry of a bundle for this CPU and runtime, or of a `part` that is rarely needed; it need not exist."""
    return packed_folder() / f"{bundle_digest[:24]}-{isa().key}-{runtime_version}-{LAYOUT}{part}"


def kept(entry: Path, build: Callable[[Path], None], *, needed_bytes: int = 0) -> Path | None:
    """The entry, made by `build(folder)` on first use; None where it cannot be kept, or was found `Unusable` here.

    Nothing is built when `needed_bytes`, the most that it may take, exceeds the budget or the free disk space. An
    OSError of `build` is logged, other exceptions pass through.
    """
    found = lookup(entry)
    if found is None and not (entry / READY).exists():
        try:
            _store(entry, build, needed_bytes)
        except OSError as error:
            log.info("packed weights are not kept: %s", error)
        found = lookup(entry)
    return found


def lookup(entry: Path) -> Path | None:
    """The entry if it is there and whole, else None; a broken one is set aside."""
    try:
        ready = json.loads((entry / READY).read_text(encoding="utf-8"))
        if UNUSABLE in ready:
            return None
        is_whole = bool(ready["files"]) and all(
            Path(name).name == name and _checksum(entry / name) == tuple(expected)
            for name, expected in ready["files"].items()
        )
    except FileNotFoundError:
        if not (entry / READY).exists():
            return None
        is_whole = False
    except OSError:  # a cache that cannot be read
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_whole = False
    if not is_whole:
        set_aside(entry, "they do not match their checksums")
        return None
    with contextlib.suppress(OSError):
        os.utime(entry / READY)  # the mark of recent use that `evict` goes by
    _sweep(entry.parent)
    return entry


def _store(entry: Path, build: Callable[[Path], None], needed_bytes: int) -> None:
    parent, budget = entry.parent, _budget_bytes()
    if needed_bytes > budget or budget <= 0:
        log.info("packed weights are not kept: they may take %d bytes, the budget is %d", needed_bytes, budget)
        return
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(parent)
    if shutil.disk_usage(parent).free < needed_bytes:
        log.info("packed weights are not kept: less than %d bytes free in %s", needed_bytes, parent)
        return
    with leftovers.temporary_folder(_temporaries(parent)) as temporary:
        try:
            build(temporary)
            ready: dict[str, object] = {"files": {path.name: _checksum(path) for path in sorted(temporary.iterdir())}}
        except Unusable as error:
            log.info("packed weights are not kept: %s", error)
            for path in temporary.iterdir():
                path.unlink()
            ready = {UNUSABLE: str(error)}
        (temporary / READY).write_text(json.dumps(ready), encoding="utf-8")
        try:
            os.rename(temporary, entry)
        except OSError:
            if not (entry / READY).exists():  # else another process was first
                _hide(entry, ".bad-")  # an entry that was not wholly removed
                os.rename(temporary, entry)
    evict(parent, keep=entry)


def share(path: Path, twin: Path) -> None:
    """Make `path` a hard link to `twin` if both hold the same bytes."""
    link = path.with_suffix(".link")
    with contextlib.suppress(OSError):
        if filecmp.cmp(path, twin, shallow=False):
            os.link(twin, link)
            os.replace(link, path)


def evict(parent: Path, *, keep: Path) -> None:
    """Remove least recently used entries, but not `keep`, until all fit $SPECEDGE_CACHE_BYTES, 8 GiB by default.

    A process that has an entry mapped keeps its pages.
    """
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
    total, budget = sum(size for _, size, _ in entries), _budget_bytes()
    for used, size, folder in sorted(entries):
        if total <= budget and used > 0:
            return
        if folder != keep:
            _hide(folder, ".old-")
            total -= size


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


def _checksum(path: Path) -> tuple[int, int]:
    """Size and checksum: a CRC over each block's sum and exclusive or. A CRC of every byte would slow each start."""
    words = np.zeros(BLOCK_BYTES // 8, np.uint64)
    view = words.data.cast("B")
    size, sums = 0, []
    with open(path, "rb", buffering=0) as file:
        while n_read := file.readinto(view):
            view[n_read:] = bytes(BLOCK_BYTES - n_read)
            sums += [np.add.reduce(words), np.bitwise_xor.reduce(words)]
            size += n_read
    return size, zlib.crc32(np.array(sums, np.uint64).tobytes())


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
