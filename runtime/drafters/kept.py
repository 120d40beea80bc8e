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
    """A drafter in use by one call, which `close` ends: `end` is called then, `end_kept` where `keep` was before.

    A program's own drafter has neither: nothing happens to it.
    """

    def __init__(
        self, drafter: Drafter, end: Callable[[], None] | None = None, end_kept: Callable[[], None] | None = None
    ) -> None:
        self.drafter, self._end, self._end_kept = drafter, end, end_kept

    def keep(self) -> None:
        """Say that the drafter is sound, so that the next one may have the drafter."""
        self._end = self._end_kept

    def close(self) -> None:
        """End the loan."""
        if self._end is not None:
            self._end()


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
        with self._lock:
            place = next((i for i, (kept, _) in enumerate(self._kept) if kept == key), None)
            found = None if place is None else self._kept.pop(place)[1]
        drafter = found or make()
        back = functools.partial(self._take_back, key, drafter)
        return Loan(drafter, drafter.close, drafter.close if asked.remember else back)

    def close(self) -> None:
        """Close those that no call uses."""
        self._cut(0)

    def _take_back(self, key: Hashable, drafter: Drafter) -> None:
        with self._lock:
            self._kept.append((key, drafter))
        self._cut(_MOST_KEPT)

    def _cut(self, n_kept: int) -> None:
        """Close all but the last `n_kept`."""
        with self._lock:
            n_over = max(0, len(self._kept) - n_kept)
            over, self._kept = self._kept[:n_over], self._kept[n_over:]
        for _, drafter in over:
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
