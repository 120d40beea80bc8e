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
        AudioNotFoundError,
        BundleError,
        BundleNotFoundError,
        CheckpointError,
        CheckpointNotFoundError,
        ExactnessError,
        Interrupted,
        MapError,
        MapNotFoundError,
        ModelError,
        ModelNotFoundError,
        OutOfMemoryError,
        ResourceError,
        SpecedgeError,
        Terminated,
        UsageError,
    )
    from specedge.export.export import download_model
    from specedge.models.store import available_models
    from specedge.runtime.audio.audio import AudioStream, decode_audio, open_audio
    from specedge.runtime.audio.vad import VadOptions
    from specedge.runtime.audio.wav import RawFormat
    from specedge.runtime.batched import BatchedInferencePipeline
    from specedge.runtime.bundle.bundle import Bundle
    from specedge.runtime.decoding.drafter import DraftContext, Drafter, DraftTree, Verdict, WindowContext
    from specedge.runtime.decoding.statistics import Learning
    from specedge.runtime.engine.engine import Engine
    from specedge.runtime.longform.live import LiveTranscriber, LiveUpdate
    from specedge.runtime.longform.segments import DraftedSegment, Segment, TranscriptionInfo, Word
    from specedge.runtime.model import TranscriptionRun, WhisperModel
    from specedge.runtime.options import DrafterOptions, TranscribeOptions
    from specedge.runtime.output.formats import format_timestamp

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")

from specedge.version import __version__  # noqa: E402

__all__ = [
    "AudioError",
    "AudioNotFoundError",
    "AudioStream",
    "BatchedInferencePipeline",
    "Bundle",
    "BundleError",
    "BundleNotFoundError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "DraftContext",
    "DraftTree",
    "DraftedSegment",
    "Drafter",
    "DrafterOptions",
    "Engine",
    "ExactnessError",
    "Interrupted",
    "Learning",
    "LiveTranscriber",
    "LiveUpdate",
    "MapError",
    "MapNotFoundError",
    "ModelError",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "RawFormat",
    "ResourceError",
    "Segment",
    "SpecedgeError",
    "Terminated",
    "TranscribeOptions",
    "TranscriptionInfo",
    "TranscriptionRun",
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
    "open_audio",
]

_HOMES = {
    "AudioError": "specedge.errors",
    "AudioNotFoundError": "specedge.errors",
    "AudioStream": "specedge.runtime.audio.audio",
    "BatchedInferencePipeline": "specedge.runtime.batched",
    "Bundle": "specedge.runtime.bundle.bundle",
    "BundleError": "specedge.errors",
    "BundleNotFoundError": "specedge.errors",
    "CheckpointError": "specedge.errors",
    "CheckpointNotFoundError": "specedge.errors",
    "DraftContext": "specedge.runtime.decoding.drafter",
    "DraftTree": "specedge.runtime.decoding.drafter",
    "DraftedSegment": "specedge.runtime.longform.segments",
    "Drafter": "specedge.runtime.decoding.drafter",
    "DrafterOptions": "specedge.runtime.options",
    "Engine": "specedge.runtime.engine.engine",
    "ExactnessError": "specedge.errors",
    "Interrupted": "specedge.errors",
    "Learning": "specedge.runtime.decoding.statistics",
    "LiveTranscriber": "specedge.runtime.longform.live",
    "LiveUpdate": "specedge.runtime.longform.live",
    "MapError": "specedge.errors",
    "MapNotFoundError": "specedge.errors",
    "ModelError": "specedge.errors",
    "ModelNotFoundError": "specedge.errors",
    "OutOfMemoryError": "specedge.errors",
    "RawFormat": "specedge.runtime.audio.wav",
    "ResourceError": "specedge.errors",
    "Segment": "specedge.runtime.longform.segments",
    "SpecedgeError": "specedge.errors",
    "Terminated": "specedge.errors",
    "TranscribeOptions": "specedge.runtime.options",
    "TranscriptionInfo": "specedge.runtime.longform.segments",
    "TranscriptionRun": "specedge.runtime.model",
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
    "open_audio": "specedge.runtime.audio.audio",
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
