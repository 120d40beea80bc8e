"""Learned factors in a file: whole or not at all, and only for the draft, target and domain they were learned for.

Layout, little-endian: the magic "SPECLRN1", the sha256 of all that follows, the fingerprint (32 bytes), n_state and
rank as u32, then A [n_state, rank] and B [rank, n_state] as float32. What is not exactly that, or holds other than
usual numbers, is not read. Parts of a user's words can be told from factors; `specedge cache clear` removes them.
Does not know: what factors do.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.maps.private import private_file, private_folder
from specedge.maps.publish import publishing
from specedge.runtime.errors import ResourceError

__all__ = ["SUFFIX", "load_factors", "save_factors"]

Factors = tuple[NDArray[np.float32], NDArray[np.float32]]

SUFFIX = ".factors"
_MAGIC = b"SPECLRN1"
_HEAD = struct.Struct("<8s32s32sII")
_LARGEST = 1e4

log = logging.getLogger(__name__)


def save_factors(path: Path, fingerprint: bytes, factors: Factors) -> bool:
    """Write them; whether that could be done. A failure is one warning: it costs what was learned, nothing else."""
    a, b = (np.ascontiguousarray(array, "<f4") for array in factors)
    body = _HEAD.pack(_MAGIC, bytes(32), fingerprint, *a.shape)[40:] + a.tobytes() + b.tobytes()
    try:
        for folder in (path.parent.parent, path.parent):
            private_folder(folder)
        private_file(path)  # what takes its place may take its mode
        with publishing(path) as file:
            private_file(file.name)
            file.write(_MAGIC + hashlib.sha256(body).digest() + body)
    except (OSError, ResourceError) as error:
        log.warning("what the draft has learned is not kept: %s", error)
        return False
    return True


def load_factors(path: Path, fingerprint: bytes, n_state: int, rank: int) -> Factors | None:
    """The factors of these sizes; None where there are none, with one warning where the file is no good."""
    n_bytes = _HEAD.size + 2 * 4 * n_state * rank
    private_file(path)
    try:
        with open(path, "rb") as file:
            data = file.read(n_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        data, problem = b"", error.strerror or type(error).__name__
    else:
        problem = _problem(data, n_bytes, fingerprint, n_state, rank)
    if problem:
        log.warning("%s is not used: %s; the draft starts from the beginning", path, problem)
        return None
    values = _values(data)
    return values[: n_state * rank].reshape(n_state, rank), values[n_state * rank :].reshape(rank, n_state)


def _problem(data: bytes, n_bytes: int, fingerprint: bytes, n_state: int, rank: int) -> str:
    """What is wrong with a file, in words; nothing where nothing is."""
    if len(data) != n_bytes:
        return f"its length is not {n_bytes} bytes"
    magic, digest, of, *shape = _HEAD.unpack_from(data)
    if magic != _MAGIC or digest != hashlib.sha256(data[40:]).digest():
        return "the file was changed"
    if of != fingerprint or shape != [n_state, rank]:
        return "it is of another draft, target or domain"
    return "" if (np.abs(_values(data)) < _LARGEST).all() else "it holds numbers that cannot be"


def _values(data: bytes) -> NDArray[np.float32]:
    return np.frombuffer(data, "<f4", offset=_HEAD.size).astype(np.float32)
