"""What a driver needs of a Dask cluster: it may run a task twice and may lose its workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import re
import signal
import threading
import warnings
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specedge.errors import ResourceError, SpecedgeError, UsageError

from ..runtime.device import threads_allowed
from .worker import Job, Outcome, Task, answer, work

if TYPE_CHECKING:
    from distributed import Client, Future

_CONNECT_S = 10
_WORKERS_S = 30
# Of a cluster of our own: a file that was on a dying worker twice goes on in a process of its own; files wait at the
# scheduler and not on workers, where they would be suspected too.
_SETTINGS = {"distributed.scheduler.allowed-failures": 1, "distributed.scheduler.worker-saturation": 1.0}


class Cluster:
    """A Dask cluster, by its client; `resources` are given back when it is closed."""

    def __init__(self, client: Client, resources: contextlib.ExitStack | None = None) -> None:
        self._client, self._address = client, client.scheduler.address
        self._resources = resources or contextlib.ExitStack()
        self._tasks: dict[Any, Task] = {}  # that run, by their futures
        self._ended: queue.Queue[Future[Any]] = queue.Queue()

    def n_workers(self) -> int:
        """How many tasks run at once now."""
        return sum(self._threads().values())

    def ask(self, job: Job) -> dict[str, Job | Exception]:
        """The job with what each worker is (`worker.answer`), or why it cannot work, by the worker's name.

        Raises ResourceError where there is none.
        """
        try:
            self._client.wait_for_workers(1, timeout=_WORKERS_S)
            found: dict[str, Any] = self._client.run(answer, job, on_error="return")
        except TimeoutError:
            start = f"dask worker {self._address}"
            message = f"cluster {self._address}: has no worker after {_WORKERS_S} s; start some: {start}"
            raise ResourceError(message) from None
        except OSError:
            raise self._gone() from None
        # An OSError that is none of ours: its connection broke.
        died = {name for name, one in found.items() if isinstance(one, OSError) and not isinstance(one, SpecedgeError)}
        if answers := {name: one for name, one in found.items() if name not in died}:
            return answers
        raise ResourceError(f"cluster {self._address}: its workers die while they load the model; their logs say why")

    def submit(self, task: Task, avoid: Collection[str] = ()) -> None:
        """Begin a task, rather not on the workers of `avoid`, by the names in their outcomes. Raises ResourceError."""
        others = [name for name in self._threads() if name not in avoid] if avoid else []
        where = {"workers": others, "allow_other_workers": True} if others else {}
        try:
            future = self._client.submit(_work, task, pure=False, **where)
        except Exception:
            raise self._gone() from None
        self._tasks[future] = task
        future.add_done_callback(self._ended.put)

    def next(self, timeout_s: float) -> tuple[Task, Outcome | None] | None:
        """A task that is over, with None where its workers died; None when there is none after the time.

        Raises ResourceError where the cluster is gone.
        """
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError

        try:
            future = self._ended.get(timeout=timeout_s)
        except queue.Empty:
            if self._client.status == "closed":
                raise self._gone() from None
            return None
        task = self._tasks.pop(future)
        try:
            return task, future.result()
        except KilledWorker:
            return task, None
        except (FutureCancelledError, OSError, TimeoutError):
            raise self._gone() from None
        except Exception as error:
            raise SpecedgeError(f"a worker cannot run specedge's code: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Stop what is at work, and give back what was opened."""
        with self._resources, contextlib.suppress(Exception):
            if self._tasks and self._client.status == "running":
                self._client.cancel(list(self._tasks), force=True)

    def _threads(self) -> dict[str, int]:
        """The threads of each worker by its address; none while the scheduler does not answer."""
        with contextlib.suppress(OSError, TimeoutError):
            if self._client.status == "running":
                return dict(self._client.nthreads())
        return {}

    def _gone(self) -> ResourceError:
        return ResourceError(
            f"cluster {self._address}: the scheduler is gone; the same command goes on where this one stopped"
        )


def _work(task: Task) -> Outcome:
    from distributed import get_worker

    return replace(work(task), worker=get_worker().address)


def dask_setup(_: object) -> None:
    """What Dask calls in a new worker of `local_cluster`: Ctrl-C reaches all processes, and the driver ends workers."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def opened(cluster: Any, n_workers: int | None, threads: int) -> Cluster:
    """What `specedge.fleet.transcribe` means by its `cluster`. Raises UsageError, ResourceError."""
    if cluster is None:
        return local_cluster(n_workers or max(1, threads_allowed() // threads))
    if isinstance(cluster, str):
        return remote_cluster(cluster)
    if hasattr(cluster, "ask"):
        given: Cluster = cluster
        return given
    if cluster.status != "running":
        raise ResourceError("cluster: this Dask client is closed; open another")
    return Cluster(cluster)


def local_cluster(n_workers: int) -> Cluster:
    """So many processes on this machine, each with one task at a time, that end with the cluster."""
    import dask
    from distributed import Client, LocalCluster

    with _opening() as stack:
        stack.enter_context(dask.config.set(_SETTINGS))
        cluster = LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            memory_limit=None,
            preload=[__name__],
            silence_logs=logging.CRITICAL,
        )
        stack.callback(cluster.close)
        client = stack.enter_context(Client(cluster, set_as_default=False))
        return Cluster(client, stack.pop_all())


def remote_cluster(address: str) -> Cluster:
    """The cluster whose scheduler is at `address`, such as tcp://host:8786. Raises UsageError, ResourceError."""
    from distributed import Client

    if not re.fullmatch(r"\w+://.+", address):
        raise UsageError(f"cluster: got {address!r}, expected the address of a scheduler such as tcp://host:8786")
    with _opening() as stack:
        try:
            with ThreadPoolExecutor(1) as thread:  # which has no event loop, as a notebook has
                thread.submit(asyncio.run, _greet(address)).result()
            client = stack.enter_context(Client(address, timeout=_CONNECT_S, set_as_default=False))
        except Exception as error:  # what another program answers there may be anything to Dask
            raise ResourceError(
                f"cluster {address}: no scheduler answers ({type(error).__name__}); start one with `dask scheduler`, "
                "or leave --cluster out"
            ) from None
        return Cluster(client, stack.pop_all())


async def _greet(address: str) -> None:
    """Connect once and be answered. A client waits without end for the answer of a server that is no scheduler."""
    from distributed import Security
    from distributed.comm import connect

    given = Security().get_connection_args("client")
    comm = await asyncio.wait_for(connect(address, timeout=_CONNECT_S, **given), 2 * _CONNECT_S)
    await comm.close()


@contextlib.contextmanager
def _opening() -> Iterator[contextlib.ExitStack]:
    """Where a cluster's resources go; Dask's log is quiet as long as they are held: the driver names what matters.

    Within the block there are no warnings: of networks without a way out, of versions that differ without harm.
    """
    from distributed.utils import silence_logging_cmgr

    with contextlib.ExitStack() as stack, warnings.catch_warnings(action="ignore"):
        stack.enter_context(silence_logging_cmgr(logging.CRITICAL + 1))
        yield stack
