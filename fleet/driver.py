"""`specedge.fleet.transcribe`: gives files to a cluster, longest first and few at a time, until each has its result.

What a driver knows is lost with it and nothing hangs on that: whatever is in the output folder is not done again. A
file whose workers died goes on in a process of its own. If that dies too, the file is to blame and quarantined; its
neighbours, and files whose workers died for other reasons, are not.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specedge.errors import ModelError, ResourceError, SpecedgeError, UsageError

from ..runtime.console import Progress
from ..runtime.output.formats import FORMATS
from .cluster import Cluster, opened
from .folder import Folder, Journal, Record, Source, find_sources, result_file, text_stems, write_texts
from .worker import Job, Outcome, Task, join, new_job

if TYPE_CHECKING:
    from distributed import Client

_TRIES = 3
_WAIT_S = 5.0
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
        `fleet.worker.Job`, vad_parameters as in `WhisperModel.transcribe`, and fields of `TranscribeOptions`.

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
    sources, missing = find_sources([os.fspath(path) for path in paths], notify=tell)

    def run() -> Generator[Record, None, None]:
        folder = Folder(job.out)
        with folder.locked(), contextlib.closing(Journal(folder)) as journal:
            for name, error in missing.items():
                record = Record(path=name, state="failed", error=str(error))
                journal.add(record)
                yield record
            with contextlib.closing(opened(cluster, n_workers, job.threads)) as workers:
                agreed_on = _agreed(workers.ask(replace(job, out=folder.url)))
                driver = _Driver(workers, agreed_on, folder, journal, tell, formats)
                yield from driver.run(sources, retries_quarantined=retry_quarantined, shows_progress=progress)

    return run()


def _logged(line: str) -> None:
    _log.log(logging.WARNING if line.startswith("warning: ") else logging.INFO, line.removeprefix("warning: "))


def _agreed(answers: dict[str, Job | Exception]) -> Job:
    """The job with what all workers are. Raises ModelError for one that cannot work or is not like the first."""
    first: tuple[str, Job] | None = None
    for name, one in answers.items():
        if isinstance(one, Exception):
            kind = "" if isinstance(one, SpecedgeError) else f"{type(one).__name__}: "
            raise ModelError(f"worker {name}: {kind}{one}")
        first = first or (name, one)
        if wrong := one.differs(first[1]):
            remedy = "leave --same-isa out, or use workers of one kind" if "instruction set" in wrong else "install one"
            raise ModelError(f"worker {name}: has {wrong} as on {first[0]}; {remedy}")
    assert first is not None
    return first[1]


@dataclass(eq=False)
class _Driver:
    """One run. `say` gets lines for people; formats: of the texts beside the results."""

    _cluster: Cluster
    _job: Job
    _folder: Folder
    _journal: Journal
    _say: Callable[[str], None]
    _formats: Sequence[str]

    def __post_init__(self) -> None:
        self._sources: dict[str, Source] = {}  # of files in work, by their places
        self._n_parts: dict[str, int] = {}  # of long files, that are not done
        self._stems: dict[str, str] = {}
        self._results: set[str] = set()  # that files of this run have
        self._waiting: deque[Task] = deque()
        self._avoid: set[str] = set()

    def run(self, sources: Sequence[Source], *, retries_quarantined: bool, shows_progress: bool) -> Iterator[Record]:
        """The record of each file, as it is over. Raises ModelError, ResourceError where nobody can go on."""
        there = self._folder.names("results")
        self._stems = text_stems(sources) if self._formats else {}
        for source in sources:
            known = self._known(source, there, retries_quarantined)
            if known is not None:
                self._write_texts(known)
                yield known
            else:
                self._sources[source.place] = source
        longest_first = sorted(self._sources.values(), key=lambda source: -source.size)
        self._waiting.extend(Task(job=self._job, path=one.place, size=one.size) for one in longest_first)
        total_mb, label = sum(source.size for source in longest_first) / 1e6, f"{len(longest_first)} files"
        with Progress(total_mb, "MB", label, is_shown=shows_progress) as line:
            for task, outcome in self._ended():
                record = self._settled(task, outcome)
                if record is not None:
                    line.update(task.size / 1e6)
                    yield record
        self._folder.tidy()

    def _ended(self) -> Iterator[tuple[Task, Outcome | None]]:
        """The tasks as they end, None where the workers died, until none waits; few are given out at a time."""
        n_running, is_idle = 0, False
        while self._waiting or n_running:
            while self._waiting and n_running < 2 * max(1, self._cluster.n_workers()):
                self._cluster.submit(self._waiting.popleft(), self._avoid)
                n_running += 1
            ended = self._cluster.next(_WAIT_S)
            if ended is not None:
                n_running -= 1
                yield ended
            elif not is_idle and not self._cluster.n_workers():
                is_idle = True
                self._say("warning: no worker is left; waiting for one. Ctrl-C stops, and the same command goes on")

    def _known(self, source: Source, there: set[str], retries_quarantined: bool) -> Record | None:
        """The record of an earlier run that still holds: the file is unchanged and its result is there."""
        old = self._journal.get(source.path)
        if old is None or old.stamp != source.stamp:
            return None
        if old.state == "quarantined" and not retries_quarantined:
            return old
        if old.state != "done" or old.audio_sha256 is None:
            return None
        name = self._job.result_name(old.audio_sha256)
        return old if f"{name}.json" in there and old.result == result_file(name) else None

    def _settled(self, task: Task, outcome: Outcome | None) -> Record | None:
        """Take the end of a task. A record where its file is over, else there are tasks that wait or run."""
        source = self._sources.get(task.path)
        if source is None:  # it is over: another part of it failed
            return None
        whole = Task(job=task.job, path=task.path, size=task.size)
        if outcome is None:
            if task.n_lost == _TRIES:
                why = f"its workers died {_TRIES + 1} times, each for another reason than this file"
                return self._over(source, state="failed", error=f"{source.path}: {why}")
            self._waiting.appendleft(replace(task, alone=True, n_lost=task.n_lost + 1))
        elif outcome.state == "unfit":
            raise ModelError(f"worker {outcome.worker}: {outcome.error}")
        elif outcome.state == "stuck":
            self._put_back(task, outcome)
        elif outcome.state == "split" and outcome.speech is not None:
            n_parts = self._n_parts[task.path] = len(outcome.speech.parts)
            parts = [replace(whole, speech=outcome.speech, shard=shard) for shard in range(n_parts)]
            self._waiting.extendleft(reversed(parts))
        elif outcome.state == "part" and task.speech is not None:
            self._n_parts[task.path] -= 1
            if not self._n_parts[task.path]:
                if join(self._folder, self._job, task.speech):
                    return self._done(source, outcome.name)
                self._waiting.appendleft(whole)
        elif outcome.state in ("done", "found"):
            return self._done(source, outcome.name, is_new=outcome.state == "done")
        else:
            return self._over(source, state=outcome.state, error=outcome.error)
        return None

    def _put_back(self, task: Task, outcome: Outcome) -> None:
        """Give a task to another worker than the one that has no room for it."""
        if outcome.worker not in self._avoid:
            self._avoid.add(outcome.worker)
            self._say(f"warning: worker {outcome.worker}: {outcome.error}; its files go to others")
        if task.n_stuck + 1 == _TRIES:
            raise ResourceError(f"{outcome.error} (on {_TRIES} tries); the same command goes on where this one stopped")
        self._waiting.append(replace(task, n_stuck=task.n_stuck + 1))

    def _done(self, source: Source, name: str, *, is_new: bool = True) -> Record:
        value = json.loads(self._folder.read(result_file(name)))
        return self._over(
            source,
            state="done",
            result=result_file(name),
            audio_sha256=value["audio_sha256"],
            language=value["language"],
            duration_s=value["duration"],
            text=value["text"],
            is_new=is_new,
        )

    def _over(self, source: Source, **about: Any) -> Record:
        del self._sources[source.place]
        record = Record(path=source.path, stamp=source.stamp, **about)
        if record.result in self._results:
            record = replace(record, is_duplicate=True, is_new=False)
        self._write_texts(record)
        self._journal.add(record)
        return record

    def _write_texts(self, record: Record) -> None:
        """Write the texts of a file that has a result."""
        if record.result is not None:
            self._results.add(record.result)
            if self._formats:
                write_texts(self._folder, record.result, self._stems[record.path], self._formats)
