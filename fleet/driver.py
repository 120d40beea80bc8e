"""The driver: gives files to a cluster, longest first and few at a time, until each has its one result.

What a driver knows is lost with it and nothing hangs on that: whatever is in the output folder is not done again. A
file whose workers died goes on in a process of its own. If that dies too, the file is to blame and quarantined; its
neighbours, and files whose workers died for other reasons, are not.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specedge.errors import ModelError, ResourceError

from .cluster import Cluster
from .job import Answer, Job, Outcome, Task
from .places import Folder, Source
from .records import Journal, Record
from .results import join, remove_parts, result_file, text_stems, write_texts

LOST, STUCK = 3, 3
_WAIT_S, _IDLE_WAITS = 5.0, 12


def agreed(job: Job, answers: dict[str, Answer]) -> Job:
    """The job with what all workers are. Raises ModelError for one that cannot work or is not like the others."""
    for name, one in answers.items():
        if one.error:
            raise ModelError(f"worker {name}: {one.error}")
    first_name, first = next(iter(answers.items()))
    job = replace(job, bundle=first.bundle, encoder=first.encoder, onnxruntime=first.onnxruntime, isa=first.isa)
    for name, one in answers.items():
        if wrong := one.differs(job):
            what, here, there = wrong
            remedy = "leave --same-isa out, or use workers of one kind" if what == "instruction set" else "install one"
            raise ModelError(f"worker {name}: has {what} {here}, expected {there} as on {first_name}; {remedy}")
    return job


@dataclass
class _File:
    """A file in work: its parts that are not done, and whether it is settled."""

    source: Source
    waits_for: set[int] = field(default_factory=set)
    is_over: bool = False


class Driver:
    """One run. `say` gets lines for people; `on_done` the bytes of each file that is over, and whether it was work;
    formats: of the texts beside the results."""

    def __init__(
        self,
        cluster: Cluster,
        job: Job,
        folder: Folder,
        journal: Journal,
        *,
        say: Callable[[str], None],
        on_done: Callable[[int, bool], None],
        formats: Sequence[str] = (),
        retries_quarantined: bool = False,
    ) -> None:
        self._cluster, self._job, self._folder, self._journal = cluster, job, folder, journal
        self._say, self._on_done, self._formats, self._retries = say, on_done, formats, retries_quarantined
        self._files: dict[str, _File] = {}
        self._stems: dict[str, str] = {}
        self._results: set[str] = set()  # that files of this run have
        self._waiting: list[tuple[int, int, Task]] = []
        self._order = itertools.count()
        self._n_running = self._n_idle = 0
        self._avoid: set[str] = set()

    def run(self, sources: Sequence[Source]) -> Iterator[Record]:
        """The record of each file, as it is over. Raises ModelError, ResourceError where nobody can go on."""
        there = self._folder.names("results")
        self._stems = text_stems(sources) if self._formats else {}
        for source in sources:
            known = self._known(source, there)
            if known is not None:
                self._on_done(source.size, False)
                self._write_texts(known)
                yield known
            else:
                self._files[source.place] = _File(source)
                self._push(Task(job=self._job, path=source.place, size=source.size))
        while self._waiting or self._n_running:
            while self._waiting and self._n_running < 2 * max(1, self._cluster.n_workers()):
                self._cluster.submit(heapq.heappop(self._waiting)[2], self._avoid)
                self._n_running += 1
            ended = self._cluster.next(_WAIT_S)
            if ended is None:
                self._note_idle()
                continue
            self._n_running -= 1
            self._n_idle = 0
            record = self._settled(*ended)
            if record is not None:
                yield record
        self._folder.tidy()
        for name in {one.partition(".")[0] for one in self._folder.names("parts")}:
            if self._folder.exists(result_file(name)):
                remove_parts(self._folder, name)

    def _known(self, source: Source, there: set[str]) -> Record | None:
        """The record of an earlier run that still holds: the file is unchanged and its result is there."""
        old = self._journal.get(source.path)
        if old is None or old.stamp != source.stamp:
            return None
        if old.state == "quarantined" and not self._retries:
            return old
        if old.state != "done" or old.audio_sha256 is None:
            return None
        name = self._job.result_name(old.audio_sha256)
        return old if f"{name}.json" in there and old.result == result_file(name) else None

    def _push(self, task: Task) -> None:
        heapq.heappush(self._waiting, (-task.size, next(self._order), task))

    def _settled(self, task: Task, outcome: Outcome | None) -> Record | None:
        """Take the end of a task; None: its workers died. A record where its file is over."""
        file = self._files[task.path]
        if file.is_over:
            return None
        whole = replace(task, shard=None, name="", n_lost=0, n_stuck=0, alone=False)
        if outcome is None:
            if task.n_lost < LOST:
                self._push(replace(task, alone=True, n_lost=task.n_lost + 1))
                return None
            why = f"its workers died {task.n_lost + 1} times, each for another reason than this file"
            return self._over(file, state="failed", error=f"{file.source.path}: {why}")
        if outcome.state in ("done", "found"):
            return self._done(file, outcome.name, is_new=outcome.state == "done")
        if outcome.state == "split":
            file.waits_for = set(range(outcome.n_shards))
            for shard in range(outcome.n_shards):
                self._push(replace(whole, shard=shard, name=outcome.name))
            return None
        if outcome.state == "part":
            file.waits_for.discard(-1 if task.shard is None else task.shard)
            if file.waits_for:
                return None
            if join(self._folder, self._job, task.name):
                return self._done(file, task.name, is_new=True)
            self._push(whole)
            return None
        if outcome.state == "stuck":
            self._stuck(task, outcome)
            return None
        if outcome.state == "unfit":
            raise ModelError(f"worker {outcome.worker}: {outcome.error}")
        return self._over(file, state=outcome.state, error=outcome.error)

    def _stuck(self, task: Task, outcome: Outcome) -> None:
        if outcome.worker not in self._avoid:
            self._avoid.add(outcome.worker)
            self._say(f"warning: worker {outcome.worker}: {outcome.error}; its files go to others")
        if task.n_stuck + 1 >= STUCK:
            raise ResourceError(f"{outcome.error} (on {STUCK} tries); the same command goes on where this one stopped")
        self._push(replace(task, n_stuck=task.n_stuck + 1))

    def _done(self, file: _File, name: str, *, is_new: bool) -> Record:
        value = json.loads(self._folder.read(result_file(name)))
        return self._over(
            file,
            state="done",
            result=result_file(name),
            audio_sha256=value["audio_sha256"],
            language=value["language"],
            duration_s=value["duration"],
            text=value["text"],
            is_new=is_new,
        )

    def _over(self, file: _File, **about: Any) -> Record:
        file.is_over = True
        record = Record(path=file.source.path, stamp=file.source.stamp, **about)
        if record.result in self._results:
            record = replace(record, is_duplicate=True, is_new=False)
        self._write_texts(record)
        self._journal.add(record)
        self._on_done(file.source.size, record.is_new)
        return record

    def _write_texts(self, record: Record) -> None:
        """Write the texts of a file that has a result."""
        if record.result is not None:
            self._results.add(record.result)
            if self._formats:
                write_texts(self._folder, record.result, self._stems[record.path], self._formats)

    def _note_idle(self) -> None:
        """Say once when there has been no worker for a minute."""
        self._n_idle = self._n_idle + 1 if self._cluster.n_workers() == 0 else 0
        if self._n_idle == _IDLE_WAITS:
            self._say("warning: no worker is left; waiting for one. Ctrl-C stops, and the same command goes on")
