"""One checkpoint in this runtime, in openai-whisper and in faster-whisper, all in float32."""

from __future__ import annotations

from pathlib import Path

from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.runtime.engine.engine import Engine
from support.faster_peer import FasterPeer
from support.longform import Case, Comparison, Line, compare, faster_options, openai_options, ours
from support.openai_peer import OpenaiPeer


class Compared:
    """`checkpoint` in the three runtimes; `work` is an empty folder for what that takes."""

    def __init__(self, checkpoint: Path, work: Path, *, faster: bool) -> None:
        with open_checkpoint(checkpoint) as source:
            self.bundle = write_bundle(source, work / "bundle", precision="fp32", name="compared", version="0")
        self.engine = Engine(self.bundle, threads=1, cache=False)
        self.openai = OpenaiPeer(checkpoint, self.bundle)
        dims = self.bundle.manifest.dims
        self.faster = (
            FasterPeer(checkpoint, work, n_vocab=dims.n_vocab, n_audio_ctx=dims.n_audio_ctx) if faster else None
        )

    def compare(self, case: Case) -> list[Comparison]:
        """The case against every peer that has its semantics."""
        mine = ours(self.engine, self.bundle, case)
        found = []
        if case.openai:
            result = self.openai.transcribe(case.audio(), **openai_options(case))
            theirs = [Line.of(segment) for segment in result["segments"] if segment["text"] != ""]
            found.append(compare(case.name, "openai-whisper", mine, theirs))
        if case.faster and self.faster is not None:
            segments, _ = self.faster.transcribe(case.audio(), **faster_options(case))
            found.append(compare(case.name, "faster-whisper", mine, [Line.of(segment) for segment in segments]))
        return found
