"""The papers' page on recordings: what each of its commands that transcribe brings beside plain decoding.

    python tests/bench/papers.py SET... [--rounds 3] [--threads 2] [--limit 12] [--folder .]

Run the page's other commands in FOLDER first: they make its maps, heads and models (docs/papers.md). Commands whose
model or map is not there are named and left out. Those of a model with the same options take turns with it (specedge
bench); tokens and texts are of a first round, times of the others. Texts may differ under rules that are not exact
(typical, top-3, a threshold): the table says how many, and what that does to the words. The last line is JSON.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, print_json, print_table, recordings  # noqa: E402

from specedge.errors import SpecedgeError  # noqa: E402
from specedge.models import store  # noqa: E402
from specedge.runtime.bench.measure import Row, bench  # noqa: E402
from specedge.runtime.bench.rounds import Way  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.cli.options import drafter_options, transcribe_options  # noqa: E402
from specedge.runtime.cli.transcribe import transcribe  # noqa: E402
from specedge.runtime.decoding.drafter import TargetModel  # noqa: E402
from specedge.runtime.drafters.registry import make_drafter  # noqa: E402
from specedge.runtime.engine.speech import open_engine  # noqa: E402
from specedge.runtime.options import DrafterOptions, TranscribeOptions  # noqa: E402

COLUMNS = ("command", "tokens a pass", "accepted", "decoder", "end to end", "words wrong", "texts that differ")
_USUAL = ("shift.wav", "talks/", "-l", "en", "--stats", "-o", "out/")  # what says nothing of the row


def commands(page: str) -> dict[tuple[str, TranscribeOptions], list[Way]]:
    """The ways of transcribing, by their model and the options of the plain decoding that they are compared with."""
    found: dict[tuple[str, TranscribeOptions], list[Way]] = defaultdict(list)
    for line in re.findall(r"^specedge transcribe (.*)$", page, re.MULTILINE):
        words = shlex.split(line)
        with transcribe.make_context("transcribe", list(words)) as ctx:
            options, drafter, model = transcribe_options(ctx.params), drafter_options(ctx.params), ctx.params["model"]
        options = replace(options, language=None)
        note = " ".join(word for word in words if word not in (*_USUAL, "-m", model, "--drafter", drafter.name))
        plain = replace(options, accept=TranscribeOptions.accept)
        found[model, plain].append(Way(drafter=drafter, options=options, note=note))
    return found


def is_here(way: Way, bundle: Bundle) -> bool:
    """Whether what the drafter takes is there."""
    try:
        make_drafter(way.drafter, TargetModel(bundle, threads=1)).close()
    except SpecedgeError as error:
        print(f"{way.name}: left out, {error}", file=sys.stderr)
        return False
    return True


def cells(name: str, row: Row) -> list[object]:
    """A line of the table."""
    counted, speed, whole = row.counted, row.decoder_speed_up, row.end_to_end
    wer = "" if row.wer is None else f"{row.wer:.1%}"
    spread = f"{speed.median:.2f} ({speed.least:.2f}-{speed.greatest:.2f})"
    rate = "" if counted.acceptance_rate is None else f"{counted.acceptance_rate:.0%}"
    return [name, f"{counted.tokens_per_pass:.2f}", rate, spread, f"{whole.median:.2f}", wer, row.different]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET", help="a .jsonl file, a folder or an audio file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=int, metavar="N", help="recordings of a set")
    parser.add_argument("--folder", default=".", help="where the page's commands were run")
    given = parser.parse_args()
    found = [one for name in given.sets for one in recordings(os.path.realpath(name), given.limit)]
    os.chdir(given.folder)
    figures: dict[str, list[Any]] = {}
    for (model, options), ways in commands((ROOT / "docs" / "papers.md").read_text("utf-8")).items():
        plain = Way(drafter=DrafterOptions("none"), options=options, note=f"-m {model}")
        try:
            bundle = Bundle.open(store.find(model))
            able = [plain, *(way for way in ways if is_here(way, bundle))]
            measured = bench(open_engine(bundle, threads=given.threads), bundle, found, able, n_rounds=given.rounds)
        except SpecedgeError as error:
            print(f"-m {model}: left out, {error}", file=sys.stderr)
            continue
        figures |= {f"{model}: {name}": cells(name, row)[1:] for name, row in measured.rows.items()}
        print_table([COLUMNS, *(cells(name, row) for name, row in measured.rows.items())])
        print(flush=True)
    print_json("papers", columns=COLUMNS[1:], rows=figures, recordings=len(found), rounds=given.rounds)
    return 0 if figures else 1


if __name__ == "__main__":
    sys.exit(main())
