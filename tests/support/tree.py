"""The files of this project, for tests about its shape: the modules, their names, and what git knows."""

from __future__ import annotations

import ast
import functools
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("runtime", "maps", "export", "models", "compat", "serve", "fleet")
_NOT_OURS = {".git", ".venv", ".links", "build", "dist", "__pycache__", ".hypothesis"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Module:
    """A Python file that is installed: its path and the dotted name under which it is imported."""

    path: Path
    name: str

    @cached_property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def syntax(self) -> ast.Module:
        return ast.parse(self.source, filename=str(self.path))

    @property
    def relative(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


@functools.cache
def modules() -> tuple[Module, ...]:
    """Every Python file below the installed folders, sorted by path; each is read and parsed once in a test run."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not _NOT_OURS.intersection(path.relative_to(ROOT).parts):
                found.append(Module(path=path, name=_dotted(path)))
    return tuple(found)


def modules_of_tests() -> list[Module]:
    """Every Python file of the tests, under the name by which the others import it."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(Module(path=path, name=".".join(parts[1:] if parts[1] == "support" else parts)))
    return found


def project_files() -> list[Path]:
    """What is in the repository or would be added to it; without git, everything but environments and caches."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
        paths = [ROOT / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [p for p in ROOT.rglob("*") if not _ignored(p.relative_to(ROOT))]
    return sorted(p for p in paths if p.is_file())


def _ignored(relative: Path) -> bool:
    return any(p in _NOT_OURS or p.endswith((".egg-info", "_cache")) for p in relative.parts)


def _dotted(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    if parts[:2] == ["runtime", "_specedge"]:
        parts = parts[2:]
    return ".".join(["specedge", *parts])
