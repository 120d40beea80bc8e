"""Tokens a pass, and how much faster the decoder and the whole are with each drafter than without one.

    python tests/bench/speculate.py -m MODEL SET... [--drafters tokenmap,ngram,draft=MODEL,auto] [--token-map X.tmap]
                                    [--limit 16] [--rounds 3] [--threads 2]

A SET is a .jsonl file (common.py) or an audio file. Every recording is transcribed with all drafters one after another,
in an order that turns with each recording, and all of it again in each round, behind one that warms up, so that a slow
moment of the machine touches all alike. Drafters live through a round, as over the files of one command. A ratio is the
time of `none` over the drafter's (decoder and drafting together; or all, with the encoder) in a round: the median of
the rounds, with the least and the greatest. Texts are compared too. It does not measure loading or a busy machine.

The last line is JSON; the exit code is 1 where a text differs, or a drafter was dropped.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Sound, made, print_json, print_table, recordings, sounds  # noqa: E402

from specedge import WhisperModel  # noqa: E402
from specedge.runtime.decoding.drafter import TargetModel  # noqa: E402
from specedge.runtime.drafters.registry import runnable  # noqa: E402
from specedge.runtime.options import DrafterOptions  # noqa: E402


@dataclass
class Sums:
    """Of one drafter on one set: seconds of each round, and counts of all."""

    decoder_s: list[float] = field(default_factory=list)
    all_s: list[float] = field(default_factory=list)
    tokens: int = 0
    passes: int = 0
    evaluated: int = 0
    accepted: int = 0
    different: int = 0


def measure(
    model: WhisperModel, found: Sequence[Sound], names: Sequence[str], given: argparse.Namespace
) -> dict[str, Sums]:
    """All rounds of a set."""
    sums = {name: Sums() for name in names}
    target = TargetModel(model.bundle, threads=model.threads)
    for number in range(given.rounds + 1):
        drafters = {name: made(name, target, given.token_map) for name in names}
        for one in sums.values():
            one.decoder_s.append(0.0)
            one.all_s.append(0.0)
        for at, sound in enumerate(found):
            texts = {}
            for name in (*names[at % len(names) :], *names[: at % len(names)]):
                started = time.perf_counter()
                segments, info = model.transcribe(sound, given.language, drafter=drafters[name])
                texts[name] = [(segment.seek, segment.tokens, segment.avg_logprob) for segment in segments]
                counted, one = info.speculation, sums[name]
                one.all_s[-1] += time.perf_counter() - started
                one.decoder_s[-1] += counted["decoder_s"] + counted["draft_s"]
                one.tokens += counted["tokens"]
                one.passes += counted["passes"]
                one.evaluated += counted["evaluated"]
                one.accepted += counted["accepted"]
                one.different += counted["drafter"] != name.partition("=")[0]  # it was dropped
            for name in names:
                sums[name].different += texts[name] != texts["none"]
        for drafter in drafters.values():
            drafter.close()
        print(f"round {number} of {given.rounds}" if number else "warm-up", file=sys.stderr, flush=True)
    for one in sums.values():
        del one.decoder_s[0], one.all_s[0]
    return sums


def figures(one: Sums, plain: Sums) -> dict[str, Any]:
    """The figures of a drafter."""
    decoder = [a / b for a, b in zip(plain.decoder_s, one.decoder_s, strict=True)]
    return {
        "tokens_a_pass": round(one.tokens / max(1, one.passes), 2),
        "accepted": round(one.accepted / max(1, one.evaluated), 3),
        "decoder": round(statistics.median(decoder), 3),
        "least": round(min(decoder), 3),
        "greatest": round(max(decoder), 3),
        "end_to_end": round(statistics.median(a / b for a, b in zip(plain.all_s, one.all_s, strict=True)), 3),
        "different": one.different,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--drafters", help="with commas  [default: all that the bundle can, and auto]")
    parser.add_argument("--token-map", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--language", default="en")
    parser.add_argument("--limit", type=int, default=16, metavar="N", help="recordings of a set")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    model = WhisperModel(given.model, cpu_threads=given.threads)
    usual = [*runnable(model.bundle, DrafterOptions(token_maps=given.token_map)), "auto"]
    names = list(dict.fromkeys(["none", *(given.drafters.split(",") if given.drafters else usual)]))
    result: dict[str, dict[str, Any]] = {}
    for name in given.sets:
        sums = measure(model, list(sounds(recordings(name, given.limit))), names, given)
        result[name] = {drafter: figures(one, sums["none"]) for drafter, one in sums.items()}
        print(f"\n{name}")
        columns = list(result[name]["none"])
        print_table([["", *columns], *([drafter, *of.values()] for drafter, of in result[name].items())])
    n_different = sum(of["different"] for rows in result.values() for of in rows.values())
    print(f"\n{n_different} texts differ, or were those of a drafter that was dropped")
    print_json("speculate", model=model.bundle.manifest.name, threads=given.threads, sets=result, different=n_different)
    return 1 if n_different else 0


if __name__ == "__main__":
    sys.exit(main())
