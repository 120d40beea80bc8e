"""What the process may use of the machine, read from files made up here."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from specedge.runtime import device
from specedge.runtime.device import Isa, isa, most_threads, threads_allowed

Write = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A machine of eight CPUs without control groups; gives a function that writes its files."""

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    monkeypatch.setattr(device, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(device, "OWN_CGROUP", tmp_path / "own-cgroup")
    monkeypatch.setattr(device, "CGROUP_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(device, "CPU_TOPOLOGY", str(tmp_path / "topology-{cpu}"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return write


def test_without_any_file_every_cpu_is_a_core() -> None:
    assert threads_allowed() == 8


@pytest.mark.parametrize(("n_cpus", "most"), [(1, 8), (2, 8), (3, 12), (8, 32), (64, 256), (128, 256)])
def test_the_most_threads_that_may_be_asked_for(monkeypatch: pytest.MonkeyPatch, n_cpus: int, most: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n_cpus)))
    assert most_threads() == most


def test_only_the_cpus_of_this_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert threads_allowed() == 1


def test_two_hardware_threads_are_one_core(machine: Write) -> None:
    for n in range(8):
        machine(f"topology-{n}", f"{n % 4},{n % 4 + 4}\n")
    assert threads_allowed() == 4


def test_a_process_on_half_a_core_has_one_thread(machine: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4})
    machine("topology-4", "0,4\n")
    assert threads_allowed() == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8), ("0 0", 8), ("what", 8)],
)
def test_the_quota_of_a_container(text: str, expected: int, machine: Write) -> None:
    machine("cgroup/cpu.max", text + "\n")
    assert threads_allowed() == expected


def test_the_tightest_quota_above_the_process_counts(machine: Write) -> None:
    machine("own-cgroup", "0::/user.slice/job.scope\n")
    machine("cgroup/user.slice/cpu.max", "300000 100000\n")
    machine("cgroup/user.slice/job.scope/cpu.max", "500000 100000\n")
    assert threads_allowed() == 3


@pytest.mark.parametrize(("count", "expected"), [(12, 12), (1, 1), (None, 1)])
def test_where_there_is_no_affinity(count: int | None, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert threads_allowed() == expected


X86 = "processor : 0\nmodel name : Some CPU @ 2 GHz\nflags : fpu avx avx2 fma avx512f avx512_vnni made_up\n\n"
ARM = "processor : 0\nFeatures : fp asimd asimddp crc32 i8mm\nCPU implementer : 0x41\n\n"


def test_features_of_x86(machine: Write) -> None:
    machine("cpuinfo", X86 + X86.replace("processor : 0", "processor : 1"))
    found = isa()
    assert found.features == ("avx", "avx2", "avx512_vnni", "avx512f", "fma") and found.model == "Some CPU @ 2 GHz"
    assert found.machine == platform.machine()


def test_features_of_arm(machine: Write) -> None:
    machine("cpuinfo", ARM)
    assert isa().features == ("asimd", "asimddp", "i8mm")


def test_the_key_tells_machines_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Isa(machine="x86_64", features=("avx2",), model="a")
    keys = {one.key, Isa(machine="x86_64", features=("avx2", "fma"), model="a").key}
    keys |= {Isa(machine="x86_64", features=("avx2",), model="b").key, Isa(machine="arm64", features=(), model="a").key}
    assert len(keys) == 4 and all(len(key) == 12 for key in keys)
    monkeypatch.setattr(platform, "node", lambda: "another")
    assert Isa(machine="x86_64", features=("avx2",), model="a").key == one.key, "known features need no name"
    assert Isa(machine="arm64", features=(), model="a").key not in keys
