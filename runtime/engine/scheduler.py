"""Whose turn it is on an engine: first come, first served, and passes of several callers at once.

A `Scheduler` is the lock of one engine. What must be alone there (encoding, aligning) holds it in a `with`; a pass of
the decoder is handed to `run`. A caller who finds nobody at work runs at once. Those who come meanwhile wait in line;
when it is a pass's turn, its caller leads: it takes along the passes behind it that fit and runs them all as one.

So that callers do not fall apart into groups that alternate, a leader waits a part (`PATIENCE`) of the last pass for
those who were in it and came back quickly the time before. Passes wait for one turn of anything else at most.

A `Budget` says how many windows may be in work at once, by the bytes of their keys and values. A window counts from its
encoding until its text is released, with the room of one text. Whoever has none waits for room before the encoder;
whoever has one goes on, so that nobody waits for himself, and texts that fork from another, such as beams, are not
counted. Windows of callers who stopped reading hold nobody up: a wait ends as well when the engine has had nothing to
do for a while.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specedge.errors import Interrupted

from .kv_cache import Features

PATIENCE = 0.5  # of a pass: one pass less saves about a whole one
_NEVER = float("-inf")
_IDLE_S = 0.5  # so long holders may be busy with other things, such as a drafter
_LOOKS_S = 0.1


class Turn:
    """A thread at work or in line, for a pass over the rows `texts`, see `Engine.forward_many`; without any, alone.

    logits: of each text, once it `is_done`; is_alone: whether its pass must not be shared, because one that it shared
    failed; is_quick: whether the thread came back soon.
    """

    __slots__ = ("depth", "error", "is_alone", "is_done", "is_quick", "logits", "texts", "thread", "wake")

    def __init__(self, texts: Sequence[Any] = ()) -> None:
        self.thread, self.texts, self.depth = threading.get_ident(), texts, 1
        self.logits: Sequence[Any] = ()
        self.error: Interrupted | None = None
        self.is_alone = self.is_done = self.is_quick = False
        self.wake = threading.Lock()
        self.wake.acquire()


class Scheduler:
    """The lock of an engine, fair and reentrant.

    execute: runs the passes of turns together and sets their `logits`; fits: whether so many texts can be run together,
    asked only where `merges` says that passes can be merged at all.
    """

    # Ctrl-C may be raised at any call in here. So whoever is at work is told by one store (`_owner`), and `_leave` and
    # `_let_go` are right in every state and may be called twice.

    def __init__(
        self,
        execute: Callable[[Sequence[Turn]], None],
        merges: Callable[[], bool],
        fits: Callable[[Sequence[Any]], bool],
    ) -> None:
        self._execute, self._merges, self._fits = execute, merges, fits
        self._before = threading.local()  # `returned_s`: when this thread's last pass was over
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._owner: Turn | None = None
        self._line: list[Turn] = []
        self._in_flight: Sequence[Turn] = ()  # taken along by the owner
        self._gathering: Turn | None = None  # the owner, while it waits for the threads `_missing`
        self._missing: set[int] = set()
        self._expected: set[int] = set()  # threads of the last pass that are likely to be back soon
        self._ended_s, self._pass_s = _NEVER, 0.0
        self._left_s = _NEVER  # when the last turn was over

    @property
    def is_mine(self) -> bool:
        """Whether this thread has the engine."""
        owner = self._owner
        return owner is not None and owner.thread == threading.get_ident()

    @property
    def idle_s(self) -> float:
        """For how many seconds nobody has been at work."""
        return 0.0 if self._owner is not None else time.perf_counter() - self._left_s

    # ------------------------------------------------------------------------------------------------ being alone
    def acquire(self, timeout: float = -1) -> bool:
        """Have the engine for this thread alone, once it is its turn; False if that takes over `timeout` seconds."""
        owner = self._owner
        if owner is not None and owner.thread == threading.get_ident():
            owner.depth += 1
            return True
        turn = Turn()
        try:
            return self._is_first(turn) or turn.wake.acquire(timeout=timeout) or self._gave_up(turn)
        except BaseException:
            _surely(self._leave, turn)
            raise

    def release(self) -> None:
        """Give the engine to whoever is next."""
        owner = self._owner
        if owner is None or owner.thread != threading.get_ident():
            raise RuntimeError("this thread does not hold the engine")
        owner.depth -= 1
        if not owner.depth:
            _surely(self._leave, owner)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # -------------------------------------------------------------------------------------------------- passes
    def run(self, texts: Sequence[Any]) -> Sequence[Any]:
        """The logits of a pass over `texts`, alone or together with others.

        Raises what running it raises, and nothing of the others.
        """
        turn = Turn(texts)
        if self.is_mine:
            self._execute([turn])
            return turn.logits
        before_s = getattr(self._before, "returned_s", _NEVER)
        turn.is_quick = time.perf_counter() - before_s <= PATIENCE * self._pass_s
        try:
            if not self._is_first(turn):
                turn.wake.acquire()
            if not turn.is_done:
                self._lead(turn)
        finally:
            _surely(self._leave, turn)
        self._before.returned_s = time.perf_counter()
        if turn.error is not None:
            raise turn.error
        return turn.logits

    def _lead(self, turn: Turn) -> None:
        """Run the pass of `turn`, and those that it takes along."""
        turns = [turn]
        try:
            turns += self._taken_along(turn)
            started_s = time.perf_counter()
            self._execute(turns)
            self._ended_s = time.perf_counter()
            self._pass_s = self._ended_s - started_s
            for one in turns:
                one.is_done = True
        except Interrupted as error:
            for one in turns[1:]:
                one.error, one.is_done = type(error)(*error.args), True
            raise
        except Exception:
            if len(turns) == 1:
                raise
            for one in turns:  # whose fault it was is seen when each is run by its own thread
                one.is_alone = True
        finally:
            self._expected = {one.thread for one in (turn, *self._in_flight) if one.is_quick}
            if self._in_flight:
                _surely(self._let_go)
        if not turn.is_done:
            self._execute([turn])

    def _taken_along(self, turn: Turn) -> list[Turn]:
        """Those in line whose passes fit beside that of `turn`, in their order; they are in flight then."""
        are_others = any(other.texts for other in self._line) or not self._expected <= {turn.thread}
        if not are_others or turn.is_alone or not self._merges():
            return []
        self._gather(turn)
        with self._mutex:
            self._gathering = None
            taken: list[Turn] = []
            texts = [*turn.texts]
            for other in self._line:
                if other.texts and not other.is_alone and self._fits([*texts, *other.texts]):
                    taken.append(other)
                    texts += other.texts
            line = [other for other in self._line if other not in taken]
            self._in_flight, self._line = taken, line
        return taken

    def _gather(self, turn: Turn) -> None:
        """Wait for those of the last pass who are likely to be back at once."""
        until_s = self._ended_s + PATIENCE * self._pass_s
        with self._mutex:
            self._missing = self._expected - {turn.thread} - {other.thread for other in self._line}
            self._expected = set()
            left_s = until_s - time.perf_counter()
            if not self._missing or left_s <= 0:
                return
            self._gathering = turn
        turn.wake.acquire(timeout=left_s)

    def _let_go(self) -> None:
        """Wake the callers that were taken along; those whose pass was not run are the first in line again."""
        with self._mutex:
            done = [other for other in self._in_flight if other.is_done]
            again = [other for other in self._in_flight if other not in done and other not in self._line]
            self._line = again + self._line
            for other in done:
                if other.wake.locked():
                    other.wake.release()
            self._in_flight = ()

    # -------------------------------------------------------------------------------------------------- the line
    def _is_first(self, turn: Turn) -> bool:
        """Whether nobody is at work, so that it is the turn of `turn`; else it is in line now."""
        with self._mutex:
            if self._owner is None:
                self._owner = turn
                return True
            self._line.append(turn)
            if self._gathering is not None:
                self._missing.discard(turn.thread)
                if not self._missing:
                    gathering, self._gathering = self._gathering, None
                    gathering.wake.release()
            return False

    def _gave_up(self, turn: Turn) -> bool:
        """Leave the line. Returns whether it was the turn of `turn` after all."""
        with self._mutex:
            if self._owner is turn:
                return True
            self._line.remove(turn)
            return False

    def _leave(self, turn: Turn) -> None:
        """Give up the turn, or the place in line; a pass that another thread runs is waited for first."""
        while True:
            with self._mutex:
                if turn not in self._in_flight:
                    line = [other for other in self._line if other is not turn]
                    if self._owner is not turn:
                        self._line = line
                        return
                    self._gathering, self._left_s = None, time.perf_counter()
                    # The first in line, but behind what was alone the first pass.
                    passes = [] if turn.texts else [other for other in line if other.texts]
                    following = next(iter([*passes, *line]), None)
                    self._line, self._owner = [other for other in line if other is not following], following
                    if following is not None:
                        following.wake.release()
                    return
            turn.wake.acquire()

    # ---------------------------------------------------------------------------------------------------- forking
    def forget_others(self) -> None:
        """In a forked child: no other thread is at work or in line any more."""
        owner = self._owner
        self._reset()
        if owner is not None and owner.thread == threading.get_ident():
            self._owner = owner


def _surely(do: Callable[..., None], *arguments: Any) -> None:
    """Have `do` done, once more if it is interrupted."""
    try:
        do(*arguments)
    except BaseException:
        do(*arguments)
        raise


class Budget:
    """`n_bytes` for windows in work, None for any number; `idle_s` says how long the engine has had nothing to do."""

    def __init__(self, n_bytes: int | None, idle_s: Callable[[], float]) -> None:
        self._n_bytes, self._idle_s = n_bytes, idle_s
        self.forget()

    def forget(self) -> None:
        """In a forked child: nobody else has windows."""
        self._room = threading.Condition()
        self._held: dict[int, tuple[int, int]] = {}  # of each window: who encoded it, its bytes
        self._n_entering = 0

    @property
    def held_bytes(self) -> int:
        return sum(n_bytes for _, n_bytes in list(self._held.values()))

    @contextmanager
    def room(self, n_bytes: int) -> Iterator[None]:
        """Wait until there is room for so many bytes more, and keep it until their windows are held."""
        thread, kept = threading.get_ident(), object()
        with self._room:
            while (
                self._n_bytes is not None
                and self._held
                and self.held_bytes + n_bytes > self._n_bytes
                and all(holder != thread for holder, _ in list(self._held.values()))
                and (self._room.wait(_LOOKS_S) or self._n_entering or self._idle_s() < _IDLE_S)
            ):
                pass
            self._held[id(kept)] = thread, n_bytes  # now: who comes next must not find the same room
            self._n_entering += 1
        try:
            yield
        finally:
            with self._room:
                self._n_entering -= 1
                self.drop(id(kept))

    def hold(self, window: Features, n_bytes: int) -> None:
        """Count a window, until `drop` or until nobody has it any more."""
        key = id(window)
        with self._room:
            if key not in self._held:
                self._held[key] = threading.get_ident(), n_bytes
        weakref.finalize(window, self.drop, key)

    def drop(self, key: int) -> None:
        """Let go of the window of this `id`."""
        with self._room:
            if self._held.pop(key, None) is not None:
                self._room.notify_all()
