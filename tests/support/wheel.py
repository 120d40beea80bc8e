"""The wheel of this tree, built from a copy, so that what an earlier build left behind is not in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from support.tree import ROOT, project_files


def copy_tree(target: Path) -> Path:
    """The project's files, without what git ignores, in `target`."""
    for path in project_files():
        copy = target / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return target


def build_wheel(folder: Path) -> Path:
    """Build the wheel with the setuptools of this environment: no network."""
    source = copy_tree(folder / "source")
    arguments = ["wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)
    return next(folder.glob("*.whl"))


def runtime_closure(project: str = "specedge") -> dict[str, metadata.Distribution]:
    """Every distribution that the default installation brings on this platform, by normalised name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [project]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found[name] = metadata.distribution(name)
        needs = [Requirement(text) for text in found[name].requires or []]
        waiting += [r.name for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def size_bytes(distribution: metadata.Distribution) -> int:
    """What its files take, compiled bytecode left out (pip makes it, or does not)."""
    files = [Path(str(f.locate())) for f in distribution.files or [] if f.suffix != ".pyc"]
    return sum(path.stat().st_size for path in files if path.is_file())
