"""The machine: CPUs and instruction set, its heap, what a decoder pass costs by its rows, and the files that keep it.

`CostTable` is T(k), the time of a pass of k rows in units of T(1); `Profile` is what `doctor --calibrate` measured.
A file's name includes everything its contents depend on (bundle, CPU, ONNX Runtime, threads); files lie in the user's
cache folder. A file that is missing or damaged counts as none.

Nothing here loads ONNX Runtime, unless a file is named. On systems without the files read here the answers are less
precise: an empty feature list, or the standard library's count of CPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import math
import os
import platform
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specedge.files import write_atomic
from specedge.models.store import cache_home


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Seconds on one device: `pass_s[k]` of a decoder pass of k rows, `encode_s` of a window's encoder and
    cross-attention keys and values together; `paths_s` of a pass over several paths beyond one of as many rows, 0 where
    the model cannot; `rounds` times each was measured; `scatter` of like rounds, the slowest of the inner three fifths
    over the quickest, which is not kept."""

    threads: int
    pass_s: Mapping[int, float]
    encode_s: float
    paths_s: float = 0.0
    rounds: int
    scatter: float = 1.0

    def costs(self) -> CostTable:
        """In passes of one row."""
        one_s = self.pass_s[1]
        relative = tuple(seconds / one_s for seconds in self.pass_s.values())
        return CostTable(tuple(self.pass_s), relative, several_paths=self.paths_s / one_s)

    def to_json(self) -> dict[str, Any]:
        """For the file and for `--json`."""
        return {
            "kind": "specedge calibration",
            "version": _VERSION,
            **device_fields(self.threads),
            **{name: value for name, value in vars(self).items() if name != "scatter"},
        }


def load_profile(bundle_digest: str, threads: int) -> Profile | None:
    """The profile of a bundle on this device; None where there is none that can be used."""
    value = read_device_file(device_path(bundle_digest, threads))
    try:
        pass_s = dict(sorted((int(n_rows), float(seconds)) for n_rows, seconds in value["pass_s"].items()))
        found = Profile(
            threads=int(value["threads"]),
            pass_s=pass_s,
            encode_s=float(value["encode_s"]),
            paths_s=float(value["paths_s"]),
            rounds=int(value["rounds"]),
        )
        is_ours = value["version"] == _VERSION and found.threads == threads
        is_whole = len(pass_s) >= 2 and min(pass_s) == 1 and 0 <= found.paths_s < math.inf
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError):
        return None
    is_sound = all(0 < seconds < math.inf for seconds in (found.encode_s, *pass_s.values()))
    return found if is_ours and is_whole and is_sound else None


def save_profile(bundle_digest: str, profile: Profile) -> Path:
    """Keep `profile`; returns its file. Raises ResourceError when it cannot be written."""
    path = device_path(bundle_digest, profile.threads)
    write_device_file(path, profile.to_json())
    return path


_VERSION = 3  # 2 timed each size behind others


# The features ONNX Runtime's CPU kernels ask for, in the spelling of /proc/cpuinfo.
KERNEL_FEATURES = frozenset(
    "avx avx2 fma avx512f avx512bw avx512vl avx512_vnni avx_vnni avx512_bf16 amx_int8 asimd asimddp i8mm bf16 sve"
    " sme".split()
)

CPU_INFO = Path("/proc/cpuinfo")
MEMORY_INFO = Path("/proc/meminfo")
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
    cores = {_siblings(cpu) for cpu in _cpus()}
    return max(1, min(len(cores), _quota_cpus() or len(cores)))


def most_threads() -> int:
    """The most worker threads that may be asked for: four for each CPU of this process, and eight on any machine.

    More of them than CPUs are no error, and some people want them; so many more only wait for each other.
    """
    return min(max(8, 4 * len(_cpus())), _MOST_THREADS)


def _cpus() -> list[int]:
    """The CPUs that this process may use."""
    try:
        return list(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return list(range(os.cpu_count() or 1))


def free_bytes() -> int | None:
    """Memory that is free or can be freed (Linux); None where nobody says."""
    try:
        lines = MEMORY_INFO.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration, IndexError):
        return None


def total_memory_bytes() -> int | None:
    """The memory of the machine (Linux, macOS); None where nobody says."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def _siblings(cpu: int) -> str:
    try:
        return Path(CPU_TOPOLOGY.format(cpu=cpu)).read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)


def _quota_cpus() -> int | None:
    """Whole CPUs of the tightest quota among this process's control group and those above it; None without one."""
    leaf = CGROUP_ROOT
    with contextlib.suppress(OSError, ValueError):
        leaf /= OWN_CGROUP.read_text(encoding="utf-8").rpartition("::/")[2].strip()
    quotas = []
    for folder in (leaf, *leaf.parents):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # no quota is no file, or "max"
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            quotas.append(int(quota) / int(period))
    return max(1, int(min(quotas))) if quotas else None


_LONGEST = 64
_MOST_ROWS = 512  # a prompt and its drafts; a longer pass is priced as this
_HOPELESS = 0.03  # a node reached less often than this ends a chain


@dataclass(frozen=True)
class CostTable:
    """T(k) at the numbers of `rows` (rising, the first is 1), `relative` to T(1); linear between and beyond them.

    several_paths: time of a pass over several paths beyond one of as many rows of one path, in units of T(1).
    """

    rows: tuple[int, ...]
    relative: tuple[float, ...]
    several_paths: float = 0.0

    def cost(self, k: int) -> float:
        """T(k) / T(1) for a pass of `k` rows, 1 or more."""
        at = min(max(bisect_right(self.rows, k) - 1, 0), len(self.rows) - 2)
        (a, b), (low, high) = self.rows[at : at + 2], self.relative[at : at + 2]
        return low + (high - low) * (k - a) / (b - a)

    def price(self, n_rows: int, n_paths: int = 1) -> float:
        """T(k) / T(1) of a pass as it is run: with an even number of rows, a lone row aside, over so many paths."""
        price = self._prices[min(n_rows, _MOST_ROWS)]
        return price if n_paths == 1 else price + self.several_paths

    def beside(self, n_texts: int, n_rows: int) -> CostTable:
        """The table of a text that shares its passes with others, in units of its plain pass there.

        n_texts: in a pass, with this one; n_rows: theirs in all. Its plain pass is its share of one in
        which this text has no draft; a row of its draft costs what it adds to that.
        """
        return self if n_texts == 1 else _beside(self, n_texts, min(n_rows, _MOST_ROWS))

    @functools.cached_property
    def _prices(self) -> list[float]:
        """Priced once: `best_chain` runs before every pass. A lone row is run as two, but its twin decides nothing."""
        prices = [self.cost(n_rows + n_rows % 2) for n_rows in range(_MOST_ROWS + 1)]
        prices[1] = self.cost(1)
        return prices

    def best_chain(self, believed: Iterable[float], n_pending: int = 1, margin: float = 0.0) -> tuple[int, float]:
        """How many nodes of a chain to verify, and the expected gain in units of T(1); (0, 0.0) where none pays.

        The expected number of accepted nodes is the sum of the products of their probabilities (Leviathan et al. 2023,
        section 3.1, with a probability for each place); each saves a pass of one row.

        believed: each node's probability given the one before; n_pending: rows that the pass runs anyway; margin: what
        a draft must gain beyond its rows.
        """
        prices = self._prices
        free = prices[min(n_pending, _MOST_ROWS)] - margin
        best, best_gain = 0, 0.0
        reached, worth = 1.0, 0.0
        for n, belief in enumerate(believed, 1):
            reached *= belief
            if reached < _HOPELESS:
                break
            worth += reached
            gain = worth - prices[min(n_pending + n, _MOST_ROWS)] + free
            if gain > best_gain:
                best, best_gain = n, gain
        return best, best_gain


@functools.lru_cache(maxsize=256)
def _beside(alone: CostTable, n_texts: int, n_rows: int) -> CostTable:
    n_others = n_rows - n_rows // n_texts
    plain = alone.cost(n_others + 1)
    rows = [k - n_others for k in alone.rows if k - n_others > 1]
    rows = [1, *rows, max([1, *rows]) + _LONGEST]
    costs = [1 + (alone.cost(n_others + k) - plain) * n_texts / plain for k in rows]
    return CostTable(tuple(rows), tuple(costs), alone.several_paths * n_texts / plain)


# Whisper base, 8-bit weights, 2 threads of an x86 server, rounded up (docs/experiments, 2026-11-22: what a pass of k
# rows costs). A lone row is run as two (the even-row rule), so the second is free. What a pass
# over several paths takes beyond its rows is of base and small (same file and date, the entry of that name).
DEFAULT_COSTS = CostTable(
    rows=(1, 2, 4, 8, 16, 32, 64), relative=(1.0, 1.0, 1.2, 1.55, 2.2, 3.3, 5.8), several_paths=0.8
)
BUSY = 1.15  # like rounds whose slowest takes this many times the quickest: something else was at work


def device_path(bundle_digest: str, threads: int, suffix: str = "") -> Path:
    """Where a file about a bundle on this device lies, whether or not it was made; `suffix` tells its kind."""
    return device_folder() / f"{bundle_digest[:24]}-{isa().key}-{_runtime_version()}-{threads}{suffix}.json"


def device_folder() -> Path:
    """Where all files about bundles on this device lie; it need not exist."""
    return cache_home() / "calibration"


def device_fields(threads: int) -> dict[str, Any]:
    """What every file says of the device, for people who read it."""
    return {"cpu": isa().model, "threads": threads, "onnxruntime": _runtime_version()}


def read_device_file(path: Path) -> dict[str, Any]:
    """What a file says; nothing where there is none that can be read."""
    try:
        # Opening a pipe would wait for a writer.
        value = json.loads(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def write_device_file(path: Path, value: Any) -> None:
    """Keep `value`, whole or not at all. Raises ResourceError when it cannot be written."""
    with contextlib.suppress(OSError):  # a folder that cannot be made is reported by the write
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(value, indent=1) + "\n")


def _runtime_version() -> str:
    # Not at the top: a model's class is imported by programs that may never load a model, and ONNX Runtime is large.
    import onnxruntime

    return str(onnxruntime.__version__)


# mallopt's numbers. With 1 MiB the heap still grew by 20 MB in an hour (ONNX Runtime 1.32).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 128 << 10
KEPT_TOP_BYTES = 4 << 20


@functools.cache
def map_large_blocks() -> None:
    """Have glibc map every large block by itself, in the whole process, unless its environment says how.

    By default every freed block raises the size from which glibc maps, up to 32 MB. The encoder's buffers then lie in
    the heap, small blocks behind them keep it from shrinking, and reserved memory (RLIMIT_DATA) grows for an hour. Not
    for training, which becomes slower.
    """
    set_option = getattr(_c_library(), "mallopt", None)
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if set_option is None or "MALLOC_MMAP_THRESHOLD_" in os.environ or "mmap_threshold" in tunables:
        return
    set_option(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    set_option(M_TRIM_THRESHOLD, KEPT_TOP_BYTES)


def trim_heap() -> None:
    """Give back freed memory that glibc keeps: tens of megabytes after large buffers."""
    trim = getattr(_c_library(), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


@functools.cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    except OSError:
        return None
