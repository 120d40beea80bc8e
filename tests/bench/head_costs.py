"""What asking heads costs beside a pass of the decoder, by kind, at true shapes with random weights.

    python tests/bench/head_costs.py [--sizes tiny,base,small] [--heads 5] [--pruned 8192] [--threads 2]

For each shape a bundle with heads of all kinds is made, its heads with the whole vocabulary, then with a part of it. A
guess is timed in turns with a pass of one row and with one that verifies a chain of all heads; figures are medians in
ms, and shares of the pass of one row. The share of the vocabulary is what of a guess goes away with heads that know 16
tokens. large-v2 needs much memory and disk, and is made only when it is named.

Heads run on one thread, the decoder on all. It does not measure how often heads are right, nor a busy machine: nothing
else may run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.rounds import BenchError, print_json, print_table  # noqa: E402

from specedge.errors import SpecedgeError  # noqa: E402
from specedge.export.bundling import write_bundle  # noqa: E402
from specedge.export.checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from specedge.export.heads import write_heads  # noqa: E402
from specedge.export.layers import PRECISIONS  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.engine.engine import Engine  # noqa: E402
from specedge.runtime.engine.heads import HeadsPass  # noqa: E402
from specedge.runtime.engine.session import Canceller  # noqa: E402
from specedge.runtime.options import HEAD_KINDS  # noqa: E402
from support.checkpoints import SIZES, make_checkpoint  # noqa: E402
from support.heads import random_heads  # noqa: E402

FEW = 16  # tokens of heads whose vocabulary costs next to nothing
PAST = 16
WARM = 3


def measure(checkpoint: Checkpoint, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All kinds of heads on one model: ms of a guess by kind and vocabulary, and of the passes."""
    dims = checkpoint.spec.dims
    whole = [random_heads(kind, dims, n_heads=options.heads) for kind in HEAD_KINDS]
    bundle = write_bundle(checkpoint, folder, precision="int8", name="bench", version="0", heads=whole)
    del whole
    engine = Engine(bundle, threads=options.threads, cache=False)
    found: dict[str, Any] = {"heads": {}}
    for kind in HEAD_KINDS:
        found["heads"][kind] = guesses = {}
        for vocabulary, n_tokens in (("whole", None), ("pruned", options.pruned), ("none", FEW)):
            if n_tokens is not None:
                tokens = np.arange(min(n_tokens, dims.n_vocab))
                pruned = random_heads(kind, dims, n_heads=options.heads, tokens=tokens)
                write_heads(folder, [pruned], dims, checkpoint, PRECISIONS["int8"])
            times = timed(engine, bundle, kind, options)
            guesses[vocabulary] = times["guess"]
            if vocabulary == "whole":
                found["one"], found["all"] = times["one"], times["all"]
        guesses["vocabulary_share"] = 1 - guesses["none"] / guesses["whole"]
        guesses["beside_a_pass"] = guesses["whole"] / found["one"]
        guesses["pruned_beside_a_pass"] = guesses["pruned"] / found["one"]
        print(f"{folder.name}: {kind}", file=sys.stderr, flush=True)
    return found


def timed(engine: Engine, bundle: Bundle, kind: str, options: argparse.Namespace) -> dict[str, float]:
    """ms of a guess, of a pass of one row, and of one that verifies all heads."""
    dims = bundle.manifest.dims
    heads = HeadsPass(bundle, kind, Canceller())
    features = engine.encode(np.zeros((dims.n_mels, bundle.manifest.n_frames), np.float32))
    state = engine.start(features)
    times: dict[str, list[float]] = {"guess": [], "one": [], "all": []}
    try:
        engine.keep_hidden(state)
        engine.forward(state, [0] * PAST)
        engine.commit(state, PAST)
        heads.begin(features.hidden)
        steps: list[tuple[str, Callable[[], object]]] = [
            ("guess", lambda: heads.guess(state.hidden[: state.length], 4)),
            ("all", lambda: engine.forward(state, [0] * (1 + options.heads))),
            ("one", lambda: engine.forward(state, [0])),
        ]
        for _ in range(min(WARM + options.rounds, dims.n_text_ctx - PAST - 1 - options.heads)):
            for name, step in steps:
                started = time.perf_counter()
                step()
                times[name].append(1e3 * (time.perf_counter() - started))
            engine.commit(state, 1)  # the block of medusa-block has one new row a guess, as in decoding
    finally:
        engine.release(state)
    return {name: statistics.median(values[WARM:]) for name, values in times.items()}


def table(found: dict[str, Any]) -> list[list[str]]:
    """A line for each shape and kind."""
    head = ["shape, kind", "guess ms", "pruned", "of a pass", "pruned", "vocabulary", "pass of 1, ms", "of all, ms"]
    rows = [head]
    for size, one in found.items():
        for kind, cost in one["heads"].items():
            shares = [f"{cost[name]:.2f}" for name in ("beside_a_pass", "pruned_beside_a_pass", "vocabulary_share")]
            times = [f"{cost['whole']:.3f}", f"{cost['pruned']:.3f}"]
            rows.append([f"{size}, {kind}", *times, *shares, f"{one['one']:.2f}", f"{one['all']:.2f}"])
    return rows


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="tiny,base,small", help="with commas, of " + ", ".join(SIZES))
    parser.add_argument("--heads", type=int, default=5)
    parser.add_argument("--pruned", type=int, default=8192, help="tokens of the smaller vocabulary")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where models are written and removed again  [temporary]")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    try:
        unknown = [size for size in options.sizes.split(",") if size not in SIZES]
        if unknown:
            raise BenchError(f"--sizes {options.sizes}: {unknown[0]} is none of {', '.join(SIZES)}")
        for size in options.sizes.split(","):
            with tempfile.TemporaryDirectory(prefix="specedge-bench-", dir=options.folder) as name:
                make_checkpoint(Path(name) / "checkpoint", size=size)
                with open_checkpoint(str(Path(name) / "checkpoint")) as checkpoint:
                    found[size] = measure(checkpoint, Path(name) / size, options)
    except (BenchError, SpecedgeError, OSError) as error:
        raise SystemExit(f"head_costs: {error}") from None
    print_table(table(found))
    print_json("head_costs", heads=options.heads, pruned=options.pruned, threads=options.threads, shapes=found)


if __name__ == "__main__":
    main()
