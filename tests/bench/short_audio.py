"""Short audio encoded alone (`--audio-context auto`) beside whole windows, by the length of the recording.

    python tests/bench/short_audio.py -m MODEL SET... [--threads 2] [--rounds 3] [--limit N]

Each recording below 30 s is transcribed in both ways, in turn, from samples to text, plainly. A row is a class of
lengths: the median ratio, auto over whole, of the whole time and of the encoder's, with the least and the greatest;
texts that are the same to the letter; windows that auto encoded again in full; word errors where the set has texts.
It does not measure the start of a program, and says nothing on a busy machine. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import RATE_HZ, Recording, Sound, print_json, print_table, recordings, sounds  # noqa: E402
from bench.words import units  # noqa: E402

from specedge import WhisperModel  # noqa: E402
from specedge.runtime.text.words import edit_distance  # noqa: E402

LENGTHS_S = (0, 4, 8, 15, 30)
WAYS = ("full", "auto")


def measure(model: WhisperModel, one: Recording, sound: Sound, context: str) -> tuple[float, float, str, int]:
    """Seconds in all, seconds of the encoder, the text, and how many windows were encoded again."""
    begun_s = time.perf_counter()
    segments, info = model.transcribe(sound, language=one.language, drafter="none", audio_context=context)
    text = "".join(segment.text for segment in segments)
    return time.perf_counter() - begun_s, info.speculation["encoder_s"], text, info.audio_context["encoded_again"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    model = WhisperModel(args.model, cpu_threads=args.threads)
    found = [one for name in args.sets for one in recordings(name, args.limit)]
    pairs = [(one, sound) for one, sound in zip(found, sounds(found), strict=True) if len(sound) < 30 * RATE_HZ]
    for context in WAYS:
        measure(model, *pairs[0], context)  # loads the graphs
    figures = []
    for low_s, high_s in itertools.pairwise(LENGTHS_S):
        group = [pair for pair in pairs if low_s <= len(pair[1]) / RATE_HZ < high_s]
        runs = [[[measure(model, *pair, way) for way in WAYS] for _ in range(args.rounds)] for pair in group]
        if not runs:
            continue
        whole, encoder = ([statistics.median(a[i] / f[i] for f, a in rounds) for rounds in runs] for i in (0, 1))
        texts = [(one, *(run[2] for run in rounds[0])) for (one, _), rounds in zip(group, runs, strict=True)]
        row = {"seconds": f"{low_s} to {high_s}", "recordings": len(group), "ratio": statistics.median(whole)}
        row |= {"low": min(whole), "high": max(whole), "encoder": statistics.median(encoder)}
        row |= {"same": sum(full == auto for _, full, auto in texts), "again": sum(rounds[0][1][3] for rounds in runs)}
        for way, i in (("full", 1), ("auto", 2)):
            wanted = [(units(text[0].text, text[0].language), units(text[i], text[0].language)) for text in texts]
            row |= {f"wrong_{way}": sum(edit_distance(a, b) for a, b in wanted if a)}
        figures.append(row | {"units": sum(len(units(one.text, one.language)) for one, *_ in texts)})
    shown = [[f"{value:.2f}" if isinstance(value, float) else value for value in row.values()] for row in figures]
    print_table([list(figures[0]), *shown])
    print_json("short_audio", model=args.model, threads=args.threads, figures=figures)


if __name__ == "__main__":
    main()
