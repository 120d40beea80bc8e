"""What `specedge --version --json` says is installed."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from specedge.models import store
from specedge.version import __version__

# The module that each extra is for, and the distributions that every installation has.
_EXTRAS = {
    "export": "onnx",
    "serve": "starlette",
    "fleet": "distributed",
    "zeroconf": "zeroconf",
    "openvino": "openvino",
    "mic": "sounddevice",
    "train": "torch",
    "optimum": "optimum-onnx",
}
_NEEDED = ("numpy", "onnxruntime", "click", "av", "regex")


def installation() -> dict[str, Any]:
    """Versions of specedge, Python, and what it stands on; each extra's main package, null where it is not there; the
    machine; the names of installed models. Imports none of them."""
    return {
        "specedge": __version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "packages": {name: _version(name) for name in _NEEDED},
        "extras": {extra: _version(name) for extra, name in _EXTRAS.items()},
        "models": [item.name for item in store.installed()],
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
