"""Memory of the C library's heap: large blocks mapped by themselves, and freed memory given back to the system."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

# mallopt's numbers. With 1 MiB the heap still grew by 20 MB in an hour (ONNX Runtime 1.32).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 128 << 10
KEPT_TOP_BYTES = 4 << 20


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
