"""A command run to its end in a process of its own, with what it cost as the system counts it.

Stays small: a child's peak memory as the system reports it is never below its parent's at the time of the fork, so this
is asked before anything large is loaded. Does not know: what the command does.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from specedge.runtime.errors import SpecedgeError

__all__ = ["can_measure", "run_measured"]

_STEP_S = 0.02  # how often a process with a limit is looked at


def can_measure() -> bool:
    """Whether this system tells what a child has used; Windows does not."""
    return hasattr(os, "wait4")


def run_measured(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
    limit_s: float = math.inf,
) -> dict[str, float]:
    """Run a command to its end: `wall_s`, `cpu_s`, `peak_mb` of the largest process below it.

    env: variables besides those of this process; its standard error is ours, unless `quiet`; limit_s: it is killed
    after so many seconds, which is no error, and `wall_s` is not below them. Raises SpecedgeError when it ends by
    itself with another code than 0.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if quiet else None,
        env=None if env is None else {**os.environ, **env},
    )
    is_killed = False
    try:
        pid = 0
        while math.isfinite(limit_s) and not is_killed:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(_STEP_S)
            is_killed = time.perf_counter() - started >= limit_s
        if is_killed:
            process.kill()
        if not pid:
            _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 and not is_killed:
        reason = "" if quiet else "; its reason is above"
        raise SpecedgeError(f"{' '.join(command)} ended with code {process.returncode}{reason}")
    unit = 1 if sys.platform == "darwin" else 1024
    return {"wall_s": wall_s, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss * unit / 1e6}
