"""What each CPU of the lane runs in: a masked copy of ONNX Runtime, or a root folder of Debian's arm64 packages.

Everything that is fetched or made lies in a cache folder (SPECEDGE_CPUS_CACHE) and serves later runs. An emulated CPU
sees the tree and the cache at their own paths, and its own /proc/cpuinfo, which qemu makes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from cpus.cpu_models import HERE, Cpu, NotHere, check, cpuid_mask, masked_cpuinfo

from support.linktree import lay
from support.tree import ROOT

__all__ = ["cache_folder", "command", "make_ready"]

SUITE = "trixie"  # qemu 10, which shows the right /proc/cpuinfo to its guest; bookworm's 7.2 shows this machine's
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
WHEEL_TAGS = [f"manylinux_2_{minor}_aarch64" for minor in range(28, 16, -1)] + ["manylinux2014_aarch64"]
_LOCK = threading.Lock()

_APT_CONF = """
APT::Architecture "{arch}";
APT::Architectures {{ "{arch}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Dir::State "{folder}";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "{folder}/none";
Dir::Etc::preferencesparts "{folder}/none";
"""
# Arguments: the root folder, then the folders to show in it, "--", and the command.
_ENTER_ROOT = """
set -e
root=$1; shift
for inside in /proc /sys /dev; do mount --rbind $inside "$root$inside"; done
while [ "$1" != -- ]; do mkdir -p "$root$1"; mount --bind "$1" "$root$1"; shift; done
shift
exec chroot "$root" "$@"
"""
_HIDE_FEATURES = 'set -e; mount --bind "$1" /proc/cpuinfo; shift; exec "$@"'


def cache_folder() -> Path:
    """Where everything that is fetched or made is kept."""
    return Path(os.environ.get("SPECEDGE_CPUS_CACHE") or Path.home() / ".cache" / "specedge-cpus").resolve()


def make_ready(cpu: Cpu) -> None:
    """Fetch and make what a CPU needs, where it is not there. Raises NotHere, with the reason in a line."""
    with _LOCK:
        check(cpu, Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        if cpu.arm:
            _arm_root(), _qemu(), _arm_packages()
        elif cpu.hidden:
            _masked_runtime(), _handler()


def command(cpu: Cpu, program: Sequence[str]) -> list[str]:
    """The command line that runs `python3 PROGRAM...` on a CPU that was made ready."""
    cache = cache_folder()
    tree = cache / f"links-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]}"
    lay(tree)
    own = {"SPECEDGE_CACHE": f"{cache}/caches/{cpu.name}", "SPECEDGE_HOME": f"{cache}/home", "PYTHONPATH": str(tree)}
    shell = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount", "sh", "-c"]
    if cpu.arm:
        own |= {
            "PYTHONPATH": f"{tree}:{_arm_packages()}",
            "PYTHONPYCACHEPREFIX": f"{cache}/pycache",
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
        }
        inside = [str(_qemu()), "-cpu", cpu.arm, *(x for name in own for x in ("-E", f"{name}={own[name]}"))]
        folders = [str(ROOT), str(cache)]
        return [*shell, _ENTER_ROOT, "sh", str(_arm_root()), *folders, "--", *inside, "/usr/bin/python3", *program]
    if cpu.hidden:
        info = cache / f"cpuinfo-{cpu.name}"
        info.write_text(masked_cpuinfo(cpu, Path("/proc/cpuinfo").read_text(encoding="utf-8")), encoding="utf-8")
        own |= {
            "PYTHONPATH": f"{_masked_runtime()}:{tree}",
            "LD_PRELOAD": str(_handler()),
            "CPUID_MASK": cpuid_mask(cpu),
            "OPENBLAS_CORETYPE": cpu.blas,
            "NPY_DISABLE_CPU_FEATURES": " ".join(_numpy_features(cpu)),
        }
        shell += [_HIDE_FEATURES, "sh", str(info)]
    prefix = [] if cpu == HERE else shell
    return [*prefix, "env", *(f"{name}={value}" for name, value in own.items()), sys.executable, *program]


def _numpy_features(cpu: Cpu) -> list[str]:
    """NumPy's own kernels that such a CPU does not run."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    found = [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]
    if "avx2" in cpu.hidden:
        return found
    return [name for name in found if "avx512bw" in cpu.hidden and name.startswith(("AVX512", "X86_V4"))]


# ------------------------------------------------------------------------------------------------------- masked x86
def _masked_runtime() -> Path:
    """A folder with a copy of the package onnxruntime whose every `cpuid` is `ud2`."""
    import onnxruntime

    package = Path(onnxruntime.__file__).parent
    library = next((package / "capi").glob("onnxruntime_pybind11_state*.so"))
    return _made(f"masked-{version('onnxruntime')}-{_digest(library)}", lambda out: _copy_masked(package, library, out))


def _copy_masked(package: Path, library: Path, out: Path) -> None:
    shutil.copytree(package, out / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    copy = out / package.name / library.relative_to(package)
    data = bytearray(copy.read_bytes())
    sites = _cpuid_sites(copy, bytes(data))
    for at in sites:
        data[at : at + 2] = b"\x0f\x0b"
    copy.write_bytes(data)
    print(f"{copy.name}: {len(sites)} cpuid instructions masked", file=sys.stderr)


def _cpuid_sites(library: Path, data: bytes) -> list[int]:
    """Offsets in the file of the instructions `cpuid`."""
    text = _run(["objdump", "-d", "--no-show-raw-insn", str(library)])
    addresses = [int(found, 16) for found in re.findall(r"^ *([0-9a-f]+):\s+cpuid", text, re.MULTILINE)]
    table, size, count = *struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54)
    loads = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    sites = [
        a - start + at for a in addresses for kind, _, at, start, _, n in loads if kind == 1 and 0 <= a - start < n
    ]
    if not sites or len(sites) != len(addresses) or any(data[at : at + 2] != b"\x0f\xa2" for at in sites):
        raise NotHere(f"the cpuid instructions of {library.name} were not found")
    return sites


def _handler() -> Path:
    source = Path(__file__).with_name("cpuid_mask.c")

    def compile_it(out: Path) -> None:
        _run(["cc", "-O1", "-shared", "-fPIC", "-o", str(out / "cpuid_mask.so"), str(source)])

    return _made(f"handler-{_digest(source)}", compile_it) / "cpuid_mask.so"


# ----------------------------------------------------------------------------------------------------- emulated Arm
def _arm_root() -> Path:
    """A root folder with Python and what the wheels need: Debian's packages, unpacked, no script of theirs run."""
    packages = ["base-files", "python3", "libstdc++6", "libgomp1"]

    def unpack(out: Path) -> None:
        for deb in sorted(_packages("arm64", packages)):
            _run(["dpkg-deb", "-x", str(deb), str(out)])

    return _made(f"root-{SUITE}", unpack)


def _qemu() -> Path:
    def unpack(out: Path) -> None:
        for deb in _packages("amd64", ["qemu-user"]):
            if deb.name.startswith("qemu-user_"):  # linked statically: it needs none of the others
                _run(["dpkg-deb", "-x", str(deb), str(out)])

    return _made(f"qemu-{SUITE}", unpack) / "usr" / "bin" / "qemu-aarch64"


def _packages(arch: str, names: list[str]) -> list[Path]:
    """Debian's packages of these names and what they depend on, fetched by an apt of its own."""
    if not KEYRING.is_file():
        raise NotHere("needs apt-get and the package debian-archive-keyring")
    folder = cache_folder() / f"apt-{arch}"
    for name in ("lists/partial", "archives/partial", "none"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    source = f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {SUITE} main\n"
    (folder / "sources.list").write_text(source, encoding="utf-8")
    (folder / "apt.conf").write_text(_APT_CONF.format(arch=arch, folder=folder), encoding="utf-8")
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
    _run(["apt-get", "update"], environment)
    _run(["apt-get", "install", "--yes", "--download-only", *names], environment)
    return list((folder / "archives").glob("*.deb"))


def _arm_packages() -> Path:
    """The wheels that specedge needs, of the versions that are installed here where one is named."""
    python = (_arm_root() / "usr" / "bin" / "python3").readlink().name.removeprefix("python")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["export"]]
    wanted += [line for line in project["optional-dependencies"]["test"] if line.startswith("hypothesis")]
    same = [f"{name}=={version(name)}" for name in ("numpy", "onnxruntime", "onnx")]
    key = hashlib.sha256("\n".join([*wanted, *same]).encode()).hexdigest()[:12]

    def install(out: Path) -> None:
        tags = [word for tag in WHEEL_TAGS for word in ("--platform", tag)]
        options = ["--quiet", "--only-binary=:all:", "--implementation", "cp", "--python-version", python, *tags]
        _run([sys.executable, "-m", "pip", "install", "--target", str(out), *options, *wanted, *same])

    return _made(f"wheels-{python}-{key}", install)


# -------------------------------------------------------------------------------------------------------------- both
def _made(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of this name in the cache, made once and whole."""
    folder = cache_folder() / name
    if not folder.is_dir():
        print(f"making {folder}", file=sys.stderr)
        part = folder.with_name(f"{name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        make(part)
        part.rename(folder)
    return folder


def _run(words: list[str], environment: dict[str, str] | None = None) -> str:
    """Standard output of a program. Raises NotHere with the last line that it wrote."""
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotHere(f"the program {words[0]} is not installed") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no word"]
        raise NotHere(f"{' '.join(words[:2])} ended with {done.returncode}: {said[-1]}")
    return done.stdout


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
