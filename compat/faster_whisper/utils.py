"""`faster_whisper.utils`: names of models, and times as text."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from specedge.errors import ModelNotFoundError, SpecedgeError
from specedge.export.export import download_model as _download
from specedge.export.export import pull_model
from specedge.models import catalogue, store
from specedge.runtime.console import notify
from specedge.runtime.output.formats import format_timestamp

__all__ = [
    "available_models",
    "disabled_tqdm",
    "download_model",
    "format_timestamp",
    "get_assets_path",
    "get_end",
    "get_logger",
]

MODEL_VARIABLE = "SPECEDGE_COMPAT_MODEL"
"""The environment's variable that names the model to use whatever a program asks for."""

RUN_VARIABLE = "SPECEDGE_RUN_COMPAT"
"""The environment's variable that `specedge compat` sets for the program that it runs."""

PROVIDER_VARIABLE = "SPECEDGE_COMPAT_ENCODER_PROVIDER"
"""The environment's variable that names what encoders run on."""

available_models = store.available_models

_MODELS: Mapping[str, str] = {
    name: known.hub_id for name in store.available_models() if (known := catalogue.find(name)) is not None
}


def chosen_model(asked: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The model that `asked` stands for: what the environment names, else itself."""
    return os.environ.get(MODEL_VARIABLE) or asked


def installed_model(
    name: str | os.PathLike[str], root: str | None, revision: str | None, *, fetches: bool
) -> str | os.PathLike[str]:
    """`name`, once it is a bundle: what is no bundle yet is fetched, if `fetches`, and converted, once for all.

    A folder of a checkpoint, such as a conversion for CTranslate2, is kept in the store under its name and a digest of
    its weights' place, size and time.
    """
    folder = Path(name)
    if folder.is_dir() and not (folder / store.MANIFEST_NAME).exists():
        files = sorted(path for path in folder.iterdir() if path.suffix in (".bin", ".safetensors", ".pt"))
        if not files:
            return name  # opening it says what is wrong with it
        stamps = [(os.fspath(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        digest = hashlib.sha256(repr(stamps).encode()).hexdigest()[:12]
        base = re.sub(r"[^A-Za-z0-9._+-]", "-", folder.resolve().name)[:80].strip(".-") or "model"
        target = store.make_folder() / f"{base}-{digest}"
        if not target.exists():
            notify(f"{folder}: converting it for specedge, once; it is kept as {target.name}")
        return pull_model(os.fspath(folder), out=target)[0]
    if root is not None and (Path(root) / name).is_dir():
        return name
    try:
        store.find(name)
    except ModelNotFoundError:
        if not fetches or folder.is_absolute() or os.fspath(name).startswith("."):
            raise
        return _download(os.fspath(name), revision=revision)
    return name


def end_in_one_line() -> None:
    """Have errors of specedge end this process with one line, as under `specedge compat`."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, SpecedgeError):
            notify(f"error: {' '.join(str(error).split())}")
        else:
            before(kind, error, trace)

    sys.excepthook = hook


def download_model(
    size_or_id: str,
    output_dir: str | None = None,
    local_files_only: bool = False,
    cache_dir: str | None = None,
    revision: str | None = None,
    use_auth_token: str | bool | None = None,
) -> str:
    """The folder of a model, which is fetched and exported first unless it is installed.

    cache_dir and use_auth_token are not followed: HF_HOME and HF_TOKEN set them. Raises as `specedge.download_model`.
    """
    if cache_dir is not None or use_auth_token is not None:
        get_logger().warning("cache_dir and use_auth_token are not followed: set HF_HOME and HF_TOKEN instead")
    return _download(
        os.fspath(chosen_model(size_or_id)), output_dir, local_files_only=local_files_only, revision=revision
    )


class disabled_tqdm(contextlib.nullcontext[Any]):  # noqa: N801 - the peer's name
    """A progress bar that shows nothing; what it is given is iterated over."""

    def __init__(self, iterable: Iterable[Any] = (), *_: Any, **__: Any) -> None:
        super().__init__(self)
        self._items = iterable

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def update(self, n: float = 1) -> None:
        """Do nothing."""

    close = update


def get_assets_path() -> str:
    """The folder of the installed Silero model, which need not be there."""
    return os.fspath(store.file_path("silero-vad").parent)


def get_end(segments: Sequence[Mapping[str, Any]]) -> float | None:
    """When the last word ends; without words the last segment; None without segments."""
    ends = [word["end"] for segment in segments for word in segment["words"]]
    return ends[-1] if ends else segments[-1]["end"] if segments else None


def get_logger() -> logging.Logger:
    """The logger of this package."""
    return logging.getLogger("faster_whisper")
