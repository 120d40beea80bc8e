"""Passes that texts want, and who runs them: one text alone, or several together.

A text in work is a generator. It yields the rows that it wants a pass over, is sent the pass that was run (`Ran`), and
returns its result. So a text does not know whether it has the pass to itself: `alone` runs one, `Together` merges what
several want into one pass and takes out those that end.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from specedge.errors import Interrupted

if TYPE_CHECKING:
    from ..engine.engine import Engine, Rows

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Ran(NamedTuple):
    """A pass that was run, as one of those sees it who wanted rows of it.

    logits: of each text that was asked for, float32 [n_wanted, n_vocab], the receiver's to change until it wants the
    next pass; pass_s: what the whole pass took, seconds; n_texts, n_rows: in the whole pass, its padding
    row aside; n_own: the rows of them that the receiver wanted; is_first: for one of those who share the pass, so that
    passes can be counted.
    """

    logits: Sequence[NDArray[np.float32]]
    pass_s: float
    n_texts: int
    n_rows: int
    n_own: int
    is_first: bool = True

    @property
    def seconds(self) -> float:
        """The receiver's share of the time, by rows."""
        return self.pass_s * self.n_own / self.n_rows


Decoding = Generator["Sequence[Rows]", Ran, T]
"""A text in work; it may be several texts, as beams are."""


def run(engine: Engine, rows: Sequence[Rows]) -> Ran:
    """Run one pass over the rows of one text or several. Raises as `Engine.forward`."""
    started = time.perf_counter()
    logits = [engine.forward(*rows[0])] if len(rows) == 1 else engine.forward_many(rows)
    pass_s, n_rows = time.perf_counter() - started, n_rows_of(ids for _, ids, _ in rows)
    return Ran(logits, pass_s, len(rows), n_rows, n_rows)


def alone(engine: Engine, text: Decoding[T], *, before_pass: Callable[[], None] = lambda: None) -> T:
    """Run the passes of one text, to its end. Raises what the text, its passes and `before_pass` raise."""
    with contextlib.closing(text):
        try:
            wanted = next(text)
            while True:
                before_pass()
                wanted = text.send(run(engine, wanted))
        except StopIteration as end:
            result: T = end.value
            return result


class Together(Generic[K, T]):
    """Texts that share passes, each under a key of its own. `close` stops those that are not over.

    An error of one text ends that text alone.
    """

    def __init__(self) -> None:
        self._texts: dict[K, tuple[Decoding[T], Sequence[Rows]]] = {}

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def wanted(self) -> list[Rows]:
        """The rows of the next pass, those of all texts."""
        return [rows for _, wanted in self._texts.values() for rows in wanted]

    def add(self, key: K, text: Decoding[T]) -> dict[K, Future[T]]:
        """Take a text in, up to the first pass that it wants. Returns what came of it if it is over without one."""
        return self._go_on(key, text, functools.partial(next, text))

    def took(self, ran: Ran) -> dict[K, Future[T]]:
        """Hand out the pass over what was `wanted`. Returns what came of the texts that it ended: result or error."""
        ended: dict[K, Future[T]] = {}
        at = 0
        for key, (text, wanted) in list(self._texts.items()):
            logits = ran.logits[at : at + len(wanted)]
            n_own = n_rows_of(ids for _, ids, _ in wanted)
            own = Ran(logits, ran.pass_s, ran.n_texts, ran.n_rows, n_own, ran.is_first and not at)
            at += len(wanted)
            ended |= self._go_on(key, text, functools.partial(text.send, own))
        return ended

    def close(self) -> None:
        """Stop all texts."""
        with contextlib.ExitStack() as stack:
            for text, _ in self._texts.values():
                stack.callback(text.close)
            self._texts = {}

    def _go_on(self, key: K, text: Decoding[T], step: Callable[[], Sequence[Rows]]) -> dict[K, Future[T]]:
        result = Future[T]()
        try:
            self._texts[key] = text, step()
            return {}
        except StopIteration as end:
            result.set_result(end.value)
        except Interrupted:  # concerns all
            raise
        except Exception as error:
            result.set_exception(error)
        self._texts.pop(key, None)
        return {key: result}


def together(texts: Sequence[Decoding[T]]) -> Decoding[list[T]]:
    """Several texts as one, which returns the result of each. An error of one stops all, and is raised."""
    found: dict[int, T] = {}
    with contextlib.closing(Together[int, T]()) as sharing:
        for number, text in enumerate(texts):
            found |= {key: one.result() for key, one in sharing.add(number, text).items()}
        while len(sharing):
            found |= {key: one.result() for key, one in sharing.took((yield sharing.wanted)).items()}
    return [found[number] for number in range(len(texts))]


def n_rows_of(texts: Iterable[Sequence[int]]) -> int:
    """Rows of a pass over some texts' ids, its padding row aside."""
    return sum([len(ids) for ids in texts])
