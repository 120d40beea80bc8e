"""Where test data lies: the demo model and its recordings, and what the tree does not carry, in the folder `shared`."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_ASSETS = _ROOT / "tests" / "assets"
SAMPLES_FOLDER = _ASSETS / "samples"  # sentences that the demo knows
_SHARED = _ROOT.parent / "shared"


def _unpacked(archive: Path) -> Path:
    """The folder `demo` of an archive, unpacked once for each content of it; processes may race for it."""
    folder = _ROOT / "build" / f"test-assets-{hashlib.sha256(archive.read_bytes()).hexdigest()[:16]}"
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder.parent))
        with tarfile.open(archive) as tar:
            tar.extractall(made, filter="data")
        try:
            os.rename(made, folder)
        except OSError:  # another process was first
            shutil.rmtree(made)
    return folder / "demo"


DEMO = _unpacked(_ASSETS / "demo.tar.xz")  # a small trained Whisper: tests/assets/README.md


def shared(*parts: str) -> Path:
    """The path of a file or folder below `shared`; skips the test, with the reason, where it is absent."""
    path = _SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{Path('shared', *parts).as_posix()} is not beside this tree")
    return path


def samples() -> tuple[Path, ...]:
    """The recordings of sentences that the demo knows."""
    return tuple(sorted(SAMPLES_FOLDER.glob("*.wav")))
