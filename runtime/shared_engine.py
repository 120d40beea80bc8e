"""One engine used by several threads: each call into it has the engine to itself, texts in work take turns.

What belongs to a text (its caches, the buffers of its passes) is in its `State`, so calls for different texts may
follow each other in any order and every text is the one it would be alone. `cancel` and `reset` do not wait for their
turn, because they are meant for what is running. Does not know: threads, calls of a model, audio.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.transcribe import SpeechEngine

__all__ = ["SharedEngine"]

_AT_ONCE = ("cancel", "reset", "interruptible")


class SharedEngine:
    """`engine`, with a lock around every call. Raises what the engine raises."""

    def __init__(self, engine: SpeechEngine) -> None:
        self._engine = engine
        self._lock = threading.RLock()

    def encode(self, mel: NDArray[np.float32]) -> Any:
        """See `Engine.encode`."""
        with self._lock:
            return self._engine.encode(mel)

    def start(self, features: Any) -> Any:
        """See `Engine.start`."""
        with self._lock:
            return self._engine.start(features)

    def forward(self, state: Any, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> NDArray[np.float32]:
        """See `Engine.forward`."""
        with self._lock:
            return self._engine.forward(state, ids, logit_rows)

    def commit(self, state: Any, n_rows: int) -> None:
        """See `Engine.commit`."""
        with self._lock:
            self._engine.commit(state, n_rows)

    def release(self, state: Any) -> None:
        """See `Engine.release`."""
        with self._lock:
            self._engine.release(state)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the engine offers, under the same lock if it is a method."""
        if name.startswith("_"):  # also while copy or pickle look at an object without attributes
            raise AttributeError(name)
        value = getattr(self._engine, name)
        return value if not callable(value) or name in _AT_ONCE else self._locked(value)

    def _locked(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return method(*args, **kwargs)

        return call
