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
    from specedge.errors import AudioError as AudioError
    from specedge.errors import AudioNotFoundError as AudioNotFoundError
    from specedge.errors import BundleError as BundleError
    from specedge.errors import BundleNotFoundError as BundleNotFoundError
    from specedge.errors import CheckpointError as CheckpointError
    from specedge.errors import CheckpointNotFoundError as CheckpointNotFoundError
    from specedge.errors import ExactnessError as ExactnessError
    from specedge.errors import Interrupted as Interrupted
    from specedge.errors import MapError as MapError
    from specedge.errors import MapNotFoundError as MapNotFoundError
    from specedge.errors import ModelError as ModelError
    from specedge.errors import ModelNotFoundError as ModelNotFoundError
    from specedge.errors import OutOfMemoryError as OutOfMemoryError
    from specedge.errors import ProviderError as ProviderError
    from specedge.errors import ResourceError as ResourceError
    from specedge.errors import SpecedgeError as SpecedgeError
    from specedge.errors import Terminated as Terminated
    from specedge.errors import UsageError as UsageError
    from specedge.export.export import download_model as download_model
    from specedge.models.store import available_models as available_models
    from specedge.runtime.audio.audio import AudioStream as AudioStream
    from specedge.runtime.audio.audio import decode_audio as decode_audio
    from specedge.runtime.audio.audio import open_audio as open_audio
    from specedge.runtime.audio.wav import RawFormat as RawFormat
    from specedge.runtime.batched import BatchedInferencePipeline as BatchedInferencePipeline
    from specedge.runtime.bundle.bundle import Bundle as Bundle
    from specedge.runtime.decoding.drafter import DraftContext as DraftContext
    from specedge.runtime.decoding.drafter import Drafter as Drafter
    from specedge.runtime.decoding.drafter import DraftTree as DraftTree
    from specedge.runtime.decoding.drafter import SharedPass as SharedPass
    from specedge.runtime.decoding.drafter import Verdict as Verdict
    from specedge.runtime.decoding.drafter import WindowContext as WindowContext
    from specedge.runtime.decoding.statistics import Learning as Learning
    from specedge.runtime.engine.engine import Engine as Engine
    from specedge.runtime.longform.live import LiveTranscriber as LiveTranscriber
    from specedge.runtime.longform.live import LiveUpdate as LiveUpdate
    from specedge.runtime.longform.segments import DraftedSegment as DraftedSegment
    from specedge.runtime.longform.segments import Segment as Segment
    from specedge.runtime.longform.segments import TranscriptionInfo as TranscriptionInfo
    from specedge.runtime.longform.segments import Word as Word
    from specedge.runtime.model import TranscriptionRun as TranscriptionRun
    from specedge.runtime.model import WhisperModel as WhisperModel
    from specedge.runtime.options import DrafterOptions as DrafterOptions
    from specedge.runtime.options import TranscribeOptions as TranscribeOptions
    from specedge.runtime.options import VadOptions as VadOptions
    from specedge.runtime.output.formats import format_timestamp as format_timestamp

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")

from specedge.version import __version__ as __version__  # noqa: E402

# The public names of each module.
_NAMES = {
    "specedge.errors": (
        "AudioError AudioNotFoundError BundleError BundleNotFoundError CheckpointError "
        "CheckpointNotFoundError ExactnessError Interrupted MapError MapNotFoundError ModelError "
        "ModelNotFoundError OutOfMemoryError ProviderError ResourceError SpecedgeError Terminated UsageError"
    ),
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
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(["__version__", *_HOMES])


def __getattr__(name: str) -> object:
    """Load a public name from its home module (PEP 562) and keep it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
