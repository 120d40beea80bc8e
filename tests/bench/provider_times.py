"""The encoder alone, on the CPU and on a provider, for a whole window and for shorter ones: time and exactness.

    python tests/bench/provider_times.py BUNDLE [--encoder-provider openvino] [--threads 2] [--rounds 9]

BUNDLE was exported with --encoder-plain. Its log-mels are made up. Both engines encode each length in turn, keys and
values included, which stay on the CPU; times are medians, ratios those of the same round, with the least and the
greatest. CPU time is that of all threads of the process, and with one thread can be told on a busy machine, too. Errors
are how far features are off those of the encoder in plain operators in float32, relative to their size. It does not
measure what compiling takes, nor the decoder. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rounds import print_json, print_table

from specedge.models import store
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import PLAIN_ENCODER_GRAPH
from specedge.runtime.engine.engine import Engine, encoder_output
from specedge.runtime.engine.made_up import probe_mel
from specedge.runtime.engine.session import Canceller, load_graph
from specedge.runtime.options import ENCODER_PROVIDERS

SHARES = (1.0, 0.5, 0.2)  # of a window


def timed(engine: Engine, mel: NDArray[np.float32]) -> tuple[float, float, NDArray[np.float32]]:
    """Wall and CPU seconds, and the features."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    hidden = engine.encode(mel).hidden
    return time.perf_counter() - wall_s, time.process_time() - cpu_s, hidden


def measure(engines: dict[str, Engine], exact: Any, n_frames: int, rounds: int) -> dict[str, Any]:
    """One length: of both engines ms, CPU ms and error; and how many times as fast the provider is."""
    mel = probe_mel(engines["cpu"].dims, n_frames)
    expected = encoder_output(exact, mel[None], engines["cpu"].dims.n_audio_state)[0]
    found: dict[str, list[tuple[float, float, NDArray[np.float32]]]] = {name: [] for name in engines}
    for _ in range(rounds + 1):
        for name, engine in engines.items():
            found[name].append(timed(engine, mel))
    row: dict[str, Any] = {"frames": n_frames}
    for name, runs in found.items():
        hidden = runs[0][2][: len(expected)]
        off = np.linalg.norm(hidden - expected) / np.linalg.norm(expected)
        row[f"{name}, ms"] = round(1e3 * statistics.median(run[0] for run in runs[1:]), 1)
        row[f"{name}, CPU ms"] = round(1e3 * statistics.median(run[1] for run in runs[1:]), 1)
        row[f"{name}, error"] = round(float(off), 4)
    for title, i in (("times as fast", 0), ("by CPU time", 1)):
        ratios = [cpu[i] / other[i] for cpu, other in zip(*(runs[1:] for runs in found.values()), strict=True)]
        row[title] = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--encoder-provider", choices=ENCODER_PROVIDERS[1:], default="openvino")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    bundle = Bundle.open(store.find(given.bundle))
    names = ("cpu", given.encoder_provider)
    engines = {name: Engine(bundle, threads=given.threads, encoder_provider=name) for name in names}
    exact = load_graph(bundle, PLAIN_ENCODER_GRAPH, Canceller(), folder=bundle.path, threads=given.threads)
    lengths = [int(share * bundle.manifest.n_frames) for share in SHARES]
    figures = [measure(engines, exact, n_frames, given.rounds) for n_frames in lengths]
    print_table([list(figures[0]), *([str(value) for value in row.values()] for row in figures)])
    label = engines[given.encoder_provider].encoder_provider
    print_json("provider_times", bundle=bundle.manifest.name, provider=label, threads=given.threads, figures=figures)


if __name__ == "__main__":
    main()
