"""How words of one vocabulary are spelt in another: OmniDraft's n-gram cache (arXiv 2507.02659).

The paper maps several draft tokens to one target token; here both sides may be several. Byte-pair encoding never merges
across words, so a word is spelt the same in every context.
"""

from __future__ import annotations

from .lru import Lru

__all__ = ["ENTRY_BYTES", "ID_BYTES", "WordCache"]

ENTRY_BYTES = 376  # two tuples 56 each, slot and node of the OrderedDict up to 220, rounding
ID_BYTES = 36  # a slot of 8 and an integer of 28
MAX_IDS = 64
Ids = tuple[int, ...]


class WordCache:
    """`budget_bytes` bounds `size_bytes` always; `n_hits` and `n_misses` count calls of `get`. For several threads."""

    def __init__(self, budget_bytes: int = 4 << 20) -> None:
        self.n_hits = self.n_misses = 0
        self._entries: Lru[Ids, Ids] = Lru(budget_bytes, lambda source, target: _price(len(source) + len(target)))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        return self._entries.size_bytes

    def get(self, source: Ids) -> Ids | None:
        """`source` in the other vocabulary, None if it is not known; it becomes the most recently used."""
        found = self._entries.get(source)
        self.n_hits, self.n_misses = self.n_hits + (found is not None), self.n_misses + (found is None)
        return found

    def put(self, source: Ids, target: Ids) -> None:
        """Remember an entry of 1 to `MAX_IDS` ids on both sides; others are ignored."""
        if 1 <= len(source) <= MAX_IDS and 1 <= len(target) <= MAX_IDS:
            self._entries.put(source, target)

    def items(self) -> list[tuple[Ids, Ids]]:
        """All entries, the least recently used first."""
        return self._entries.items()


def _price(n_ids: int) -> int:
    return ENTRY_BYTES + ID_BYTES * n_ids
