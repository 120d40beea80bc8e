"""Whether drafts leave the text as it is, here: asked of the machine before a model's first draft, and remembered.

Rows of a pass are bit-identical to rows of their own on every CPU that was tried, but kernels are ONNX Runtime's and
change with its versions. So rows are compared once for each model, CPU, number of threads, version and set of ORT_*
variables (`exactness.probe_shortly`), and the answer is kept beside the calibrations. Where they differ, drafting is
off. A cache that cannot be written costs a probe in each process. Does not know: drafters, commands.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from specedge.errors import ResourceError

from ..bundle.bundle import Bundle
from ..device import device_fields, device_path, read_device_file, write_device_file

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["answer_path", "rows_are_exact"]

_KIND = "specedge row probe"
_VERSION = 1
_known: dict[Path, bool] = {}


def rows_are_exact(engine: Engine, bundle: Bundle) -> bool:
    """Whether a row of `engine` has the same bits however many rows or paths share its pass; `engine.is_exact` then.

    Raises Interrupted, BundleError when a graph cannot be loaded.
    """
    path = answer_path(bundle, engine.threads)
    is_exact = _known.get(path)
    if is_exact is None:
        is_exact = _kept(path)
    if is_exact is None:
        from .exactness import probe_shortly

        with engine.lock:
            found = probe_shortly(engine)
        is_exact = found.exact
        _keep(path, engine.threads, is_exact, found.max_difference)
    _known[path] = engine.is_exact = is_exact
    return is_exact


def answer_path(bundle: Bundle, threads: int) -> Path:
    """Where the answer lies, whether or not it was given."""
    switches = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("ORT_"))
    digest = hashlib.sha256("\n".join(switches).encode(errors="surrogateescape")).hexdigest()
    return device_path(bundle.digest, threads, f"-rows-{digest[:12]}")


def _kept(path: Path) -> bool | None:
    value = read_device_file(path)
    if isinstance(value, dict) and (value.get("kind"), value.get("version")) == (_KIND, _VERSION):
        is_exact = value.get("exact")
        return is_exact if isinstance(is_exact, bool) else None
    return None


def _keep(path: Path, threads: int, is_exact: bool, max_difference: float) -> None:
    answer = {"kind": _KIND, "version": _VERSION, **device_fields(threads), "exact": is_exact}
    try:
        write_device_file(path, {**answer, "max_difference": max_difference})
    except ResourceError:  # then the next process asks again
        pass
