"""A bundle as one tar file, for machines without a network: written from its manifest, unpacked whole or not at all.

An archive holds one folder, the bundle's name, with the files that its manifest lists. Nothing else is unpacked: no
links, no devices, no path that leads outside; and the hashes are checked before the bundle gets its name.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, cast

from specedge.errors import BundleError, ResourceError, UsageError
from specedge.files import Kind, check_output, publishing, scratch_folder

from .bundle import Bundle
from .manifest import MANIFEST_NAME, MAX_FILES

_TAR_MAGIC = b"ustar"
ARCHIVE = Kind("archive of a model", lambda head: head[257:262] == _TAR_MAGIC)


def write_archive(folder: Path, name: str, out: Path) -> int:
    """Write the bundle in `folder` as the archive `out` under `name`; its size in bytes.

    Raises BundleError for a bundle that is not whole, UsageError where `out` is a file of another kind, ResourceError.
    """
    bundle = Bundle.open(folder)
    check_output(out, ARCHIVE)
    needed = bundle.size_bytes
    _check_space(out.parent, needed)
    with publishing(out, ARCHIVE) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for listed in (MANIFEST_NAME, *bundle.manifest.files):
            archive.add(bundle.path / listed, f"{name}/{listed}", recursive=False, filter=_plain)
    return out.stat().st_size


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without owner and time, so that one bundle gives one archive."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def read_archive(path: Path, store: Path, check_name: Callable[[str], str]) -> Path:
    """Unpack the archive `path` into the folder `store`, and return the bundle's folder there.

    check_name: raises UsageError for what can be no folder of the store. Raises BundleError for what is no archive of a
    whole bundle, UsageError where a model of the name is there, ResourceError. Nothing is left behind then.
    """
    try:
        with tarfile.open(path, mode="r:") as archive:
            members = _members(archive, path)
            name = check_name(PurePosixPath(members[0].name).parts[0])
            target = store / name
            if os.path.lexists(target):
                raise UsageError(f"{name} is installed already; remove it first with `specedge models rm {name}`")
            _check_space(store, sum(member.size for member in members))
            with scratch_folder(target) as scratch:
                for member in members:
                    _unpack(archive, member, scratch / name)
                Bundle.open(scratch / name)
                (scratch / name).chmod(0o755)
                os.rename(scratch / name, target)
            return target
    except (tarfile.TarError, EOFError) as error:
        raise _broken(path, str(error) or type(error).__name__) from None
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; expected an archive of `specedge export -o NAME.tar`") from None
    except OSError as error:
        if isinstance(error, ResourceError):
            raise
        raise ResourceError(f"{path}: cannot be unpacked: {error.strerror or error}") from None


def _members(archive: tarfile.TarFile, path: Path) -> list[tarfile.TarInfo]:
    """Every file of the archive, all in one folder. Raises BundleError."""
    found: list[tarfile.TarInfo] = []
    for member in archive:
        parts = PurePosixPath(member.name).parts
        if not member.isfile() or len(parts) < 2 or ".." in parts or member.name.startswith("/") or "\\" in member.name:
            raise _broken(path, f"it holds {ascii(member.name[:80])}, which is no file in a folder")
        found.append(member)
        if parts[0] != PurePosixPath(found[0].name).parts[0] or len(found) > MAX_FILES:
            raise _broken(path, "it holds more than one folder")
    if not found:
        raise _broken(path, "it is empty")
    return found


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    out = folder.joinpath(*PurePosixPath(member.name).parts[1:])
    out.parent.mkdir(parents=True, exist_ok=True)
    with cast(IO[bytes], archive.extractfile(member)) as source, open(out, "xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ResourceError(f"{folder}: {free / 1e6:.0f} MB free, but {needed / 1e6:.0f} MB are needed; make room")


def _broken(path: Path, reason: str) -> BundleError:
    return BundleError(
        f"{path}: is no archive of a model ({reason}); copy it again, or make one: specedge export NAME -o NAME.tar"
    )
