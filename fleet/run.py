"""`specedge.fleet.transcribe`: many files, one cluster, one output folder."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specedge.errors import ResourceError, UsageError

from ..runtime.console import Progress
from ..runtime.device import threads_allowed
from ..runtime.output.formats import FORMATS
from .cluster import Cluster, local_cluster, remote_cluster
from .driver import Driver, agreed
from .job import Job, new_job
from .places import find_sources, locked, open_folder
from .records import Journal, Record

if TYPE_CHECKING:
    from distributed import Client

_log = logging.getLogger(__name__)


def transcribe(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    cluster: Client | Cluster | str | None = None,
    n_workers: int | None = None,
    formats: Sequence[str] = (),
    retry_quarantined: bool = False,
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
        a Dask client or a scheduler's address; None: `n_workers` processes here, by default one for every `threads`
        cores.
    formats
        texts to write beside the results, under the names of the recordings: "txt", "srt", "vtt", "tsv", "json", "lrc".
    retry_quarantined
        try files again that ended their process in an earlier run.
    say
        gets lines for people: what a folder holds, workers that have no room; None: they are logged.
    options
        model, drafter, batch_size, threads (of each worker's model), shard_s, same_isa and encoder_provider as in
        `fleet.job.Job`, vad_parameters as in `WhisperModel.transcribe`, and fields of `TranscribeOptions`.

    Raises UsageError, ModelError where a worker cannot do this, ResourceError where the cluster cannot be reached or
    nobody has room; nothing that is done is lost then.
    """
    job = new_job(os.fspath(out), **options)
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise UsageError(f"formats: got {unknown[0]!r}, expected some of {', '.join(FORMATS)}")
    if n_workers is not None and n_workers < 1:
        raise UsageError(f"n_workers: got {n_workers}, expected 1 or more")
    if not paths:
        raise UsageError("fleet: expected files, folders or URLs, got none")
    tell = say or _logged
    missing: list[Record] = []

    def report(name: str, error: Exception) -> None:
        missing.append(Record(path=name, state="failed", error=str(error)))

    sources = find_sources([os.fspath(path) for path in paths], notify=tell, report=report)

    def run() -> Generator[Record, None, None]:
        folder = open_folder(job.out)
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(folder))
            journal = Journal(folder)
            stack.callback(journal.close)
            for record in missing:
                journal.add(record)
                yield record
            workers = _opened(cluster, n_workers, job)
            stack.callback(workers.close)
            there = replace(job, out=folder.url)
            agreed_on = agreed(there, workers.ask(there))
            total_mb, label = sum(source.size for source in sources) / 1e6, f"{len(sources)} files"
            line = stack.enter_context(Progress(total_mb, "MB", label, enabled=None if progress else False))

            def on_done(n_bytes: int, was_work: bool) -> None:
                if was_work:
                    line.update(n_bytes / 1e6)
                elif line.total is not None:
                    line.total -= n_bytes / 1e6

            driver = Driver(
                workers,
                agreed_on,
                folder,
                journal,
                say=tell,
                on_done=on_done,
                formats=formats,
                retries_quarantined=retry_quarantined,
            )
            yield from driver.run(sources)

    return run()


def _logged(line: str) -> None:
    _log.log(logging.WARNING if line.startswith("warning: ") else logging.INFO, line.removeprefix("warning: "))


def _opened(cluster: Any, n_workers: int | None, job: Job) -> Cluster:
    if cluster is None:
        return local_cluster(n_workers or max(1, threads_allowed() // job.threads))
    if isinstance(cluster, str):
        return remote_cluster(cluster)
    if hasattr(cluster, "ask"):
        opened: Cluster = cluster
        return opened
    if cluster.status != "running":
        raise ResourceError("cluster: this Dask client is closed; open another")
    return Cluster(cluster)
