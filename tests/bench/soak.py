"""Memory over many files and long files: does it stay flat?

    python tests/bench/soak.py [--model MODEL] [--files 200] [--hours 2] [--limited-hours 1] [--sparse-hours 8]

Speech is the bundled samples, repeated with pauses and faint noise, written block by block. One fresh process a step,
each printed as it ends, so that a run that is stopped has shown what it did:

  minute    peak of one minute, to hold the peaks of the others against
  limited   LIMITED-HOURS under RLIMIT_DATA, 32 MB above what its own first minute took: it ends or it does not
  files     anonymous memory after each of FILES short files, in one process
  hours     the same after each window of one file of HOURS
  sparse    the same along SPARSE-HOURS in which a minute of speech follows nine of faint noise, passed over by --vad

The buffers that a process keeps are as large as the largest window needed them so far: the keys and values of a text
behind a full prompt, and five texts at once above temperature 0. A speaker reaches both at some time, so files, hours
and sparse begin by doing both once (`warm_up`), and growth is counted from there: the median of the last tenth of the
points over the median of the first tenth. The minute and the limited hour are not warmed.

With `--limit-s` the steps behind the minute are made as short as the machine needs to end in time.

Targets: growth under 8 MB; peaks within 32 MB of what warming up took, or of the minute's; the exit code is 1 where
one is missed. It does not measure speed or accuracy.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import wave
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import RATE_HZ, BenchError, print_json, print_table  # noqa: E402

from specedge.models import store
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.audio.vad import VadOptions
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.device import map_large_blocks  # noqa: E402
from specedge.runtime.engine.engine import Engine
from specedge.runtime.longform.transcribe import Transcription
from specedge.runtime.longform.vad_filter import SpeechAudio
from specedge.runtime.options import TranscribeOptions
from support.paths import DEMO, samples  # noqa: E402

GROWTH_LIMIT_MB = 8.0
PEAK_LIMIT_MB = 32.0
N_MINUTE_WINDOWS = 6  # about a minute of ten-second windows
SPARSE_S = 600
SHORTEST_S, FEWEST_FILES = 240.0, 20  # below this the medians of tenths say nothing
SHORTEST_SPARSE_S = 2.0 * SPARSE_S
Steps = dict[str, dict[str, float | None]]


def memory_mb() -> dict[str, float]:
    """Resident memory in MB (10^6 bytes), anonymous and at most so far; Linux."""
    names = {"RssAnon": "anonymous", "VmHWM": "peak"}
    lines = (line.split() for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return {names[line[0][:-1]]: int(line[1]) * 1024 / 1e6 for line in lines if line and line[0][:-1] in names}


def write_speech(path: Path, seconds: float, seed: int, *, is_sparse: bool = False) -> None:
    """A WAV of `seconds`: sentences in an order drawn from `seed`, pauses between them, faint noise over all.

    With `is_sparse` nobody speaks in the first nine of every ten minutes.
    """
    rng = np.random.default_rng(seed)
    sentences = []
    for sample in samples():
        with open_audio(sample) as audio:
            sentences.append(audio.read(60 * RATE_HZ))
    n_left = round(seconds * RATE_HZ)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        while n_left > 0:
            n_written = round(seconds * RATE_HZ) - n_left
            if is_sparse and n_written // RATE_HZ % SPARSE_S < SPARSE_S * 9 // 10:
                block = np.zeros(min(n_left, 10 * RATE_HZ), np.float32)
            else:
                pause = np.zeros(rng.integers(RATE_HZ // 4, 2 * RATE_HZ), np.float32)
                block = np.concatenate([sentences[rng.integers(len(sentences))], pause])[:n_left]
            noisy = block + rng.standard_normal(len(block)).astype(np.float32) * 1e-3
            file.writeframes((np.clip(noisy, -1, 1) * 32767).astype("<i2").tobytes())
            n_left -= len(block)


def warm_up(engine: Engine, bundle: Bundle, name: str) -> None:
    """One window behind the longest prompt, decoded at every temperature because no text is sure enough."""
    longest = bundle.manifest.dims.n_text_ctx // 2
    prompt = (bundle.tokenizer.encode(" generator") * longest)[:longest]
    options = TranscribeOptions(initial_prompt=prompt, log_prob_threshold=0.0, no_speech_threshold=None)
    with open_audio(name) as audio:
        next(Transcription(engine, bundle, audio, options), None)


def child(step: str, model: str, files: list[str]) -> None:
    """One step in this process; prints a line of JSON: memory as it went, MB, and segments written."""
    map_large_blocks()  # as the command does
    bundle = Bundle.open(store.find(model))
    engine = Engine(bundle)
    seen: list[float] = []
    n_segments = 0
    is_warmed = step in ("files", "hours", "sparse")
    if is_warmed:
        warm_up(engine, bundle, files[-1])
    warm_mb = memory_mb()["peak"] if is_warmed else None

    def note(seconds: float = 0.0) -> None:
        memory = memory_mb()
        seen.append(memory["anonymous"])
        if step == "limited" and len(seen) == N_MINUTE_WINDOWS:
            used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_DATA, (used + int(PEAK_LIMIT_MB * 1e6),) * 2)

    for name in files:
        with open_audio(name) as audio:
            heard = SpeechAudio(audio, VadOptions()) if step == "sparse" else audio
            on_progress = None if step == "files" else note
            n_segments += sum(
                1 for _ in Transcription(engine, bundle, heard, TranscribeOptions(), on_progress=on_progress)
            )
        if step == "files":
            note()
    tenth = -(-len(seen) // 10)
    growth = float(np.median(seen[-tenth:]) - np.median(seen[:tenth])) if is_warmed else None
    most = max(seen) - float(np.median(seen[:tenth])) if is_warmed else None
    found = {
        "growth_mb": growth,
        "highest_mb": most,
        "peak_mb": memory_mb()["peak"],
        "warm_mb": warm_mb,
        "points": len(seen),
    }
    print(json.dumps({**found, "segments": n_segments}))


def run_step(step: str, model: str, files: list[Path]) -> dict[str, float | None]:
    """A fresh process for `step`. Raises BenchError where it fails."""
    command = [sys.executable, __file__, "--child", step, "--model", model, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{step}: {done.stderr.strip()[-2000:]}")
    found: dict[str, float | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_steps(wanted: list[tuple[str, float, int]], model: str, seed: int, limit_s: float, root: Path) -> Steps:
    """All steps, (name, seconds of a file, files); from the second on no longer than there is time for."""
    started, found, speed = time.monotonic(), Steps(), 0.0
    for at, (step, seconds, n) in enumerate(wanted):
        if at and limit_s < float("inf"):
            spent_s = time.monotonic() - started
            speed = speed or wanted[0][1] / spent_s
            audio_s = speed * (limit_s - spent_s) / (len(wanted) - at)
            if n == 1:
                seconds = min(seconds, max(audio_s, SHORTEST_SPARSE_S if step == "sparse" else SHORTEST_S))
            else:
                n = min(n, max(int(audio_s / seconds), FEWEST_FILES))
        files = [root / f"{step}-{i}.wav" for i in range(n)]
        for i, path in enumerate(files):
            write_speech(path, seconds, seed + i, is_sparse=step == "sparse")
        found[step] = run_step(step, model, files)
        print(step, json.dumps(found[step]), file=sys.stderr, flush=True)
        for path in files:
            path.unlink()
    return found


def main() -> int:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(DEMO))
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--limited-hours", type=float, default=1.0)
    parser.add_argument("--sparse-hours", type=float, default=8.0)
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="shorten what would take longer in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("inputs", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.model, given.inputs)
        return 0
    wanted = [("minute", 60.0, 1), ("limited", 3600 * given.limited_hours, 1), ("files", 12.0, given.files),
              ("hours", 3600 * given.hours, 1), ("sparse", 3600 * given.sparse_hours, 1)]  # fmt: skip
    wanted = [step for step in wanted if step[1] and step[2]]
    with tempfile.TemporaryDirectory(prefix="specedge-soak-") as folder:
        try:
            steps = run_steps(wanted, given.model, given.seed, given.limit_s, Path(folder))
        except BenchError as error:
            raise SystemExit(f"soak: {error}") from None
    for found in steps.values():
        found["over_mb"] = (found["peak_mb"] or 0.0) - (found["warm_mb"] or steps["minute"]["peak_mb"] or 0.0)
    grown = [
        step for step, found in steps.items()
        if (found["growth_mb"] or 0.0) >= GROWTH_LIMIT_MB or (found["over_mb"] or 0.0) >= PEAK_LIMIT_MB
    ]  # fmt: skip
    columns = list(steps["minute"])
    rows = [
        [step, *(found[name] for name in columns), "GROWS" if step in grown else ""] for step, found in steps.items()
    ]
    print_table([["step", *columns, ""], *rows])
    n_runs = sum(int(found["points"] or 0) for found in steps.values())
    print_json("soak", model=given.model, steps=steps, runs=n_runs, failures=len(grown))
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
