"""faster-whisper's names over specedge: a program that imports `faster_whisper` runs on specedge's models.

A thin layer: models are `specedge.WhisperModel`. docs/compat.md says what differs from faster-whisper.
"""

from .audio import decode_audio
from .transcribe import BatchedInferencePipeline, WhisperModel
from .utils import available_models, download_model, format_timestamp
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
