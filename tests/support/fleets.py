"""Clusters for the fleet's tests that run tasks in this process, one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from specedge.fleet.worker import Job, Outcome, Task, answer, work

ANSWER = {"bundle": "b" * 64, "onnxruntime": "1.32.0", "isa": "x86_64 avx2"}


@dataclass
class Serial:
    """The serial run: one worker, which is this process. `does` stands for the worker function."""

    does: Callable[[Task], Outcome | None] = work
    answers: dict[str, dict[str, str] | Exception] | None = None
    workers: int = 1
    submitted: list[Task] = field(default_factory=list)
    avoided: list[set[str]] = field(default_factory=list)
    most_waiting: int = 0
    is_closed: bool = False
    _waiting: deque[Task] = field(default_factory=deque)

    def n_workers(self) -> int:
        return self.workers

    def ask(self, job: Job) -> dict[str, Job | Exception]:
        if self.answers is None:
            return {"here": answer(job)}
        return {name: one if isinstance(one, Exception) else replace(job, **one) for name, one in self.answers.items()}

    def submit(self, task: Task, avoid: Collection[str] = ()) -> None:
        self.submitted.append(task)
        self.avoided.append(set(avoid))
        self._waiting.append(task)
        self.most_waiting = max(self.most_waiting, len(self._waiting))

    def next(self, timeout_s: float) -> tuple[Task, Outcome | None] | None:
        task = self._waiting.popleft()
        return task, self.does(task)

    def close(self) -> None:
        self.is_closed = True
