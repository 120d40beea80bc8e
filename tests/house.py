"""The size of the house: lines, functions of one sentence, calls of an export, options, bytes.

    python tests/house.py [--bundle B --audio A] [--checkpoint C] [--no-wheel]

Lines are those of tracked Python files, blank ones and comments among them. Functions and files are the package's own
that one transcription of A with B enters, with the model open, plain and with `auto`; calls are those of the package's
own code in an export of C, first and once more in the same process. What needs an argument is left out without it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

PAPERS = ("runtime/papers/", "export/papers/")


def tracked() -> list[str]:
    """Tracked files that are there, as paths from the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def lines() -> dict[str, int]:
    """Python lines by part of the house."""
    found = {"product lines": 0, "papers' rooms": 0, "test lines": 0}
    for name in tracked():
        if name.endswith(".py") and not name.startswith("docs/"):
            n_lines = (ROOT / name).read_bytes().count(b"\n")
            found["test lines" if name.startswith("tests/") else "product lines"] += n_lines
            found["papers' rooms"] += n_lines if name.startswith(PAPERS) else 0
    return found


class Profile:
    """Counts the calls of the package's own functions in all threads that begin while it is open."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.entered: set[CodeType] = set()
        self._own: dict[str, bool] = {}

    def __enter__(self) -> Profile:
        threading.setprofile(self._call)
        sys.setprofile(self._call)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _call(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        is_own = self._own.get(code.co_filename)
        if is_own is None:
            path = Path(os.path.realpath(code.co_filename))
            is_ours = path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "tests") and path.suffix == ".py"
            is_own = is_ours and ".venv" not in path.parts
            self._own[code.co_filename] = is_own
        if is_own:
            self.n_calls += 1
            self.entered.add(code)

    @property
    def named(self) -> tuple[int, int]:
        """Functions that have a name, and the files that they are in."""
        functions = {code for code in self.entered if not code.co_name.startswith("<")}
        return len(functions), len({code.co_filename for code in functions})


def sentence(bundle: str, audio: str) -> dict[str, str]:
    """Functions and files of one transcription."""
    from specedge import WhisperModel

    model = WhisperModel(bundle)
    found = {}
    for drafter in ("none", "auto", "auto, opening the model too"):
        list(model.transcribe(audio, drafter=drafter[:4])[0])  # so that first imports are no part of it
        with Profile() as profile:
            used = WhisperModel(bundle) if "opening" in drafter else model
            list(used.transcribe(audio, drafter=drafter[:4])[0])
        found[f"functions of one sentence, {drafter}"] = "{} in {} files".format(*profile.named)
    return found


def export_calls(checkpoint: str) -> dict[str, int]:
    """Calls of two exports in one process."""
    from specedge.export.export import export_to

    found = {}
    with tempfile.TemporaryDirectory(prefix="specedge-house-") as folder:
        for name in ("first", "again"):
            with Profile() as profile:
                export_to(checkpoint, Path(folder, name))
            found[f"calls of an export, {name}"] = profile.n_calls
    return found


def options() -> dict[str, int]:
    """Visible options of transcribe, and commands."""
    from click.testing import CliRunner

    from specedge.runtime.cli.main import specedge

    shown = CliRunner().invoke(specedge, ["transcribe", "-h"]).output
    commands = CliRunner().invoke(specedge, ["-h"]).output
    listed = commands[commands.index("Commands:") :] if "Commands:" in commands else commands
    return {
        "options of transcribe -h": len(re.findall(r"^  -", shown, re.MULTILINE)),
        "commands": len(re.findall(r"^  [a-z]", listed, re.MULTILINE)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bundle", "audio", "checkpoint"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--no-wheel", action="store_true")
    given = parser.parse_args()
    rows: dict[str, Any] = {**lines(), **options()}
    if given.bundle and given.audio:
        rows |= sentence(given.bundle, given.audio)
    if given.checkpoint:
        rows |= export_calls(given.checkpoint)
    rows["tracked tree, MB"] = round(sum((ROOT / name).stat().st_size for name in tracked()) / 1e6, 1)
    if not given.no_wheel:
        from support.wheel import build_wheel

        with tempfile.TemporaryDirectory(prefix="specedge-house-") as folder:
            rows["wheel, MB"] = round(build_wheel(Path(folder)).stat().st_size / 1e6, 2)
    for name, value in rows.items():
        print(f"| {name} | {value} |")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
