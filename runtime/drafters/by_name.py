"""Which drafter a name means, for callers who say what they want in words.

Does not know: what a drafter does, command lines.
"""

from __future__ import annotations

import os

from specedge.runtime.drafters import Drafter, EmptyDrafter
from specedge.runtime.errors import UsageError

__all__ = ["NAMES", "make_drafter"]

NAMES = ("none",)


def make_drafter(name: str | Drafter, *, token_map: str | os.PathLike[str] | None = None) -> Drafter:
    """A new drafter of this name; a drafter that was made elsewhere is given back as it is.

    Raises UsageError for an unknown name, or a token map for a drafter that reads none.
    """
    if not isinstance(name, str):
        return name
    if name not in NAMES:
        raise UsageError(f"drafter: got {name!r}, expected {' or '.join(NAMES)}")
    if token_map is not None:
        raise UsageError(f"token_map goes with the drafter 'tokenmap', not with {name!r}")
    return EmptyDrafter()
