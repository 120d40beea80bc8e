"""specedge: speech-to-text with Whisper on CPUs, fast by speculation that never changes the text.

The public names, each loaded when it is first asked for: `import specedge` itself reads no other module, so a program
that only wants the version or the errors pays for neither NumPy nor ONNX Runtime.

Importing it sets two variables of ONNX Runtime, unless they are set. ORT_DISABLE_TELEMETRY: from version 1.29 on it
sends what it is used for to its maker, with threads and a device id of its own, and asks this variable alone before it
begins. ORT_GQA_DISABLE_FLASH_ATTENTION: its flash attention gives a row other bits when more rows share the pass, on
Arm and on x86 without AVX2. Graphs exported now do not take it; those of older bundles need the variable.
"""

# ruff: noqa: F403, F405
from __future__ import annotations

import os
from importlib import import_module

TYPE_CHECKING = False  # as type checkers know it; without typing, which every start would wait for
if TYPE_CHECKING:
    from specedge.errors import *
    from specedge.export.export import download_model
    from specedge.models.store import available_models
    from specedge.runtime.audio.audio import AudioStream, decode_audio, open_audio
    from specedge.runtime.audio.wav import RawFormat
    from specedge.runtime.batched import BatchedInferencePipeline
    from specedge.runtime.bundle.bundle import Bundle
    from specedge.runtime.decoding.drafter import DraftContext, Drafter, DraftTree, SharedPass, Verdict, WindowContext
    from specedge.runtime.decoding.statistics import Learning
    from specedge.runtime.engine.engine import Engine
    from specedge.runtime.longform.live import LiveTranscriber, LiveUpdate
    from specedge.runtime.longform.segments import DraftedSegment, Segment, TranscriptionInfo, Word
    from specedge.runtime.model import TranscriptionRun, WhisperModel
    from specedge.runtime.options import DrafterOptions, TranscribeOptions, VadOptions
    from specedge.runtime.output.formats import format_timestamp
    from specedge.runtime.text.phrases import Phrases

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")

from specedge.version import __version__ as __version__  # noqa: E402

# The public names of each module; the others are errors.
_NAMES = {
    "specedge.export.export": "download_model",
    "specedge.models.store": "available_models",
    "specedge.runtime.audio.audio": "AudioStream decode_audio open_audio",
    "specedge.runtime.audio.wav": "RawFormat",
    "specedge.runtime.batched": "BatchedInferencePipeline",
    "specedge.runtime.bundle.bundle": "Bundle",
    "specedge.runtime.decoding.drafter": "DraftContext DraftTree Drafter SharedPass Verdict WindowContext",
    "specedge.runtime.decoding.statistics": "Learning",
    "specedge.runtime.engine.engine": "Engine",
    "specedge.runtime.longform.live": "LiveTranscriber LiveUpdate",
    "specedge.runtime.longform.segments": "DraftedSegment Segment TranscriptionInfo Word",
    "specedge.runtime.model": "TranscriptionRun WhisperModel",
    "specedge.runtime.options": "DrafterOptions TranscribeOptions VadOptions",
    "specedge.runtime.output.formats": "format_timestamp",
    "specedge.runtime.text.phrases": "Phrases",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [
    "__version__", "AudioError", "AudioNotFoundError", "AudioStream", "BatchedInferencePipeline", "Bundle",
    "BundleError", "BundleNotFoundError", "CheckpointError", "CheckpointNotFoundError", "DraftContext", "DraftTree",
    "DraftedSegment", "Drafter", "DrafterOptions", "Engine", "ExactnessError", "Interrupted", "Learning",
    "LiveTranscriber", "LiveUpdate", "MapError", "MapNotFoundError", "ModelError", "ModelNotFoundError",
    "OutOfMemoryError", "Phrases", "ProviderError", "RawFormat", "ResourceError", "Segment", "SharedPass",
    "SpecedgeError",
    "Terminated", "TranscribeOptions", "TranscriptionInfo", "TranscriptionRun", "UsageError", "VadOptions", "Verdict",
    "WhisperModel", "WindowContext", "Word", "available_models", "decode_audio", "download_model", "format_timestamp",
    "open_audio",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Load a public name from its home module (PEP 562) and keep it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES.get(name, "specedge.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
