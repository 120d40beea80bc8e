"""Whole transcriptions beside openai-whisper's and faster-whisper's, on the same weights in float32.

    python tests/bench/longform.py [--checkpoint models/checkpoints/demo] [--only NAME]

Exports the checkpoint, and a small one of random weights, into a temporary folder, and compares segments: seek, times,
tokens and temperature exactly, log-probability, no-speech probability and compression ratio within a tolerance.
faster-whisper takes part where its semantics are the same and nothing is sampled. The last line of output is JSON; the
exit code is 1 when something differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from specedge.export.bundling import write_bundle  # noqa: E402
from specedge.export.checkpoint import open_checkpoint  # noqa: E402
from specedge.runtime.engine import Engine  # noqa: E402
from support.checkpoints import make_checkpoint  # noqa: E402
from support.faster_peer import FasterPeer  # noqa: E402
from support.longform import (  # noqa: E402
    TOLERANCES,
    Case,
    Comparison,
    Line,
    compare,
    demo_cases,
    faster_options,
    openai_options,
    ours,
    random_cases,
)
from support.openai_peer import OpenaiPeer  # noqa: E402


class Model:
    """One checkpoint in the three runtimes."""

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


def report(found: list[Comparison]) -> dict[str, object]:
    """Print the table; the figures of the last line."""
    for one in found:
        figures = "  ".join(f"{one.greatest[name]:.1e}" for name in TOLERANCES)
        print(f"{one.case:32} {one.peer:15} {one.n_segments:4}  {figures}  {one.difference or 'equal'}")
    return {
        "compared": len(found),
        "cases": len({one.case for one in found}),
        "different": [f"{one.case} ({one.peer}): {one.difference}" for one in found if one.difference],
        "max_difference": {name: max((one.greatest[name] for one in found), default=0.0) for name in TOLERANCES},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "models" / "checkpoints" / "demo")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    found: list[Comparison] = []
    with tempfile.TemporaryDirectory(prefix="specedge-longform-") as folder:
        for name, cases in (("demo", demo_cases()), ("random", random_cases())):
            wanted = [case for case in cases if options.only in case.name]
            if not wanted:
                continue
            work = Path(folder) / name
            work.mkdir()
            checkpoint = options.checkpoint if name == "demo" else make_checkpoint(work / "random", dtype="float32")
            model = Model(checkpoint, work, faster=name == "demo")
            for case in wanted:
                found += model.compare(case)
    figures = report(found)
    print(json.dumps(figures))
    return 1 if figures["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
