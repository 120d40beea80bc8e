"""Whose turn it is: so many requests in work at once, the others in line, and clients take turns."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator

from .failures import Failure


class FairQueue:
    """`parallel` turns at once and `size` requests in line; a turn that ends goes to another client's request first."""

    def __init__(self, parallel: int, size: int) -> None:
        self._parallel, self._size = parallel, size
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.n_running = self.n_waiting = 0
        self._mean_s = 1.0  # of a turn, of the last ones most

    def check(self) -> None:
        """Raise Failure 429 where a request that came now would find no place."""
        if self.n_running >= self._parallel and self.n_waiting >= self._size:
            wait_s = self._mean_s * (self.n_waiting + 1) / self._parallel
            raise Failure(
                429,
                "rate_limit_exceeded",
                f"{self.n_waiting} requests wait already: send it again after Retry-After",
                retry_after_s=min(max(1, round(wait_s)), 60),
            )

    @contextlib.asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it inside. Raises Failure 429."""
        self.check()
        if self.n_running < self._parallel and not self.n_waiting:
            self.n_running += 1
        else:
            await self._wait(client)
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._mean_s += 0.1 * (time.monotonic() - started_s - self._mean_s)
            self._pass_on()

    async def _wait(self, client: str) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(client, deque()).append(mine)
        self.n_waiting += 1
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # it was given the turn just before
                self._pass_on()
            else:
                self.n_waiting -= 1
                self._lines[client].remove(mine)
                if not self._lines[client]:
                    del self._lines[client]
            raise

    def _pass_on(self) -> None:
        """Give the turn to the first in line of the client that had none for longest; else there is one more free."""
        if not self._lines:
            self.n_running -= 1
            return
        client, line = self._lines.popitem(last=False)
        line.popleft().set_result(None)
        self.n_waiting -= 1
        if line:
            self._lines[client] = line
