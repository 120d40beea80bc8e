"""Memory over many files and long files: does it stay flat?

    python tests/bench/soak.py [--model MODEL] [--files 200] [--hours 2] [--limited-hours 1]

Speech is the bundled samples, repeated with pauses and faint noise, written block by block. One fresh process a step,
each printed as it ends, so that a run that is stopped has shown what it did:

  files     anonymous memory after each of FILES short files, in one process; growth is the last over the 10th
  hours     the same along one file of HOURS; growth is the end over the first minute
  minute    peak of one minute, to hold the peaks of the others against
  limited   LIMITED-HOURS under RLIMIT_DATA, 32 MB above what the first minute took: it ends or it does not

Targets: growth under 8 MB; peaks within 32 MB of the minute's. Speed is not measured, and accuracy is not either.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

import numpy as np
from rounds import BenchError, print_json, print_table
from worker import memory_mb

from specedge.models import store
from specedge.runtime.audio import open_audio
from specedge.runtime.bundle import Bundle
from specedge.runtime.engine import Engine
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.transcribe import transcribe

RATE_HZ = 16_000
GROWTH_LIMIT_MB = 8.0
PEAK_LIMIT_MB = 32.0
N_WARM_FILES = 10
SAMPLES = Path(__file__).resolve().parents[2] / "models" / "bundled" / "samples"


def write_speech(path: Path, seconds: float, seed: int) -> None:
    """A WAV of `seconds`: sentences in an order drawn from `seed`, pauses between them, faint noise over all."""
    rng = np.random.default_rng(seed)
    sentences = []
    for sample in sorted(SAMPLES.glob("*.wav")):
        with open_audio(sample) as audio:
            sentences.append(audio.read(60 * RATE_HZ))
    n_left = round(seconds * RATE_HZ)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        while n_left > 0:
            pause = np.zeros(rng.integers(RATE_HZ // 4, 2 * RATE_HZ), np.float32)
            block = np.concatenate([sentences[rng.integers(len(sentences))], pause])[:n_left]
            noisy = block + rng.standard_normal(len(block)).astype(np.float32) * 1e-3
            file.writeframes((np.clip(noisy, -1, 1) * 32767).astype("<i2").tobytes())
            n_left -= len(block)


def child(step: str, model: str, files: list[str]) -> None:
    """One step in this process; prints a line of JSON: memory as it went, MB, and segments written."""
    bundle = Bundle.open(store.find(model))
    engine = Engine(bundle)
    seen: list[float] = []
    n_segments = 0

    def note(seconds: float = 0.0) -> None:
        memory = memory_mb()
        seen.append(memory.get("anonymous", memory["peak"]))
        if step == "limited" and len(seen) == 6:  # about a minute of ten-second windows
            used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_DATA, (used + int(PEAK_LIMIT_MB * 1e6),) * 2)

    for name in files:
        with open_audio(name) as audio:
            on_progress = None if step == "files" else note
            n_segments += sum(
                1 for _ in transcribe(engine, bundle, audio, TranscribeOptions(), on_progress=on_progress)
            )
        if step == "files":
            note()
    n_warm = N_WARM_FILES if step == "files" else 6
    growth = seen[-1] - seen[min(n_warm, len(seen)) - 1]
    print(
        json.dumps({"growth_mb": growth, "peak_mb": memory_mb()["peak"], "points": len(seen), "segments": n_segments})
    )


def run_step(step: str, model: str, files: list[Path]) -> dict[str, float]:
    """A fresh process for `step`."""
    command = [sys.executable, __file__, "--child", step, "--model", model, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{step}: {done.stderr.strip()[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--limited-hours", type=float, default=1.0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("inputs", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.model, options.inputs)
        return
    steps: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="specedge-soak-") as folder:
        root = Path(folder)
        for step, seconds, n in (
            ("minute", 60.0, 1),
            ("files", 12.0, options.files),
            ("hours", 3600 * options.hours, 1),
            ("limited", 3600 * options.limited_hours, 1),
        ):
            if not n or not seconds:
                continue
            files = [root / f"{step}-{i}.wav" for i in range(n)]
            for i, path in enumerate(files):
                write_speech(path, seconds, i)
            try:
                steps[step] = run_step(step, options.model, files)
            except BenchError as error:
                raise SystemExit(f"soak: {error}") from None
            print(step, json.dumps(steps[step]), file=sys.stderr, flush=True)
            for path in files:
                path.unlink()
    rows = [["step", "growth MB", "peak MB", "segments", "verdict"]]
    for step, found in steps.items():
        over = found["peak_mb"] - steps["minute"]["peak_mb"]
        flat = step == "minute" or (found["growth_mb"] < GROWTH_LIMIT_MB and over < PEAK_LIMIT_MB)
        figures = (f"{found['growth_mb']:.1f}", f"{found['peak_mb']:.1f}", str(found["segments"]))
        rows.append([step, *figures, "flat" if flat else "GROWS"])
    print_table(rows)
    print_json("soak", model=options.model, files=options.files, hours=options.hours, steps=steps)


if __name__ == "__main__":
    main()
