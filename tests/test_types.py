"""`mypy --strict` over the installed packages, in a tree of links (see support/linktree.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.linktree import lay
from support.tree import ROOT

pytestmark = pytest.mark.slow


def _mypy(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "specedge"],
        cwd=tree,
        env={**os.environ, "MYPYPATH": str(tree), "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")},
        capture_output=True,
        text=True,
    )


def test_the_packages_are_strictly_typed(tmp_path: Path) -> None:
    lay(tmp_path)
    result = _mypy(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_check_sees_every_folder(tmp_path: Path) -> None:
    """A tree of links that is not followed passes having read nothing, so plant one error beside the real files."""
    package = lay(tmp_path)
    (package / "planted.py").write_text(
        "from specedge import SpecedgeError\n"
        "from specedge.errors import UsageError\n"
        "wrong_root: int = SpecedgeError('')\n"
        "wrong_folder: int = UsageError('')\n"
    )
    result = _mypy(tmp_path)
    assert "planted.py:3: error: Incompatible types" in result.stdout, result.stdout + result.stderr
    assert "planted.py:4: error: Incompatible types" in result.stdout
