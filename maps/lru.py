"""A cache with a byte budget that drops the least recently used first."""

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
