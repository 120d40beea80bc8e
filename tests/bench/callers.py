"""Several callers on one model: how much quicker than one after another, how long anyone waits, and whether bits hold.

    python tests/bench/callers.py [-m MODEL] [--speech SHARDS] [--domains maintenance-dev,notes-dev] [--limit 16]
                                  [--callers 8] [--drafter none] [--rounds 3] [--threads 2] [--only decoder]
    python tests/bench/callers.py --mixes N [-m MODEL | --micro int4] [--seed N]

Each caller is a thread that transcribes its share of the recordings. `decoder` decodes windows that were encoded
before, `whole` goes from samples to text. The table has the time of one after another over that of all at once, texts
per pass, and the longest waits: from asking for a pass, or for the encoder, until it begins, in windows, that is in
seconds of one recording done alone. All callers begin at once, so the last has the encoder after all others. Rounds of
both kinds alternate; medians, with the least and the greatest. Peak memory is that of all at once over that before; say
--only whole for it, as for `decoder` all windows are kept.

--mixes instead compares logits of that many random passes over 2 to 16 texts of 1 to 8 rows behind 0 to 400 others, in
1 to 8 windows, with passes of each text alone, bit for bit. It needs no speech.

It does not measure accuracy, and times tell nothing on a busy machine. The last line of output is JSON; the exit
code is 1 when a text differs from the one that a caller alone gets, or a bit.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.rounds import print_json  # noqa: E402

from specedge import WhisperModel  # noqa: E402
from specedge.export.training.corpus import load_shards  # noqa: E402
from specedge.runtime.decoding.decode import DecodeOptions, decode_window  # noqa: E402
from specedge.runtime.decoding.drafter import TargetModel  # noqa: E402
from specedge.runtime.decoding.presets import window_rules  # noqa: E402
from specedge.runtime.drafters.registry import make_drafter  # noqa: E402
from specedge.runtime.engine.engine import Engine, Features, State  # noqa: E402
from specedge.runtime.engine.scheduler import Pass, Scheduler  # noqa: E402
from specedge.runtime.options import TranscribeOptions  # noqa: E402
from support.exported import PRECISIONS, bundle  # noqa: E402
from support.paths import samples  # noqa: E402

MOST_TEXTS, MOST_ROWS, MOST_PAST, MOST_WINDOWS = 16, 8, 400, 8


@dataclass
class Counts:
    """What happened in a round: seconds that each call waited, texts of each pass."""

    waits_s: list[float] = field(default_factory=list)
    encoder_waits_s: list[float] = field(default_factory=list)
    texts: list[int] = field(default_factory=list)


class Watched(Scheduler):
    """A scheduler that notes when calls begin."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.counts = Counts()
        self._asked_s: dict[int, float] = {}
        execute = self._execute

        def watched(passes: Sequence[Pass]) -> None:
            now_s = time.perf_counter()
            self.counts.waits_s += [now_s - self._asked_s.pop(id(one), now_s) for one in passes]
            self.counts.texts.append(sum(len(one.texts) for one in passes))
            execute(passes)

        self._execute = watched

    def run(self, asked: Pass) -> None:
        self._asked_s[id(asked)] = time.perf_counter()
        super().run(asked)

    def acquire(self, timeout: float = -1) -> bool:
        started_s = time.perf_counter()
        has = super().acquire(timeout)
        self.counts.encoder_waits_s.append(time.perf_counter() - started_s)
        return has


def watch(engine: Engine) -> Watched:
    engine.lock = watched = Watched(engine._run_passes, engine._merges, engine._fits)
    return watched


# ------------------------------------------------------------------------------------------------------------- speed
Job = Callable[[int], Any]


def whole(model: WhisperModel, sounds: Sequence[Any], drafter: str) -> Job:
    """From samples to segments."""

    def job(i: int) -> Any:
        segments, _ = model.transcribe(sounds[i], language="en", drafter=drafter)
        return [(segment.tokens, segment.avg_logprob, segment.start, segment.end) for segment in segments]

    return job


def decoder(model: WhisperModel, sounds: Sequence[Any], drafter: str) -> Job:
    """The first window of each sound, encoded before."""
    engine, manifest = model.engine, model.bundle.manifest
    heard = [_first_window(model, sound) for sound in sounds]
    rules = window_rules(TranscribeOptions(language="en"), manifest, model.bundle.tokenizer)
    options = DecodeOptions(rules=rules, n_text_ctx=manifest.dims.n_text_ctx)
    prompt = manifest.tokens.prompt("en" if manifest.tokens.is_multilingual else None, "transcribe", True)

    def job(i: int) -> Any:
        with closing(make_drafter(drafter, TargetModel(model.bundle, threads=model.threads, engine=engine))) as made:
            result = decode_window(engine, heard[i], prompt, options, made)
        return result.tokens, result.token_logprobs

    return job


def _first_window(model: WhisperModel, sound: Any) -> Features:
    from specedge.runtime.audio.audio import open_audio
    from specedge.runtime.longform.transcribe import transcribe

    text = transcribe(model.engine, model.bundle, open_audio(sound), TranscribeOptions(language="en"))
    mel = text.peek()
    if mel is None:
        sys.exit("a recording without audio")
    return model.engine.encode(mel)


def at_once(job: Job, n_jobs: int, n_callers: int) -> tuple[float, list[Any]]:
    """Seconds, and the results in order; a caller who is done takes the next job."""
    found: list[Any] = [None] * n_jobs
    left = iter(range(n_jobs))
    start = threading.Barrier(n_callers + 1)

    def call() -> None:
        start.wait()
        for i in left:
            found[i] = job(i)

    with ThreadPoolExecutor(n_callers) as pool:
        calls = [pool.submit(call) for _ in range(n_callers)]
        start.wait()
        started_s = time.perf_counter()
        for one in calls:
            one.result()
        return time.perf_counter() - started_s, found


def compare(watched: Watched, job: Job, n_jobs: int, given: argparse.Namespace) -> dict[str, Any]:
    """One table row: rounds of one after another and of all at once, in turn."""
    expected = [job(i) for i in range(n_jobs)]
    peak_alone = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    at_once(job, n_jobs, given.callers)  # whatever is loaded and probed first
    ratios, waits, encoder_waits, texts, differing = [], [], [], [], 0
    for _ in range(given.rounds):
        started_s = time.perf_counter()
        for i in range(n_jobs):
            job(i)
        alone_s = time.perf_counter() - started_s
        watched.counts = Counts()
        together_s, found = at_once(job, n_jobs, given.callers)
        differing += sum(one != other for one, other in zip(found, expected, strict=True))
        ratios.append(alone_s / together_s)
        waits.append(max(watched.counts.waits_s) / (alone_s / n_jobs))
        encoder_waits.append(max([0.0, *watched.counts.encoder_waits_s]) / (alone_s / n_jobs))
        texts.append(statistics.mean(watched.counts.texts))
    return {
        "speedup": statistics.median(ratios),
        "speedup_range": [min(ratios), max(ratios)],
        "longest_wait_windows": max(waits),
        "longest_encoder_wait_windows": max(encoder_waits),
        "texts_per_pass": statistics.median(texts),
        "alone_s_a_recording": alone_s / n_jobs,
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / peak_alone,
        "peak_alone_mib": peak_alone / 1024,
        "differing": differing,
    }


# ------------------------------------------------------------------------------------------------------------ exactness
def mixes(engine: Engine, n_mixes: int, seed: int) -> dict[str, int]:
    """Logits of random passes over several texts beside those of each text alone."""
    rng = np.random.default_rng(seed)
    dims = engine.dims
    most_past = min(MOST_PAST, dims.n_text_ctx - MOST_ROWS)
    windows = [_noise_window(engine, rng) for _ in range(MOST_WINDOWS)]
    states = [engine.start(windows[0]) for _ in range(MOST_TEXTS)]
    kept = _prefilled(engine, states, most_past, rng)
    n_rows = n_differing = 0
    for done in range(1, n_mixes + 1):
        some = rng.permutation(MOST_WINDOWS)[: rng.integers(1, MOST_WINDOWS + 1)]
        texts = []
        for i in rng.permutation(MOST_TEXTS)[: rng.integers(2, MOST_TEXTS + 1)]:
            states[i].features, states[i].memory.is_heard = windows[rng.choice(some)], False
            states[i].length = int(rng.integers(most_past + 1))
            ids = rng.integers(0, dims.n_vocab, int(rng.integers(1, MOST_ROWS + 1))).tolist()
            texts.append((states[i], ids, None))
        together = [rows.copy() for rows in engine.forward_many(texts)]
        for text, rows in zip(texts, together, strict=True):
            alone = engine.forward(*text)
            n_differing += int((rows.view(np.uint32) != alone.view(np.uint32)).any(axis=1).sum())
            n_rows += len(rows)
            start = text[0].length  # the rows that both passes wrote are as they were again
            for name, array in text[0].caches.items():
                array[:, :, start : start + MOST_ROWS] = kept[name][:, :, start : start + MOST_ROWS]
        if done % 100 == 0:
            print(f"{done} mixes, {n_differing} of {n_rows} rows differ", file=sys.stderr, flush=True)
    return {"mixes": n_mixes, "rows": n_rows, "differing": n_differing}


def _noise_window(engine: Engine, rng: np.random.Generator) -> Features:
    n_frames = 2 * int(rng.integers(engine.dims.n_audio_ctx // 4, engine.dims.n_audio_ctx + 1))
    return engine.encode(rng.uniform(-1, 1.5, (engine.dims.n_mels, n_frames)).astype(np.float32))


def _prefilled(engine: Engine, states: Sequence[State], n_rows: int, rng: np.random.Generator) -> dict[str, Any]:
    """The keys and values, by name, of random tokens that all `states` begin with."""
    first = states[0]
    ids = rng.integers(0, engine.dims.n_vocab, n_rows + MOST_ROWS).tolist()
    engine.forward(first, ids, [len(ids) - 1])
    for name, array in first.caches.items():
        for other in states[1:]:
            other.caches[name][...] = array
    return {name: array.copy() for name, array in first.caches.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default=None, help="name or folder of a bundle (the bundled one)")
    parser.add_argument("--micro", choices=PRECISIONS, help="a made-up model of this precision in place of --model")
    parser.add_argument("--speech", type=Path, help="shards of speech (the bundled samples)")
    parser.add_argument("--domains", default="maintenance-dev,notes-dev")
    parser.add_argument("--limit", type=int, default=16, help="recordings (16)")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--mixes", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("decoder", "whole"), help="one row of the table")
    given = parser.parse_args()
    path = given.model or "demo" if given.micro is None else bundle(given.micro).path
    model = WhisperModel(path, cpu_threads=given.threads)
    if given.mixes:
        found: dict[str, Any] = mixes(model.engine, given.mixes, given.seed)
        print(f"{found['mixes']} mixes: {found['differing']} of {found['rows']} rows differ")
    else:
        sounds = _sounds(given)
        watched = watch(model.engine)
        found = {}
        print("          speed-up (least, greatest)  texts a pass  longest waits   alone  memory  differing")
        for make in (decoder, whole):
            if given.only in (None, make.__name__):
                row = found[make.__name__] = compare(watched, make(model, sounds, given.drafter), len(sounds), given)
                least, greatest = row["speedup_range"]
                waits = f"{row['longest_wait_windows']:5.2f} {row['longest_encoder_wait_windows']:5.2f}"
                print(
                    f"{make.__name__:8s}  {row['speedup']:8.2f}  ({least:5.2f}, {greatest:5.2f})  "
                    f"{row['texts_per_pass']:12.2f}  {waits} windows  {1e3 * row['alone_s_a_recording']:5.0f} ms  "
                    f"{row['peak_memory']:6.2f}  {row['differing']:9d}",
                    flush=True,
                )
    about = {
        "model": model.bundle.manifest.name,
        "callers": given.callers,
        "drafter": given.drafter,
    }
    print_json("callers", **about, **found)
    differing = found.get("differing", 0) or sum(row["differing"] for row in found.values() if isinstance(row, dict))
    return int(differing > 0)


def _sounds(given: argparse.Namespace) -> list[Any]:
    if given.speech is None:
        files = samples()
        return [str(files[i % len(files)]) for i in range(given.limit)]
    sounds = [
        one.sound()
        for name, utterances in load_shards(given.speech)
        if name.startswith(tuple(given.domains.split(",")))
        for one in utterances[:: max(1, len(utterances) // given.limit)][: given.limit]
    ]
    return sounds[:: max(1, len(sounds) // given.limit)][: given.limit]


if __name__ == "__main__":
    sys.exit(main())
