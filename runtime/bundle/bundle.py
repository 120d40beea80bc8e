"""A bundle on disk: a folder with `specedge.json` and the files it names, opened only after it proved to be unchanged.

Order of the checks, cheap ones first, so that a bad bundle of many gigabytes is refused as fast as a small one: the
folder, the manifest (size, strict parse), every listed file (exists, regular, size), no file that is not listed, and
then the sha256 of all files, read by several threads. Nothing is opened by a name that came from elsewhere.

The folder itself may be reached through links; a file in it may be a link only to a file of the same folder, and a
linked subfolder is refused. Ignored, never opened: entries whose name starts with a dot (`.DS_Store`, `.git`, `.cache`
of a hub download), `Thumbs.db` and `desktop.ini`.

An .onnx file is only proved to be the one the manifest names, not to be harmless, and nothing guards against somebody
who swaps files between `open` and the load.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from specedge.errors import BundleError, BundleNotFoundError, ModelError, UsageError
from specedge.models import store

from ..text.tokenizer import Tokenizer
from .manifest import MANIFEST_NAME as MANIFEST_NAME
from .manifest import MAX_MANIFEST_BYTES, TOKENIZER_NAME, FileEntry, graph_files
from .manifest import Manifest as Manifest
from .typed_json import REMEDY, shown

MAX_HASH_THREADS = 8
_DROPPINGS = {"thumbs.db", "desktop.ini"}
_AGAIN = "export or pull the bundle again"
# faster-whisper's names for types of the weights, and ours. It computes with float32 where it stores int8, as we do.
_PRECISIONS = {"default": None, "auto": None, "int8": "int8", "int8_float32": "int8", "float32": "fp32"}
_PRECISIONS |= {"fp32": "fp32", "int4": "int4"}


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """An opened bundle; make one with `Bundle.open`.

    `path` is the folder with all links resolved, `digest` the sha256 of the manifest's bytes, which identifies the
    whole bundle, since the manifest holds the sha256 of every file; `provider` is what the encoder is remembered on.
    """

    path: Path
    manifest: Manifest
    digest: str
    provider: str = ""

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = True) -> Self:
        """Open the folder `path`; with `verify` false the hashes are not computed, every other check is made.

        Raises BundleError: the folder or a file is missing, changed, unlisted, leads outside or cannot be read, or the
        manifest breaks a rule of the format.
        """
        given = Path(path)
        root = _resolve_folder(given)
        manifest, digest = read_manifest(given)
        for name, entry in manifest.files.items():
            size = _size_inside(root, name, given)
            if size != entry.size:
                raise BundleError(
                    f"{given / name}: {size} bytes, expected {entry.size}: the file was changed; {_AGAIN}"
                )
        for name in _walk(root):
            if name != MANIFEST_NAME and name not in manifest.files:
                raise BundleError(
                    f"{given}: the file {shown(name)} is not listed in {MANIFEST_NAME}; remove it or export again"
                )
        if verify:
            _check_hashes(given, manifest.files)
        return cls(path=root, manifest=manifest, digest=digest)

    def file(self, name: str) -> Path:
        """Where the listed file `name` is. Raises BundleError for a name that the manifest does not list."""
        if name not in self.manifest.files:
            raise BundleError(f"{self.path}: this bundle has no file {shown(name)}")
        return self.path / name

    def behind(self, provider: str) -> Self:
        """This bundle as it is remembered with its encoder on another provider than the CPU, such as "openvino 2026.4".

        Its digest is another, so that what is measured or learned with one encoder is not used with the other.
        """
        digest = hashlib.sha256(f"{self.digest} {provider}".encode()).hexdigest()
        return replace(self, digest=digest, provider=provider)

    @property
    def timed_digest(self) -> str:
        """Identifies what `doctor --calibrate` times, and not the heads, drafts and maps beside it."""
        names, files = set(self.manifest.graph_names), self.manifest.files
        parts = [f"{name} {entry.sha256}" for name, entry in files.items() if Path(name).stem in names]
        return hashlib.sha256("\n".join([*sorted(parts), self.provider]).encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.manifest.files.values())

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Loaded at first use. Raises BundleError, also where its fingerprint is not the manifest's."""
        tokenizer = Tokenizer.load(self.file(TOKENIZER_NAME), self.manifest.tokens)
        if tokenizer.fingerprint != self.manifest.vocabulary_sha256:
            raise BundleError(f"{self.path / TOKENIZER_NAME}: another vocabulary than vocabulary_sha256 says; {REMEDY}")
        return tokenizer


def read_manifest(folder: str | os.PathLike[str]) -> tuple[Manifest, str]:
    """The manifest of a bundle folder and the sha256 of its bytes; the other files are not looked at.

    Raises BundleError: no folder, no manifest, or one that breaks a rule of the format.
    """
    given = Path(folder)
    root, where = _resolve_folder(given), given / MANIFEST_NAME
    if not os.path.lexists(root / MANIFEST_NAME):
        raise BundleError(f"{given}: no {MANIFEST_NAME} in it, so this is no bundle; make one with `specedge export`")
    _size_inside(root, MANIFEST_NAME, given)
    try:
        with open(root / MANIFEST_NAME, "rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)  # one more than allowed: from_bytes refuses it
    except OSError as error:
        raise _unreadable(where, error) from None
    return _parsed(data, str(where)), hashlib.sha256(data).hexdigest()


@functools.lru_cache(maxsize=4)
def _parsed(data: bytes, where: str) -> Manifest:
    """Parsed once though a model is looked up by its manifest before it is opened."""
    return Manifest.from_bytes(data, where)


def hash_file(path: str | os.PathLike[str]) -> FileEntry:
    """Size and hash of a file. Raises BundleError if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            digest = hashlib.file_digest(file, "sha256")  # without the GIL, so threads run in parallel
            return FileEntry(size=file.tell(), sha256=digest.hexdigest())
    except OSError as error:
        raise _unreadable(Path(path), error) from None


def _unreadable(path: Path, error: OSError) -> BundleError:
    return BundleError(f"{ascii(str(path))[1:-1]}: cannot be read ({error.strerror or type(error).__name__})")


def _resolve_folder(given: Path) -> Path:
    try:
        root = Path(os.path.realpath(given, strict=True))
    except FileNotFoundError:
        raise BundleNotFoundError(
            f"{given}: no such folder, expected a bundle; `specedge models list` shows the installed ones"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else "no path"
        raise BundleError(f"{shown(str(given))}: cannot be read ({reason}), expected a bundle folder") from None
    if not root.is_dir():
        raise BundleError(f"{given}: a file, expected a bundle folder (with {MANIFEST_NAME} in it)")
    return root


def _size_inside(root: Path, name: str, given: Path) -> int:
    """Bytes of a regular file below `root`; a link on the way must stay below `root`."""
    try:
        real = Path(os.path.realpath(root / name, strict=True))
        size = real.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise BundleNotFoundError(f"{given / name}: the file is missing; {_AGAIN}") from None
    except OSError as error:
        raise _unreadable(given / name, error) from None
    if not real.is_relative_to(root):
        raise BundleError(f"{given / name}: a link that leads outside the bundle; copy the file itself there")
    if not real.is_file():
        raise BundleError(f"{given / name}: no regular file; {_AGAIN}")
    return size


def _walk(root: Path) -> Iterator[str]:
    """The names of everything below `root` that is no folder; what the module docstring says is ignored is left out."""
    for place, folders, files in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = [name for name in folders if not name.startswith(".") and name not in links]
        for name in (*files, *links):
            if not name.startswith(".") and name.lower() not in _DROPPINGS:
                yield Path(place, name).relative_to(root).as_posix()


def _check_hashes(given: Path, files: Mapping[str, FileEntry]) -> None:
    """Hash all files, the largest first; the first that differs ends it."""
    names = sorted(files, key=lambda name: -files[name].size)
    pool = ThreadPoolExecutor(min(MAX_HASH_THREADS, os.cpu_count() or 1), thread_name_prefix="specedge-hash")
    try:
        for name, found in zip(names, pool.map(hash_file, [given / name for name in names]), strict=True):
            if found != files[name]:
                raise BundleError(
                    f"{given / name}: sha256 {found.sha256[:12]}..., expected {files[name].sha256[:12]}...: "
                    f"the file was changed; {_AGAIN}"
                )
    finally:
        pool.shutdown(cancel_futures=True)


def encoder_fingerprint(manifest: Manifest) -> str:
    """SHA-256, in hex, over the contents of a bundle's encoder files: equal means the same encoder, bit for bit."""
    contents = [
        f"{Path(name).suffix} {entry.sha256}\n" for name, entry in sorted(graph_files(manifest, "encoder").items())
    ]
    return hashlib.sha256("".join(contents).encode()).hexdigest()


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
    wanted, name = _PRECISIONS[compute_type], os.fspath(name_or_path)
    path = _find(name, root)
    manifest = read_manifest(path)[0]
    if wanted not in (None, manifest.precision):
        found = manifest.precision
        with contextlib.suppress(ModelError):
            path = _find(f"{name}-{wanted}", root)
            manifest = read_manifest(path)[0]
        if manifest.precision != wanted:
            raise UsageError(
                f"compute_type {compute_type!r}: the weights of {name} are {found}, and a bundle has one precision; "
                f"export the checkpoint again with --precision {wanted}, or use compute_type='default'"
            )
    if revision not in (None, manifest.source.revision):
        raise UsageError(
            f"revision: {name} was exported from {manifest.source.revision or 'a local folder'}, "
            f"not from {revision}; export that with `specedge export ... --revision`"
        )
    return path


def _find(name: str, root: str | os.PathLike[str] | None) -> Path:
    if root is not None and (path := Path(root) / name).is_dir():
        return path
    return store.find(name)
