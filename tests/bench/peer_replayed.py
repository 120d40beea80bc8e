"""specedge on random weights with the passes of a trained model: python peer_replayed.py JOB.json BUNDLE PASSES.json.

PASSES holds windows by name (support/replayed.py). JOB is that of a window (jobs.py): its samples go through mel and
encoder, and the passes are played over them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from jobs import Job
from worker import memory_mb, serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402

from specedge.runtime.audio.mel import log_mel  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.engine.engine import Engine  # noqa: E402
from support.replayed import Pass, Window, play  # noqa: E402


class Replayed:
    """The bundle's engine, one window of audio, and the passes by name."""

    def __init__(self, job: Job, bundle: str, passes: str) -> None:
        self._job, self._bundle = job, Bundle.open(bundle)
        self._engine = Engine(self._bundle, threads=job.threads)
        self._samples = np.fromfile(job.samples, np.float32)
        recorded = json.loads(Path(passes).read_text(encoding="utf-8"))
        self._windows = {name: _window(window) for name, window in recorded.items()}

    def start(self) -> dict[str, Any]:
        """How much memory it holds."""
        return {"memory": memory_mb()}

    def end_to_end(self, name: str) -> dict[str, Any]:
        """Samples to mel to features to the window's tokens; the passes, and the parts in ms."""
        started = time.perf_counter()
        mel = log_mel(self._samples, self._job.n_mels, self._bundle.manifest.n_frames)
        heard_at = time.perf_counter()
        features = self._engine.encode(mel)
        encoded_at = time.perf_counter()
        window = self._windows[name]
        counted = play(self._engine, self._bundle, features, window, drafted=name != "none")
        return {
            "tokens": counted.tokens,
            "passes": counted.passes,
            "mel_ms": 1e3 * (heard_at - started),
            "encoder_ms": 1e3 * (encoded_at - heard_at),
            "decoder_ms": 1e3 * counted.decoder_s,
            "draft_ms": 1e3 * window.draft_s,
        }


def _window(value: dict[str, Any]) -> Window:
    passes = [Pass(tuple(parents), tuple(accepted)) for parents, accepted in value["passes"]]
    return Window(n_prompt=value["n_prompt"], passes=passes, draft_s=value["draft_s"])


def main() -> None:
    """Load and serve."""
    peer = Replayed(Job.load(sys.argv[1]), *sys.argv[2:])
    serve({"start": peer.start, "end_to_end": peer.end_to_end})


if __name__ == "__main__":
    main()
