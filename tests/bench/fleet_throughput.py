"""A fleet of two one-thread workers beside two serial processes: the same files, the same results, which is quicker?

    python tests/bench/fleet_throughput.py [-m MODEL] [--minutes 30] [--rounds 3] [--drafter none]

The archive is made of the bundled samples, with silences. The two serial processes get half of it each, dealt out
longest first, and run the worker function in a loop, without a cluster. `whole` is the time from the start of the
processes to their end, with loading models; the fleet's has the start of a scheduler and two workers too. Rounds of
both alternate; medians, with the least and the greatest ratio. Over 1 the fleet is quicker.

Times tell nothing on a busy machine. The last line of output is JSON; exit code 1 when results differ.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from specedge.fleet import transcribe  # noqa: E402
from specedge.runtime.audio.audio import decode_audio  # noqa: E402
from support.fleets import Serial  # noqa: E402
from support.paths import samples  # noqa: E402
from support.sound import wav_bytes  # noqa: E402

TARGET = 0.95
_LONGEST = 20  # sentences in a file


def make_archive(folder: Path, minutes: float) -> list[Path]:
    """Files of several lengths, longest first."""
    rng = random.Random(0)
    recordings = [decode_audio(str(path)) for path in samples()]
    folder.mkdir()
    paths: list[Path] = []
    n_samples = 0
    while n_samples < minutes * 60 * 16_000:
        turns = [np.pad(rng.choice(recordings), (0, rng.randint(4000, 16000))) for _ in range(rng.randint(1, _LONGEST))]
        audio = np.concatenate(turns).astype(np.float32)
        n_samples += len(audio)
        paths.append(folder / f"{len(paths):04d}.wav")
        paths[-1].write_bytes(wav_bytes(audio))
    return sorted(paths, key=lambda path: -path.stat().st_size)


def serial(root: Path, halves: Sequence[Sequence[Path]], model: str, drafter: str | None) -> float:
    """Seconds of two processes with half of the files each."""
    since = time.perf_counter()
    running = []
    for number, half in enumerate(halves):
        told = json.dumps([[str(path) for path in half], str(root / f"serial{number}"), model, drafter])
        running.append(subprocess.Popen([sys.executable, __file__, "--half", told]))
    if any(one.wait() for one in running):
        raise RuntimeError("a serial process failed")
    return time.perf_counter() - since


def fleet(root: Path, model: str, drafter: str | None) -> float:
    """Seconds of a fleet of two workers."""
    since = time.perf_counter()
    list(transcribe([root / "in"], root / "fleet", n_workers=2, model=model, drafter=drafter, language="en"))
    return time.perf_counter() - since


def differing(root: Path) -> int:
    """Results that are not the same in both, or not in both."""
    one = {path.name: path for path in (root / "fleet" / "results").iterdir()}
    two = {path.name: path for number in range(2) for path in (root / f"serial{number}" / "results").iterdir()}
    same = [name for name in one.keys() & two if filecmp.cmp(one[name], two[name], shallow=False)]
    return len(one.keys() | two) - len(same)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--minutes", type=float, default=30.0, help="of audio")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drafter")
    parser.add_argument("--half", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.half:
        paths, out, model, drafter = json.loads(args.half)
        list(transcribe(paths, out, cluster=Serial(), model=model, drafter=drafter, language="en"))
        return 0
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    ratios, wrong = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        paths = make_archive(root / "in", args.minutes)
        halves = paths[0::2], paths[1::2]
        for number in range(args.rounds):
            two_s, fleet_s = serial(root, halves, args.model, args.drafter), fleet(root, args.model, args.drafter)
            wrong += differing(root)
            ratios.append(two_s / fleet_s)
            print(f"round {number + 1}: two processes {two_s:.1f} s, fleet {fleet_s:.1f} s, ratio {ratios[-1]:.3f}")
            for name in ("fleet", "serial0", "serial1"):
                shutil.rmtree(root / name)
    ratio = statistics.median(ratios)
    told = {"ratio": round(ratio, 3), "least": round(min(ratios), 3), "greatest": round(max(ratios), 3)}
    print(json.dumps({**told, "target": TARGET, "files": len(paths), "minutes": args.minutes, "differing": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
