"""faster-whisper's names over specedge: a program that imports `faster_whisper` runs on specedge's models.

A thin layer: models are `specedge.WhisperModel`. docs/compat.md says what differs from faster-whisper.
"""

import os
import sys

try:
    import specedge.errors  # noqa: F401
except ModuleNotFoundError:
    raise SystemExit(f"specedge: error: {sys.executable} has no specedge: install it beside the program") from None

from .audio import decode_audio
from .transcribe import BatchedInferencePipeline, WhisperModel
from .utils import RUN_VARIABLE, available_models, download_model, end_in_one_line, format_timestamp
from .version import __version__

__all__ = [
    "BatchedInferencePipeline",
    "WhisperModel",
    "__version__",
    "available_models",
    "decode_audio",
    "download_model",
    "format_timestamp",
]

if os.environ.get(RUN_VARIABLE):
    end_in_one_line()
