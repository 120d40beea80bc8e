"""Drafters that stay open between the calls of one model, with what they learned.

Opening a drafter takes longer than a short text (maps, graphs, a draft model), and a drafter that is kept knows by then
which of its drafts pay. A call borrows one and gives it back behind its last segment, or where it leaves between two.
Calls at the same time have drafters of their own.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import astuple, dataclass, replace

from ..decoding.drafter import Drafter
from ..options import DrafterOptions

_MOST_KEPT = 4  # drafters that no call uses


@dataclass
class Loan:
    """A drafter in use by one call. Where `is_sound`, the next call may have it."""

    drafter: Drafter
    is_sound: bool = False

    def keep(self) -> None:
        """Say that the drafter is sound."""
        self.is_sound = True


class KeptDrafters:
    """At most four drafters that no call uses, those given back last. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[tuple[Hashable, Drafter]] = []

    @contextlib.contextmanager
    def lend(self, asked: DrafterOptions, make: Callable[[], Drafter], *, besides: Hashable = ()) -> Iterator[Loan]:
        """A drafter of these options: one that was kept, else what `make` makes. `besides`: what else it depends on.

        A drafter that saves something when it is closed (`remember`) is never kept. Raises as `make`.
        """
        key = _identity(asked), besides
        with self._lock:
            place = next((i for i, (kept, _) in enumerate(self._kept) if kept == key), None)
            found = None if place is None else self._kept.pop(place)[1]
        loan = Loan(found or make())
        try:
            yield loan
        finally:
            if loan.is_sound and not asked.remember:
                with self._lock:
                    self._kept.append((key, loan.drafter))
                self._cut(_MOST_KEPT)
            else:
                loan.drafter.close()

    def close(self) -> None:
        """Close those that no call uses."""
        self._cut(0)

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
