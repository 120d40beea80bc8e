"""The CPU lane, whole (marked `cpus`), and in the fast lane what it calls a pass."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from cpus.cpu_models import CPUS, HERE, NotHere, check, cpuid_mask, masked_cpuinfo
from cpus.table import Outcome, faults, table

from support.tree import ROOT

HASWELL, A72 = (next(cpu for cpu in CPUS if cpu.name == name) for name in ("haswell", "cortex-a72"))
INFO = "processor\t: 0\nflags\t\t: fpu sse2 avx avx2 fma avx512f avx512_vnni avx_vnni\n\nprocessor\t: 1\n"


@pytest.mark.cpus
def test_every_cpu_keeps_the_promises() -> None:
    words = [sys.executable, "-m", "tests.cpus.run", "--jobs", "2"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout.rpartition("\n{")[0]


def steps(**changes: Any) -> list[dict[str, Any]]:
    """What a CPU prints on which everything is as promised; changes are by step."""
    doctor = {
        "n_differing": 0,
        "n_compared": 80,
        "golden_difference": 0.01,
        "agrees": True,
        "healthy": True,
        "problems": [],
    }
    lines = {
        "probe": {"what": "demo int8", "exact": True},
        "text": {"what": "notes", "text": "Ask Maria."},
        "drafter": {"what": "notes, ctc", "difference": None},
        "doctor": {"what": "demo int8", **doctor},
        "export": {"what": "int8", "ok": True, "message": ""},
    }
    return [{"step": step, **line, **changes.get(step, {})} for step, line in lines.items()]


GOOD = Outcome(cpu=HERE, steps=steps())


def row(outcome: Outcome) -> str:
    return table([outcome], GOOD).splitlines()[2]


def test_a_cpu_on_which_all_is_as_promised_passes() -> None:
    outcome = Outcome(cpu=HASWELL, steps=steps())
    assert faults(outcome, GOOD) == [] and "| passes |" in row(outcome)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"drafter": {"difference": "windows[0]"}}, "1 runs of drafters give another result than none: notes, ctc"),
        ({"probe": {"exact": False}}, "demo int8: rows differ in the first probe"),
        ({"doctor": {"n_differing": 3}}, "demo int8: 3 of 80 rows differ"),
        ({"doctor": {"agrees": False, "healthy": False}}, "demo int8: 0.01 from the exporting machine"),
        ({"doctor": {"healthy": False, "problems": ["products saturate"]}}, "demo int8: doctor says products saturate"),
        ({"export": {"ok": False, "message": "rows differ"}}, "export int8: rows differ"),
        ({"text": {"text": "Ask Mario."}}, "1 of 1 texts differ"),
    ],
)
def test_a_broken_promise_is_named(changes: dict[str, Any], fault: str) -> None:
    outcome = Outcome(cpu=HASWELL, steps=steps(**changes))
    assert [found[: len(fault)] for found in faults(outcome, GOOD)] == [fault]
    assert "| FAILS |" in row(outcome)


def test_what_was_not_run_or_not_to_its_end_does_not_pass() -> None:
    absent = Outcome(cpu=A72, trouble="the program apt-get is not installed")
    late = Outcome(cpu=A72, steps=steps()[:3], trouble="more than 5 s")
    assert faults(absent, GOOD) and "not run: the program apt-get is not installed |" in row(absent)
    assert faults(late, GOOD) and "not finished: more than 5 s |" in row(late)


def test_features_are_hidden_from_the_file_and_from_the_instruction() -> None:
    shown = masked_cpuinfo(HASWELL, INFO)
    assert shown.splitlines()[1].split(":")[1].split() == ["fpu", "sse2", "avx", "avx2", "fma"]
    cleared = dict(part.split(":") for part in cpuid_mask(HASWELL).split(";") if part)
    ebx, ecx = (int(cleared["7.0"].split(",")[i], 16) for i in (1, 2))
    assert ebx >> 16 & 1 and not ebx >> 5 & 1, "avx512f is hidden, avx2 is not"
    assert ecx >> 11 & 1 and int(cleared["7.1"].split(",")[0], 16) >> 4 & 1, "both VNNI are hidden"


def test_a_machine_cannot_stand_for_what_it_lacks() -> None:
    with pytest.raises(NotHere, match="this machine has no avx2, fma|the lane runs on Linux"):
        check(HASWELL, "flags : fpu sse2 avx\n")
