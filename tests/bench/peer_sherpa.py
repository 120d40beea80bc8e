"""sherpa-onnx at work on files, under its own Python: python peer_sherpa.py JOB.json FOLDER.

FOLDER holds what sherpa-onnx's scripts/whisper/export-onnx.py writes: *-encoder.int8.onnx, *-decoder.int8.onnx and
*-tokens.txt. Its recogniser encodes the audio that there is and a tail of padding, decodes greedily without timestamps,
six tokens a second of audio at most, and no more than one window. Where the window is shorter than the 30 s that
it counts on, the tail is one second instead of its ten, or a short file would not fit.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from jobs import SpeechJob
from worker import serve

import sherpa_onnx  # isort: skip
import soundfile  # isort: skip

USUAL_FRAMES = 3000
SHORT_TAIL_FRAMES = 100


class Sherpa:
    """An offline recogniser."""

    def __init__(self, job: SpeechJob, folder: str) -> None:
        found = {part: next(Path(folder).glob(f"*-{part}")) for part in ("encoder.int8.onnx", "decoder.int8.onnx")}
        self._recogniser = sherpa_onnx.OfflineRecognizer.from_whisper(
            encoder=str(found["encoder.int8.onnx"]),
            decoder=str(found["decoder.int8.onnx"]),
            tokens=str(next(Path(folder).glob("*-tokens.txt"))),
            language=job.language,
            task="transcribe",
            num_threads=job.threads,
            tail_paddings=-1 if job.n_frames >= USUAL_FRAMES else SHORT_TAIL_FRAMES,
        )

    def start(self) -> dict[str, Any]:
        """What it is."""
        return {"version": f"sherpa-onnx {sherpa_onnx.__version__}, int8"}

    def transcribe(self, file: str) -> dict[str, Any]:
        """The file's text."""
        samples, rate_hz = soundfile.read(file, dtype="float32")
        stream = self._recogniser.create_stream()
        stream.accept_waveform(rate_hz, samples)
        self._recogniser.decode_stream(stream)
        return {"text": stream.result.text}


def main() -> None:
    """Load and serve."""
    peer = Sherpa(SpeechJob.load(sys.argv[1]), sys.argv[2])
    serve({"start": peer.start, "transcribe": peer.transcribe})


if __name__ == "__main__":
    main()
