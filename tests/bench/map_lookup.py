"""What a look-up in a large token map costs, and how much memory processes share.

    python tests/bench/map_lookup.py [--tokens 6000000] [--rounds 9]

Builds a map from made-up text (sentences of Zipf-distributed ids of which half repeats earlier ones, key lengths 1 to
3), and measures from Python: opening, the first look-up (which checks large sections), `find` for keys that are there
and keys that are not, `lookup` with its candidates, and the proportional set size of one reader and of two. Files are
in the page cache; reading from a cold disk is not measured. The last line is JSON.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from rounds import print_json, print_table

from specedge.maps.build import BuildOptions, build
from specedge.maps.token_map import TokenMap

N_TEXT = 50257
N_ASKED = 20_000
SENTENCE = 12

READER = """
import sys, time
from specedge.maps.token_map import TokenMap
opened = TokenMap.open(sys.argv[1])
opened.verify()
print("ready", flush=True)
sys.stdin.readline()
"""


def sentences(n_tokens: int) -> Iterator[list[int]]:
    """Made-up text, always the same."""
    rng = np.random.default_rng(7)
    n = n_tokens // SENTENCE
    fresh = np.minimum(rng.zipf(1.25, (n // 2 + 1, SENTENCE)), N_TEXT - 1)
    for i in range(n):
        row = fresh[i // 2] if i % 2 == 0 else fresh[int(rng.integers(0, i // 2 + 1))]
        yield row.tolist()


def microseconds(
    call: Callable[[Sequence[int], int], object], asked: list[tuple[list[int], int]], rounds: int
) -> float:
    """Median over rounds of the mean time of a call."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        for context, n in asked:
            call(context, n)
        times.append((time.perf_counter() - started) / len(asked))
    return statistics.median(times) * 1e6


def shared_bytes(path: Path, n_processes: int) -> int | None:
    """The proportional set size of the map in one of so many readers; None where the system does not tell."""
    if not Path("/proc/self/smaps").exists():
        return None
    command = [sys.executable, "-c", READER, str(path)]
    readers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(n_processes)]
    try:
        for reader in readers:
            assert reader.stdout is not None
            reader.stdout.readline()
        total, inside = 0, False
        for line in Path(f"/proc/{readers[0].pid}/smaps").read_text().splitlines():
            if "-" in line.split(" ")[0]:
                inside = line.endswith(path.name)
            elif inside and line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
        return total
    finally:
        for reader in readers:
            reader.communicate(b"\n")


def main() -> None:
    """Build, ask, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=6_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.tmap"
        build(
            sentences(options.tokens),
            path,
            n_text=N_TEXT,
            fingerprint=bytes(32),
            options=BuildOptions(n_orders=3, n_candidates=2, max_length=6),
        )
        opening = []
        for _ in range(options.rounds):
            started = time.perf_counter()
            TokenMap.open(path).close()
            opening.append((time.perf_counter() - started) * 1e3)
        found = measured(path, options.rounds) | {"open_ms": round(statistics.median(opening), 3)}
        found |= {"pss_one_bytes": shared_bytes(path, 1), "pss_of_two_bytes": shared_bytes(path, 2)}
    print_table([["what", "value"], *([name, str(value)] for name, value in found.items())])
    print_json("map_lookup", **found)


def measured(path: Path, rounds: int) -> dict[str, float | int | None]:
    """Times of look-ups and sizes."""
    rng = random.Random(3)
    with TokenMap.open(path) as opened:
        started = time.perf_counter()
        opened.find([1], 1)
        first_ms = (time.perf_counter() - started) * 1e3
        keys = [key for n in (2, 3) for key, _ in opened.items(n) if 0xFFFF not in key]
        hits = [([5, 6, *key], len(key)) for key in rng.sample(keys, min(N_ASKED, len(keys)))]
        known = set(keys)
        misses = []
        while len(misses) < N_ASKED:
            key = tuple(rng.choice(keys)[-1:] + tuple(rng.randrange(N_TEXT) for _ in range(2)))
            misses += [([5, *key], 3)] if key not in known else []
        n_keys = sum(opened.info()["keys"].values())
        size = path.stat().st_size
        return {
            "keys": n_keys,
            "size_bytes": size,
            "bytes_per_key": round(size / n_keys, 2),
            "first_lookup_ms": round(first_ms, 2),
            "find_hit_us": round(microseconds(opened.find, hits, rounds), 3),
            "find_miss_us": round(microseconds(opened.find, misses, rounds), 3),
            "lookup_hit_us": round(microseconds(opened.lookup, hits, rounds), 3),
        }


if __name__ == "__main__":
    main()
