"""Start of the engine: time of Bundle.open and Engine, and resident memory before the first pass, in fresh processes.

    python tests/bench/load.py BUNDLE [--rounds 7]

A cache folder of its own is filled by the first process, whose time (packing the weights) is reported apart; the others
find the packed weights there. Files are in the page cache by then, so disks are not measured, and neither are Python's
start and the imports: memory is given in all and over what the process held after its imports, each split into
anonymous memory and pages mapped from files, which the system can drop and share. The targets are for the small shape.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rounds import BenchError, print_json, print_table, run_text

TARGETS = {"load s": 0.5, "resident MB": 60.0}

CHILD = """
import json, sys, time
sys.path.insert(0, sys.argv[3])
from worker import memory_mb
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.engine import Engine
before = memory_mb()
started = time.perf_counter()
bundle = Bundle.open(sys.argv[1])
opened = time.perf_counter()
engine = Engine(bundle, threads=int(sys.argv[2]))
ready = time.perf_counter()
print(json.dumps({"open_s": opened - started, "engine_s": ready - opened, "before": before, "after": memory_mb()}))
"""


def load_once(bundle: Path, threads: int, cache: str) -> dict[str, Any]:
    """One fresh process: seconds and memory."""
    here = str(Path(__file__).resolve().parent)
    command = [sys.executable, "-c", CHILD, str(bundle), str(threads), here]
    found: dict[str, Any] = json.loads(run_text(command, env={"SPECEDGE_CACHE": cache}))
    return found


def metrics(found: dict[str, Any]) -> dict[str, float]:
    """The figures of one process."""
    values = {"load s": found["open_s"] + found["engine_s"], "open s": found["open_s"], "engine s": found["engine_s"]}
    before, after = found["before"], found["after"]
    names = {"now": "resident MB", "anonymous": "anonymous MB", "mapped": "mapped MB", "peak": "peak MB"}
    for key, name in names.items():
        if key in after:
            values[name] = after[key]
            values[f"{name} over imports"] = after[key] - before[key]
    return values


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="specedge-bench-") as cache:
            first = metrics(load_once(options.bundle, options.threads, cache))
            warm = [metrics(load_once(options.bundle, options.threads, cache)) for _ in range(options.rounds)]
    except (BenchError, OSError) as error:
        raise SystemExit(f"load: {error}") from None
    medians = {name: statistics.median(values[name] for values in warm) for name in warm[0]}
    rows = [["", "first start", "later, median", "min", "max", "target"]]
    for name, median in medians.items():
        values = [found[name] for found in warm]
        target = TARGETS.get(name)
        verdict = "" if target is None else f"< {target:g} {'met' if median < target else 'MISSED'}"
        rows.append([name, *(f"{value:.4g}" for value in (first[name], median, min(values), max(values))), verdict])
    print_table(rows)
    print_json(
        "load", bundle=options.bundle.name, threads=options.threads, first=first, median=medians, targets=TARGETS
    )


if __name__ == "__main__":
    main()
