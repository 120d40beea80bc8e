"""Drafters that stay open between the calls of one model, with what they learned.

Opening a drafter takes longer than a short text (maps, graphs, a draft model), and a drafter that is kept knows by then
which of its drafts pay. A call borrows one and gives it back behind its last segment, or where it leaves between two.
Calls at the same time have drafters of their own.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import astuple, replace

from ..decoding.drafter import Drafter
from ..options import DrafterOptions

_MOST_KEPT = 4  # drafters that no call uses


class Loan:
    """A drafter in use by one call. On `close` it is given to `kept` where `keep` was called before, else to `dropped`.

    A program's own drafter is neither: nothing happens to it.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        kept: Callable[[Drafter], None] | None = None,
        dropped: Callable[[Drafter], None] | None = None,
    ) -> None:
        self.drafter, self._kept, self._end = drafter, kept, dropped

    def keep(self) -> None:
        """Say that the drafter is sound, so that the next one may have the drafter."""
        self._end = self._kept

    def close(self) -> None:
        """End the loan."""
        if self._end is not None:
            self._end(self.drafter)


class KeptDrafters:
    """At most four drafters that no call uses, those given back last. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[tuple[Hashable, Drafter]] = []

    def lend(self, asked: DrafterOptions, make: Callable[[], Drafter], *, besides: Hashable = ()) -> Loan:
        """A drafter of these options: one that was kept, else what `make` makes. `besides`: what else it depends on.

        A drafter that saves something when it is closed (`remember`) is never kept. Raises as `make`.
        """
        key = _identity(asked), besides
        found: Drafter | None = None
        with self._lock:
            place = next((i for i, (kept, _) in enumerate(self._kept) if kept == key), None)
            if place is not None:
                found = self._kept.pop(place)[1]
        back = functools.partial(self._take_back, key)
        return Loan(found or make(), kept=_close if asked.remember else back, dropped=_close)

    def close(self) -> None:
        """Close those that no call uses."""
        with self._lock:
            kept, self._kept = self._kept, []
        for _, drafter in kept:
            drafter.close()

    def _take_back(self, key: Hashable, drafter: Drafter) -> None:
        with self._lock:
            self._kept.append((key, drafter))
            too_many, self._kept = self._kept[:-_MOST_KEPT], self._kept[-_MOST_KEPT:]
        for _, other in too_many:
            other.close()


def _close(drafter: Drafter) -> None:
    drafter.close()


def _identity(asked: DrafterOptions) -> Hashable:
    """Equal for options that give the same drafter: their map files are the same files, unchanged."""
    files = []
    for path in asked.token_maps:
        try:
            found = os.stat(path)
        except OSError:  # there will be no drafter either
            continue
        files.append((os.fspath(path), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
    return astuple(replace(asked, token_maps=())), tuple(files)
