"""A speech LLM of Qwen3-ASR's published shape and random weights: what its passes cost, held to targets.

    python tests/bench/speech_llm_shape.py FOLDER [--size 0.6B] [--threads 2] [--rounds 15] [--make]
                                           [--llama PYTHON]

FOLDER gets the checkpoint, and the bundle of it with three latent heads (int8), where they are missing; --make does no
more than that. Heads that `specedge train heads` makes know the tokens that were said: these know 8,192, as many as the
shortlist of a draft. Then, behind a whole window of 390 rows and 32 tokens of text: passes of 1, 2, 4, 8 and 16 rows, a
guess of the heads, and the window's whole prefill, all in turn, round after round; figures are minima.

With --llama, a Python that has xllamacpp, the same decoder with the same weights is run by llama.cpp in its 8-bit
blocks (Q8_0), and the times of a token and of a prompt as long are set beside ours. With drafts, the time of a token is
that of a pass of 4 rows and a guess, over the tokens that a pass gives demo-llm with its three heads (--per-pass).

Peak memory, also that of the export, is `export_memory.py FOLDER/checkpoint`. It does not measure accuracy, or a busy
machine: nothing else may run. The last line of output is JSON; the exit code is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(HERE))

from rounds import Peer, Running, print_json, print_table  # noqa: E402

from specedge.export.checkpoint import TOKENS  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.engine.heads import HeadsPass  # noqa: E402
from specedge.runtime.engine.made_up import probe_ids, probe_mel  # noqa: E402
from specedge.runtime.engine.session import Canceller  # noqa: E402
from specedge.runtime.engine.shortlist import N_COMMON  # noqa: E402
from specedge.runtime.engine.speech import SpeechEngine  # noqa: E402
from specedge.runtime.text.speech_tokens import SpeechTokens  # noqa: E402
from support.qwen_checkpoints import SHAPES, write_qwen  # noqa: E402

PASSES = (1, 2, 4, 8, 16)
N_TEXT, N_HEADS = 32, 3
PER_PASS = 3.22  # of demo-llm with its heads, docs/speech-llms.md
# The most that is good enough.
TARGETS = {"8 rows / 2 rows": 1.5, "prefill / plain pass": 30.0, "plain / llama.cpp": 0.8, "drafts / llama.cpp": 0.4}


def made(folder: Path, size: str) -> Path:
    """The bundle in `folder`, with the checkpoint beside it, made where they are missing."""
    from safetensors.numpy import save_file

    checkpoint, bundle, heads = folder / "checkpoint", folder / "bundle", folder / "heads.safetensors"
    if not (checkpoint / "model.safetensors.index.json").is_file():
        write_qwen(checkpoint, size)
    if not heads.is_file():
        width = SHAPES[size][1]["hidden_size"]
        rng = np.random.default_rng(1)
        maps = rng.standard_normal((N_HEADS, width, width), np.float32) / np.float32(np.sqrt(width))
        known = np.arange(N_COMMON, dtype=np.float32)
        save_file({TOKENS: known, **{f"latent_heads.{i}.weight": one for i, one in enumerate(maps)}}, heads)
    if not bundle.is_dir():
        command = [sys.executable, "-m", "specedge", "export", str(checkpoint), "-o", str(bundle)]
        subprocess.run([*command, "--heads", str(heads), "--name", f"shape-{size}"], check=True)
    return bundle


class Ours:
    """The engine behind a whole window and some text."""

    def __init__(self, bundle: Bundle, threads: int) -> None:
        self._engine = SpeechEngine(bundle, threads=threads)
        tokens, dims = bundle.manifest.tokens, self._engine.dims
        assert isinstance(tokens, SpeechTokens)
        features = self._engine.encode(probe_mel(dims, dims.n_frames))
        self._prompt = tokens.prompt(features.n_audio, "en")
        self._ids = probe_ids(dims, N_TEXT + max(PASSES))
        self._state = self._engine.start(features)
        self._engine.keep_hidden(self._state)
        self.prefill()
        for ids in (self._prompt, self._ids[:N_TEXT]):
            self._engine.forward(self._state, ids, [len(ids) - 1])
            self._engine.commit(self._state, len(ids))
        self.n_prompt = len(self._prompt)
        self._heads = HeadsPass(bundle, "mtp-latent", Canceller())
        self._heads.begin(features.hidden)

    def run(self, n_rows: int) -> None:
        """A pass of so many rows."""
        self._engine.forward(self._state, self._ids[N_TEXT : N_TEXT + n_rows])

    def guess(self) -> None:
        """What the heads say behind the text."""
        assert self._state.hidden is not None
        self._heads.guess(self._state.hidden[: self._state.length], 1)

    def prefill(self) -> None:
        """The window's prompt, at the beginning of a text; its rows are not kept."""
        length, self._state.length = self._state.length, 0
        self._engine.forward(self._state, self._prompt, [len(self._prompt) - 1])
        self._state.length = length


def rounds_of(ways: Mapping[str, Callable[[], Any]], n_rounds: int) -> dict[str, float]:
    """The least time of each, in milliseconds. What is quick is called several times a round."""
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(n_rounds):
        for name, call in ways.items():
            for _ in range(1 if name == "prefill" else 5):
                started = time.perf_counter()
                call()
                least[name] = min(least[name], 1e3 * (time.perf_counter() - started))
    return least


def beside(folder: Path, python: str, threads: int, n_prompt: int, n_rounds: int) -> dict[str, float]:
    """The least times of llama.cpp, in milliseconds."""
    from llama_file import write_gguf  # in this folder

    file = folder / "decoder-q8_0.gguf"
    if not file.is_file():
        write_gguf(folder / "checkpoint", file)
    peer = Peer(name="llama.cpp", python=python, script="peer_llama.py", arguments=(str(file), str(threads)))
    with Running(peer, threads=threads) as running:
        print(f"llama.cpp: {running.ask('start')[1]}")
        found = [running.ask("decode", n_prompt=n_prompt, n_tokens=N_TEXT)[1] for _ in range(n_rounds)]
    return {name: min(one[name] for one in found) for name in ("plain", "prefill")}


def main() -> int:
    """Make, measure, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=list(SHAPES), default="0.6B")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--per-pass", type=float, default=PER_PASS)
    parser.add_argument("--make", action="store_true", help="make the folder, and measure nothing")
    parser.add_argument("--llama", metavar="PYTHON", help="one that has llama.cpp")
    given = parser.parse_args()
    bundle = made(given.folder, given.size)
    if given.make:
        return 0
    ours = Ours(Bundle.open(bundle), given.threads)
    ways: dict[str, Callable[[], Any]] = {f"{n} rows": lambda n=n: ours.run(n) for n in PASSES}
    times = rounds_of({**ways, "guess": ours.guess, "prefill": ours.prefill}, given.rounds)
    times["token with drafts"] = (times["4 rows"] + times["guess"]) / given.per_pass
    found = {
        "8 rows / 2 rows": times["8 rows"] / times["2 rows"],
        "prefill / plain pass": times["prefill"] / times["1 rows"],
    }
    peer = beside(given.folder, given.llama, given.threads, ours.n_prompt, given.rounds) if given.llama else {}
    if peer:
        found["plain / llama.cpp"] = times["1 rows"] / peer["plain"]
        found["drafts / llama.cpp"] = times["token with drafts"] / peer["plain"]
        found["prefill / llama.cpp"] = times["prefill"] / peer["prefill"]
    rows = [["ours", "ms", ""], *([name, f"{value:.2f}", ""] for name, value in times.items())]
    rows += [["llama.cpp", "ms", ""], *([name, f"{value:.2f}", ""] for name, value in peer.items())]
    rows += [["ratio", "", "target"]]
    for name, value in found.items():
        target = TARGETS.get(name)
        rows.append([name, f"{value:.3f}", "" if target is None else f"{target:g}"])
    print_table(rows)
    missed = [name for name, value in found.items() if value > TARGETS.get(name, float("inf"))]
    print_json("speech_llm_shape", size=given.size, threads=given.threads, ms=times, peer_ms=peer, ratios=found,
               targets=TARGETS, missed=missed)  # fmt: skip
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
