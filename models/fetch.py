"""Fetch one known file over HTTPS into the store, by size and sha256: what is not a checkpoint of the hub.

The file appears whole and checked, or not at all. HF_HUB_OFFLINE, which `specedge models pull` honours for checkpoints,
means offline here too. Proxies are those of the environment, as urllib reads them. Does not know what the file is for.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from specedge.errors import ModelError, ResourceError

from . import store
from .catalogue import FILES, KnownFile

__all__ = ["fetch_file"]

_TIMEOUT_S = 30.0


def fetch_file(name: str) -> Path:
    """Download the file of `catalogue.FILES` called `name`, or take it from the store; its path.

    Raises
    ------
    ModelError
        when offline, or the server does not give the file with the right hash; the message says what to do by hand.
    ResourceError
        when the file system refuses.
    """
    known = FILES[name]
    with contextlib.suppress(ModelError):
        return store.find_file(name)
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise ModelError(f"{name} is not installed and HF_HUB_OFFLINE is set: {_by_hand(name)}")
    content = _download(known)
    target = store.file_path(name)
    store.make_folder()
    try:
        target.parent.mkdir(exist_ok=True)
        _write(target, content)
    except OSError as error:
        raise ResourceError(f"{target}: cannot be written ({error.strerror}); set SPECEDGE_HOME elsewhere") from None
    return target


def _download(known: KnownFile) -> bytes:
    try:
        with urllib.request.urlopen(known.url, timeout=_TIMEOUT_S) as response:
            if not str(response.geturl()).startswith("https://"):
                raise ModelError(f"{known.url} led to an address without https: {_by_hand(known.name)}")
            # One byte more than the file has, to see that it ends there; a body of any length costs no more.
            content: bytes = response.read(known.size_bytes + 1)
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
    return f"save {FILES[name].url} as {store.file_path(name)}"


def _write(target: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
