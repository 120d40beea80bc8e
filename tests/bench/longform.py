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

from support.checkpoints import make_checkpoint  # noqa: E402
from support.compared import Compared  # noqa: E402
from support.converted import with_published_limit  # noqa: E402
from support.longform import TOLERANCES, Comparison, demo_cases, random_cases  # noqa: E402


def row(case: str, peer: str, n_segments: object, figures: list[str], outcome: str) -> str:
    """A line of the table: outcome is about seek, times, tokens and temperature, figures are greatest differences."""
    return f"{case:32} {peer:15} {n_segments!s:>8}  {'  '.join(f'{figure:>17}' for figure in figures)}  {outcome}"


def shown(one: Comparison) -> str:
    """The line of one comparison."""
    figures = [f"{one.greatest[name]:.1e}" for name in TOLERANCES]
    return row(one.case, one.peer, one.n_segments, figures, one.difference or "equal")


def summary(found: list[Comparison]) -> dict[str, object]:
    """The figures of the last line."""
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
    print(row("case", "beside", "segments", list(TOLERANCES), "seek, times, tokens, temperature"))
    with tempfile.TemporaryDirectory(prefix="specedge-longform-") as folder:
        for name, cases in (("demo", demo_cases()), ("random", random_cases())):
            wanted = [case for case in cases if options.only in case.name]
            if not wanted:
                continue
            work = Path(folder) / name
            work.mkdir()
            if name == "demo":
                checkpoint = with_published_limit(options.checkpoint, work / "demo")
            else:
                checkpoint = make_checkpoint(work / "random", dtype="float32")
            model = Compared(checkpoint, work, faster=name == "demo")
            for case in wanted:
                compared = model.compare(case)
                found += compared
                print("\n".join(map(shown, compared)), flush=True)
    figures = summary(found)
    print(json.dumps(figures))
    return 1 if figures["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
