"""Caches with a byte budget that drop the least recently used first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Lru(Generic[_Key, _Value]):
    """`price` is what an entry takes in bytes, the same each time; the sum never exceeds the budget.

    For several threads; `lock` may be held by a caller around several calls.
    """

    def __init__(self, budget_bytes: int, price: Callable[[_Key, _Value], int]) -> None:
        self.budget_bytes, self.size_bytes = budget_bytes, 0
        self.lock = threading.RLock()
        self._price = price
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: _Key) -> _Value | None:
        """The value, which becomes the most recently used; None where there is none."""
        with self.lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: _Key, value: _Value) -> None:
        """Add or replace an entry; one that exceeds the budget by itself is left out."""
        price = self._price(key, value)
        with self.lock:
            old = self._entries.pop(key, None)
            self.size_bytes -= 0 if old is None else self._price(key, old)
            while self._entries and self.size_bytes + price > self.budget_bytes:
                self.size_bytes -= self._price(*self._entries.popitem(last=False))
            if self.size_bytes + price <= self.budget_bytes:
                self._entries[key] = value
                self.size_bytes += price

    def items(self) -> list[tuple[_Key, _Value]]:
        """All entries, the least recently used first."""
        with self.lock:
            return list(self._entries.items())


ENTRY_BYTES = 376  # two tuples 56 each, slot and node of the OrderedDict up to 220, rounding
ID_BYTES = 36  # a slot of 8 and an integer of 28
MAX_IDS = 64
Ids = tuple[int, ...]


class WordCache(Lru[Ids, Ids]):
    """How words of one vocabulary are spelt in another: OmniDraft's n-gram cache (arXiv 2507.02659).

    The paper maps several draft tokens to one target token; here both sides may be several, 1 to `MAX_IDS` ids; others
    are ignored. Byte-pair encoding never merges across words, so a word is spelt the same in every context.
    """

    def __init__(self, budget_bytes: int = 4 << 20) -> None:
        super().__init__(budget_bytes, lambda source, target: ENTRY_BYTES + ID_BYTES * (len(source) + len(target)))

    def put(self, key: Ids, value: Ids) -> None:
        if 1 <= len(key) <= MAX_IDS and 1 <= len(value) <= MAX_IDS:
            super().put(key, value)
