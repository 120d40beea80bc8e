"""`specedge.WhisperModel` on files: python peer_whisper_model.py JOB.json BUNDLE [MAP...]; JOB is a SpeechJob.

Drafters are made anew by `begin`, once a round, and live through it, as over the files of one command. Those that read
maps get MAP, or the bundle's own. A name such as draft=demo-draft is the drafter draft with that model.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from jobs import SpeechJob
from worker import serve

import specedge
from specedge.runtime.decoding.drafter import Drafter, TargetModel
from specedge.runtime.device import load_profile
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.options import READS_MAPS, DrafterOptions


class Ours:
    """The model, and a drafter for each name and audio context."""

    def __init__(self, job: SpeechJob, bundle: str, maps: list[str]) -> None:
        self._job, self._maps = job, [Path(path) for path in maps]
        self._model = specedge.WhisperModel(bundle, cpu_threads=job.threads, encoder_provider=job.encoder_provider)
        self._drafters: dict[tuple[str, str], Drafter] = {}

    def start(self) -> dict[str, Any]:
        """What it is."""
        manifest = self._model.bundle.manifest
        is_calibrated = load_profile(self._model.bundle.digest, self._model.threads) is not None
        version = f"specedge {specedge.__version__}, {manifest.precision}"
        version += f", encoder on {self._model.engine.encoder_provider}"
        return {"version": f"{version}, {'calibrated' if is_calibrated else 'not calibrated'}"}

    def begin(self) -> None:
        """Forget what drafters have learned."""
        for drafter in self._drafters.values():
            drafter.close()
        self._drafters.clear()

    def transcribe(self, file: str, drafter: str, audio_context: str) -> dict[str, Any]:
        """The file's text and ids, and the milliseconds in the encoder, the decoder and the drafter."""
        key = (drafter, audio_context)
        if key not in self._drafters:
            self._drafters[key] = self._made(drafter)
        segments, info = self._model.transcribe(
            file, self._job.language, drafter=self._drafters[key], audio_context=audio_context
        )
        said = list(segments)
        counted = info.speculation
        return {
            "text": "".join(segment.text for segment in said),
            "tokens": [segment.tokens for segment in said],
            "encoder_ms": 1e3 * counted["encoder_s"],
            "decoder_ms": 1e3 * (counted["decoder_s"] + counted["draft_s"]),
            "n_tokens": counted["tokens"],
            "passes": counted["passes"],
            "dropped": counted["drafter"] != drafter.partition("=")[0],
        }

    def _made(self, name: str) -> Drafter:
        kind, _, draft_model = name.partition("=")
        maps = self._maps if kind in READS_MAPS else ()
        options = DrafterOptions(kind, token_maps=maps, draft_model=draft_model or None)
        return make_drafter(options, TargetModel(self._model.bundle, threads=self._model.threads))


def main() -> None:
    """Load and serve."""
    peer = Ours(SpeechJob.load(sys.argv[1]), sys.argv[2], sys.argv[3:])
    serve({name: getattr(peer, name) for name in ("start", "begin", "transcribe")})


if __name__ == "__main__":
    main()
