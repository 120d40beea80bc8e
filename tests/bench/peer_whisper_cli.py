"""whisper.cpp's own program on files: python peer_whisper_cli.py JOB.json MODEL.bin BINARY.

The program is started anew for each file, and loads its model each time, which the other peers do once. So the time of
a file is the one that it prints of itself, its total less its loading, and not the one of the call.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

from jobs import SpeechJob
from worker import serve


class WhisperCli:
    """The program and its model."""

    def __init__(self, job: SpeechJob, model: str, binary: str) -> None:
        self._command = [binary, "-m", model, "-t", str(job.threads), "-l", job.language, "-bs", "1", "-bo", "5", "-nt"]

    def start(self) -> dict[str, Any]:
        """What it is: the program does not say its version."""
        return {"version": "whisper.cpp"}

    def transcribe(self, file: str) -> dict[str, Any]:
        """The file's text, and the milliseconds that count."""
        done = subprocess.run([*self._command, "-f", file], capture_output=True, text=True, check=True)
        times = dict(re.findall(r"(load|total) time =\s*([\d.]+) ms", done.stderr))
        return {"text": done.stdout, "ms": float(times["total"]) - float(times["load"])}


def main() -> None:
    """Serve."""
    peer = WhisperCli(SpeechJob.load(sys.argv[1]), *sys.argv[2:])
    serve({"start": peer.start, "transcribe": peer.transcribe})


if __name__ == "__main__":
    main()
