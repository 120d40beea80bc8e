"""`faster_whisper.utils`: names of models, and times as text."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from specedge.export.export import download_model as _download
from specedge.models import catalogue, store
from specedge.runtime.options import CPU
from specedge.runtime.output.formats import format_timestamp

__all__ = [
    "available_models",
    "download_model",
    "format_timestamp",
    "get_assets_path",
    "get_end",
    "get_logger",
]

MODEL_VARIABLE = "SPECEDGE_COMPAT_MODEL"
"""The environment's variable that names the model to use whatever a program asks for."""

PROVIDER_VARIABLE = "SPECEDGE_COMPAT_ENCODER_PROVIDER"
"""The environment's variable that names what encoders run on."""

available_models = store.available_models

_MODELS: Mapping[str, str] = {
    name: known.hub_id for name in store.available_models() if (known := catalogue.find(name)) is not None
}


def chosen_model(asked: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The model that `asked` stands for: what the environment names, else itself."""
    return os.environ.get(MODEL_VARIABLE) or asked


def chosen_provider() -> str:
    """What the environment has encoders run on, else the CPU."""
    return os.environ.get(PROVIDER_VARIABLE) or CPU


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
