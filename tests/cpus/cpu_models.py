"""The CPUs of the lane: this machine, this machine with features hidden from ONNX Runtime, and emulated Arm ones."""

from __future__ import annotations

import platform
from dataclasses import dataclass

__all__ = ["CPUS", "HERE", "Cpu", "NotHere", "check", "cpuid_mask", "masked_cpuinfo"]

# (leaf, subleaf, register) of the instruction cpuid -> its bits, by their names in /proc/cpuinfo; "" is OSXSAVE.
_BITS = {
    (1, 0, 2): {"pni": 0, "ssse3": 9, "fma": 12, "sse4_1": 19, "sse4_2": 20, "xsave": 26, "": 27, "avx": 28,
                "f16c": 29},
    (7, 0, 1): {"bmi1": 3, "avx2": 5, "bmi2": 8, "avx512f": 16, "avx512dq": 17, "avx512ifma": 21, "avx512cd": 28,
                "avx512bw": 30, "avx512vl": 31},
    (7, 0, 2): {"avx512vbmi": 1, "avx512_vbmi2": 6, "gfni": 8, "vaes": 9, "vpclmulqdq": 10, "avx512_vnni": 11,
                "avx512_bitalg": 12, "avx512_vpopcntdq": 14},
    (7, 0, 3): {"avx512_vp2intersect": 8, "amx_bf16": 22, "avx512_fp16": 23, "amx_tile": 24, "amx_int8": 25},
    (7, 1, 0): {"avx_vnni": 4, "avx512_bf16": 5, "amx_fp16": 21, "avx_ifma": 23},
    (7, 1, 3): {"avx_vnni_int8": 4, "avx_ne_convert": 5, "avx_vnni_int16": 10, "avx10": 19},
}  # fmt: skip
_NAMES = {name for bits in _BITS.values() for name in bits}
_AMX = {name for name in _NAMES if name.startswith("amx")}
_AVX512 = _AMX | {name for name in _NAMES if name.startswith(("avx512", "avx10"))}
_VNNI = {"avx512_vnni", "avx_vnni", "avx_vnni_int8", "avx_vnni_int16"}
_AFTER_SKYLAKE = _AVX512 - {"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"}
_AFTER_HASWELL = _AVX512 | _VNNI | {"avx_ifma", "avx_ne_convert", "gfni", "vaes", "vpclmulqdq"}
_AFTER_SANDY_BRIDGE = _AFTER_HASWELL | {"avx2", "fma", "f16c", "bmi1", "bmi2"}
_AFTER_NEHALEM = _AFTER_SANDY_BRIDGE | {"avx", "xsave", ""}


class NotHere(Exception):
    """Why this machine cannot stand for a CPU."""


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """A CPU of the lane: `arm` is the model that qemu emulates, `hidden` the features hidden from ONNX Runtime.

    needs: features that must be there for that; blas: the OpenBLAS kernels that such a CPU takes; same_text: whether
    its texts are to be those of this machine (x86 from AVX2 on).
    """

    name: str
    stands_for: str
    arm: str = ""
    hidden: frozenset[str] = frozenset()
    needs: tuple[str, ...] = ()
    blas: str = ""
    same_text: bool = False

    @property
    def how(self) -> str:
        return "emulated" if self.arm else "masked" if self.hidden else "as it is"


def _masked(name: str, stands_for: str, hidden: set[str], *, needs: str, blas: str, same_text: bool = False) -> Cpu:
    return Cpu(name=name, stands_for=stands_for, hidden=frozenset(hidden), needs=tuple(needs.split()), blas=blas,
               same_text=same_text)  # fmt: skip


HERE = Cpu(name="here", stands_for="this machine", same_text=True)
CPUS = (
    HERE,
    _masked("avxvnni", "Alder Lake and later", _AVX512, needs="avx2 fma avx_vnni", blas="Haswell", same_text=True),
    _masked("skx", "AVX512 without VNNI (Skylake-X)", _AFTER_SKYLAKE | _VNNI, needs="avx512bw avx512vl",
            blas="SkylakeX", same_text=True),
    _masked("haswell", "AVX2 without VNNI (2013 to 2020)", _AFTER_HASWELL, needs="avx2 fma", blas="Haswell",
            same_text=True),
    _masked("avx", "AVX alone (Sandy and Ivy Bridge)", _AFTER_SANDY_BRIDGE, needs="avx", blas="Sandybridge"),
    _masked("sse41", "no AVX (Nehalem, older Atoms)", _AFTER_NEHALEM, needs="sse4_1", blas="Nehalem"),
    _masked("sse2", "SSE2 alone", _AFTER_NEHALEM | {"sse4_1", "sse4_2", "ssse3", "pni"}, needs="sse2",
            blas="Prescott"),
    Cpu(name="cortex-a72", stands_for="Raspberry Pi 4: no dot product", arm="cortex-a72"),
    Cpu(name="cortex-a76", stands_for="Raspberry Pi 5, M1-like: dot product", arm="cortex-a76"),
    Cpu(name="neoverse-v1", stands_for="Graviton 3: SVE", arm="neoverse-v1"),
    Cpu(name="max-no-sve", stands_for="i8mm and bf16 without SVE: M2-like", arm="max,sve=off,sme=off"),
    Cpu(name="max", stands_for="SVE2 and SME", arm="max"),
)  # fmt: skip


def _features(cpuinfo: str) -> set[str]:
    """The flags of the first processor in the text of /proc/cpuinfo."""
    line = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), ":")
    return set(line.partition(":")[2].split())


def check(cpu: Cpu, cpuinfo: str) -> None:
    """Raises NotHere where this machine lacks what a masked CPU has."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        raise NotHere("the lane runs on Linux, x86-64")
    missing = [name for name in cpu.needs if name not in _features(cpuinfo)]
    if missing:
        raise NotHere(f"this machine has no {', '.join(missing)}")


def masked_cpuinfo(cpu: Cpu, cpuinfo: str) -> str:
    """The text of /proc/cpuinfo without the hidden features."""
    lines = []
    for line in cpuinfo.splitlines():
        if line.startswith("flags"):
            key, _, flags = line.partition(":")
            line = f"{key}: {' '.join(flag for flag in flags.split() if flag not in cpu.hidden)}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def cpuid_mask(cpu: Cpu) -> str:
    """The hidden features as cpuid_mask.c reads them."""
    clear: dict[tuple[int, int], list[int]] = {}
    for (leaf, sub, register), bits in _BITS.items():
        mask = sum(1 << bit for name, bit in bits.items() if name in cpu.hidden)
        clear.setdefault((leaf, sub), [0] * 4)[register] |= mask
    return "".join(f"{leaf:x}.{sub:x}:{','.join(f'{m:x}' for m in masks)};" for (leaf, sub), masks in clear.items())
