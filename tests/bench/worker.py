"""The side of a benchmark that does the work: one process a peer, told by lines of JSON what to time.

It runs under the peer's own Python, so it imports the standard library alone. A request is one line on stdin,
`{"op": NAME, "warm": 1, "repeat": 3, ...arguments}`; the answer is one line, `{"ms": [3 times], "value": what the last
call returned}`. Between requests the process waits for a line and does nothing else. What libraries print goes to
stderr.
It does not know what is compared with what.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Operation = Callable[..., Any]


def serve(operations: dict[str, Operation]) -> None:
    """Answer requests until stdin ends. Every operation is called with the request's other fields."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    known: dict[str, Operation] = {"memory": memory_mb, "waited": waited_share, **operations}
    print(json.dumps({"operations": sorted(known)}), file=answers, flush=True)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        operation = known[request.pop("op")]
        n_warm, n_repeat = request.pop("warm", 0), request.pop("repeat", 1)
        times_ms = []
        value = None
        for i in range(n_warm + n_repeat):
            started = time.perf_counter()
            value = operation(**request)
            if i >= n_warm:
                times_ms.append((time.perf_counter() - started) * 1e3)
        print(json.dumps({"ms": times_ms, "value": value}), file=answers, flush=True)


def memory_mb() -> dict[str, float]:
    """Resident memory in MB (10^6 bytes): now, of it anonymous and mapped from files, and at most so far.

    Linux's counters of this address space; elsewhere only the peak, from getrusage.
    """
    names = {"VmRSS": "now", "RssAnon": "anonymous", "RssFile": "mapped", "VmHWM": "peak"}
    found: dict[str, float] = {}
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6}
    for line in lines:
        key, _, rest = line.partition(":")
        if key in names:
            found[names[key]] = int(rest.split()[0]) * 1024 / 1e6
    return found


def waited_share() -> float | None:
    """The share of its runnable time that this process waited for a CPU: how quiet the machine was. Linux only."""
    n_ran = n_waited = 0
    try:
        for task in Path("/proc/self/task").iterdir():
            ran, waited, _ = (task / "schedstat").read_text(encoding="ascii").split()
            n_ran, n_waited = n_ran + int(ran), n_waited + int(waited)
    except OSError:
        return None
    return n_waited / max(1, n_ran + n_waited)


def sampled(values: Any, n_values: int = 256) -> list[float]:
    """Values at equal distances of a NumPy array, to compare what two peers computed."""
    flat = values.reshape(-1)
    return [float(value) for value in flat[:: max(1, flat.size // n_values)][:n_values]]
