"""What a cut audio context costs in words and times: whole windows beside windows cut at several margins and grids.

    python tests/bench/audio_context.py [BUNDLE] --speech FOLDER [--limit 60] [--settings 25/50,50/64] [--threads 1]

Every recording of the shards in FOLDER (those named in --domains, all by default) is transcribed plainly over whole
windows and over what holds audio, the log-mel cut at so many frames behind the content, rounded up to a grid:
MARGIN/GRID. Word errors are against the texts that were spoken; "start" and "end" are the mean distances in seconds
from where speech begins and ends to the first segment's start and the last one's end; "heard" is the share of the
windows' frames that was encoded. It does not measure time, nor recordings of more than one sentence. The last line of
output is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from specedge.export.training.corpus import RATE_HZ, Utterance, load_shards
from specedge.models import store
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.engine import Engine
from specedge.runtime.longform import windows
from specedge.runtime.longform.transcribe import transcribe
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.output.report import aligned
from specedge.runtime.text.words import word_errors

USUAL = f"{windows.MARGIN_FRAMES}/{windows.GRID_FRAMES}"


def heard(engine: Engine, bundle: Bundle, items: list[Utterance], options: TranscribeOptions) -> dict[str, Any]:
    """The figures of one setting, and its texts."""
    pairs, starts, ends = [], [], []
    n_heard = n_whole = 0
    for item in items:
        done = transcribe(engine, bundle, open_audio(item.sound()), options)
        segments = list(done)
        pairs.append((item.text, "".join(segment.text for segment in segments)))
        n_heard, n_whole = n_heard + done.audio_context.n_heard, n_whole + done.audio_context.n_whole
        if segments:
            starts.append(abs(segments[0].start - item.start / RATE_HZ))
            ends.append(abs(segments[-1].end - item.end / RATE_HZ))
    errors = word_errors(pairs)
    return {
        "errors": errors.n_errors,
        "words": errors.n_words,
        "start": round(float(np.mean(starts)), 3),
        "end": round(float(np.mean(ends)), 3),
        "latest_end": round(max(ends), 2),
        "heard": round(n_heard / n_whole, 3),
        "texts": [text for _, text in pairs],
    }


def measure(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By domain and setting; prints the tables."""
    bundle = Bundle.open(store.find(given.model))
    engine = Engine(bundle, threads=given.threads)
    found: dict[str, dict[str, Any]] = {}
    for domain, items in load_shards(given.speech):
        if given.domains and domain not in given.domains.split(","):
            continue
        items = random.Random(3).sample(items, min(given.limit, len(items)))  # voices lie one after another
        rows: dict[str, Any] = {}
        for setting in ("full", *given.settings.split(",")):
            margin, grid = map(int, (USUAL if setting == "full" else setting).split("/"))
            options = TranscribeOptions(
                language="en",
                without_timestamps=given.no_timestamps,
                audio_context="full" if setting == "full" else "auto",
            )
            with mock.patch.multiple(windows, MARGIN_FRAMES=margin, GRID_FRAMES=grid):
                rows[setting] = heard(engine, bundle, items, options)
        whole = rows["full"]["texts"]
        for row in rows.values():
            row["same_text"] = sum(map(str.__eq__, row.pop("texts"), whole))
        found[domain] = rows
        names = list(rows["full"])
        print(f"\n{domain}, {len(items)} recordings")
        print("\n".join(aligned([["", *names], *([key, *map(str, row.values())] for key, row in rows.items())])))
    return found


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--speech", type=Path, required=True, metavar="FOLDER", help="shards of spoken utterances")
    parser.add_argument("--domains", help="which shards, with commas  [all]")
    parser.add_argument("--limit", type=int, default=60, help="recordings of a shard")
    parser.add_argument("--settings", default=USUAL, help="MARGIN/GRID in frames, with commas")
    parser.add_argument("--no-timestamps", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    found = measure(given)
    if not found:
        sys.exit(f"{given.speech}: no shards of that name")
    print(json.dumps({"benchmark": "audio_context", "limit": given.limit, "domains": found}))


if __name__ == "__main__":
    main()
