"""What all entrances of the server share: models, threads, whose turn it is, the folder of uploads, counters."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starlette.requests import HTTPConnection

from specedge.runtime.console import notify
from specedge.runtime.options import READS_MAPS, REMEMBERS

from .failures import Failure
from .metrics import Metrics
from .models import Models
from .settings import Settings

ABOUT = "specedge.about"
"""Where a request's scope has what its line of the log says."""


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
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(client, deque()).append(mine)
        self.n_waiting += 1
        self._give_turns()
        started_s = time.monotonic()
        try:
            await mine
            started_s = time.monotonic()
            yield
        finally:
            if mine.cancelled():  # before its turn
                self.n_waiting -= 1
            else:
                self.n_running -= 1
                self._mean_s += 0.1 * (time.monotonic() - started_s - self._mean_s)
            self._give_turns()

    def _give_turns(self) -> None:
        """Give free turns to the first in line of the client that had none for longest."""
        while self._lines and self.n_running < self._parallel:
            client, line = self._lines.popitem(last=False)
            first = line.popleft()
            if line:
                self._lines[client] = line
            if not first.cancelled():
                first.set_result(None)
                self.n_running += 1
                self.n_waiting -= 1


class Service:
    """The shared state.

    queue: of requests; live: of the passes of realtime sessions, so that neither waits for the other; n_sessions: open
    ones; is_ending: whether new work is refused; phrases: the settings' phrases and sentences, for requests that bring
    none of their own.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.models = Models(settings)
        self.queue = FairQueue(settings.parallel, settings.queue)
        self.live = FairQueue(settings.parallel, settings.sessions)
        self.threads = ThreadPoolExecutor(2 * settings.parallel, thread_name_prefix="specedge-serve")
        self.is_ending = False
        self.n_sessions = 0
        self.phrases: dict[str, Any] = {"bias": settings.bias, "only": settings.only}
        self.metrics = Metrics(
            {
                "requests_running": ("Requests in work.", lambda: self.queue.n_running),
                "requests_waiting": ("Requests in line.", lambda: self.queue.n_waiting),
                "sessions": ("Open realtime sessions.", lambda: self.n_sessions),
                "models_loaded": ("Models in memory.", lambda: self.models.n_loaded),
            }
        )

    def check(self) -> None:
        """Raise Failure where new work is refused: before its upload is read."""
        self.check_end()
        self.queue.check()

    def check_end(self) -> None:
        """Raise Failure where the server is about to end."""
        if self.is_ending:
            raise Failure(503, "shutting_down", "the server is about to end: ask another", retry_after_s=5)

    def log(self, what: str, about: Mapping[str, Any], status: object) -> None:
        """A line of the log for a request. about: its model, seconds of audio, seconds taken, fields that were ignored,
        as far as they are known."""
        if self.settings.quiet:
            return
        line = " ".join([what, str(about["model"])] if "model" in about else [what])
        if "audio_s" in about:
            line += f" {about['audio_s']:.1f} s of audio"
        if about.get("ignored"):
            line += f" (ignored: {about['ignored']})"
        notify(f"{line} in {about['taken_s']:.2f} s: {status}")

    def drafter_options(self, name: str) -> dict[str, Any]:
        """What the settings say of the drafter `name`, as far as it has a use for it."""
        found: dict[str, Any] = {}
        if name in READS_MAPS and self.settings.token_maps:
            found["token_maps"] = tuple(map(Path, self.settings.token_maps))
        if name in REMEMBERS and self.settings.remember:
            found["remember"] = True
        return found


def client_of(connection: HTTPConnection) -> str:
    """Whose turn a request takes: that of its machine."""
    return connection.client.host if connection.client is not None else ""
