"""OpenVINO's own Whisper pipeline at work on files, under its own Python: python peer_openvino.py JOB.json FOLDER.

FOLDER is made by openvino_export.py. The pipeline pads to the window that the folder names and decodes greedily with
timestamps.
"""

from __future__ import annotations

import sys
from typing import Any

from jobs import SpeechJob
from worker import serve

import openvino_genai  # isort: skip
import soundfile  # isort: skip


class Pipeline:
    """The pipeline on the CPU."""

    def __init__(self, job: SpeechJob, folder: str) -> None:
        self._pipeline = openvino_genai.WhisperPipeline(folder, "CPU", INFERENCE_NUM_THREADS=job.threads)
        self._asked = {"language": f"<|{job.language}|>", "task": "transcribe", "return_timestamps": True}

    def start(self) -> dict[str, Any]:
        """What it is."""
        return {"version": f"openvino-genai {openvino_genai.__version__}, int8"}

    def transcribe(self, file: str) -> dict[str, Any]:
        """The file's text."""
        samples, _ = soundfile.read(file, dtype="float32")
        return {"text": self._pipeline.generate(samples.tolist(), **self._asked).texts[0]}


def main() -> None:
    """Load and serve."""
    peer = Pipeline(SpeechJob.load(sys.argv[1]), sys.argv[2])
    serve({"start": peer.start, "transcribe": peer.transcribe})


if __name__ == "__main__":
    main()
