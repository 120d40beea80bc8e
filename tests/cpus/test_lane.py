"""The CPU lane, whole (marked `cpus`), and in the fast lane what it calls a pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cpus import run
from cpus.cpu_models import CPUS, HERE, Cpu, NotHere, check, cpuid_mask, masked_cpuinfo
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


def test_texts_of_arm_are_counted_but_need_not_be_those_of_this_machine() -> None:
    outcome = Outcome(cpu=A72, steps=steps(text={"text": "Ask Mario."}))
    assert faults(outcome, GOOD) == [] and "| 0 of 1 |" in row(outcome)


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


def _program(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(run, "make_ready", lambda cpu: None)
    monkeypatch.setattr(run, "command", lambda cpu, words: ["sh", "-c", script])


def test_what_a_cpu_did_before_its_time_was_up_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps({"step": "export", "what": "int8", "ok": True, "message": "", "s": 0.1})
    _program(monkeypatch, f"echo '{line}'; exec sleep 60")
    outcome = run.run_on(A72, {"bundles": {}}, tmp_path, limit_s=0.5)
    assert outcome.of("export") and outcome.trouble == "more than 0.5 s"


def test_the_last_word_of_a_cpu_that_ended_early_is_its_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(monkeypatch, "echo first >&2; echo no such instruction >&2; exit 3")
    assert run.run_on(A72, {"bundles": {}}, tmp_path, 60).trouble == "ended with 3: no such instruction"


def test_the_table_is_put_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "cpus.md"
    page.write_text("# CPUs\n" + "\n".join(run.MARKS).replace("\n", "\nold\n") + "\nEnd.\n", encoding="utf-8")
    run.write("| new |", page)
    assert page.read_text(encoding="utf-8") == f"# CPUs\n{run.MARKS[0]}\n| new |\n{run.MARKS[1]}\nEnd.\n"


def test_an_unknown_cpu_is_named() -> None:
    with pytest.raises(SystemExit, match="no CPU is called pentium; known are here, avxvnni"):
        run.main(["--only", "haswell,pentium"])


def test_names_are_unique() -> None:
    assert len({cpu.name for cpu in CPUS}) == len(CPUS) and all(isinstance(cpu, Cpu) for cpu in CPUS)
