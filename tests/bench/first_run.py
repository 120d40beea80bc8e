"""The first transcription on a machine and the second, beside faster-whisper's: whole processes, from file to text.

    python tests/bench/first_run.py BUNDLE AUDIO [--ct2 FOLDER] [--ct2-python PYTHON] [--threads 2] [--rounds 5]

BUNDLE and FOLDER are the same checkpoint; `ct2_of` of `grown.py` converts a grown one. AUDIO is English speech.

  specedge, first    with an empty cache: the model's rows are compared and its weights packed
  specedge, again    with what the first left in the cache
  faster-whisper     which keeps nothing from one run to the next

They take turns; medians, with the least and the greatest. Files lie in the page cache. Installing, downloading and a
cold disk are not measured.
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
from collections.abc import Mapping, Sequence
from pathlib import Path

from rounds import BenchError, print_json, print_table

# faster-whisper pads to 30 s whatever the model: it is told the model's window.
FASTER_WHISPER = """
import functools, sys
import faster_whisper.transcribe as module
folder, audio, threads, n_frames = sys.argv[1:]
module.pad_or_trim = functools.partial(module.pad_or_trim, length=int(n_frames))
model = module.WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=int(threads))
segments, _ = model.transcribe(audio, language="en", beam_size=1)
print("".join(segment.text for segment in segments))
"""
FIRST, AGAIN, PEER = "specedge, first", "specedge, again", "faster-whisper"


def timed(command: Sequence[str], env: Mapping[str, str]) -> tuple[float, str]:
    """Seconds of a whole process, and the text it printed."""
    started = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True, check=False)
    elapsed_s = time.perf_counter() - started
    if done.returncode:
        raise BenchError(f"{command[0]}: ended with code {done.returncode}; its reason is above")
    return elapsed_s, " ".join(done.stdout.split())


def one_round(ours: Sequence[str], theirs: Sequence[str] | None, threads: int) -> dict[str, tuple[float, str]]:
    """Each command once."""
    pools = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="specedge-bench-") as cache:
        env = {**pools, "SPECEDGE_CACHE": cache}
        found = {FIRST: timed(ours, env), AGAIN: timed(ours, env)}
    return found if theirs is None else {**found, PEER: timed(theirs, pools)}


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("audio")
    parser.add_argument("--ct2", type=Path, metavar="FOLDER", help="its int8 conversion for CTranslate2")
    parser.add_argument("--ct2-python", default=sys.executable, metavar="PYTHON", help="one that has faster-whisper")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    n_frames = round(100 * json.loads((given.bundle / "specedge.json").read_text(encoding="utf-8"))["window_s"])
    ours = [sys.executable, "-m", "specedge", "transcribe", given.audio, "-m", str(given.bundle), "-l", "en"]
    ours += ["-t", str(given.threads)]
    theirs = [given.ct2_python, "-c", FASTER_WHISPER, str(given.ct2), given.audio, str(given.threads), str(n_frames)]
    try:
        rounds = [one_round(ours, theirs if given.ct2 else None, given.threads) for _ in range(given.rounds)]
    except (BenchError, OSError) as error:
        raise SystemExit(f"first_run: {error}") from None
    seconds = {name: [found[name][0] for found in rounds] for name in rounds[0]}
    texts = {name: rounds[0][name][1] for name in rounds[0]}
    rows = [["", "s, median", "min", "max", "text"]]
    for name, values in seconds.items():
        figures = [f"{value:.2f}" for value in (statistics.median(values), min(values), max(values))]
        rows.append([name, *figures, texts[name][:60]])
    print_table(rows)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print_json("first_run", median_s=medians, seconds=seconds, texts=texts)


if __name__ == "__main__":
    main()
