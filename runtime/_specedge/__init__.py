"""specedge: speech-to-text with Whisper on CPUs, fast by speculation that never changes the text.

The public names, each loaded when it is first asked for: `import specedge` itself reads no other module, so a program
that only wants the version or the errors pays for neither NumPy nor ONNX Runtime.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specedge.runtime.errors import SpecedgeError

__version__ = "0.1.0"

__all__ = ["SpecedgeError", "__version__"]

_HOMES = {"SpecedgeError": "specedge.runtime.errors"}


def __getattr__(name: str) -> object:
    """Load a public name from its home module (PEP 562) and keep it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
