"""Get a model that is not installed: fetch its checkpoint from the hub and export it into the store.

This module puts the store and the exporter together, for `specedge models pull` and for programs. The exporter is the
extra [export]; it is imported when a model is fetched and not before.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from specedge.errors import ModelError, UsageError
from specedge.models import catalogue, store

DEFAULT_PRECISION = "int8"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def download_model(
    size_or_id: str,
    output_dir: str | None = None,
    local_files_only: bool = False,
    cache_dir: str | None = None,
    revision: str | None = None,
    use_auth_token: str | bool | None = None,
) -> str:
    """The folder of the bundle of `size_or_id`, which is fetched and exported first unless it is installed.

    size_or_id: a short name ("small") or a hub id of a checkpoint in Hugging Face layout. output_dir: the folder to
    make instead of one in the store. local_files_only: do not fetch. revision: a branch, tag or commit of the hub.
    cache_dir and use_auth_token are not taken: HF_HOME and HF_TOKEN set them for huggingface_hub.

    Raises UsageError for what cannot be, ModelError when there is no such model or [export] is not installed,
    CheckpointError when it cannot be fetched or is none.
    """
    if cache_dir is not None or use_auth_token is not None:
        raise UsageError("cache_dir and use_auth_token: set HF_HOME and HF_TOKEN instead, which the hub's client reads")
    if local_files_only:
        return os.path.abspath(store.find(size_or_id) if output_dir is None else store.find(Path(output_dir)))
    out = None if output_dir is None else Path(output_dir)
    if out is None and revision is None and any(item.name == size_or_id for item in store.installed()):
        return os.path.abspath(store.find(size_or_id))
    return os.path.abspath(pull_model(size_or_id, out=out, revision=revision)[0])


def pull_model(
    name: str, *, precision: str = DEFAULT_PRECISION, out: Path | None = None, revision: str | None = None
) -> tuple[Path, bool]:
    """Export the checkpoint `name` of the hub into the store, or into the folder `out`; where, and whether it is new.

    In the store another precision than int8 is added to the name. Raises as `download_model`.
    """
    source, base = _hub_source(name)
    stored = store.check_name(base if precision == DEFAULT_PRECISION else f"{base}-{precision}")
    target = store.folder() / stored if out is None else out
    if os.path.lexists(target):
        return target, False
    export_to = _export_to()
    if out is None:
        store.make_folder()
    options = {} if revision is None else {"revision": revision}
    export_to(source, target, precision=precision, name=stored, **options)
    return target, True


def _hub_source(name: str) -> tuple[str, str]:
    """The hub id that `name` stands for, and the name to store it under."""
    checkpoint = catalogue.find(name)
    if checkpoint is not None:
        return checkpoint.hub_id, checkpoint.name
    if os.path.exists(name):
        raise UsageError(f"{ascii(name)} is a local path, and pull takes a hub name; use `specedge export` for it")
    if _HUB_ID.fullmatch(name):
        return name, name.split("/")[1]
    close = catalogue.suggest(name)
    hint = f"did you mean {', '.join(close)}?" if close else "`specedge models list --known` shows the names."
    raise ModelError(f"no checkpoint {ascii(name[:80])} is known: {hint} A hub id (owner/name) works too")


def _export_to() -> Any:
    try:
        from .export import export_to
    except ImportError as error:
        raise ModelError(
            f"pull exports a checkpoint and {error.name} for that is not installed: pip install 'specedge[export]'"
        ) from None
    return export_to
