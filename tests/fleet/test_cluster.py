"""What a Dask client says when workers or the scheduler die while they are asked. The client is a stand-in."""

from __future__ import annotations

import types
from typing import Any

import pytest

from specedge.errors import ModelNotFoundError, ResourceError
from specedge.fleet.cluster import Cluster
from specedge.fleet.worker import Job

JOB = Job(out="out", bundle="b" * 64)
BROKEN = OSError("in <TCP>: Stream is closed")  # as distributed's CommClosedError, which is one


class _Client:
    """Gives the next of `said` each time that its workers are asked; an exception is raised."""

    status = "running"
    scheduler = types.SimpleNamespace(address="tcp://h:1")

    def __init__(self, *said: dict[str, Any] | Exception, waits: Exception | None = None) -> None:
        self._said, self._waits = list(said), waits

    def wait_for_workers(self, n_workers: int, timeout: float) -> None:
        if self._waits is not None:
            raise self._waits

    def run(self, function: Any, job: Job, on_error: str) -> dict[str, Any]:
        found = self._said.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def _asked(client: Any) -> dict[str, Job | Exception]:
    return Cluster(client).ask(Job(out="out"))


def test_a_worker_that_dies_while_it_is_asked_is_left_out() -> None:
    assert _asked(_Client({"w1": BROKEN, "w2": JOB})) == {"w2": JOB}
    no_code = ModuleNotFoundError("No module named 'specedge'")
    no_model = ModelNotFoundError("no model 'small' is installed")  # an OSError too, but an answer
    assert _asked(_Client({"w1": no_code, "w2": no_model})) == {"w1": no_code, "w2": no_model}


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (_Client({"w1": BROKEN}), "its workers die while they load the model; their logs say why"),
        (_Client(BROKEN), "the scheduler is gone; the same command goes on where this one stopped"),
        (_Client(waits=BROKEN), "the scheduler is gone; the same command goes on where this one stopped"),
        (_Client(waits=TimeoutError()), "has no worker after 30 s; start some: dask worker tcp://h:1"),
    ],
)
def test_a_cluster_that_cannot_answer_is_one_line(client: Any, message: str) -> None:
    with pytest.raises(ResourceError) as caught:
        _asked(client)
    assert str(caught.value) == f"cluster tcp://h:1: {message}"
