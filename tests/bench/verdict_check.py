"""Whether the verdict of `specedge bench` is right: every setting measured by itself afterwards.

    python tests/bench/verdict_check.py AUDIO [-m MODEL] [--threads 2] [--budget 150] [--rounds 3] [--drafters NAMES]

The bench runs as a user runs it, in a process of its own, and is timed from outside. Then each setting transcribes
AUDIO in a fresh process, all of them one after another in each round, beginning with another one each time, with the
temperatures that the bench came to. What is compared is what the verdict is about, the time in decoder and drafter; of
rounds the median. The choice is right when it takes at most 1.05 times as long as the best; end to end is told beside.

It does not measure a busy machine: nothing else may run. A file that the bench heard in part is heard whole here. The
last line of output is JSON; the exit code is 1 when the verdict is wrong or the bench took 180 s or more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rounds import BenchError, print_json, print_table, run_text

from specedge.runtime.bench.rounds import turned

ALLOWED = 1.05  # times the best
LIMIT_S = 180.0


def main() -> int:
    """Read the arguments, run the bench, check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("audio", type=Path)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("-l", "--language", default="en")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=150)
    parser.add_argument("--rounds", type=int, default=3, help="of the check")
    parser.add_argument("--drafters", help="as for specedge bench")
    given = parser.parse_args()
    specedge = [sys.executable, "-m", "specedge"]
    common = [str(given.audio), "-m", str(given.model), "-t", str(given.threads), "-l", given.language]
    asked = ["--drafters", given.drafters] if given.drafters else []
    started = time.perf_counter()
    try:
        said = run_text([*specedge, "bench", *common, "--budget", f"{given.budget:g}", *asked], env={})
        bench_s = time.perf_counter() - started
        found = json.loads(said.splitlines()[-1])
        alone = ["--temperature-increment-on-fallback", "None"]  # as the bench decodes
        command = [*specedge, "transcribe", *common, "-q", "-f", "json", *alone, "--drafter"]
        names = list(found["drafters"])
        spent: dict[str, list[float]] = {name: [] for name in names}
        whole: dict[str, list[float]] = {name: [] for name in names}
        for round_ in range(given.rounds):
            for name in turned(names, round_):
                begun = time.perf_counter()
                counted = json.loads(run_text([*command, name], env={}))["speculation"]
                whole[name].append(time.perf_counter() - begun)
                spent[name].append(counted["decoder_s"] + counted["draft_s"])
    except BenchError as error:
        raise SystemExit(f"verdict_check: {error}") from None
    return _report(found, spent, whole, bench_s)


def _report(
    found: dict[str, Any], spent: Mapping[str, list[float]], whole: Mapping[str, list[float]], bench_s: float
) -> int:
    verdict = found["verdict"]
    took = {name: statistics.median(values) for name, values in spent.items()}
    best = min(took, key=took.__getitem__)
    over = took[verdict["drafter"]] / took[best]
    rows = [["drafter", "in the bench", "by itself", "decoder s", "(spread)", "process s"]]
    for name, values in spent.items():
        cells = [f"{found['drafters'][name]['decoder_speed_up'][0]:.2f}x", f"{took['none'] / took[name]:.2f}x"]
        spread = f"{min(values):.3f}-{max(values):.3f}"
        rows.append([name, *cells, f"{took[name]:.3f}", spread, f"{statistics.median(whole[name]):.3f}"])
    print_table(rows)
    is_right = over <= ALLOWED and bench_s < LIMIT_S
    print(f"the bench took {bench_s:.1f} s and chose {verdict['drafter']} on {verdict['rounds']} rounds")
    print(f"by itself the best is {best}; the choice takes {over:.3f} times as long: {'met' if is_right else 'MISSED'}")
    print_json(
        "verdict_check",
        bench_s=round(bench_s, 2),
        limit_s=LIMIT_S,
        chosen=verdict["drafter"],
        rounds=verdict["rounds"],
        measured_less=found["measured_less"],
        best=best,
        times_the_best=round(over, 4),
        allowed=ALLOWED,
        decoder_s={name: round(seconds, 4) for name, seconds in took.items()},
        process_s={name: round(statistics.median(values), 4) for name, values in whole.items()},
        right=is_right,
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
