"""Fetch a checkpoint from the Hugging Face hub into its own cache, the needed files only.

Everything on the wire and in the cache is huggingface_hub's business: HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME, HF_TOKEN
and the layout of the cache mean what they mean there. This module chooses the files and the commit, refuses plain http
and turns a failure into one line.

A large download that was stopped goes on where it was, for huggingface_hub removes what it has when its process ends:
here the bytes lie beside the place of the file in the hub's cache, under the sha256 that the hub names, until all are
there and have that sum; then huggingface_hub finds the file in its place and downloads nothing.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specedge.errors import CheckpointError, ModelError, ResourceError, UsageError
from specedge.models import catalogue, store
from specedge.runtime.console import notify

from .spec import shard_names

_CONFIG = "config.json"

_SMALL_FILES = (
    _CONFIG,
    *(f"{name}.json" for name in (
        "generation_config", "preprocessor_config", "processor_config", "tokenizer", "tokenizer_config", "vocab",
        "vocabulary", "added_tokens", "special_tokens_map", "normalizer", "chat_template",
    )),
    "merges.txt", "vocabulary.txt", "chat_template.jinja", "README.md",
)  # fmt: skip
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model.bin",
)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_TIMEOUT_S = 10.0
_OTHER_DISK = "set HF_HOME to another disk"
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
Found = tuple[Path, str]
"""The folder of a checkpoint in the hub's cache, and the commit it is at."""


class UnreachableError(CheckpointError):
    """No answer came from the hub, or none but that it is out of order."""


def resolve(name: str) -> str:
    """The hub id that a short name ("whisper-tiny") or a hub id ("openai/whisper-tiny") means, where nothing is there.

    Raises CheckpointError saying what was looked for.
    """
    known = catalogue.find(name)
    if known is not None:
        return known.hub_id
    if _HUB_ID.fullmatch(name) and not name.endswith((".pt", ".safetensors", ".bin")):
        return name
    close = catalogue.suggest(name)
    hint = f"did you mean {', '.join(close)}?" if close else "`specedge models list --known` shows the names."
    raise CheckpointError(
        f"no checkpoint {ascii(name[:80])} is known, and there is no such folder or file: {hint} A hub id looks like "
        "openai/whisper-tiny"
    )


def fetch(hub_id: str, *, revision: str | None = None) -> Found:
    """Download what an export of `hub_id` needs, or take it from the cache.

    Without a `revision` it is the commit of the catalogue, or what the hub serves now where the catalogue has none.
    Offline (HF_HUB_OFFLINE), and when the hub cannot be reached, a complete cached copy is used. Raises
    CheckpointError, UsageError for a hub over plain http, or ResourceError when the disk is full.
    """
    from huggingface_hub import constants

    revision = revision or catalogue.pinned(hub_id)
    endpoint = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    at = f"{hub_id} at revision {revision}" if revision else hub_id
    if store.is_offline():
        cached = _cached(hub_id, revision)
        if cached is None:
            raise CheckpointError(
                f"{at} is not in the hub's cache, and HF_HUB_OFFLINE is set; unset it, or give a local folder: "
                "specedge export FOLDER"
            )
        return cached
    _check_endpoint(endpoint)
    try:
        return _download(hub_id, revision, endpoint)
    except (ModelError, ResourceError):
        raise
    except Exception as error:  # the hub's client lets errors of whichever HTTP library it uses through
        failure = _explain(error, hub_id, at, revision, endpoint)
        cached = _cached(hub_id, revision) if isinstance(failure, UnreachableError) else None
        if cached is None:
            raise failure from error
        notify(f"cannot reach {endpoint}; using the cached {hub_id} at {cached[1][:12]}")
        return cached


def _download(hub_id: str, revision: str | None, endpoint: str) -> Found:
    from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url, try_to_load_from_cache

    info = HfApi(endpoint=endpoint).model_info(hub_id, revision=revision, timeout=_TIMEOUT_S, files_metadata=True)
    files = {item.rfilename: item for item in info.siblings or []}
    commit = info.sha or revision or "main"
    if revision is not None and catalogue.is_commit(revision) and commit != revision:
        raise CheckpointError(
            f"{endpoint} answers with commit {commit} of {hub_id} instead of {revision}; use another hub"
        )

    def get(name: str) -> Path:
        return Path(hf_hub_download(hub_id, name, revision=commit, endpoint=endpoint))

    weights = _choose_weights(hub_id, set(files))
    config = [get(name) for name in _SMALL_FILES if name in files][0]
    names = [weights, *(shard_names(get(weights)) if weights.endswith(".index.json") else ())]
    cache = Path(constants.HF_HUB_CACHE)
    missing = {
        name: ((files[name].size or 0) if name in files else 0, _blob(hub_id, cache, files.get(name)))
        for name in names
        if not isinstance(try_to_load_from_cache(hub_id, name, revision=commit), str)
    }
    held = dict.fromkeys(missing, 0)  # bytes that are there from an earlier download
    for name, (size, blob) in missing.items():
        places = [] if blob is None else [blob, _part(blob)]
        held[name] = min(size, max((path.stat().st_size for path in places if path.exists()), default=0))
    check_space(hub_id, sum(size - held[name] for name, (size, _) in missing.items()), cache, _OTHER_DISK)
    for name, (size, blob) in missing.items():
        if size >= 1 << 20:
            here = f", of which {held[name] / 1e6:.0f} are here" if held[name] else ""
            notify(f"fetching {name} of {hub_id} ({size / 1e6:.0f} MB{here}) from {endpoint}")
        if blob is not None:
            _fetch_blob(hf_hub_url(hub_id, name, revision=commit, endpoint=endpoint), name, size, blob)
        get(name)
    # A branch asked for by name is remembered by the cache only if it was downloaded by name.
    hf_hub_download(hub_id, _CONFIG, revision=revision, endpoint=endpoint)
    return config.parent, commit


def _blob(hub_id: str, cache: Path, about: Any) -> Path | None:
    """The place in the cache of a file, by the hub's RepoSibling of it.

    None for a file that the hub names no sha256 of, as of small ones, and where the cache has no links, because there a
    file lies in another place.
    """
    from huggingface_hub.file_download import are_symlinks_supported, repo_folder_name

    sha256 = about.lfs.sha256 if about and about.lfs else ""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256) or not are_symlinks_supported(cache):
        return None
    return cache / repo_folder_name(repo_id=hub_id, repo_type="model") / "blobs" / sha256


def _part(blob: Path) -> Path:
    """Where the bytes of a file lie until all are there."""
    return blob.with_name(f"{blob.name}.specedge.incomplete")


def _fetch_blob(url: str, name: str, size_bytes: int, blob: Path) -> None:
    """Put a file into its place `blob` in the cache, with the bytes that are there already.

    Raises CheckpointError for other bytes than the published ones, which are removed then, and what huggingface_hub
    and the file system raise; what came is kept then.
    """
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    lock = blob.parents[2] / ".locks" / blob.parents[1].name / f"{blob.name}.lock"
    for path in (blob, lock):
        path.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if blob.exists():  # another process was quicker
            return
        part = _part(blob)
        with open(part, "ab+") as file:
            if file.tell() > size_bytes:
                file.truncate(0)
            http_get(
                url,
                file,
                resume_size=file.seek(0, os.SEEK_END),
                headers=build_hf_headers(),
                expected_size=size_bytes,
                displayed_filename=name,
            )
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != blob.name:
            part.unlink()
            raise CheckpointError(
                f"{name}: {url} sent other bytes than the published ones (sha256 {blob.name}); they were removed: run "
                "the same command again, or use another hub"
            )
        os.replace(part, blob)


def check_space(what: str, needed: int, folder: Path, remedy: str) -> None:
    """Raises ResourceError, which says `what` and a `remedy`, when the disk of `folder` cannot take `needed` bytes."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ResourceError(
            f"{what} needs {needed / 1e6:.0f} MB and {folder} has {free / 1e6:.0f} MB free; make room, or {remedy}"
        )


def _check_endpoint(endpoint: str) -> None:
    """Refuse a hub whose answers anybody on the way can change; one on this machine may speak plain http."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    is_here = host == "localhost"
    with suppress(ValueError):  # a name, which may lead anywhere
        is_here = is_here or ipaddress.ip_address(host).is_loopback
    if parts.scheme == "https" or (parts.scheme == "http" and is_here):
        return
    raise UsageError(
        f"HF_ENDPOINT is {parts.scheme or 'no'}://{host}: a checkpoint fetched without https can be changed on the "
        "way; give an https address, or a local folder"
    )


def _choose_weights(hub_id: str, names: set[str]) -> str:
    found = [name for name in _WEIGHTS if name in names]
    if found and _CONFIG in names:
        return found[0]
    if "adapter_config.json" in names:
        raise CheckpointError(
            f"{hub_id} is an adapter (LoRA): download it (`hf download {hub_id} --local-dir DIR`), then "
            "`specedge export BASE --adapter DIR` merges it into its base model"
        )
    raise CheckpointError(
        f"{hub_id} is no checkpoint that can be exported: it needs config.json and one of {', '.join(_WEIGHTS)}"
    )


def _cached(hub_id: str, revision: str | None) -> Found | None:
    """The cached copy, if it is complete: config, and weights with all their shards."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(hub_id, _CONFIG, revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    weights = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if weights is None:
        return None
    if weights.name.endswith(".index.json") and not all((folder / shard).is_file() for shard in shard_names(weights)):
        return None
    return folder, folder.name


def _explain(error: Exception, hub_id: str, at: str, revision: str | None, endpoint: str) -> Exception:
    from huggingface_hub import errors

    status: Any = getattr(getattr(error, "response", None), "status_code", None)
    reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
    if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
        return ResourceError(f"the hub's cache cannot be written: {error}; free some space, or {_OTHER_DISK}")
    for kind, told in (
        (
            errors.GatedRepoError,
            f"{hub_id} is gated: accept its terms at {endpoint}/{hub_id}, then `hf auth login` or set HF_TOKEN",
        ),
        (
            errors.RevisionNotFoundError,
            f"{hub_id} has no revision {revision!r} on {endpoint}; give a --revision that it has: a branch (main), tag "
            "or commit",
        ),
        (
            errors.RepositoryNotFoundError,
            f"there is no model {hub_id} on {endpoint}, or it is private: check the name, or `hf auth login`",
        ),
        (errors.HFValidationError, f"{hub_id!r} is no hub id; it looks like openai/whisper-tiny"),
    ):
        if isinstance(error, kind):
            return CheckpointError(told)
    if status is not None:
        told = f"{endpoint} answered {status} for {at}; try again later, or give a local folder"
        return (UnreachableError if status >= 500 else CheckpointError)(told)
    return UnreachableError(
        f"cannot reach {endpoint} to fetch {at} ({reason}); check the network or HF_ENDPOINT, or give a local folder: "
        "specedge export FOLDER"
    )
