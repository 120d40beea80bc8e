"""Small JSON files of what was measured of one model on one device, kept in the user's cache folder.

A file is named after all that could change what it says: bundle, CPU, ONNX Runtime, threads. One that is missing,
damaged or too large is as good as none. Deleting the folder is always allowed.
Does not know: what was measured.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from specedge.runtime.cpu import isa
from specedge.runtime.output.formats import write_atomic
from specedge.runtime.passes.prepack import cache_home

__all__ = ["device_fields", "device_path", "read_device_file", "write_device_file"]

_MAX_BYTES = 1 << 16


def device_path(bundle_digest: str, threads: int, suffix: str = "") -> Path:
    """Where a file about a bundle on this device lies, whether or not it was made; `suffix` tells its kind."""
    name = f"{bundle_digest[:24]}-{isa().key}-{_runtime_version()}-{threads}{suffix}.json"
    return cache_home() / "calibration" / name


def device_fields(threads: int) -> dict[str, Any]:
    """What every file says of the device, for people who read it."""
    return {"cpu": isa().model, "threads": threads, "onnxruntime": _runtime_version()}


def read_device_file(path: Path) -> Any:
    """The value in a file; None where there is none that can be read."""
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            return None
        with open(path, "rb") as file:
            return json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def write_device_file(path: Path, value: Any) -> None:
    """Keep `value`, whole or not at all. Raises ResourceError when it cannot be written."""
    with contextlib.suppress(OSError):  # a folder that cannot be made is reported by the write
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(value, indent=1) + "\n")


def _runtime_version() -> str:
    # Not at the top: a model's class is imported by programs that may never load a model, and ONNX Runtime is large.
    from specedge.runtime.passes.session import RUNTIME_VERSION

    return RUNTIME_VERSION
