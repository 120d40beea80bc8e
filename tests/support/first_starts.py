"""Processes that load a bundle for the first time, all at the same moment."""

from __future__ import annotations

import subprocess
import sys

from support.exported import bundle

STARTS = """
import sys
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.engine import Engine
import numpy as np, hashlib
opened = Bundle.open({bundle!r})
print("ready", flush=True)
sys.stdin.readline()
engine = Engine(opened, threads=1)
features = engine.encode(np.zeros((80, 200), np.float32))
logits = engine.forward(engine.start(features), [1, 2, 3])
print(hashlib.sha256(features.hidden.tobytes() + logits.tobytes()).hexdigest())
"""


def starts(n_processes: int) -> set[tuple[int, str, str]]:
    """Exit codes, outputs and errors of processes that make an engine at the same moment."""
    command = [sys.executable, "-c", STARTS.format(bundle=str(bundle("int8").path))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen(command, text=True, **pipes) for _ in range(n_processes)]  # type: ignore[call-overload]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    results = set()
    for process in processes:
        out, err = process.communicate(timeout=120)
        results.add((process.returncode, out, err))
    return results
