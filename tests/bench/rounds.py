"""The side of a benchmark that asks: peers in processes of their own, one at work at a time, medians and ratios.

Imports little and stays small, because a child's peak memory as the system reports it is never below its parent's at
the time of the fork. It does not know what the peers are.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specedge.runtime.output.report import aligned

HERE = Path(__file__).resolve().parent
SETTLE_STEP_S = 0.05
SETTLE_LIMIT_S = 3.0


class BenchError(Exception):
    """A peer failed, or did something else than what was to be compared."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """How to start a peer: its name in tables, the Python that has it, the worker script and its arguments."""

    name: str
    python: str
    script: str
    arguments: tuple[str, ...]


class Running:
    """A peer's process. Use as a context manager."""

    def __init__(self, peer: Peer, *, threads: int) -> None:
        self.name = peer.name
        # Numeric libraries beneath a peer keep pools of their own; all get the same number of threads.
        pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        self._process = subprocess.Popen(
            [peer.python, str(HERE / peer.script), *peer.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict.fromkeys(pools, str(threads)), "HF_HUB_OFFLINE": "1"},
        )
        self.operations = frozenset(self._read()["operations"])

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, op: str, *, warm: int = 0, repeat: int = 1, **arguments: Any) -> tuple[float, Any]:
        """The median time of `repeat` calls in ms, and the last one's value; returns when the process is idle again."""
        assert self._process.stdin is not None
        print(json.dumps({"op": op, "warm": warm, "repeat": repeat, **arguments}), file=self._process.stdin, flush=True)
        answer = self._read()
        self._settle()
        return statistics.median(answer["ms"]), answer["value"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"{self.name}: the worker ended with code {self._process.wait()}; its reason is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _settle(self) -> None:
        """Wait until the process uses no CPU: thread pools spin for a while after work, at the next peer's cost."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        before = self._cpu_ticks()
        while time.monotonic() < deadline:
            time.sleep(SETTLE_STEP_S)
            now = self._cpu_ticks()
            if now == before:
                return
            before = now
        raise BenchError(f"{self.name}: still busy {SETTLE_LIMIT_S} s after its work; nothing beside it can be timed")

    def _cpu_ticks(self) -> int:
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            return 0
        return int(fields[11]) + int(fields[12])


Series = dict[str, list[float]]
"""Values of one peer by metric, one a round."""


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Ours over theirs, round by round: the median, and the spread, which says how quiet the machine was."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(pairs), "min": min(pairs), "max": max(pairs)}


def report(metrics: Sequence[str], series: Mapping[str, Series], targets: Mapping[str, Mapping[str, float]]) -> Any:
    """Print the table and return what belongs into the JSON. The first peer of `series` is ours.

    `targets`: by peer, then by metric, the largest ratio that is good enough.
    """
    ours, *others = series
    rows = [["", *(f"{name}" for name in series), *(f"/ {name}" for name in others), "target"]]
    result: dict[str, Any] = {"medians": {name: {} for name in series}, "ratios": {name: {} for name in others}}
    for metric in metrics:
        row = [metric]
        for name, values in series.items():
            median = statistics.median(values[metric]) if metric in values else None
            row.append("-" if median is None else f"{median:.4g}")
            if median is not None:
                result["medians"][name][metric] = median
        wanted = []
        for name in others:
            if metric not in series[name] or metric not in series[ours]:
                row.append("-")
                continue
            ratio = ratios(series[ours][metric], series[name][metric])
            result["ratios"][name][metric] = ratio
            row.append(f"{ratio['median']:.3f} ({ratio['min']:.2f}-{ratio['max']:.2f})")
            target = targets.get(name, {}).get(metric)
            if target is not None:
                ratio["target"] = target
                wanted.append(f"{name} <= {target:g} {'met' if ratio['median'] <= target else 'MISSED'}")
        rows.append([*row, ", ".join(wanted)])
    print_table(rows)
    return result


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Columns of equal width (text_table.aligned)."""
    print("\n".join(aligned(rows)))


def print_json(benchmark: str, **fields: Any) -> None:
    """The last line of every benchmark."""
    machine = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "load_average": _load_average(),
        "commit": commit(),
    }
    print(json.dumps({"benchmark": benchmark, "machine": machine, **fields}))


def commit() -> str:
    """The checked out commit, "unknown" outside of a repository."""
    command = ["git", "-C", str(HERE), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def _load_average() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def run_text(command: Sequence[str], *, env: Mapping[str, str]) -> str:
    """Run a command to its end and return what it printed."""
    done = subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{command[0]} ended with code {done.returncode}; its reason is above")
    return done.stdout
