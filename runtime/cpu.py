"""What this process may use of the machine: CPUs allowed to it, and the instruction set that picks the kernels.

Knows nothing of ONNX Runtime. On systems without the files read here it answers with less, never wrongly: an empty
feature list, or the count the standard library gives.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

# The features ONNX Runtime's CPU kernels ask for, in the spelling of /proc/cpuinfo.
KERNEL_FEATURES = (
    "avx",
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
    "sme",
)
CPU_INFO = Path("/proc/cpuinfo")
OWN_CGROUP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")
_MOST_THREADS = 256
CPU_TOPOLOGY = "/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"


@dataclass(frozen=True, kw_only=True)
class Isa:
    """Instruction set: `machine` as platform.machine() has it, `features` sorted, `model` as the CPU names itself."""

    machine: str
    features: tuple[str, ...]
    model: str

    @property
    def key(self) -> str:
        """A short identity for caches of what depends on the instruction set.

        Where the features are not known, the machine's name stands for them: a home folder may be shared or moved.
        """
        text = "|".join((self.machine, self.model, *(self.features or (platform.node(),))))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def isa() -> Isa:
    """The instruction set of this machine."""
    flags: set[str] = set()
    # Elsewhere without a program; on Linux platform.processor() would start `uname` for what the file says better.
    model = "" if sys.platform == "linux" else platform.processor()
    try:
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                flags.update(value.split())
            elif key.strip() == "model name":
                model = value.strip()
    except OSError:
        pass
    features = tuple(sorted(flags.intersection(KERNEL_FEATURES)))
    return Isa(machine=platform.machine(), features=features, model=model)


def threads_allowed() -> int:
    """Worker threads for this process: the physical cores among the CPUs it may use, at most its CPU quota.

    Two hardware threads of a core count once, because the kernels fill a core's arithmetic units alone.
    """
    try:
        cpus = sorted(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return max(1, os.cpu_count() or 1)
    cores = {_siblings(cpu) for cpu in cpus}
    return max(1, min(len(cores), _quota_cpus() or len(cores)))


def most_threads() -> int:
    """The most worker threads that may be asked for: four for each CPU of this process, and eight on any machine.

    More of them than CPUs are no error, and some people want them; so many more only wait for each other.
    """
    try:
        n_cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        n_cpus = os.cpu_count() or 1
    return min(max(8, 4 * n_cpus), _MOST_THREADS)


def _siblings(cpu: int) -> str:
    try:
        return Path(CPU_TOPOLOGY.format(cpu=cpu)).read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)


def _quota_cpus() -> int | None:
    """Whole CPUs of the tightest quota among this process's control group and those above it; None without one."""
    quotas = [quota for folder in _cgroups() if (quota := _quota(folder)) is not None]
    return max(1, int(min(quotas))) if quotas else None


def _cgroups() -> list[Path]:
    """This process's folders in the cgroup file system: version 2 from the leaf up, and version 1's cpu controller."""
    folders = {CGROUP_ROOT, CGROUP_ROOT / "cpu"}
    try:
        lines = OWN_CGROUP.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = CGROUP_ROOT / "cpu" if controllers else CGROUP_ROOT
        leaf = root / path.lstrip("/")
        folders.update(folder for folder in (leaf, *leaf.parents) if folder.is_relative_to(root))
    return sorted(folders)


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota, period = ((folder / f"cpu.cfs_{part}_us").read_text("ascii") for part in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no such group, or "max"
        return None
