"""One engine used by several threads: a text has it from `start` to `release`, every other call for as long as it runs.

An engine holds buffers that all texts share (the rows of a pass over several paths, say), so texts take turns by the
window; between two windows nothing is held, and reading audio never is. Calls of one thread may nest. `cancel` and
`reset` do not wait for their turn, because they are meant for what is running.

A `fork` waits for its turn as well, a few seconds at most: a child that began in the middle of another thread's pass
would have its buffers half filled and nobody to finish, and a lock that nobody gives back.
Does not know: calls of a model, audio, what a text is decoded for.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.token_rows import TokenRows
from specedge.runtime.longform.transcribe import SpeechEngine

__all__ = ["SharedEngine"]

_FORK_WAITS_S = 10.0
_AT_ONCE = ("cancel", "reset", "interruptible")


class SharedEngine:
    """`engine`, for one thread at a time. Raises what the engine raises."""

    def __init__(self, engine: SpeechEngine) -> None:
        self._engine = engine
        self._lock = threading.RLock()
        self._owner: int | None = None  # the thread that has texts in work, and how many
        self._n_texts = 0
        _engines.add(self)

    @property
    def n_paths(self) -> int:
        """See `Engine.n_paths`."""
        return self._engine.n_paths

    @property
    def is_exact(self) -> bool:
        """See `promise.rows_are_exact`."""
        return self._engine.is_exact

    @is_exact.setter
    def is_exact(self, value: bool) -> None:
        self._engine.is_exact = value

    @property
    def token_rows(self) -> TokenRows:
        """See `Engine.token_rows`."""
        return self._engine.token_rows

    def encode(self, mel: NDArray[np.float32]) -> Any:
        """See `Engine.encode`."""
        with self._lock:
            return self._engine.encode(mel)

    @property
    def n_at_once(self) -> int:
        """See `Engine.n_at_once`."""
        return self._engine.n_at_once

    def encode_all(self, mels: Sequence[NDArray[np.float32]]) -> Sequence[Any]:
        """See `Engine.encode_all`."""
        with self._lock:
            return self._engine.encode_all(mels)

    def start(self, features: Any) -> Any:
        """See `Engine.start`; other threads wait from here on, until `release`."""
        return self._begin(lambda: self._engine.start(features))

    def fork(self, state: Any) -> Any:
        """See `Engine.fork`; to be released as well."""
        return self._begin(lambda: self._engine.fork(state))

    def keep_hidden(self, state: Any) -> None:
        """See `Engine.keep_hidden`."""
        self._engine.keep_hidden(state)

    def forward(self, state: Any, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> NDArray[np.float32]:
        """See `Engine.forward`."""
        with self._lock:
            return self._engine.forward(state, ids, logit_rows)

    def forward_paths(
        self, state: Any, pending: int, paths: Sequence[Sequence[int]]
    ) -> list[list[NDArray[np.float32]]]:
        """See `Engine.forward_paths`."""
        with self._lock:
            return self._engine.forward_paths(state, pending, paths)

    def commit(self, state: Any, n_rows: int, path: int = 0) -> None:
        """See `Engine.commit`."""
        with self._lock:
            self._engine.commit(state, n_rows, path)

    def rewind(self, state: Any, n_rows: int) -> None:
        """See `Engine.rewind`."""
        with self._lock:
            self._engine.rewind(state, n_rows)

    def release(self, state: Any) -> None:
        """See `Engine.release`; with this thread's last text it lets the others go on."""
        with self._lock:
            try:
                self._engine.release(state)
            finally:
                self._end()

    def give_up(self) -> None:
        """Let the others go on even if an interruption left texts of this thread unreleased."""
        while self._owner == threading.get_ident():
            self._end()

    def _begin(self, make: Callable[[], Any]) -> Any:
        self._lock.acquire()
        self._owner = threading.get_ident()
        self._n_texts += 1
        try:
            return make()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self._n_texts -= 1
        if not self._n_texts:
            self._owner = None
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        """Whatever else the engine offers, for one thread at a time if it is a method."""
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


_engines: weakref.WeakSet[SharedEngine] = weakref.WeakSet()
_forking = threading.local()  # `held`: the engines whose turn the thread that forks has


def _before_fork() -> None:
    until = time.monotonic() + _FORK_WAITS_S
    _forking.held = [e for e in list(_engines) if e._lock.acquire(timeout=max(until - time.monotonic(), 0.0))]


def _after_fork() -> None:
    for engine in _forking.held:
        engine._lock.release()


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        if engine not in _forking.held:  # its thread is not in this process
            engine._lock = threading.RLock()
            engine._owner, engine._n_texts = None, 0
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
