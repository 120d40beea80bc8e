"""The memory that `specedge map build` takes for a large corpus.

    python tests/bench/map_corpus.py [--megabytes 1000] [--budget 64MB] [-m MODEL]

Pipes made-up text (60,000 words of syllables, Zipf-distributed, two sentences in five heard before) into the command as
a person would, and gives the peak of its resident memory, the disk space at the end and what the map holds. How fast it
goes is printed too, but is not what is measured. The text has no grammar: natural text repeats more and at greater
lengths. The last line is JSON.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rounds import print_json

N_WORDS = 60_000
BLOCK = 4096  # sentences made at a time


def words(rng: np.random.Generator) -> list[str]:
    """Pronounceable words, the frequent ones short."""
    heads, vowels, tails = (
        "b d f g k l m n p r s t v w st tr pl".split(),
        "a e i o u ee ai".split(),
        ["", "n", "r", "st"],
    )
    found: dict[str, None] = {}
    while len(found) < N_WORDS:
        n_syllables = 1 + int(np.log10(10 + len(found)) * rng.uniform(0.5, 1.0))
        found["".join(rng.choice(heads) + rng.choice(vowels) + rng.choice(tails) for _ in range(n_syllables))] = None
    return list(found)


def sentences(n_bytes: int) -> Iterator[str]:
    """Lines of at least `n_bytes` in all, always the same."""
    rng = np.random.default_rng(11)
    known = np.array(words(rng), dtype=object)
    earlier: list[str] = []
    done = 0
    while done < n_bytes:
        ranks = np.minimum(rng.zipf(1.15, (BLOCK, 14)), N_WORDS) - 1
        lengths = rng.integers(5, 15, BLOCK)
        again = rng.random(BLOCK) < 0.4
        for i in range(BLOCK):
            if again[i] and earlier:
                line = earlier[int(rng.integers(0, len(earlier)))]
            else:
                line = " ".join(known[ranks[i, : lengths[i]]]).capitalize() + "."
                if len(earlier) < 1_000_000:
                    earlier.append(line)
            done += len(line) + 1
            yield line


def main() -> None:
    """Build once and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--budget", default="64MB")
    parser.add_argument("-m", "--model", default="demo")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.tmap"
        command = [sys.executable, "-m", "specedge", "map", "build", "-", "-o", str(path), "-m", args.model]
        command += ["--budget", args.budget]
        started = time.perf_counter()
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, encoding="utf-8") as builder:
            if builder.stdin is None:
                raise SystemExit("the builder has no standard input")
            for line in sentences(args.megabytes * 1_000_000):
                builder.stdin.write(line + "\n")
            builder.stdin.close()
            rc = builder.wait()
        print_json(
            "map_corpus",
            megabytes=args.megabytes,
            rc=rc,
            peak_megabytes=round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000, 1),
            map_bytes=path.stat().st_size if path.exists() else 0,
            seconds=round(time.perf_counter() - started, 1),
        )


if __name__ == "__main__":
    main()
