"""From what a program says of a model (name or folder, precision, revision) to the folder of its bundle.

Does not know: how a bundle is opened or run.
"""

from __future__ import annotations

import os
from pathlib import Path

from specedge.models import store
from specedge.runtime.bundles.bundle import read_manifest
from specedge.runtime.errors import ModelError, UsageError

__all__ = ["choose_bundle"]

# faster-whisper's names for types of the weights, and ours. It computes with float32 where it stores int8, as we do.
_PRECISIONS = {
    "default": None,
    "auto": None,
    "int8": "int8",
    "int8_float32": "int8",
    "float32": "fp32",
    "fp32": "fp32",
    "int4": "int4",
}


def choose_bundle(
    name_or_path: str | os.PathLike[str],
    *,
    compute_type: str = "default",
    root: str | os.PathLike[str] | None = None,
    revision: str | None = None,
) -> Path:
    """The folder of the bundle called `name_or_path`, in `root` if it is there, else as `store.find` finds it.

    If that has another precision than `compute_type` asks for, the one that is stored under the name with the precision
    added is taken. Raises UsageError for a compute type or revision that it does not have, ModelError if there is none.
    """
    if compute_type not in _PRECISIONS:
        raise UsageError(
            f"compute_type: got {compute_type!r}, expected {', '.join(_PRECISIONS)}; a CPU does not compute in others"
        )
    wanted = _PRECISIONS[compute_type]
    path = _find(name_or_path, root)
    manifest = read_manifest(path)[0]
    if wanted not in (None, manifest.precision):
        path = _other_precision(name_or_path, root, wanted, manifest.precision, compute_type)
        manifest = read_manifest(path)[0]
    if revision not in (None, manifest.source.revision):
        raise UsageError(
            f"revision: {os.fspath(name_or_path)} was exported from {manifest.source.revision or 'a local folder'}, "
            f"not from {revision}; export that with `specedge export ... --revision`"
        )
    return path


def _other_precision(
    name_or_path: str | os.PathLike[str],
    root: str | os.PathLike[str] | None,
    wanted: str | None,
    found: str,
    compute_type: str,
) -> Path:
    text = os.fspath(name_or_path)
    try:
        path = _find(f"{text}-{wanted}", root)
        if read_manifest(path)[0].precision == wanted:
            return path
    except ModelError:
        pass
    raise UsageError(
        f"compute_type {compute_type!r}: the weights of {text} are {found}, and a bundle has one precision; "
        f"export the checkpoint again with --precision {wanted}, or use compute_type='default'"
    )


def _find(name_or_path: str | os.PathLike[str], root: str | os.PathLike[str] | None) -> Path:
    if root is not None and (path := Path(root) / name_or_path).is_dir():
        return path
    return store.find(name_or_path)
