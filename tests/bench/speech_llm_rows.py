"""Rows of a speech LLM beside passes of one row each, bit for bit: what speculation and streaming stand on.

    python tests/bench/speech_llm_rows.py [--rows 100000] [--seed 0] [--threads 1,2]

The model is a tiny random Qwen3-ASR in int8 whose context is made longer than a bundle's usually is, so that pasts go
up to 3,500. Each case has a window of made-up audio, a past of random length and 240 rows behind it: once with the
prompt in one pass and the rows one by one, then three times with the prompt cut anywhere and the rows in passes of 1 to
16, each on one of --threads. Every row's logits are compared as bits, and the keys and values of the past, too.

It does not measure time, or a model of real width. The last line of output is JSON; the exit code is 1 when a bit
differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.rounds import print_json  # noqa: E402

from specedge.export import speech_layouts  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.engine.made_up import probe_mel  # noqa: E402
from specedge.runtime.engine.speech import SpeechEngine  # noqa: E402
from specedge.runtime.text.speech_tokens import SpeechTokens  # noqa: E402
from support.qwen_checkpoints import make_qwen  # noqa: E402
from support.speech_checkpoints import export_speech  # noqa: E402

N_ROWS, N_WAYS, MOST_BEFORE, MOST_ROWS = 240, 3, 3500, 16


def made(folder: Path) -> Bundle:
    """The model, with room for the longest past."""
    with mock.patch.object(speech_layouts, "TEXT_ROOM", MOST_BEFORE + 2 * N_ROWS):
        return export_speech(make_qwen(folder / "checkpoint"), folder / "bundle")


def run(engine: SpeechEngine, n_frames: int, ids: list[int], sizes: list[int]) -> tuple[np.ndarray, bytes]:
    """The logits of the last rows of `ids`, in passes of these sizes, and the keys and values of all rows."""
    state = engine.start(engine.encode(probe_mel(engine.dims, n_frames)))
    found, done = [], 0
    for size in sizes:
        n_before = len(ids) - N_ROWS
        wanted = [row for row in range(size) if done + row >= n_before] or [size - 1]
        logits = engine.forward(state, ids[done : done + size], wanted)
        if done + size > n_before:
            found.append(logits.copy())
        engine.commit(state, size)
        done += size
    kept = b"".join(array[:, :, :done].tobytes() for array in state.caches.values())
    engine.release(state)
    return np.concatenate(found), kept


def cut(rng: np.random.Generator, n_before: int) -> list[int]:
    """Passes over a past and the rows behind it: the past cut at up to eight places, the rows by up to 16."""
    places = sorted({0, n_before, *rng.integers(1, n_before, rng.integers(0, 9)).tolist()})
    sizes = np.diff(places).tolist()
    while (n_left := N_ROWS + n_before - sum(sizes)) > 0:
        sizes.append(min(n_left, int(rng.integers(1, MOST_ROWS + 1))))
    return sizes


def main() -> int:
    """Compare until enough rows have been."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", default="1,2")
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    n_compared = n_different = n_caches = n_other_caches = 0
    longest = 0
    with tempfile.TemporaryDirectory(prefix="specedge-rows-") as folder:
        bundle = made(Path(folder))
        tokens = bundle.manifest.tokens
        assert isinstance(tokens, SpeechTokens)
        engines = [SpeechEngine(bundle, threads=int(n), cache=False) for n in given.threads.split(",")]
        while n_compared < given.rows:
            n_frames = int(rng.integers(50, 3001))
            prompt = tokens.prompt(engines[0].dims.positions(n_frames), "en")
            n_text = int(rng.integers(0, MOST_BEFORE + 1 - len(prompt)))
            ids = [*prompt, *rng.integers(0, tokens.eot, n_text + N_ROWS).tolist()]
            n_before = len(prompt) + n_text
            longest = max(longest, n_before)
            rows, kept = run(engines[0], n_frames, ids, [n_before, *[1] * N_ROWS])
            for _ in range(N_WAYS):
                engine = engines[int(rng.integers(len(engines)))]
                theirs, others = run(engine, n_frames, ids, cut(rng, n_before))
                n_different += int((rows.view(np.uint32) != theirs.view(np.uint32)).any(axis=1).sum())
                n_compared, n_caches = n_compared + N_ROWS, n_caches + 1
                n_other_caches += kept != others
            print(f"{n_compared} rows compared, {n_different} differ", file=sys.stderr, flush=True)
    print(f"{n_different} of {n_compared} rows differ, {n_other_caches} of {n_caches} pasts")
    print_json("speech_llm_rows", rows=n_compared, different=n_different, pasts=n_caches,
               different_pasts=n_other_caches, longest_past=longest, threads=given.threads)  # fmt: skip
    return 1 if n_different or n_other_caches else 0


if __name__ == "__main__":
    sys.exit(main())
