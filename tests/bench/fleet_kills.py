"""A fleet whose processes are killed: has every file exactly one whole result afterwards, that of the serial run?

    python tests/bench/fleet_kills.py [--rounds 100] [--limit-s 3600] [--files 40] [--poison 2] [--seed 0]

An archive of short files is transcribed over and over on a Dask cluster of a scheduler and two workers, each in
processes of its own. In every round one to six SIGKILLs come at random moments: to a worker, to the nanny that would
start it again, to the driver (`specedge fleet`) or to the scheduler. What died is started again, the driver with the
same command, until a driver ends by itself. A poison file kills whoever opens it. Then the output folder is compared:

  missing, extra   good files without a result, results that nobody asked for
  torn             results that differ from the serial run's by any byte
  left_over        temporary files, parts
  wrong_records    good files whose record is not "done", poison files whose record is not "quarantined"

Prints a line a round and a last line of JSON; exit code 1 when anything was found. Times mean nothing here.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from specedge.fleet import transcribe  # noqa: E402
from specedge.models import store  # noqa: E402
from specedge.runtime.audio.audio import decode_audio  # noqa: E402
from support.fleets import Serial  # noqa: E402
from support.sound import wav_bytes  # noqa: E402

VICTIMS = ("worker", "worker", "worker", "nanny", "driver", "driver", "scheduler")
MOST_KILLS, PATIENCE_S = 6, 600.0
POISON = """import os, sys
def hook(event, args):
    if event == "open" and "poison" in str(args[0]).rpartition("/")[2]:
        os.kill(os.getpid(), 9)
sys.addaudithook(hook)
"""


def make_archive(folder: Path, n_good: int, n_poison: int, rng: random.Random) -> None:
    """Files of one to three sentences, each with silences of its own."""
    folder.mkdir()
    samples = [decode_audio(str(path)) for path in store.samples()]
    for number in range(n_good + n_poison):
        turns = [np.pad(rng.choice(samples), (0, rng.randint(2000, 16000))) for _ in range(rng.randint(1, 3))]
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
        self._log = open(root / "log", "ab")
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.nannies: list[subprocess.Popen[bytes]] = []
        self.driver: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    def revive(self) -> None:
        """Start the scheduler and workers that are gone."""
        if self.scheduler is None or self.scheduler.poll() is not None:
            dask = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(self._port)]
            self.scheduler = self._start(*dask, "--no-dashboard")
        self.nannies = [one for one in self.nannies if one.poll() is None]
        while len(self.nannies) < self._n_workers:
            dask = ["distributed.cli.dask_worker", self.address, "--nthreads", "1", "--no-dashboard"]
            self.nannies.append(self._start(*dask, "--local-directory", str(self._root), "--death-timeout", "20"))

    def start_driver(self, out: Path) -> None:
        command = ["specedge", "fleet", "in", "-o", out.name, "-l", "en", "--cluster", self.address]
        self.driver = self._start(*command)

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


def one_round(processes: Processes, out: Path, rng: random.Random) -> Counter[str]:
    """Transcribe the archive into `out` through random kills; how many of each there were."""
    kills: Counter[str] = Counter()
    n_wanted = rng.randint(1, MOST_KILLS)
    deadline = time.monotonic() + PATIENCE_S
    next_kill = time.monotonic() + rng.uniform(1.0, 8.0)
    processes.revive()
    processes.start_driver(out)
    while time.monotonic() < deadline:
        time.sleep(0.05)
        processes.revive()
        if sum(kills.values()) < n_wanted and time.monotonic() > next_kill:
            victim = rng.choice(VICTIMS)
            kills[victim] += processes.kill(victim, rng)
            next_kill = time.monotonic() + rng.uniform(0.2, 4.0)
        driver = processes.driver
        code = None if driver is None else driver.poll()
        if code == 1:  # ended by itself: all done, but for the poison files
            return +kills
        if code is not None:
            processes.start_driver(out)
    raise TimeoutError(f"a round took more than {PATIENCE_S:.0f} s")


def found_wrong(out: Path, serial: Path) -> Counter[str]:
    """What a round left that it should not have."""
    there, expected = ({path.name: path for path in (folder / "results").iterdir()} for folder in (out, serial))
    wrong: Counter[str] = Counter()
    wrong["missing"] = len(expected.keys() - there.keys())
    hidden = [name for name in there if name.startswith(".")]
    wrong["extra"] = len(there.keys() - expected.keys()) - len(hidden)
    wrong["torn"] = sum(there[name].read_bytes() != expected[name].read_bytes() for name in there.keys() & expected)
    parts = list((out / "parts").iterdir()) if (out / "parts").is_dir() else []
    wrong["left_over"] = len(hidden) + len(parts)
    records = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    states = {record["path"]: record["state"] for record in records}
    good = {path: "quarantined" if "poison" in path else "done" for path in states}
    n_files = sum(1 for _ in (out.parent / "in").iterdir())
    wrong["wrong_records"] = sum(states[path] != good[path] for path in states) + abs(n_files - len(records))
    return +wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no round after so many seconds")
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--poison", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    rng = random.Random(args.seed)
    kills: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    n_rounds, started = 0, time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        root = Path(scratch)
        make_archive(root / "in", args.files - args.poison, args.poison, rng)
        good = sorted(str(path) for path in (root / "in").iterdir() if "poison" not in path.name)
        list(transcribe(good, root / "serial", cluster=Serial(), language="en"))
        (root / "sitecustomize.py").write_text(POISON)
        with contextlib.closing(Processes(root, 2)) as processes:
            while n_rounds < args.rounds and time.monotonic() - started < args.limit_s:
                out = root / f"out{n_rounds}"
                killed, found = one_round(processes, out, rng), found_wrong(out, root / "serial")
                kills, wrong, n_rounds = kills + killed, wrong + found, n_rounds + 1
                print(f"round {n_rounds}: killed {dict(killed)}, wrong {dict(found)}", flush=True)
                if found:
                    shutil.copytree(out, Path.cwd() / f"fleet-kills-{args.seed}-{n_rounds}", dirs_exist_ok=True)
                shutil.rmtree(out)
    told = {"rounds": n_rounds, "files": args.files, "poison": args.poison, "kills": dict(kills), "wrong": dict(wrong)}
    print(json.dumps(told))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
