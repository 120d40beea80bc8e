"""specedge: speech-to-text with Whisper on CPUs, fast by speculation that never changes the text.

The public names, each loaded when it is first asked for: `import specedge` itself reads no other module, so a program
that only wants the version or the errors pays for neither NumPy nor ONNX Runtime.

Importing it sets two variables of ONNX Runtime, unless they are set. ORT_DISABLE_TELEMETRY: from version 1.29 on it
sends what it is used for to its maker, with threads and a device id of its own, and asks this variable alone before it
begins. ORT_GQA_DISABLE_FLASH_ATTENTION: its flash attention gives a row other bits when more rows share the pass, on
Arm and on x86 without AVX2. Graphs exported now do not take it; those of older bundles need the variable.
"""

from __future__ import annotations

import os
from importlib import import_module

TYPE_CHECKING = False  # as type checkers know it; without typing, which every start would wait for
if TYPE_CHECKING:
    from specedge.errors import (
        AudioError,
        BundleError,
        CheckpointError,
        ExactnessError,
        Interrupted,
        MapError,
        ModelError,
        ResourceError,
        SpecedgeError,
        Terminated,
        UsageError,
    )
    from specedge.export.export import download_model
    from specedge.models.store import available_models
    from specedge.runtime.audio.audio import decode_audio
    from specedge.runtime.audio.vad import VadOptions
    from specedge.runtime.batched import BatchedInferencePipeline
    from specedge.runtime.decoding.drafter import (
        DraftContext,
        Drafter,
        DraftTree,
        Verdict,
        WindowContext,
    )
    from specedge.runtime.longform.live import LiveTranscriber, LiveUpdate
    from specedge.runtime.longform.segments import DraftedSegment, Segment, TranscriptionInfo, Word
    from specedge.runtime.model import WhisperModel
    from specedge.runtime.options import DrafterOptions, TranscribeOptions
    from specedge.runtime.output.formats import format_timestamp

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")

from specedge.version import __version__  # noqa: E402

__all__ = [
    "AudioError",
    "BatchedInferencePipeline",
    "BundleError",
    "CheckpointError",
    "DraftContext",
    "DraftTree",
    "DraftedSegment",
    "Drafter",
    "DrafterOptions",
    "ExactnessError",
    "Interrupted",
    "LiveTranscriber",
    "LiveUpdate",
    "MapError",
    "ModelError",
    "ResourceError",
    "Segment",
    "SpecedgeError",
    "Terminated",
    "TranscribeOptions",
    "TranscriptionInfo",
    "UsageError",
    "VadOptions",
    "Verdict",
    "WhisperModel",
    "WindowContext",
    "Word",
    "__version__",
    "available_models",
    "decode_audio",
    "download_model",
    "format_timestamp",
]

_HOMES = {
    "AudioError": "specedge.errors",
    "BatchedInferencePipeline": "specedge.runtime.batched",
    "BundleError": "specedge.errors",
    "CheckpointError": "specedge.errors",
    "DraftContext": "specedge.runtime.decoding.drafter",
    "DraftTree": "specedge.runtime.decoding.drafter",
    "DraftedSegment": "specedge.runtime.longform.segments",
    "Drafter": "specedge.runtime.decoding.drafter",
    "DrafterOptions": "specedge.runtime.options",
    "ExactnessError": "specedge.errors",
    "Interrupted": "specedge.errors",
    "LiveTranscriber": "specedge.runtime.longform.live",
    "LiveUpdate": "specedge.runtime.longform.live",
    "MapError": "specedge.errors",
    "ModelError": "specedge.errors",
    "ResourceError": "specedge.errors",
    "Segment": "specedge.runtime.longform.segments",
    "SpecedgeError": "specedge.errors",
    "Terminated": "specedge.errors",
    "TranscribeOptions": "specedge.runtime.options",
    "TranscriptionInfo": "specedge.runtime.longform.segments",
    "UsageError": "specedge.errors",
    "VadOptions": "specedge.runtime.audio.vad",
    "Verdict": "specedge.runtime.decoding.drafter",
    "WhisperModel": "specedge.runtime.model",
    "WindowContext": "specedge.runtime.decoding.drafter",
    "Word": "specedge.runtime.longform.segments",
    "available_models": "specedge.models.store",
    "decode_audio": "specedge.runtime.audio.audio",
    "download_model": "specedge.export.export",
    "format_timestamp": "specedge.runtime.output.formats",
}


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
