"""Commands with their slots: how many are wholly right, plainly and with phrases that may change the text.

    python tests/bench/phrases.py BUNDLE ORDERS.jsonl --hotwords "latte, roast" --bias phrases.txt --only grammar.txt

Each line of ORDERS.jsonl has `audio` and `slots`, an object of spoken texts. A command is right where the words of
each slot stand in its text, numbers as digits. What else stands there does not count, and time is measured roughly.
With --foreign SET.jsonl, a set with texts, word errors with --bias there, where its phrases are not spoken.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import print_json, print_table, recordings  # noqa: E402

import specedge  # noqa: E402
from specedge.runtime.bench.errors import units, word_errors  # noqa: E402


def words(text: str) -> str:
    """The words as `specedge bench` compares them, numbers as digits, with a space on each side."""
    return f" {' '.join(units(re.sub(r'ounces|oz', 'ounce', text.lower().replace('-', ' ')), 'en'))} "


def is_right(text: str, slots: dict[str, str]) -> bool:
    return all(words(value) in words(text) for value in slots.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("orders", type=Path)
    parser.add_argument("--hotwords")
    parser.add_argument("--bias")
    parser.add_argument("--only")
    parser.add_argument("--foreign")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.orders.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row.get("slots")]
    asked = {name: getattr(given, name) for name in ("hotwords", "bias", "only") if getattr(given, name)}
    ways: dict[str, dict[str, Any]] = {"plain": {}, **{name: {name: value} for name, value in asked.items()}}
    model = specedge.WhisperModel(given.bundle, cpu_threads=2)

    def texts(paths: Iterable[object], options: dict[str, Any]) -> list[str]:
        found = (model.transcribe(str(path), language="en", **options)[0] for path in paths)
        return ["".join(segment.text for segment in segments) for segments in found]

    table: list[list[object]] = [["way", "commands", "right", "seconds"]]
    results: dict[str, Any] = {}
    for name, options in ways.items():
        started_s = time.perf_counter()
        heard = texts((given.orders.parent / row["audio"] for row in rows), options)
        n_right = sum(is_right(text, row["slots"]) for text, row in zip(heard, rows, strict=True))
        results[name] = {"commands": len(rows), "right": n_right}
        table.append([name, len(rows), f"{100 * n_right / len(rows):.0f} %", f"{time.perf_counter() - started_s:.1f}"])
    print_table(table)
    if given.foreign:
        spoken = [one for one in recordings(given.foreign) if one.text]
        for name in ("plain", *(["bias"] if given.bias else [])):
            heard = texts((one.file for one in spoken), ways[name])
            errors = word_errors(zip((one.text for one in spoken), heard, strict=True))
            results[name]["foreign_wer"] = errors.rate
            print(f"{given.foreign}, {name}: {100 * errors.rate:.2f} % of words wrong")
    print_json("phrases", ways=results)


if __name__ == "__main__":
    main()
