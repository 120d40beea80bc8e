"""Commands killed with SIGKILL: is every file old or new afterwards, and nothing left over after the next run?

    python tests/kills/kills.py [--kills 1000] [--limit-s 600] [--only maps,export] [--seed 0]

A child forked from this process, which has imported everything, runs a command in turns, so that its files change with
every turn. It dies at a random moment, or, every other time, just before one of its calls that touch a file, each of
them in turn. Then the files are looked at as they lie; after every tenth kill the command runs once to its end, and
only what belongs there may be there. What is run:

  outputs   `transcribe` onto transcripts in every format
  learned   `transcribe --remember`, the learned database
  maps      `map build` onto a map
  export    `export --force` onto a bundle

Prints a table and a last line of JSON; exit code 1 when something was torn, left over, or a command failed.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads must not fork

import argparse
import contextlib
import itertools
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

import victims  # noqa: E402
from victims import KINDS, Victim  # noqa: E402

KILLS_A_RUN = 10
_CALLS = {
    "open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod", "os.utime", "os.truncate",
    "shutil.rmtree", "fcntl.flock", "sqlite3.connect",
}  # fmt: skip
_FAILED = 70  # the child's exit code when the command failed


@dataclass
class Row:
    """What became of the kills of one kind; `at_calls` of them came before a call, the others at random moments."""

    kills: int = 0
    at_calls: int = 0
    torn: int = 0
    left_over: int = 0
    failed: int = 0
    seconds: float = 0.0
    remarks: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not (self.torn or self.left_over or self.failed)

    def count(self, column: str, found: Sequence[str]) -> None:
        setattr(self, column, getattr(self, column) + len(found))
        self.remarks += found[: 20 - len(self.remarks)]


def forked(work: Callable[[], None], log: Path) -> int:
    """`work` in a child, whose messages go to `log`; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = _FAILED
    try:
        descriptor = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        work()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def at_calls(folder: Path, act: Callable[[], None]) -> None:
    """Have this process `act` whenever it is about to make a call that touches something in `folder`."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "fcntl.flock" or event in _CALLS and any(_is_in(argument, folder) for argument in arguments):
            act()

    sys.addaudithook(hook)


def _is_in(argument: object, folder: Path) -> bool:
    return isinstance(argument, str | bytes | os.PathLike) and os.fsdecode(argument).startswith(str(folder))


def kill_all(victim: Victim, n_kills: int, deadline: float, rng: random.Random, row: Row) -> None:
    """So many kills of one kind, or as many as there is time for."""
    log, counted, turn, started = victim.root / "log", victim.root / "calls", 0, time.monotonic()
    whole_s = _run_whole(victim, 1, log, row)
    os.waitpid(forked(partial(_count_calls, victim, 2, counted), log), 0)
    calls: list[int] = []
    while row.kills < n_kills and row.is_sound and time.monotonic() < deadline:
        turn += 1
        by_call = turn // 2 % 2 == 0
        if by_call:
            if not calls:  # each once, then again
                calls = list(range(int(counted.read_text())))
                rng.shuffle(calls)
            pid = forked(partial(_work_until, victim, turn, calls.pop()), log)
        else:
            pid = forked(partial(_work_on, victim, turn), log)
            time.sleep(rng.uniform(0, 1.5 * whole_s))
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            row.kills += 1
            row.at_calls += by_call
        elif os.WEXITSTATUS(status) != 0:
            row.count("failed", [f"turn {turn}: {_tail(log)}"])
        row.count("torn", [f"turn {turn}: {line}" for line in victim.torn()])
        if row.kills and row.kills % KILLS_A_RUN == 0 or row.kills >= n_kills:
            _run_whole(victim, turn + 1, log, row)
    row.seconds = time.monotonic() - started


def _work_until(victim: Victim, turn: int, call: int) -> None:
    """Die before the call of this number."""
    numbers = itertools.count()
    at_calls(victim.folder, lambda: os.kill(os.getpid(), signal.SIGKILL) if next(numbers) >= call else None)
    victim.work(turn)


def _count_calls(victim: Victim, turn: int, counted: Path) -> None:
    numbers = itertools.count()
    at_calls(victim.folder, lambda: next(numbers) and None)
    victim.work(turn)
    counted.write_text(str(next(numbers)))


def _work_on(victim: Victim, turn: int) -> None:
    while True:
        victim.work(turn)
        turn += 1


def _run_whole(victim: Victim, turn: int, log: Path, row: Row) -> float:
    """The next run, which nobody kills; seconds."""
    started = time.monotonic()
    status = os.waitpid(forked(partial(victim.work, turn), log), 0)[1]
    if status != 0:
        row.count("failed", [f"the run after {row.kills} kills ended with status {status}: {_tail(log)}"])
    row.count("torn", [f"after a whole run: {line}" for line in victim.torn()])
    row.count("left_over", [f"after {row.kills} kills: {name}" for name in victim.left_over()])
    return time.monotonic() - started


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        return " / ".join(log.read_text(errors="replace").splitlines()[-3:])[-400:]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="in all")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin nothing new after this")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    kinds = given.only.split(",")
    started, rows = time.monotonic(), {kind: Row() for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="specedge-kills-") as folder:
        victims.import_everything()
        for at, kind in enumerate(kinds):
            root = Path(folder) / kind
            root.mkdir()
            victim = KINDS[kind](root)
            pid = forked(victim.prepare, root / "log")
            if os.waitpid(pid, 0)[1] != 0:
                rows[kind].count("failed", [f"the first run: {_tail(root / 'log')}"])
                continue
            n_left = given.kills - sum(row.kills for row in rows.values())
            share_s = (given.limit_s - (time.monotonic() - started)) / (len(kinds) - at)
            deadline = time.monotonic() + share_s
            kill_all(victim, n_left // (len(kinds) - at), deadline, random.Random(f"{given.seed} {kind}"), rows[kind])
            print(f"{kind}: {rows[kind]}", file=sys.stderr, flush=True)
    columns = ("kills", "at_calls", "torn", "left_over", "failed", "seconds")
    print(f"{'kind':10}" + "".join(f"{name:>11}" for name in columns))
    for kind, row in rows.items():
        print(f"{kind:10}" + "".join(f"{round(getattr(row, name)):>11}" for name in columns))
    for kind, row in rows.items():
        for remark in row.remarks:
            print(f"{kind}, {remark}")
    sums = {name: sum(getattr(row, name) for row in rows.values()) for name in columns[:-1]}
    figures = {"lane": "kills", "runs": sums["kills"], "failures": sums["torn"] + sums["left_over"] + sums["failed"]}
    print(json.dumps({**figures, **sums, "kinds": {kind: asdict(row) for kind, row in rows.items()}}))
    return 1 if figures["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
