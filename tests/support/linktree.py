"""The tree of links in which mypy and pyright see the packages under the names they are installed as.

    python tests/support/linktree.py .links && MYPYPATH=.links mypy --strict -p specedge

The folders are renamed on installation, and setuptools' editable install is an import hook that type checkers do not
follow; without the links mypy reports every import of specedge as missing.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Run as a program, Python puts this file's folder, not tests/, in front of its path.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.tree import FOLDERS, ROOT  # noqa: E402


def lay(target: Path) -> Path:
    """Make `target/specedge` with links to the folders and to the files of `runtime/_specedge`; returns it."""
    package = target / "specedge"
    package.mkdir(parents=True, exist_ok=True)
    sources = [*(ROOT / name for name in FOLDERS), *(ROOT / "runtime" / "_specedge").glob("*.py*")]
    sources.append(ROOT / "runtime" / "_specedge" / "py.typed")
    for source in sources:
        link = package / source.name
        if not link.is_symlink():
            link.symlink_to(source, target_is_directory=source.is_dir())
    return package


if __name__ == "__main__":
    print(lay(Path(sys.argv[1]).resolve()))
