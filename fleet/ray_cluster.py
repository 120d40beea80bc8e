"""A Ray cluster for a fleet, over the same worker function as Dask's: `transcribe(paths, out, cluster=RayCluster())`.

Ray is no part of the extra [fleet]; install it yourself. Each task is one process with one core. Ray tries no task
twice here (`max_retries=0`): the driver decides that, as it does for Dask.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from specedge.errors import ResourceError, UsageError

from .job import Answer, Job, Outcome, Task
from .worker import answer, work

__all__ = ["RayCluster"]


class RayCluster:
    """Ray as it is initialised in this process, or begun here with `ray.init(**options)`.

    Raises UsageError where Ray is not installed, ResourceError where it does not begin.
    """

    def __init__(self, **options: Any) -> None:
        try:
            import ray
        except ImportError:
            raise UsageError("a Ray cluster needs ray, which is not installed: pip install ray") from None
        self._ray: Any = ray
        self._is_owner = not ray.is_initialized()
        if self._is_owner:
            try:
                ray.init(**options)
            except (OSError, RuntimeError, ValueError) as error:
                raise ResourceError(f"Ray does not begin: {' '.join(str(error).split())}") from None
        self._work: Any = ray.remote(num_cpus=1, max_retries=0)(_named_work)
        self._answer: Any = ray.remote(num_cpus=1)(answer)
        self._running: dict[Any, Task] = {}

    def n_workers(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 0))

    def ask(self, job: Job) -> dict[str, Answer]:
        """One answer from each node, whose workers are alike."""
        strategy: Any = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        nodes = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
        if not nodes:
            raise ResourceError("the Ray cluster has no node that is alive")
        asked = [self._answer.options(scheduling_strategy=strategy(node, soft=False)).remote(job) for node in nodes]
        try:
            return dict(zip(nodes, self._ray.get(asked), strict=True))
        except self._ray.exceptions.RayError as error:
            raise _stopped(error) from None

    def submit(self, task: Task, avoid: Collection[str] = ()) -> None:
        nodes = [node["NodeID"] for node in self._ray.nodes() if node["Alive"] and node["NodeID"] not in avoid]
        options = {}
        if avoid and nodes:
            strategy: Any = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            options["scheduling_strategy"] = strategy(nodes[0], soft=True)
        self._running[self._work.options(**options).remote(task)] = task

    def next(self, timeout_s: float) -> tuple[Task, Outcome | None] | None:
        over, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout_s)
        if not over:
            return None
        task = self._running.pop(over[0])
        try:
            return task, self._ray.get(over[0])
        except self._ray.exceptions.WorkerCrashedError:
            return task, None
        except self._ray.exceptions.RayError as error:
            raise _stopped(error) from None

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        if self._is_owner:
            self._ray.shutdown()


def _stopped(error: Exception) -> ResourceError:
    return ResourceError(f"the Ray cluster cannot go on: {' '.join(str(error).split())[:300]}")


def _named_work(task: Task) -> Outcome:
    import ray

    return replace(work(task), worker=str(ray.get_runtime_context().get_node_id()))
