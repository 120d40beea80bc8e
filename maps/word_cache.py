"""How words of one vocabulary are spelt in another: OmniDraft's n-gram cache (arXiv 2507.02659).

The paper maps several draft tokens to one target token; here both sides may be several. Byte-pair encoding never merges
across words, so a word is spelt the same in every context.
"""

from __future__ import annotations

from .lru import Lru

ENTRY_BYTES = 376  # two tuples 56 each, slot and node of the OrderedDict up to 220, rounding
ID_BYTES = 36  # a slot of 8 and an integer of 28
MAX_IDS = 64
Ids = tuple[int, ...]


class WordCache(Lru[Ids, Ids]):
    """Words of 1 to `MAX_IDS` ids on both sides; others are ignored. `budget_bytes` bounds `size_bytes` always."""

    def __init__(self, budget_bytes: int = 4 << 20) -> None:
        super().__init__(budget_bytes, lambda source, target: ENTRY_BYTES + ID_BYTES * (len(source) + len(target)))

    def put(self, key: Ids, value: Ids) -> None:
        if 1 <= len(key) <= MAX_IDS and 1 <= len(value) <= MAX_IDS:
            super().put(key, value)
