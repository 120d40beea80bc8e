"""A fleet whose processes are killed: has every file exactly one whole result afterwards, that of the serial run?

    python tests/kills/fleet.py [--rounds 100] [--limit-s 3600] [--files 40] [--poison 2] [--seed 0]

An archive of short files is transcribed over and over on a Dask cluster of a scheduler and two workers, each in
processes of its own. In a round one to six SIGKILLs come at random moments: to a worker, to the nanny that would start
it again, to the driver (`specedge fleet`) or to the scheduler. A round that is over before the first does not count.
What died is started again, the driver with the same command, until a driver ends by itself. A poison file kills the
process that opens it. Then the output folder is compared:

  missing, extra   good files without a result, results that nobody asked for
  torn             results that differ from the serial run's by any byte
  left_over        temporary files, parts
  wrong_records    good files whose record is not "done", poison files whose record is not "quarantined"
  wrong_ends       exit codes of drivers that nobody killed, but for 1 (some files are poison) and 5 (no scheduler)
  too_long         no driver had ended after ten minutes

The first round in which anything was found is the last: its output folder and the log of the processes are copied to
the current folder. Prints a line a round and a last line of JSON; exit code 1 when anything was found. It does not
measure times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from specedge.fleet import transcribe  # noqa: E402
from specedge.runtime.audio.audio import decode_audio  # noqa: E402
from support.fleets import Serial  # noqa: E402
from support.paths import DEMO, samples  # noqa: E402
from support.sound import wav_bytes  # noqa: E402

CODES = {1, 5, -signal.SIGKILL}
VICTIMS = ("worker", "worker", "worker", "nanny", "driver", "driver", "scheduler")
MOST_KILLS, PATIENCE_S = 6, 600.0
POISON = """import os, sys
def hook(event, args):
    if event == "open" and "poison" in str(args[0]).rpartition("/")[2]:
        os.kill(os.getpid(), 9)
sys.addaudithook(hook)
"""


def make_archive(folder: Path, n_good: int, n_poison: int, rng: random.Random) -> None:
    """Files of one or two sentences, each with silences of its own."""
    folder.mkdir()
    recordings = [decode_audio(str(path)) for path in samples()]
    for number in range(n_good + n_poison):
        turns = [np.pad(rng.choice(recordings), (0, rng.randint(2000, 16000))) for _ in range(rng.randint(1, 2))]
        name = f"{number:03d}.wav" if number < n_good else f"poison{number:03d}.wav"
        (folder / name).write_bytes(wav_bytes(np.concatenate(turns).astype(np.float32)))


class Processes:
    """The scheduler, the workers and the driver of all rounds, started again where they are gone."""

    def __init__(self, root: Path, n_workers: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._root, self._n_workers = root, n_workers
        self._env = {**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"}
        # One death of a worker is enough for a file to go on in a process of its own, as in `specedge fleet --local`.
        self._env["DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES"] = "1"
        self.log = root / "log"
        self._log = open(self.log, "ab")
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.nannies: list[subprocess.Popen[bytes]] = []
        self.driver: subprocess.Popen[bytes] | None = None

    def revive(self) -> None:
        """Start the scheduler and workers that are gone."""
        if self.scheduler is None or self.scheduler.poll() is not None:
            dask = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(self._port)]
            self.scheduler = self._start(*dask, "--no-dashboard")
        self.nannies = [one for one in self.nannies if one.poll() is None]
        while len(self.nannies) < self._n_workers:
            dask = ["distributed.cli.dask_worker", f"tcp://127.0.0.1:{self._port}", "--nthreads", "1", "--no-dashboard"]
            self.nannies.append(self._start(*dask, "--local-directory", str(self._root), "--death-timeout", "20"))

    def start_driver(self, out: Path) -> None:
        cluster = f"tcp://127.0.0.1:{self._port}"
        self.driver = self._start("specedge", "fleet", "in", "-o", out.name, "-l", "en", "--cluster", cluster)

    def kill(self, victim: str, rng: random.Random) -> bool:
        """SIGKILL it; False where there is none."""
        one: Any = {"scheduler": self.scheduler, "driver": self.driver}.get(victim)
        if victim == "nanny":
            one = rng.choice(self.nannies) if self.nannies else None
        elif victim == "worker":
            children = [child for nanny in self.nannies for child in _children(nanny.pid)]
            one = rng.choice(children) if children else None
        with contextlib.suppress(psutil.Error, OSError):
            if one is not None:
                os.kill(one.pid, signal.SIGKILL)
                return True
        return False

    def close(self) -> None:
        for one in (self.driver, *self.nannies, self.scheduler):
            if one is not None:
                for child in _children(one.pid):
                    with contextlib.suppress(psutil.Error):
                        child.kill()
                one.kill()
                one.wait()
        self._log.close()

    def _start(self, *module_and_arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *module_and_arguments]
        return subprocess.Popen(command, cwd=self._root, env=self._env, stdout=self._log, stderr=self._log)


def _children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return [one for one in psutil.Process(pid).children() if one.status() != psutil.STATUS_ZOMBIE]
    return []


@dataclass
class Round:
    """What was done in a round, and found after it: victims, exit codes of drivers, names by what is wrong."""

    kills: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, list[str]] = field(default_factory=dict)


def one_round(processes: Processes, out: Path, rng: random.Random) -> Round:
    """Transcribe the archive into `out` through random kills."""
    result, n_wanted = Round(), rng.randint(1, MOST_KILLS)
    deadline, next_kill = time.monotonic() + PATIENCE_S, time.monotonic() + rng.uniform(1.0, 8.0)
    processes.revive()
    processes.start_driver(out)
    while time.monotonic() < deadline:
        time.sleep(0.05)
        processes.revive()
        if result.kills.total() < n_wanted and time.monotonic() > next_kill:
            victim = rng.choice(VICTIMS)
            result.kills[victim] += processes.kill(victim, rng)
            next_kill = time.monotonic() + rng.uniform(0.2, 4.0)
        code = None if processes.driver is None else processes.driver.poll()
        if code is None:
            continue
        result.ends[str(code)] += 1
        if code not in CODES:
            result.wrong["wrong_ends"] = [str(code)]
        if code == 1:  # ended by itself: all done, but for the poison files
            return result
        processes.start_driver(out)
    result.wrong["too_long"] = [f"{PATIENCE_S:.0f} s"]
    return result


def found_wrong(out: Path, serial: Path) -> dict[str, list[str]]:
    """What a round left that it should not have."""
    there, expected = ({path.name: path for path in (folder / "results").glob("*")} for folder in (out, serial))
    hidden = {name for name in there if name.startswith(".")}
    records_file = out / "records.jsonl"
    lines = records_file.read_text().splitlines() if records_file.exists() else []
    states = {record["path"]: record["state"] for record in map(json.loads, lines)}
    files = {f"in/{path.name}": path.name for path in (out.parent / "in").iterdir()}
    wanted = {path: "quarantined" if "poison" in name else "done" for path, name in files.items()}
    wrong = {
        "missing": expected.keys() - there.keys(),
        "extra": there.keys() - expected.keys() - hidden,
        "torn": {name for name in there.keys() & expected if there[name].read_bytes() != expected[name].read_bytes()},
        "left_over": hidden | {path.name for path in (out / "parts").glob("*")},
        "wrong_records": {f"{path}: {states.get(path)}" for path in wanted if states.get(path) != wanted[path]}
        | (states.keys() - wanted.keys())
        | ({f"{len(lines)} lines"} if len(lines) != len(wanted) else set()),
    }
    return {what: sorted(names) for what, names in wrong.items() if names}


def run_rounds(args: argparse.Namespace, root: Path) -> list[Round]:
    """Rounds until there are enough with a kill, or one in which anything is wrong."""
    make_archive(root / "in", args.files - args.poison, args.poison, random.Random(args.seed))
    good = sorted(str(path) for path in (root / "in").iterdir() if "poison" not in path.name)
    list(transcribe(good, root / "serial", cluster=Serial(), language="en"))
    (root / "sitecustomize.py").write_text(POISON)
    started, rounds = time.monotonic(), list[Round]()
    with contextlib.closing(Processes(root, 2)) as processes:
        while sum(one.kills.total() > 0 for one in rounds) < args.rounds and time.monotonic() - started < args.limit_s:
            number = len(rounds) + 1
            out = root / f"out{number}"
            out.mkdir()
            rounds.append(one_round(processes, out, random.Random(f"{args.seed} {number}")))
            rounds[-1].wrong |= found_wrong(out, root / "serial")
            print(f"round {number}: {rounds[-1]}", flush=True)
            if rounds[-1].wrong:
                place = Path.cwd() / f"fleet-kills-{args.seed}-{number}"
                shutil.copytree(out, place, dirs_exist_ok=True)
                shutil.copyfile(processes.log, place / "log")
                print(f"see {place}")
                break
            shutil.rmtree(out, ignore_errors=True)  # a process whose parent was killed may still be writing
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no round after so many seconds")
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--poison", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault("SPECEDGE_MODEL", str(DEMO))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        rounds = run_rounds(args, Path(scratch))
    kills, ends = (sum((getattr(one, what) for one in rounds), Counter()) for what in ("kills", "ends"))
    wrong = {what: names for one in rounds for what, names in one.wrong.items()}
    print(json.dumps({**vars(args), "rounds": len(rounds), "kills": dict(kills), "ends": dict(ends), "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
