"""What one plain sentence enters: Python calls by product file, of the library and of the command.

    python tests/bench/trace.py [--audio FILE] [--drafter NAME] [--files]

The model is warm: calls are counted in the second transcription of FILE. The command is run in this process, with the
bundled model, and is counted from its request to its last line. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import specedge
from specedge.runtime.cli.main import main as command
from support.paths import DEMO, samples

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = tuple(f"{ROOT / folder}/" for folder in ("runtime", "maps", "models"))


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """Python calls while `work` runs, by file of the product. Calls of other threads are not seen."""
    calls: Counter[str] = Counter()

    def see(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PRODUCT):
            calls[name.removeprefix(f"{ROOT}/")] += 1

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audio", default=str(samples()[0]), help="default: the first bundled sample")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--files", action="store_true", help="list the calls of each file")
    given = parser.parse_args()
    model = specedge.WhisperModel(str(DEMO))

    def library() -> None:
        list(model.transcribe(given.audio, drafter=given.drafter)[0])

    def by_command() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            command(["transcribe", given.audio, "--drafter", given.drafter])

    found = {}
    for name, work in (("library", library), ("command", by_command)):
        work()
        calls = calls_of(work)
        found[name] = {"calls": sum(calls.values()), "files": len(calls)}
        if given.files:
            print(f"{name}:", *(f"{n:6} {file}" for file, n in calls.most_common()), sep="\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
