"""An online n-gram cache over the text of this process: what followed the last one to four ids, bounded in bytes.

The least recently used goes first. It learns only when told to (`learn`, with the tokens of a window that was kept) and
drafts by the rule of llama.cpp's n-gram cache: the longest key whose counts pass a test of samples and share decides
each token, until none does.

Bytes are accounted exactly by a fixed price that is above what CPython takes: `ENTRY_BYTES` for a key and `PAIR_BYTES`
for each continuation. The sum never exceeds the budget, not even for a moment. Ids are below 65536; others end a key.
Does not know: windows, models, files. Safe to use from several threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["ENTRY_BYTES", "LAX", "PAIR_BYTES", "STRICT", "NgramCache", "Thresholds", "draft_by_counts"]

MAX_ORDER = 4
MAX_PAIRS = 4
MAX_COUNT = 0xFFFF
ENTRY_BYTES = 320  # integer key 40, slot and node of the OrderedDict up to 220, empty tuple 56
PAIR_BYTES = 72  # two slots of the tuple, two integers of 28

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Thresholds:
    """When counts are believed, by the length of the key from 1: occurrences needed, and the best id's share in %."""

    min_samples: tuple[int, int, int, int]
    min_share: tuple[int, int, int, int]


LAX = Thresholds((2, 2, 1, 1), (66, 50, 50, 50))  # for text of this run
STRICT = Thresholds((4, 3, 2, 2), (75, 66, 66, 66))  # for text of other days


def draft_by_counts(
    pairs_of: Callable[[tuple[int, ...]], Pairs], context: Sequence[int], n_draft: int, thresholds: Thresholds
) -> tuple[list[int], list[float]]:
    """Up to `n_draft` ids that may follow `context`, and the share of each among what was seen there.

    pairs_of: the (id, count) pairs of a key of one to four ids, none if it is not known.
    """
    known = list(context[-MAX_ORDER:])
    ids: list[int] = []
    shares: list[float] = []
    while len(ids) < n_draft:
        step = _next(pairs_of, known, thresholds)
        if step is None:
            break
        ids.append(step[0])
        shares.append(step[1])
        known = [*known, step[0]][-MAX_ORDER:]
    return ids, shares


def _next(
    pairs_of: Callable[[tuple[int, ...]], Pairs], known: Sequence[int], thresholds: Thresholds
) -> tuple[int, float] | None:
    for n in range(len(known), 0, -1):
        pairs = pairs_of(tuple(known[-n:]))
        samples = sum(count for _, count in pairs)
        if samples < max(1, thresholds.min_samples[n - 1]):
            continue
        id_, count = max(pairs, key=lambda pair: (pair[1], -pair[0]))
        if 100 * count >= thresholds.min_share[n - 1] * samples:
            return id_, count / samples
    return None


class NgramCache:
    """The cache; `budget_bytes` bounds `size_bytes` always; `version` changes with what is in it.

    It learns keys of at most `longest` ids.
    """

    def __init__(self, budget_bytes: int = 4 << 20, *, longest: int = MAX_ORDER) -> None:
        self.budget_bytes, self._longest = budget_bytes, longest
        self._entries: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self._size = 0
        self.version = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """The price of all that is kept."""
        return self._size

    def learn(self, tokens: Sequence[int], n_known: int = 0) -> None:
        """Count what follows what in `tokens`, the text ids of one kept window behind `n_known` that were counted."""
        with self._lock:
            self.version += 1
            for key, id_ in ngrams(tokens, n_known, self._longest):
                self._count(_packed(key), id_)

    def pairs(self, key: Sequence[int]) -> list[tuple[int, int]]:
        """The (id, count) pairs after `key`, one to four ids; being asked for keeps an entry from eviction."""
        if not 1 <= len(key) <= MAX_ORDER or min(key) < 0 or max(key) > 0xFFFF:
            return []
        with self._lock:
            packed = _packed(key)
            flat = self._entries.get(packed, ())
            if flat:
                self._entries.move_to_end(packed)
        return list(zip(flat[::2], flat[1::2], strict=True))

    def draft(
        self, context: Sequence[int], n_draft: int, thresholds: Thresholds = LAX
    ) -> tuple[list[int], list[float]]:
        """Up to `n_draft` ids that may follow, and the share of each; see `draft_by_counts`."""
        return draft_by_counts(self.pairs, context, n_draft, thresholds)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self.version += 1
            self._entries.clear()
            self._size = 0

    def _count(self, key: int, id_: int) -> None:
        flat = self._entries.get(key)
        if flat is None:
            if self._make_room(ENTRY_BYTES + PAIR_BYTES):
                self._entries[key] = (id_, 1)
                self._size += ENTRY_BYTES + PAIR_BYTES
            return
        self._entries.move_to_end(key)
        ids, counts = list(flat[::2]), list(flat[1::2])
        if id_ in ids:
            at = ids.index(id_)
            counts[at] += 1
            if counts[at] > MAX_COUNT:
                counts = [(count + 1) // 2 for count in counts]
        elif len(ids) < MAX_PAIRS:
            if not self._make_room(PAIR_BYTES, keep=key):
                return
            ids.append(id_)
            counts.append(1)
            self._size += PAIR_BYTES
        else:
            # The rarest gives way; of equals the oldest.
            at = counts.index(min(counts))
            del ids[at], counts[at]
            ids.append(id_)
            counts.append(1)
        self._entries[key] = tuple(value for pair in zip(ids, counts, strict=True) for value in pair)

    def _make_room(self, n_bytes: int, keep: int | None = None) -> bool:
        """Evict until `n_bytes` more fit; False where even an empty cache would be too small."""
        while self._size + n_bytes > self.budget_bytes:
            oldest = next(iter(self._entries), None)
            if oldest is None or oldest == keep:
                return False
            flat = self._entries.pop(oldest)
            self._size -= ENTRY_BYTES + len(flat) // 2 * PAIR_BYTES
        return True


def ngrams(tokens: Sequence[int], n_known: int = 0, longest: int = MAX_ORDER) -> Iterator[tuple[tuple[int, ...], int]]:
    """Every key of one to `longest` ids in `tokens` with the id after it; keys do not go over ids above 65535.

    The first `n_known` ids are in keys only: as following ids they were counted before.
    """
    start = 0
    for at, id_ in enumerate(tokens):
        if not 0 <= id_ <= 0xFFFF:
            start = at + 1
            continue
        if at < n_known:
            continue
        for n in range(1, min(longest, at - start) + 1):
            yield tuple(tokens[at - n : at]), id_


def _packed(key: Sequence[int]) -> int:
    packed = len(key)
    for id_ in key:
        packed = packed << 16 | id_
    return packed
