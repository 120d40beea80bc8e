"""Where test data lies that the tree does not carry: in the folder `shared` beside it, if there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
DEMO = _ROOT / "models" / "bundled" / "demo"
_SHARED = _ROOT.parent / "shared"


def shared(*parts: str) -> Path:
    """The path of a file or folder below `shared`; skips the test, with the reason, where it is absent."""
    path = _SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{Path('shared', *parts).as_posix()} is not beside this tree")
    return path


def samples() -> tuple[Path, ...]:
    """The recordings of sentences that the demo knows."""
    return tuple(sorted((_ROOT / "models" / "bundled" / "samples").glob("*.wav")))
