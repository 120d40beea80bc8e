"""The store of installed models: how a name becomes a folder, and known files fetched into it.

The store is `$SPECEDGE_HOME/models`; without the variable, `specedge/models` in the platform's folder for user data. A
subfolder with a `specedge.json` is an installed bundle, unless its name starts with a dot: an export under way or a
removal cut short. `find` looks for a path, then for a bundle in the current folder and in the store.

A user without a home folder has one that nobody can make, as on a disk that cannot be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
from pathlib import Path

from specedge.errors import ModelError, ModelNotFoundError, ResourceError, UsageError
from specedge.files import disk_errors, private_folder, write_atomic
from specedge.leftovers import Names, temporary_folder

from . import catalogue

MANIFEST_NAME = "specedge.json"  # also in runtime/bundle/manifest.py, which this layer may not import
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,98}[A-Za-z0-9_+-]|[A-Za-z0-9]")
_TIMEOUT_S = 30.0


def home() -> Path:
    """`$SPECEDGE_HOME`, or the platform's folder for user data with `specedge` added; it need not exist.

    Linux: `$XDG_DATA_HOME` or `~/.local/share`; macOS: `~/Library/Application Support`; Windows: `%LOCALAPPDATA%`.
    """
    return _place("SPECEDGE_HOME", "XDG_DATA_HOME", ".local/share", "Library/Application Support")


def cache_home() -> Path:
    """The user's cache folder for specedge: $SPECEDGE_CACHE, else the platform's usual place."""
    return _place("SPECEDGE_CACHE", "XDG_CACHE_HOME", ".cache", "Library/Caches")


def _place(variable: str, xdg: str, usual: str, on_mac: str) -> Path:
    """The folder that `variable` names, else the platform's, which the variable `xdg` moves on Linux."""
    base = ""
    try:
        if chosen := os.environ.get(variable):
            return Path(os.path.abspath(Path(chosen).expanduser()))
        if sys.platform == "win32":
            base, usual = os.environ.get("LOCALAPPDATA", ""), "AppData/Local"
        elif sys.platform == "darwin":
            usual = on_mac
        else:
            base = os.environ.get(xdg, "")
        # A relative path there is ignored, as the XDG specification says.
        return (Path(base) if os.path.isabs(base) else Path.home() / usual) / "specedge"
    except RuntimeError:  # there is no home folder
        return Path(os.devnull, "no-home", "specedge")


def user_cache_path() -> Path:
    """The n-gram cache of the user's own text (`maps.ngram_cache.UserCache`); it need not exist."""
    return home() / "learned.sqlite"


def folder() -> Path:
    """The store: each bundle is a subfolder. It need not exist."""
    return home() / "models"


def make_folder() -> Path:
    """Create the store if there is none. Raises ResourceError when the file system refuses."""
    try:
        if not os.environ.get("SPECEDGE_HOME"):  # one that was chosen may be shared
            private_folder(home())
        folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"{folder()}: cannot be created ({error.strerror}); set SPECEDGE_HOME elsewhere") from None
    return folder()


def check_name(name: str) -> str:
    """`name`, if it can be a folder of the store: up to 100 ASCII letters, digits and `. _ + -`, no dot at the ends.

    Raises UsageError for anything else, so a name can never be a path.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{_shown(name)} is no name for a model: expected ASCII letters, digits and . _ + -, no path")
    return name


def find(name_or_path: str | os.PathLike[str]) -> Path:
    """The folder of a bundle, by path or by name ("tiny" and "openai/whisper-tiny" also find "whisper-tiny").

    Raises ModelError when there is none; the message says how to get one.
    """
    text = os.fspath(name_or_path)
    path = Path(text)
    is_path = not isinstance(name_or_path, str) or not _NAME.fullmatch(text)
    is_folder = bool(text) and os.path.isdir(path)
    if is_folder and (is_path or _is_bundle(path)):
        return path
    if (not is_path or catalogue.find(text) is not None) and (found := _stored(text)) is not None:
        return found
    if is_folder:  # opening it says what is wrong with it, which helps more than "no such model"
        return path
    raise ModelNotFoundError(_not_found(text, is_path))


def file_path(name: str) -> Path:
    """Where the file of `catalogue.FILES` called `name` belongs in the store; it need not be there."""
    known = catalogue.FILES[name]
    return folder() / known.name / known.file_name


def find_file(name: str) -> Path:
    """The installed file of `catalogue.FILES` called `name`, its size and sha256 checked.

    Raises ModelError when it is missing or another file; the message says how to get it.
    """
    known, path = catalogue.FILES[name], file_path(name)
    advice = f"get it with `specedge models pull {name}`, or {_by_hand(name)}"
    try:
        content = path.read_bytes() if path.stat().st_size == known.size_bytes else b""
    except OSError:
        raise ModelNotFoundError(f"{name} is not installed; {advice}") from None
    if hashlib.sha256(content).hexdigest() != known.sha256:
        raise ModelError(f"{path}: not the file known as {name}; remove it, then {advice}")
    return path


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids the network, as huggingface_hub reads it."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def fetch_file(name: str) -> Path:
    """Download the file of `catalogue.FILES` called `name` over HTTPS, or take it from the store; its path.

    It appears whole and checked, or not at all. Proxies are those of the environment.

    Raises ModelError with HF_HUB_OFFLINE, or when the server does not give the file with the right hash; the message
    says what to do by hand. ResourceError when the file system refuses.
    """
    known = catalogue.FILES[name]
    with contextlib.suppress(ModelError):
        return find_file(name)
    if is_offline():
        raise ModelNotFoundError(f"{name} is not installed and HF_HUB_OFFLINE is set: {_by_hand(name)}")
    target = make_folder() / known.name / known.file_name
    with disk_errors(target):
        target.parent.mkdir(exist_ok=True)
    write_atomic(target, _download(known))
    return target


def _download(known: catalogue.KnownFile) -> bytes:
    import http.client
    import urllib.request

    try:
        with urllib.request.urlopen(known.url, timeout=_TIMEOUT_S) as response:
            if not str(response.geturl()).startswith("https://"):
                raise ModelError(f"{known.url} led to an address without https: {_by_hand(known.name)}")
            content: bytes = response.read(known.size_bytes + 1)  # one byte more, to see that the file ends there
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise ModelError(f"cannot fetch {known.name} ({reason}): {_by_hand(known.name)}") from None
    if len(content) != known.size_bytes or hashlib.sha256(content).hexdigest() != known.sha256:
        raise ModelError(
            f"{known.url} gave another file than the one expected (sha256 {known.sha256}): it was not kept; "
            "try again on another network"
        )
    return content


def _by_hand(name: str) -> str:
    return f"save {catalogue.FILES[name].url} as {file_path(name)}"


def known_draft(name: str) -> Path | None:
    """The bundle that is known to draft for the model called `name`, where it is installed; else None."""
    checkpoint = catalogue.find(name)
    return None if checkpoint is None or checkpoint.draft is None else _stored(checkpoint.draft)


def installed() -> list[Path]:
    """The bundles of the store, which `find` knows by their names, in order of these."""
    found = sorted(manifest.parent for manifest in folder().glob(f"*/{MANIFEST_NAME}"))
    return [path for path in found if _NAME.fullmatch(path.name)]


def available_models() -> list[str]:
    """The names a program may ask for: the known checkpoints as faster-whisper calls them, then other installed ones.

    A known one need not be installed: `specedge.download_model` gets it.
    """
    short = [name.removeprefix("whisper-") for name in (*catalogue.CHECKPOINTS, *catalogue.ALIASES)]
    others = [path.name for path in installed() if catalogue.find(path.name) is None]
    return list(dict.fromkeys([*short, *others]))


def remove(name: str) -> Path:
    """Remove a bundle, or the folder of a file of `catalogue.FILES`, from the store and return where it was.

    A kill leaves it whole or gone, never half. If it is a link, only the link goes. Raises UsageError when `name` is no
    name, ModelError when it is not there, ResourceError when the file system refuses.
    """
    root = folder()
    target = _stored(check_name(name))
    if target is None and name in catalogue.FILES and file_path(name).exists():
        target = file_path(name).parent
    if target is None:
        raise ModelNotFoundError(_not_found(name, False))
    try:
        if target.is_symlink():
            target.unlink()
        else:
            with temporary_folder(Names(parent=root, prefix=".trash-")) as trash:
                os.rename(target, trash / target.name)
    except OSError as error:
        raise ResourceError(
            f"{target}: cannot be removed ({error.strerror}); is it in use, or the folder read-only?"
        ) from None
    return target


def _stored(name: str) -> Path | None:
    """The bundle of the store that `name` stands for, None if there is none."""
    checkpoint = catalogue.find(name)
    # tiny-fp32 is no checkpoint of its own, but pulled as whisper-tiny-fp32.
    names = [name] if _NAME.fullmatch(name) else []
    names.append(f"whisper-{name}" if checkpoint is None else checkpoint.name)
    return next((path for one in names if _is_bundle(path := folder() / one)), None)


def _is_bundle(path: Path) -> bool:
    return os.path.isfile(path / MANIFEST_NAME)


def size_bytes(*paths: Path) -> int:
    """Of files, and of those in folders; one with several names counts once."""
    files = [Path(place, name) for path in paths for place, _, names in os.walk(path) for name in names]
    sizes: dict[tuple[int, int], int] = {}
    for file in (*paths, *files):
        with contextlib.suppress(OSError):  # gone in the meantime
            about = file.lstat()
            if not stat.S_ISDIR(about.st_mode):
                sizes[about.st_dev, about.st_ino] = about.st_size
    return sum(sizes.values())


def _not_found(text: str, is_path: bool) -> str:
    checkpoint = catalogue.find(text)
    if checkpoint is None and is_path:
        return f"{_shown(text)}: no such folder, expected a bundle; `specedge models list` shows the installed ones"
    if checkpoint is not None:
        return f"the model {_shown(text)} is not installed; {_how_to_get(checkpoint.name)}"
    lead = f"no model {_shown(text)} in {folder()}"
    here = tuple(path.name for path in installed())
    close = catalogue.suggest(text, here)
    if not close:
        return f"{lead}; `specedge models list --known` shows the names, and the path of a bundle works too"
    advice = "" if close[0] in here else f"; {_how_to_get(close[0])}"
    return f"{lead}; close names: {', '.join(close)}{advice}"


def _how_to_get(name: str) -> str:
    return f"get it with `specedge models pull {name}`, or give the folder of a bundle"


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")
