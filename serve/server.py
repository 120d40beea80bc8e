"""The process: sockets, signals, and an end that finishes what was begun."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from specedge.errors import ResourceError, SpecedgeError, Terminated
from specedge.leftovers import Names, temporary_folder
from specedge.runtime.console import notify

from .app import make_app
from .service import Service
from .settings import Settings

_TICK_S = 0.05
_MAX_CONNECTIONS = 1000


def run(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises Terminated after SIGTERM, SpecedgeError where it cannot begin."""
    for noisy in ("python_multipart", "uvicorn"):  # which tell of every client's mistake
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        # Its maker holds a lock on the folder, so that the next start sweeps what a killed server left.
        with temporary_folder(Names(parent=Path(tempfile.gettempdir()), prefix="specedge-serve-")) as folder:
            if asyncio.run(_serve(settings, folder)) == signal.SIGTERM:
                raise Terminated("terminated")
    except SpecedgeError:
        raise
    except OSError as error:
        raise ResourceError(f"cannot serve: {error.strerror or error}") from error


async def _serve(settings: Settings, folder: Path) -> int | None:
    service = Service(settings, folder)
    server = _Server(
        uvicorn.Config(
            make_app(service),
            http=_impatient(settings.upload_timeout_s),
            ws="wsproto",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws_max_size=1 << 24,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
    )
    sockets = [_listening(settings)]
    came = _signals(service, folder)
    tasks = [asyncio.create_task(server.serve(sockets)), asyncio.create_task(service.models.unload_unused())]
    wyoming = contextlib.AsyncExitStack()
    if settings.wyoming is not None:
        from .wyoming import serving

        await wyoming.enter_async_context(serving(service))
    notify(f"serving {', '.join(service.models.names)} on http://{settings.host}:{sockets[0].getsockname()[1]}")
    if settings.is_open:
        notify("warning: whoever reaches this address may use it; set --api-key")
    try:
        while not came and not tasks[0].done():
            await asyncio.sleep(_TICK_S)
        until_s, queue = asyncio.get_running_loop().time() + settings.grace_s, service.queue
        while queue.n_running + queue.n_waiting and asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(_TICK_S)
    finally:
        server.should_exit = True
        await wyoming.aclose()
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        service.threads.shutdown(wait=False, cancel_futures=True)
    return came[0] if came else None


class _Server(uvicorn.Server):
    """Without signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _impatient(timeout_s: float) -> type[H11Protocol]:
    """uvicorn's HTTP, but a client that sends no whole head of a first request within `timeout_s` is let go."""

    class Protocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._impatience = self.loop.call_later(timeout_s, self._let_go)

        def connection_lost(self, exc: Exception | None) -> None:
            self._impatience.cancel()
            super().connection_lost(exc)

        def _let_go(self) -> None:
            if getattr(self, "scope", None) is None:  # of a request, also one that became a WebSocket
                self.transport.close()

    return Protocol


def _listening(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=256)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise ResourceError(f"cannot listen on {where}: {error.strerror or error}; choose another --port") from error


def _signals(service: Service, folder: Path) -> list[int]:
    """The signals that come from now on: the first asks for the end, the second ends at once."""
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        if came:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(128 + number)
        came.append(number)
        service.is_ending = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return came
