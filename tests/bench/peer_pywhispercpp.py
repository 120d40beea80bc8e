"""whisper.cpp on files, by its binding: python peer_pywhispercpp.py JOB.json MODEL.bin; this Python has pywhispercpp.

Its own greedy search with its other settings as they are; JOB is a SpeechJob.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import soundfile
from jobs import SAMPLE_RATE_HZ, SpeechJob
from pywhispercpp.model import Model
from worker import serve


class WhisperCpp:
    """The model, loaded once."""

    def __init__(self, job: SpeechJob, model: str) -> None:
        self._model = Model(
            model, n_threads=job.threads, language=job.language, print_progress=False, redirect_whispercpp_logs_to=None
        )

    def start(self) -> dict[str, Any]:
        """What it is."""
        return {"version": f"whisper.cpp by pywhispercpp {version('pywhispercpp')}, float16"}

    def transcribe(self, file: str) -> dict[str, Any]:
        """The file's text."""
        samples, rate_hz = soundfile.read(file, dtype="float32")
        if rate_hz != SAMPLE_RATE_HZ:
            raise ValueError(f"{file}: {rate_hz} Hz, expected {SAMPLE_RATE_HZ}")
        return {"text": "".join(segment.text for segment in self._model.transcribe(samples))}


def main() -> None:
    """Load and serve."""
    peer = WhisperCpp(SpeechJob.load(sys.argv[1]), sys.argv[2])
    serve({"start": peer.start, "transcribe": peer.transcribe})


if __name__ == "__main__":
    main()
