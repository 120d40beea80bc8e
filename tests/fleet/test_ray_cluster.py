"""The Ray adapter, over a stand-in for Ray with what the adapter calls; with Ray itself where that is installed."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from specedge.errors import ResourceError, UsageError
from specedge.fleet import ray_cluster, transcribe
from specedge.fleet.job import Outcome, Task
from specedge.fleet.places import open_folder
from specedge.fleet.ray_cluster import RayCluster
from support.fleets import ANSWER, Serial
from support.paths import samples


class _Crashed(Exception):
    """As ray.exceptions.WorkerCrashedError."""


class _Reference:
    """What a task gave, or raised."""

    def __init__(self, function: Any, arguments: Any) -> None:
        self.value, self.error = None, None
        try:
            self.value = function(*arguments)
        except (_Crashed, OSError) as error:
            self.error = error


class _Remote:
    def __init__(self, function: Any, asked: list[Any]) -> None:
        self._function, self._asked = function, asked

    def options(self, **given: Any) -> _Remote:
        self._asked.append(given)
        return self

    def remote(self, *arguments: Any) -> _Reference:
        return _Reference(self._function, arguments)


class _Ray(types.ModuleType):
    """Ray, in this process: two nodes with a core each."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.asked: list[Any] = []
        self.is_up = False
        self.exceptions = types.SimpleNamespace(WorkerCrashedError=_Crashed, RayError=OSError)
        strategies = types.SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
        self.util = types.SimpleNamespace(scheduling_strategies=strategies)

    def init(self) -> None:
        self.is_up = True

    def shutdown(self) -> None:
        self.is_up = False

    def is_initialized(self) -> bool:
        return self.is_up

    def remote(self, **options: Any) -> Any:
        return lambda function: _Remote(function, self.asked)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": name, "Alive": True} for name in ("n1", "n2")]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def get_runtime_context(self) -> Any:
        return types.SimpleNamespace(get_node_id=lambda: "n1")

    def wait(self, references: list[_Reference], num_returns: int, timeout: float) -> Any:
        return references[:1], references[1:]

    def get(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self.get(one) for one in given]
        if given.error is not None:
            raise given.error
        return given.value

    def cancel(self, reference: _Reference, force: bool) -> None:
        pass


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> _Ray:
    made = _Ray()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setattr(ray_cluster, "answer", lambda job: ANSWER)
    return made


def _made(task: Task) -> Outcome:
    name = task.job.result_name("a" + Path(task.path).name)
    value = f'{{"text": "said", "audio_sha256": "a{Path(task.path).name}", "language": "en", "duration": 1.0}}'
    open_folder(task.job.out).write(f"results/{name}.json", value.encode())
    return Outcome(state="done", name=name)


def _files(folder: Path, n_files: int) -> list[str]:
    paths = [folder / f"{number}.wav" for number in range(n_files)]
    for path in paths:
        path.write_bytes(b"sound")
    return list(map(str, paths))


def test_the_driver_runs_on_ray_as_on_dask(tmp_path: Path, ray: _Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = iter([True])

    def work(task: Task) -> Outcome:
        if next(deaths, False):
            raise _Crashed
        return _made(task)

    monkeypatch.setattr(ray_cluster, "work", work)
    paths = _files(tmp_path, 3)
    records = list(transcribe(paths, tmp_path / "ray", cluster=RayCluster()))
    list(transcribe(paths, tmp_path / "serial", cluster=Serial(_made, {"w": ANSWER})))
    assert {record.state for record in records} == {"done"} and not ray.is_up
    assert (tmp_path / "ray/records.jsonl").read_bytes() == (tmp_path / "serial/records.jsonl").read_bytes()
    assert {"scheduling_strategy": ("n2", False)} in ray.asked


def test_a_node_without_room_is_avoided(tmp_path: Path, ray: _Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    full = iter([Outcome(state="stuck", error="no space")])
    monkeypatch.setattr(ray_cluster, "work", lambda task: next(full, None) or _made(task))
    records = list(transcribe(_files(tmp_path, 1), tmp_path / "out", cluster=RayCluster(), say=lambda line: None))
    assert [record.state for record in records] == ["done"]
    assert {"scheduling_strategy": ("n2", True)} in ray.asked


def test_a_ray_that_cannot_go_on_is_one_line(tmp_path: Path, ray: _Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Any) -> Any:
        raise OSError("the head node\nis gone")

    for what in ("work", "answer"):
        monkeypatch.setattr(ray_cluster, what, fails)
        with pytest.raises(ResourceError, match="the Ray cluster cannot go on: the head node is gone"):
            list(transcribe(_files(tmp_path, 1), tmp_path / "out", cluster=RayCluster()))


def test_without_ray_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="needs ray, which is not installed: pip install ray"):
        RayCluster()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_itself_gives_the_bytes_of_the_serial_run(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is no part of the extras")
    sample = [str(path) for path in samples()]
    records = list(transcribe(sample, tmp_path / "ray", cluster=RayCluster(num_cpus=2), language="en"))
    list(transcribe(sample, tmp_path / "serial", cluster=Serial(), language="en"))
    assert [record.state for record in records] == ["done"] * len(sample)
    assert (tmp_path / "ray/records.jsonl").read_bytes() == (tmp_path / "serial/records.jsonl").read_bytes()
