"""Every lane that takes longer than a commit may, each within its share of the time, and one table of them all.

    python -m tests.lanes [--minutes 30] [--only stress,fuzz] [--seed N]

  stress       tests marked `stress`: races
  slow         tests marked `slow` that need no network: oracles, the wheel, types
  kills        commands killed at any moment (tests/kills/kills.py)
  fuzz         readers of files under any bytes (tests/fuzz/fuzz.py)
  soak         memory over many and long recordings (tests/bench/soak.py)
  lossless     every kind of draft beside plain decoding, on random weights (tests/bench/lossless.py)
  speech       every drafter of a trained model beside plain decoding (the same)

Only with --only, because they fetch or build much:

  onnxruntime  commands and drafters on the lowest and the newest ONNX Runtime allowed (tests/onnxruntimes.py)
  cpus         other instruction sets, emulated and masked (tests marked `cpus`)

A lane begins nothing new when its time is over; what it leaves is shared by those behind it. One that hangs is ended
and fails. The seed, today's date unless given, chooses what each lane tries and in which order, so that every night
tries something else. Prints what failed, a table, and a last line of JSON; the exit code is 1 when a lane failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from specedge.runtime.console import aligned  # noqa: E402
from support.paths import DEMO, samples  # noqa: E402

LEAST_S = 60.0  # below which a lane says nothing
GRACE_S = 420.0  # for what a lane had begun when its time was over
_SHOWN = 15  # last lines of a lane that failed


@dataclass(frozen=True)
class Lane:
    """A program of ours, given seconds and seed; `weight` is its part of the time. `by_default`: without --only."""

    command: Callable[[float, int], Sequence[object]]
    weight: float = 1.0
    by_default: bool = True


@dataclass(frozen=True)
class Row:
    """What came of a lane: how much was tried, how much of it failed, and what its last lines were."""

    runs: int
    failures: int
    seconds: float
    verdict: str
    last: str = ""

    @property
    def is_sound(self) -> bool:
        return self.verdict == "ok"


def _tests(expression: str) -> Callable[[float, int], Sequence[object]]:
    return lambda seconds, seed: ["-m", "pytest", "-m", expression, "--limit-s", seconds, "--order-seed", seed]


def _program(path: str, *arguments: object, seconds: str = "--limit-s", parts: int = 1) -> Callable[[float, int], Any]:
    return lambda limit_s, seed: [ROOT / path, *arguments, seconds, limit_s / parts, "--seed", seed]


def _lossless(seconds: float, seed: int) -> Sequence[object]:
    threads = 1 + seed % 2
    return [ROOT / "tests/bench/lossless.py", "--limit-s", seconds, "--seed", seed, "--threads", threads]


LANES = {
    "stress": Lane(_tests("stress and not network"), 2.0),
    "slow": Lane(_tests("slow and not network and not stress"), 3.0),
    "kills": Lane(_program("tests/kills/kills.py", "--kills", 1_000_000), 2.0),
    "fuzz": Lane(_program("tests/fuzz/fuzz.py", seconds="--seconds", parts=5), 3.0),
    "soak": Lane(_program("tests/bench/soak.py"), 2.0),
    "lossless": Lane(_lossless, 2.0),
    "speech": Lane(lambda seconds, seed: [*_lossless(seconds, seed), "-m", DEMO, *samples(), "--tokens", 10**6], 1.0),
    "onnxruntime": Lane(_program("tests/onnxruntimes.py"), 3.0, by_default=False),
    "cpus": Lane(_tests("cpus"), 3.0, by_default=False),
}


def run(name: str, lane: Lane, seconds: float, seed: int, log: Path) -> Row:
    """One lane in processes of its own, all of which end with it."""
    report = log.with_suffix(".xml")
    command = [sys.executable, *map(str, lane.command(seconds, seed))]
    if "pytest" in command:
        command.append(f"--junitxml={report}")
    started, hangs = time.monotonic(), False
    with open(log, "wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.wait(timeout=seconds + GRACE_S)
        except subprocess.TimeoutExpired:
            hangs = True
        finally:
            _end(process)
    spent_s = time.monotonic() - started
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    runs, failures = _tests_run(report) if "pytest" in command else _counted(lines)
    if hangs:
        verdict = "hangs"
    elif process.returncode or failures:
        verdict = "fails"
    else:
        verdict = "ok" if runs else "nothing ran"
    return Row(runs, failures, spent_s, verdict, "\n".join(lines[-_SHOWN:]) if verdict != "ok" else "")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started."""
    if process.poll() is None:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    process.wait()


def _tests_run(report: Path) -> tuple[int, int]:
    """Tests that ran, and those that failed, as pytest reports them."""
    if not report.exists():
        return 0, 1
    suites = list(ElementTree.parse(report).iter("testsuite"))
    tests, skipped, *bad = (sum(int(s.get(k, 0)) for s in suites) for k in ("tests", "skipped", "failures", "errors"))
    return tests - skipped, sum(bad)


def _counted(lines: Sequence[str]) -> tuple[int, int]:
    """The same of a program, from its last line of JSON."""
    try:
        found = json.loads(lines[-1])
        return int(found["runs"]), int(found["failures"])
    except (IndexError, ValueError, KeyError, TypeError):
        return 0, 1


def table(rows: dict[str, Row]) -> list[str]:
    shown = [["lane", "runs", "failures", "seconds", "verdict"]]
    shown += [[name, str(r.runs), str(r.failures), f"{r.seconds:.0f}", r.verdict] for name, r in rows.items()]
    return aligned(shown)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="for all lanes together")
    parser.add_argument("--only", help="lanes, separated by commas")
    parser.add_argument("--seed", type=int, default=date.today().toordinal())
    given = parser.parse_args(argv)
    names = given.only.split(",") if given.only else [name for name, lane in LANES.items() if lane.by_default]
    if unknown := [name for name in names if name not in LANES]:
        parser.error(f"no lane {unknown[0]!r}, expected some of {', '.join(LANES)}")
    deadline, rows = time.monotonic() + 60 * given.minutes, dict[str, Row]()
    with tempfile.TemporaryDirectory(prefix="specedge-lanes-") as folder:
        for at, name in enumerate(names):
            share = LANES[name].weight / sum(LANES[other].weight for other in names[at:])
            seconds = max((deadline - time.monotonic()) * share, LEAST_S)
            rows[name] = run(name, LANES[name], seconds, given.seed, Path(folder) / f"{name}.log")
            print(f"{name}: {rows[name].verdict}", file=sys.stderr, flush=True)
    for name, row in rows.items():
        if not row.is_sound:
            print(f"--- the end of {name}:\n{row.last}\n")
    print("\n".join(table(rows)))
    print(json.dumps({"seed": given.seed, "lanes": {name: asdict(row) for name, row in rows.items()}}))
    return 0 if all(row.is_sound for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
