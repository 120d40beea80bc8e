"""Fuzzing of what reads files from strangers: any bytes give something sound or a documented error, soon and in bounds.

    python tests/fuzz/fuzz.py [--only wav,manifest,tokenizer,map,learned] [--seconds 300] [--runs N] [--seed 0]

Inputs are random edits of sound files. A finding is anything but a documented refusal: another exception, more than a
second of CPU or 32 MB for one input, an allocation beyond 256 MB, or the end of the process. Its input is saved under
--save and printed; put it into tests/fuzz/corpus/TARGET when it is mended, where test_fuzz_smoke.py tries it for ever.
`--seconds` and `--runs` are for each target. Prints a table and a last line of JSON; exit code 1 when there are
findings.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = ("wav", "manifest", "tokenizer", "map", "learned")
INPUT_BYTES = 1 << 16
INPUT_S = 1.0
MEMORY_BYTES = 256 << 20
INPUT_KB = 32 << 10
LATE_S = 30.0  # a child that is so much behind its time hangs
MAX_FINDINGS = 10


class TooSlow(BaseException):
    """One input took more than `INPUT_S` of CPU."""


class TooLarge(Exception):
    """One input took more than `INPUT_KB` of memory."""


class Lane:
    """One target's inputs, one after another: counted, timed, and the findings saved, each kind once."""

    def __init__(self, name: str, attempt: Callable[[bytes], bool], save: Path, at_work: Path | None = None) -> None:
        self.name, self._attempt, self._save = name, attempt, save
        self.runs = self.taken = 0
        self.worst_s = 0.0
        self.findings: dict[str, str] = {}
        self._current: mmap.mmap | None = None
        if at_work is not None:  # what is being tried, for the parent to save when this process dies of it
            with open(at_work, "r+b") as file:
                self._current = mmap.mmap(file.fileno(), INPUT_BYTES + 8)

    def run(self, data: bytes) -> bool:
        """Try one input; whether it was taken."""
        data = data[:INPUT_BYTES]
        if self._current is not None:
            self._current[: 8 + len(data)] = len(data).to_bytes(8, "little") + data
        self.runs += 1
        started, held_kb = time.process_time(), _peak_kb()
        try:
            with _time_limit():
                taken = self._attempt(data)
            if _peak_kb() - held_kb > INPUT_KB:
                raise TooLarge(f"{_peak_kb() - held_kb} KB")
        except (Exception, TooSlow) as error:
            self._note(data, error)
            taken = False
        self.taken += taken
        self.worst_s = max(self.worst_s, time.process_time() - started)
        return taken

    def _note(self, data: bytes, error: BaseException) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        if kind not in self.findings and len(self.findings) < MAX_FINDINGS:
            self.findings[kind] = f"{kind}: {error}"[:300] + f" [{save(self._save, self.name, data)}]"

    def figures(self) -> dict[str, Any]:
        found = {"runs": self.runs, "taken": self.taken, "worst_s": round(self.worst_s, 3)}
        found["peak_mb"] = _peak_kb() // 1024
        return {**found, "findings": list(self.findings.values())}


def _peak_kb() -> int:
    """The most this process ever took; macOS counts in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, INPUT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_slow(*_: object) -> None:
    raise TooSlow(f"more than {INPUT_S} s")


def save(folder: Path, name: str, data: bytes) -> Path:
    """Keep an input; where."""
    path = folder / name / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def corpus(name: str) -> list[bytes]:
    """Inputs that were findings once."""
    folder = HERE / "corpus" / name
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


def random_edits(run: Callable[[bytes], bool], seeds: Sequence[bytes], rng: random.Random) -> Iterator[bool]:
    """Try edits of the seeds, and of what was taken since; whether each was taken."""
    pool = list(seeds)
    while True:
        data = bytearray(rng.choice(pool))
        for _ in range(rng.choice((1, 1, 2, 4))):
            _edit(data, rng, rng.choice(pool))
        taken = run(bytes(data))
        if taken and rng.random() < 0.05:
            pool.append(bytes(data))
            if len(pool) > 200:
                del pool[len(seeds) + rng.randrange(len(pool) - len(seeds))]
        yield taken


def _edit(data: bytearray, rng: random.Random, other: bytes) -> None:
    at, width = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 8))
    start = rng.randrange(len(other) + 1)
    piece = other[start : start + rng.choice((1, 4, 16, 64, 256))]
    kind = rng.randrange(8)
    if kind < 4:
        data[at : at + width] = rng.choice((rng.randbytes(width), b"\xff" * width, bytes(width), b"\x7f" * width))
    elif kind == 4:
        del data[at : at + rng.choice((1, 2, 8, 64))]
    elif kind == 5:
        data[at:at] = piece
    elif kind == 6:
        data[at : at + len(piece)] = piece
    elif data:  # a digit or a letter for another, as text has them
        data[rng.randrange(len(data))] = rng.choice(b'0123456789-.e{}[]",:naftu\\')


def child(name: str, seconds: float, runs: int, seed: int, folder: Path, saved: Path) -> None:
    """Fuzz one target in this process; prints a line of JSON."""
    sys.path.insert(0, str(HERE))
    from targets import TARGETS

    target = TARGETS[name](folder)
    seeds = [*target.seeds(), *corpus(name)]
    signal.signal(signal.SIGPROF, _too_slow)
    lane = Lane(name, target.attempt, saved, folder / "at_work")
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    deadline = time.monotonic() + seconds

    for data in seeds:
        lane.run(data)
    for _ in random_edits(lane.run, seeds, random.Random(f"{seed} {name}")):
        if lane.runs >= runs or time.monotonic() > deadline:
            break
    print(json.dumps(lane.figures()), flush=True)
    os._exit(0)


def fuzz(name: str, seconds: float, runs: int, seed: int, saved: Path) -> dict[str, Any]:
    """One target in a child of its own, whose death is a finding."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a database syncs a lot
    with tempfile.TemporaryDirectory(prefix="specedge-fuzz-", dir=in_memory) as folder:
        at_work = Path(folder) / "at_work"
        at_work.write_bytes(bytes(INPUT_BYTES + 8))
        command = [sys.executable, __file__, "--child", folder, "--only", name, "--seconds", str(seconds)]
        command += ["--runs", str(runs), "--seed", str(seed), "--save", str(saved)]
        started = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + LATE_S, errors="replace")
            died = f"ended with {done.returncode}: {done.stderr.strip()[-500:]}"
            if done.returncode == 0:
                found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
                return {**found, "seconds": time.monotonic() - started}
        except subprocess.TimeoutExpired:
            died = "hangs"
        raw = at_work.read_bytes()
        path = save(saved, name, raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    lost = {"runs": 0, "taken": 0, "worst_s": 0.0, "peak_mb": 0, "seconds": time.monotonic() - started}
    return {**lost, "findings": [f"the process {died} [{path}]"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), help="targets, separated by commas")
    parser.add_argument("--seconds", type=float, default=300.0, help="of each target")
    parser.add_argument("--runs", type=int, default=1 << 60, help="of each target, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, default=Path("build") / "fuzz", help="where the inputs of findings go")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.only.split(",")
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no target {unknown[0]!r}, expected some of {', '.join(NAMES)}")
    if given.child is not None:
        child(names[0], given.seconds, given.runs, given.seed, given.child, given.save)
    found = {}
    for name in names:
        found[name] = fuzz(name, given.seconds, given.runs, given.seed, given.save)
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    columns = ("runs", "taken", "worst_s", "peak_mb", "seconds")
    print(f"{'target':10}" + "".join(f"{column:>11}" for column in columns) + f"{'findings':>11}")
    for name, row in found.items():
        shown = [f"{row[column]:.0f}" if column == "seconds" else str(row[column]) for column in columns]
        print(f"{name:10}" + "".join(f"{text:>11}" for text in shown) + f"{len(row['findings']):>11}")
    for name, row in found.items():
        for line in row["findings"]:
            print(f"{name}: {line}")
    n_runs, n_findings = (sum(row["runs"] for row in found.values()), sum(len(r["findings"]) for r in found.values()))
    print(json.dumps({"lane": "fuzz", "runs": n_runs, "failures": n_findings, "targets": found}))
    return 1 if n_findings else 0


if __name__ == "__main__":
    sys.exit(main())
