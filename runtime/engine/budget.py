"""How many windows may be in work on an engine at once, by the bytes of their keys and values.

A window counts from its encoding until its text is released, with the room of one text. Whoever has none waits for room
before the encoder; whoever has one goes on, so that nobody waits for himself, and texts that fork from another, such as
beams, are not counted. Windows of callers who stopped reading hold nobody up: a wait ends as well when the engine has
had nothing to do for a while.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from .many import Features

__all__ = ["Budget"]

_IDLE_S = 0.5  # so long holders may be busy with other things, such as a drafter
_LOOKS_S = 0.1


class Budget:
    """`n_bytes` for windows in work, None for any number; `idle_s` says how long the engine has had nothing to do."""

    def __init__(self, n_bytes: int | None, idle_s: Callable[[], float]) -> None:
        self._n_bytes, self._idle_s = n_bytes, idle_s
        self.forget()

    def forget(self) -> None:
        """In a forked child: nobody else has windows."""
        self._room = threading.Condition()
        self._held: dict[int, tuple[int, int]] = {}  # of each window: who encoded it, its bytes

    @property
    def held_bytes(self) -> int:
        return sum(n_bytes for _, n_bytes in list(self._held.values()))

    def wait(self, n_bytes: int) -> None:
        """Wait until there is room for so many bytes more."""
        if self._n_bytes is None:
            return
        thread = threading.get_ident()
        with self._room:
            while (
                self._held
                and self.held_bytes + n_bytes > self._n_bytes
                and all(holder != thread for holder, _ in list(self._held.values()))
                and (self._room.wait(_LOOKS_S) or self._idle_s() < _IDLE_S)
            ):
                pass

    def hold(self, window: Features, n_bytes: int) -> None:
        """Count a window, until `drop` or until nobody has it any more."""
        key = id(window)
        with self._room:
            if key not in self._held:
                self._held[key] = threading.get_ident(), n_bytes
        weakref.finalize(window, self._forget_one, key)

    def drop(self, window: Features) -> None:
        self._forget_one(id(window))

    def _forget_one(self, key: int) -> None:
        with self._room:
            if self._held.pop(key, None) is not None:
                self._room.notify_all()
