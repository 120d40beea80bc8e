"""Which drafter a name means, for commands and programs that say what they want in words.

Does not know: what a drafter does, command lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specedge.runtime.bundle import Bundle
from specedge.runtime.drafters import Drafter, EmptyDrafter
from specedge.runtime.errors import UsageError

__all__ = ["DRAFTERS", "DrafterEntry", "make_drafter"]


@dataclass(frozen=True, kw_only=True)
class DrafterEntry:
    """How a drafter is made from a bundle and the token maps given; `reads_maps`: whether it can use any."""

    make: Callable[[Bundle, tuple[Path, ...]], Drafter]
    reads_maps: bool = False


DRAFTERS: dict[str, DrafterEntry] = {"none": DrafterEntry(make=lambda bundle, maps: EmptyDrafter())}


def make_drafter(drafter: str | Drafter, bundle: Bundle, token_maps: Sequence[Path] = ()) -> Drafter:
    """A new drafter of this name; one that was made elsewhere is given back as it is.

    Raises UsageError for an unknown name, or token maps for a drafter that reads none.
    """
    if not isinstance(drafter, str):
        if token_maps:
            raise UsageError("token_map goes with the name of a drafter, not with one that is already made")
        return drafter
    entry = DRAFTERS.get(drafter)
    if entry is None:
        raise UsageError(f"drafter: got {drafter!r}, expected {' or '.join(DRAFTERS)}")
    if token_maps and not entry.reads_maps:
        readers = [name for name, entry in DRAFTERS.items() if entry.reads_maps]
        use = f"use {' or '.join(readers)}" if readers else "no drafter of this version does"
        raise UsageError(f"token_map: the drafter {drafter!r} reads no token maps; {use}")
    return entry.make(bundle, tuple(token_maps))
