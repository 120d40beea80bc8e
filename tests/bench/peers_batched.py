"""Batched transcription beside faster-whisper's own, on one grown checkpoint: the same clips, each at its best batch.

    python tests/bench/peers_batched.py --shape small --speech SHARDS [--limit 32] [--rounds 3] [--batches 1,8,16]
                                        [--grown FOLDER] [--ct2-python PYTHON] [--drafters none,auto]

Utterances are joined into one recording, each a clip of `clip_timestamps`. Both programs run
`BatchedInferencePipeline.transcribe` in a process of their own, with timestamps, greedily, on as many threads; sizes of
a batch and programs take turns in every round. The table has seconds from samples to text, medians of the rounds, with
the least and the greatest, and how many times as fast as faster-whisper's best batch that is.

It does not measure accuracy, or a busy machine. The last line of output is JSON; the exit code is 1 where our
words depend on the batch or the drafter.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))
WINDOW_FRAMES = 1000


def work(kind: str, model: str, threads: int, folder: str) -> None:
    """Answer lines `{"batch": N, "drafter": NAME}` with the seconds that it took and the words."""
    import numpy as np

    module: Any = __import__("specedge" if kind == "specedge" else "faster_whisper")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    quick = {} if kind == "specedge" else {"compute_type": "int8"}
    loaded = module.WhisperModel(model, device="cpu", cpu_threads=threads, **quick)
    pipeline = module.BatchedInferencePipeline(loaded)
    sound = np.load(Path(folder) / "sound.npy")
    clips = json.loads((Path(folder) / "clips.json").read_text())
    fixed: dict[str, Any] = {"language": "en", "beam_size": 1, "without_timestamps": False, "temperature": 0.0}
    if kind != "specedge":  # it pads to 30 s whatever the model: it is told the grown models' window
        fixed["chunk_length"] = WINDOW_FRAMES // 100
        transcribe = vars(sys.modules["faster_whisper.transcribe"])
        transcribe["pad_or_trim"] = functools.partial(transcribe["pad_or_trim"], length=WINDOW_FRAMES)
    for line in sys.stdin:
        asked = json.loads(line)
        own = {"drafter": asked["drafter"]} if kind == "specedge" else {}
        started = time.perf_counter()
        segments, _ = pipeline.transcribe(sound, batch_size=asked["batch"], clip_timestamps=clips, **own, **fixed)
        text = " ".join(segment.text for segment in segments)
        answer = {"s": time.perf_counter() - started, "words": text.lower().split()}
        print(json.dumps(answer), file=answers, flush=True)


class Program:
    """A program at work in a process of its own."""

    def __init__(self, python: str, *arguments: str) -> None:
        command = [python, str(HERE / "peers_batched.py"), "--work", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, batch: int, drafter: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"batch": batch, "drafter": drafter}), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _write_sound(folder: Path, speech: Path, domain: str, n_clips: int) -> float:
    """The joined recording and its clips. Returns its seconds."""
    import numpy as np

    from specedge.export.training.corpus import load_shards

    utterances = dict(load_shards(speech))[domain]
    some = utterances[:: max(1, len(utterances) // n_clips)][:n_clips]
    chosen = [np.asarray(one.samples, np.float32) for one in some]
    if max(float(np.abs(samples).max()) for samples in chosen) > 1:  # shards hold int16
        chosen = [samples / 32768 for samples in chosen]
    ends = np.cumsum([len(samples) for samples in chosen]) / 16_000
    clips = [{"start": float(a), "end": float(b)} for a, b in zip([0.0, *ends[:-1]], ends, strict=True)]
    np.save(folder / "sound.npy", np.concatenate(chosen))
    (folder / "clips.json").write_text(json.dumps(clips))
    return float(ends[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="small")
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--domain", default="maintenance-dev")
    parser.add_argument("--limit", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", default="1,8,16")
    parser.add_argument("--drafters", default="none,auto")
    parser.add_argument("--grown", type=Path)
    parser.add_argument("--ct2-python", default=sys.executable)
    given = parser.parse_args()

    from bench.grown import ct2_of, folder_of
    from bench.rounds import print_json

    batches = [int(batch) for batch in given.batches.split(",")]
    folder = folder_of(given.shape, given.grown)
    ct2 = ct2_of(given.shape, folder, given.ct2_python)
    took: dict[str, list[float]] = {}
    words: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as made:
        seconds = _write_sound(Path(made), given.speech, given.domain, given.limit)
        ours = Program(sys.executable, "specedge", str(folder / "bundle"), str(given.threads), made)
        theirs = Program(given.ct2_python, "faster-whisper", str(ct2), str(given.threads), made)
        rows = [("specedge", ours, batch, name) for batch in batches for name in given.drafters.split(",")]
        rows += [("faster-whisper", theirs, batch, "none") for batch in batches]
        for number in range(given.rounds + 1):
            for kind, program, batch, drafter in rows:
                answer = program.ask(batch, drafter)
                key = f"{kind}, batch {batch}, {drafter}"
                words[key] = answer["words"]
                if number:  # the first round warms up
                    took.setdefault(key, []).append(answer["s"])
        ours.close()
        theirs.close()
    medians = {key: statistics.median(found) for key, found in took.items()}
    best = min(value for key, value in medians.items() if key.startswith("faster-whisper"))
    for key, value in medians.items():
        print(f"{key:32}  {value:6.2f} s  ({min(took[key]):.2f}-{max(took[key]):.2f})  {best / value:5.2f}")
    own = {" ".join(said) for key, said in words.items() if key.startswith("specedge")}
    alike = {key: " ".join(said) in own for key, said in words.items()}
    found = {"shape": given.shape, "audio_s": seconds, "clips": given.limit, "rounds": given.rounds}
    times = {key: best / value for key, value in medians.items()}
    print_json("peers_batched", **found, s=medians, over_their_best=times, same_words_as_ours=alike)
    return int(len(own) > 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        sys.exit(main())
