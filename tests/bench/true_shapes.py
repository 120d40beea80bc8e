"""What drafting gains at the shapes that people use: the demo grown to base, small, medium, large-v2, and its pass.

    python tests/bench/true_shapes.py [--shapes base,small] [--speech FOLDER | --audio FOLDER [--texts FILE]]
                                      [--limit 16] [--rounds 3] [--threads 2] [--grown FOLDER]

Models are grown where they are missing (models/recipe/grow.py), into --grown or the user's cache; they say what the
demo says, at another price. Speech is --speech, shards of the dev lists in held-out voices (models/recipe/speech.py),
which are spoken first where they are missing (espeak-ng, flite and festival are needed), or the recordings in --audio,
with a map of --texts, sentences of their domain, one a line; without --texts it is the maps of the training lists.

A shape's first table is about its decoder's pass: one row (T(1)) beside the time in which as many threads read the
decoder's weights from memory, T(8) and T(16) over T(1), and what several paths cost beyond their rows, in passes. The
second has, for each domain and drafter, plain decoding's time over the drafter's, decoder and drafting together, as
`speculate.py` measures it: medians of interleaved rounds, with the least and the greatest. "ctc alone" has no map;
"draft" is the bundle's own, two layers on the same encoder; medium and large-v2 also have one of base's shape.

It does not measure accuracy, or a busy machine: nothing else may run, and what did is told. The last line of output is
JSON; the exit code is 1 when any text, time or log-probability differs from plain decoding's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.speculate import LISTS, Domain, domains, map_of, measure, report  # noqa: E402

from specedge.errors import SpecedgeError  # noqa: E402
from specedge.export.training.corpus import list_lines  # noqa: E402
from specedge.models.recipe.grow import FAMILY, bundle_at, default_folder  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.bundle.manifest import graph_bytes  # noqa: E402
from specedge.runtime.device import cache_home, load_profile  # noqa: E402
from specedge.runtime.engine.calibrate import measure as calibrated  # noqa: E402
from specedge.runtime.engine.engine import Engine  # noqa: E402
from specedge.runtime.options import HEAD_KINDS, TranscribeOptions  # noqa: E402

DRAFTERS = ("none", "tokenmap", "ctc", "ctc alone", *HEAD_KINDS, "draft", "cascade", "auto")
WITH_A_SMALLER_ONE = ("medium", "large-v2")
SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a")
N_READS = 15


def read_s(n_bytes: int, threads: int) -> float:
    """Seconds in which `threads` threads read so many bytes from memory once, the median of several times."""
    parts = [np.ones(n_bytes // 8 // threads + 1, np.uint64) for _ in range(threads)]
    spent = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(N_READS):
            started = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))  # of NumPy's reductions the quickest
            spent.append(time.perf_counter() - started)
    return statistics.median(spent)


def pass_figures(engine: Engine, bundle: Bundle) -> dict[str, float]:
    """The decoder's pass: milliseconds, and ratios."""
    n_bytes = graph_bytes(bundle.manifest, "decoder")
    before = read_s(n_bytes, engine.threads)
    profile = calibrated(engine)
    reading_s = statistics.mean((before, read_s(n_bytes, engine.threads)))
    one_s = profile.pass_s[1]
    figures = {
        "weights_mb": n_bytes / 1e6,
        "read_ms": 1e3 * reading_s,
        "pass_ms": 1e3 * one_s,
        "pass_over_read": one_s / reading_s,
        "t8": profile.pass_s[8] / one_s,
        "t16": profile.pass_s[16] / one_s,
        "paths_ms": 1e3 * profile.paths_s,
        "paths_passes": profile.paths_s / one_s,
        "encode_ms": 1e3 * profile.encode_s,
    }
    return {name: round(value, 3) for name, value in figures.items()}


class Others:
    """How busy everything but this process has kept the CPUs since this was made."""

    def __init__(self) -> None:
        self._begun = self._spent()

    def share(self) -> float | None:
        """Of the time of all CPUs, 0 to 1; None where the system does not tell."""
        if not self._begun:
            return None
        all_s, busy_s, own_s = (end - begin for end, begin in zip(self._spent(), self._begun, strict=True))
        return round(max(0.0, busy_s - own_s) / all_s, 3) if all_s else 0.0

    @staticmethod
    def _spent() -> tuple[float, ...]:
        """Seconds so far: of all CPUs, those in which they were busy, and this process's own."""
        try:
            ticks = [int(value) for value in Path("/proc/stat").read_text(encoding="ascii").split()[1:9]]
        except OSError:
            return ()
        idle = ticks[3] + ticks[4]
        hz = os.sysconf("SC_CLK_TCK")
        return sum(ticks) / hz, (sum(ticks) - idle) / hz, time.process_time()


def dev_speech() -> Path:
    """The dev lists in held-out voices, spoken once into the cache. Exits where the programs are missing."""
    folder = cache_home() / "grown" / "speech"
    done = subprocess.run(
        [sys.executable, "-m", "specedge.models.recipe.speech", "dev", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"no speech: {done.stderr.strip().splitlines()[-1]}; give --speech or --audio")
    return folder / "dev"


def recordings(given: argparse.Namespace, bundle: Bundle, folder: Path) -> list[Domain]:
    """The recordings that the user brought, as one domain."""
    files = sorted(path for path in given.audio.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        sys.exit(f"{given.audio}: holds no recordings; expected files that end in {', '.join(SUFFIXES)}")
    names = [str(given.texts)] if given.texts else [f"{name}.train" for name in LISTS]
    maps = [map_of(list_lines(name), bundle, folder / f"{i}.tmap") for i, name in enumerate(names)]
    step = max(1, len(files) // given.limit)
    return [Domain(given.audio.name, files[::step][: given.limit], maps)]


def measure_shape(shape: str, given: argparse.Namespace) -> dict[str, Any]:
    """Everything about one shape, printed and returned."""
    bundle = bundle_at(shape, "demo", _folder(given, shape, "demo"))
    drafters = list(dict.fromkeys(["none", *(given.drafters.split(",") if given.drafters else DRAFTERS)]))
    if shape in WITH_A_SMALLER_ONE and not given.drafters:
        smaller = bundle_at("base", "demo-draft", _folder(given, "base", "demo-draft"))
        drafters.append(f"draft={smaller.path}")
    engine = Engine(bundle, threads=given.threads)
    others = Others()
    figures: dict[str, Any] = {
        "pass": pass_figures(engine, bundle),
        "calibrated": load_profile(bundle.digest, given.threads) is not None,
    }
    print(f"\n{shape}: the decoder's pass")
    for name, value in figures["pass"].items():
        print(f"  {name:16}{value:>10}")
    options = TranscribeOptions(language="en", without_timestamps=given.without_timestamps)
    with tempfile.TemporaryDirectory(prefix="specedge-shapes-") as folder:
        wanted = (recordings if given.audio else domains)(given, bundle, Path(folder))
        found = {domain.name: measure(engine, bundle, domain, drafters, given.rounds, options) for domain in wanted}
    figures["domains"] = report(f"{shape}, {given.threads} threads, {given.rounds} rounds", found, drafters)
    figures["different"] = sum(sum(rounds.different.values()) for rounds in found.values())
    figures["others"] = others.share()
    print(f"other processes had {figures['others']} of the CPUs; more than a few hundredths spoil the figures")
    return figures


def _folder(given: argparse.Namespace, shape: str, of: str) -> Path:
    usual = default_folder(shape, of)
    return given.grown / usual.name if given.grown else usual


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="base,small", help=f"of {', '.join(FAMILY)}, with commas")
    parser.add_argument("--speech", type=Path, nargs="+", metavar="FOLDER", help="shards of spoken utterances")
    parser.add_argument("--domains", default="maintenance-dev,notes-dev", help="which shards, with commas")
    parser.add_argument("--audio", type=Path, metavar="FOLDER", help="recordings")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="sentences of their domain, for the map")
    parser.add_argument("--drafters", help="with commas; none is always there  [default: all]")
    parser.add_argument("--limit", type=int, default=16, help="utterances of a domain")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-timestamps", action="store_true")
    parser.add_argument("--grown", type=Path, metavar="FOLDER", help="where grown models are  [default: the cache]")
    given = parser.parse_args()
    wrong = [shape for shape in given.shapes.split(",") if shape not in FAMILY]
    if wrong:
        parser.error(f"--shapes: got {wrong[0]!r}, expected {', '.join(FAMILY)}")
    if given.audio is not None and not given.audio.is_dir():
        parser.error(f"--audio: {given.audio} is no folder of recordings")
    # What else `speculate.domains` is told of.
    given.files, given.made, given.unrelated, given.token_map = [], None, [], None
    if given.speech is None and given.audio is None:
        given.speech = [dev_speech()]
    return given


def main() -> int:
    given = _arguments()
    figures: dict[str, Any] = {"benchmark": "true_shapes", "threads": given.threads, "rounds": given.rounds}
    try:
        figures["shapes"] = {shape: measure_shape(shape, given) for shape in given.shapes.split(",")}
    except SpecedgeError as error:
        print(f"true_shapes: {error}", file=sys.stderr)
        return error.exit_code
    figures["different"] = sum(found["different"] for found in figures["shapes"].values())
    print(f"\n{figures['different']} transcriptions differ from plain decoding's")
    print(json.dumps(figures))
    return 1 if figures["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
