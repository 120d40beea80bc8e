"""The commands that are killed: how each runs, how its files tell whether they are whole, and what may lie there."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "tests") not in sys.path:
    sys.path.insert(0, str(ROOT / "tests"))

from support.paths import DEMO  # noqa: E402

SAMPLES = [ROOT / "tests" / "assets" / "samples" / f"{name}.wav" for name in ("maintenance", "notes")]
FORMATS = ("txt", "srt", "vtt", "tsv", "json", "lrc")


def import_everything() -> None:
    """What the commands import as they go, so that the children's time is spent on files."""
    for name in (
        "numpy", "onnx", "onnxruntime", "specedge.runtime.cli.main",
        "specedge.runtime.cli.transcribe_files",
        "specedge.runtime.cli.transcribe", "specedge.runtime.cli.map", "specedge.export.export",
        "specedge.export.bundling", "specedge.maps.build", "specedge.runtime.engine.engine", "support.checkpoints",
    ):  # fmt: skip
        importlib.import_module(name)


def command(*arguments: object) -> None:
    """`specedge ARGUMENTS` in this process; RuntimeError when it fails."""
    from specedge.runtime.cli.main import main

    code = main([str(argument) for argument in arguments])
    if code != 0:
        raise RuntimeError(f"specedge {arguments[0]} ended with {code}")


class Victim:
    """One kind of work in `folder`; `turn` tells which of its results it is to write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "files"
        self.folder.mkdir()
        os.environ["SPECEDGE_HOME"] = str(root / "home")
        os.environ["SPECEDGE_CACHE"] = str(root / "cache")
        os.environ["SPECEDGE_MODEL"] = str(DEMO)

    def prepare(self) -> None:
        """What must be there before the first turn."""

    def work(self, turn: int) -> None:
        raise NotImplementedError

    def torn(self) -> list[str]:
        """What is neither old nor new, as the files lie now."""
        raise NotImplementedError

    def left_over(self) -> list[str]:
        """What a whole run should have swept."""
        return sorted(path.name for path in self.folder.iterdir() if path.name not in self.rightful())

    def rightful(self) -> set[str]:
        raise NotImplementedError


class Outputs(Victim):
    """Two recordings in turn under one name."""

    def prepare(self) -> None:
        for turn in range(2):
            (self.root / str(turn)).mkdir()
            shutil.copyfile(SAMPLES[turn], self.root / str(turn) / "talk.wav")
            self.work(turn)
            shutil.copytree(self.folder, self.root / f"expected{turn}")

    def work(self, turn: int) -> None:
        talk = self.root / str(turn % 2) / "talk.wav"
        command("transcribe", talk, "-o", self.folder, "-f", ",".join(FORMATS), "-q")

    def torn(self) -> list[str]:
        found = []
        for name in sorted(self.rightful()):
            right = [_comparable(self.root / f"expected{turn}" / name) for turn in range(2)]
            if _comparable(self.folder / name) not in right:
                found.append(f"{name} is neither the old nor the new")
        return found

    def rightful(self) -> set[str]:
        return {f"talk.{ending}" for ending in FORMATS}


def _comparable(path: Path) -> Any:
    """A file's content without the times that it took; None where it cannot be read."""
    try:
        data = path.read_bytes()
        if path.suffix != ".json":
            return data
        value = json.loads(data)
        return [value["text"], value["segments"]]
    except (OSError, ValueError, KeyError):
        return None


class Learned(Victim):
    """A database that only ever learns more."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        os.environ["SPECEDGE_HOME"] = str(self.folder)
        self._n_known = 0

    def prepare(self) -> None:
        self.work(0)

    def work(self, turn: int) -> None:
        command("transcribe", SAMPLES[turn % 2], "--drafter", "ngram", "--remember", "-o", self.root / "out", "-q")

    def torn(self) -> list[str]:
        with tempfile.TemporaryDirectory(dir=self.root) as name:
            for path in self.folder.iterdir():  # a copy, because opening it mends what the next run has to
                shutil.copyfile(path, Path(name) / path.name)
            connection = sqlite3.connect(Path(name) / "learned.sqlite")
            try:
                (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
                (n_known,) = connection.execute("SELECT sum(count) FROM gram").fetchone()
            except sqlite3.Error as error:
                return [f"learned.sqlite: {error}"]
            finally:
                connection.close()
        before, self._n_known = self._n_known, n_known or 0
        if verdict != "ok" or self._n_known < before:
            return [f"learned.sqlite: {verdict}, {before} entries before and {self._n_known} now"]
        return []

    def rightful(self) -> set[str]:
        return {"learned.sqlite"}


class Maps(Victim):
    """Two sets of transcripts in turn, one map."""

    def prepare(self) -> None:
        for turn, lines in enumerate((["the pump is on", "the valve is shut"], ["close the gate", "open the gate"])):
            text = "\n".join(f"{line} at {hour}" for line in lines for hour in range(20)) + "\n"
            (self.root / f"text{turn}.txt").write_text(text * 5)
            self.work(turn)
            shutil.copyfile(self.folder / "plant.tmap", self.root / f"expected{turn}.tmap")

    def work(self, turn: int) -> None:
        command("map", "build", self.root / f"text{turn % 2}.txt", "-o", self.folder / "plant.tmap")

    def torn(self) -> list[str]:
        right = [(self.root / f"expected{turn}.tmap").read_bytes() for turn in range(2)]
        whole = (self.folder / "plant.tmap").read_bytes() in right
        return [] if whole else ["plant.tmap is neither the old nor the new"]

    def rightful(self) -> set[str]:
        return {"plant.tmap"}


class Export(Victim):
    """One checkpoint in two precisions in turn."""

    def prepare(self) -> None:
        from support.checkpoints import make_checkpoint

        make_checkpoint(self.root / "checkpoint", size="micro")
        self.work(0)

    def work(self, turn: int) -> None:
        precision = ("int8", "fp32")[turn % 2]
        command("export", self.root / "checkpoint", "-o", self.folder / "out", "--precision", precision, "--force")

    def torn(self) -> list[str]:
        from specedge.errors import SpecedgeError
        from specedge.leftovers import REPLACED
        from specedge.runtime.bundle.bundle import Bundle

        out = self.folder / "out"
        if not out.exists():  # killed between two renames: the old one waits for the next export
            out = next(self.folder.glob(f".out.*/{REPLACED}"), out)
        try:
            Bundle.open(out)
        except SpecedgeError as error:
            return [str(error)]
        return []

    def rightful(self) -> set[str]:
        return {"out"}


KINDS: dict[str, Callable[[Path], Victim]] = {
    "outputs": Outputs, "learned": Learned, "maps": Maps, "export": Export,
}  # fmt: skip
