"""`specedge.fleet.transcribe`: many files, one cluster, one output folder."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from specedge.errors import ResourceError, UsageError

from ..runtime.batched import BATCH_SIZE
from ..runtime.console import Progress
from ..runtime.device import threads_allowed
from ..runtime.options import CPU
from .cluster import Cluster, DaskCluster, local_cluster, remote_cluster
from .driver import Driver, agreed
from .job import SHARD_S, Job, new_job
from .lock import locked
from .places import Source, find_sources, open_folder
from .records import Journal, Record, check_parquet, write_parquet

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["transcribe"]

_log = logging.getLogger(__name__)


def transcribe(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    cluster: Client | Cluster | str | None = None,
    n_workers: int | None = None,
    model: str | None = None,
    drafter: str | None = None,
    batch_size: int = BATCH_SIZE,
    threads: int = 1,
    shard_s: float = SHARD_S,
    vad_parameters: Mapping[str, Any] | None = None,
    same_isa: bool = False,
    encoder_provider: str = CPU,
    retry_quarantined: bool = False,
    parquet: bool = False,
    progress: bool = False,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> Generator[Record, None, None]:
    """Transcribe many files in batched mode, each to one result in `out`; gives a record of each as it is over.

    What has its result already is not done again, so the same call goes on with a run that was stopped. The work is
    done while the records are read. A program that starts its own workers needs `if __name__ == "__main__":`.

    paths
        files, folders, URLs that fsspec reads.
    cluster
        a Dask client, a scheduler's address, or another `Cluster`; None: `n_workers` processes here, by default one for
        every `threads` cores.
    threads
        of each worker's model. Their number may change the last bits of a probability.
    batch_size
        pieces of speech that are decoded together; it changes no text.
    shard_s
        files with more speech than so many seconds are split between workers, which changes no text.
    same_isa
        refuse workers of different instruction sets.
    encoder_provider
        what encoders run on (docs/providers.md); workers of another version or device are refused.
    retry_quarantined
        try files again that ended their process in an earlier run.
    parquet
        write records.parquet too.
    say
        gets lines for people: what a folder holds, workers that have no room; None: they are logged.
    options
        fields of `TranscribeOptions`.

    Raises UsageError, ModelError where a worker cannot do this, ResourceError where the cluster cannot be reached or
    nobody has room; nothing that is done is lost then.
    """
    job = new_job(
        os.fspath(out),
        model=model,
        drafter=drafter,
        vad_parameters=vad_parameters,
        batch_size=batch_size,
        threads=threads,
        shard_s=shard_s,
        same_isa=same_isa,
        encoder_provider=encoder_provider,
        **options,
    )
    if parquet:
        check_parquet()
    if not paths:
        raise UsageError("fleet: expected files, folders or URLs, got none")
    tell = say or _logged
    missing: list[Record] = []

    def report(name: str, error: Exception) -> None:
        missing.append(Record(path=name, state="failed", error=str(error)))

    sources = find_sources([os.fspath(path) for path in paths], notify=tell, report=report)
    return _run(
        job, sources, missing, cluster, n_workers, retries=retry_quarantined, parquet=parquet, bar=progress, say=tell
    )


def _logged(line: str) -> None:
    _log.log(logging.WARNING if line.startswith("warning: ") else logging.INFO, line.removeprefix("warning: "))


def _run(
    job: Job,
    sources: Sequence[Source],
    missing: Sequence[Record],
    cluster: Client | Cluster | str | None,
    n_workers: int | None,
    *,
    retries: bool,
    parquet: bool,
    bar: bool,
    say: Callable[[str], None],
) -> Generator[Record, None, None]:
    folder = open_folder(job.out)
    job = replace(job, out=folder.url)
    total_mb = sum(source.size for source in sources) / 1e6
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(folder))
        journal = Journal(folder)
        stack.callback(journal.close)
        for record in missing:
            journal.add(record)
            yield record
        workers = _opened(cluster, n_workers, job)
        stack.callback(workers.close)
        job = agreed(job, workers.ask(job))
        line = stack.enter_context(Progress(total_mb, "MB", f"{len(sources)} files", enabled=None if bar else False))

        def on_done(n_bytes: int, was_work: bool) -> None:
            if was_work:
                line.update(n_bytes / 1e6)
            elif line.total is not None:
                line.total -= n_bytes / 1e6

        driver = Driver(workers, job, folder, journal, say=say, on_done=on_done, retries_quarantined=retries)
        yield from driver.run(sources)
    if parquet:
        write_parquet(folder)


def _opened(cluster: Client | Cluster | str | None, n_workers: int | None, job: Job) -> Cluster:
    if cluster is None:
        return local_cluster(n_workers or max(1, threads_allowed() // job.threads))
    if isinstance(cluster, str):
        return remote_cluster(cluster)
    if hasattr(cluster, "ask"):
        return cast(Cluster, cluster)
    client: Any = cluster
    if client.status != "running":
        raise ResourceError("cluster: this Dask client is closed; open another")
    return DaskCluster(client)
