"""The mutation run changes what it says, a mutant is what runs, and reasons for survivors are of mutants that exist."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from bench import mutants
from bench.mutant_runs import MutantTests, TestsFail
from bench.mutations import mutants_of

SOURCE = '''"""Not -1."""
LIMIT: int = 3


class Kind:
    def keeps(self, p: float, q: float) -> bool:
        if p < 0:
            raise ValueError(f"{p - 1}")
        return p > LIMIT * q and not q == 0.5
'''


def test_each_mutant_is_one_change_with_a_name() -> None:
    found = {mutant.name: mutant for mutant in mutants_of("m", SOURCE)}
    assert set(found) == {
        "module: 3 -> 4",
        "Kind.keeps: p < 0 -> p <= 0",
        "Kind.keeps: 0 -> 1",
        "Kind.keeps: p > LIMIT * q and (not q == 0.5) -> p > LIMIT * q or not q == 0.5",
        "Kind.keeps: p > LIMIT * q -> p >= LIMIT * q",
        "Kind.keeps: LIMIT * q -> LIMIT / q",
        "Kind.keeps: not q == 0.5 -> q == 0.5",
        "Kind.keeps: q == 0.5 -> q != 0.5",
        "Kind.keeps: 0.5 -> 0.75",
    }
    lines = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in found.values():
        changed = ast.unparse(mutant.tree).splitlines()
        assert sum(a != b for a, b in zip(lines, changed, strict=True)) == 1


def test_the_same_change_twice_has_two_names() -> None:
    assert [m.name for m in mutants_of("m", "a = 1\nb = 1\n")] == ["module: 1 -> 2", "module: 1 -> 2 #2"]


@pytest.mark.parametrize("module", mutants.CLAIMS)
def test_the_files_are_there_and_so_are_the_mutants_that_may_live(module: str) -> None:
    assert all((mutants.ROOT / file).is_file() for file in mutants.CLAIMS[module])
    source = (mutants.ROOT / mutants.CLAIMS[module][0]).read_text(encoding="utf-8")
    reasons = json.loads(Path(mutants.__file__).with_name("mutants_survived.json").read_text(encoding="utf-8"))
    names = {mutant.name for mutant in mutants_of(module, source)} if module in reasons else set()
    assert set(reasons) <= set(mutants.CLAIMS)
    assert not set(reasons.get(module, ())) - names, "no such mutant any more"
    assert all(reasons.get(module, {}).values()), "a reason for each"


MODULE = """
START = 1


def kept(value, by=2):
    '''Twice a value, above the start.'''
    return [value * by for _ in range(START)][0] if value > START else unseen()


def unseen():
    return 7 + 1
"""
TEST = """
import sys
sys.path.insert(0, {folder!r})
from {stem} import kept

def test_of_a_large_value():
    assert kept(2) == 4

def test_of_a_value_at_the_start():
    assert kept(1) == 8
"""


@pytest.mark.slow
def test_tests_run_on_each_mutant_of_a_module(tmp_path: Path) -> None:
    """A name that a test has imported is changed too, a constant and a default are, and no file is."""
    path = tmp_path / "mutated_module.py"
    path.write_text(MODULE, encoding="utf-8")
    test = tmp_path / "test_it.py"
    test.write_text(TEST.format(folder=str(tmp_path), stem=path.stem), encoding="utf-8")
    found = {mutant.name: mutant for mutant in mutants_of("m", MODULE)}
    with MutantTests(path, [f"--rootdir={tmp_path}", "-c", "/dev/null", str(test)], list(found.values())) as running:
        killed = {name: running.kill(mutant) for name, mutant in found.items()}
    assert killed == {
        "module: 1 -> 2": True,
        "kept: 2 -> 3": True,
        "kept: value > START -> value >= START": True,
        "kept: value * by -> value / by": True,
        "kept: 0 -> 1": True,
        "unseen: 7 + 1 -> 7 - 1": True,
        "unseen: 7 -> 8": True,
        "unseen: 1 -> 2": True,
    }
    assert path.read_text(encoding="utf-8") == MODULE


@pytest.mark.slow
def test_a_survivor_and_a_mutant_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.mutant_runs._SLOWEST_S", 0.5)
    source = "def count(n):\n    while n > 0:\n        n = n - 1\n    return n\n"
    path, test = tmp_path / "counted_module.py", tmp_path / "test_it.py"
    path.write_text(source, encoding="utf-8")
    lines = ["import sys", f"sys.path.insert(0, {str(tmp_path)!r})", "import counted_module", "def test_it():"]
    test.write_text("\n".join([*lines, "    assert counted_module.count(4) <= 0\n"]), encoding="utf-8")
    found = {mutant.name: mutant for mutant in mutants_of("m", source)}
    asked = ("count: n > 0 -> n >= 0", "count: n - 1 -> n + 1")
    with MutantTests(path, [f"--rootdir={tmp_path}", "-c", "/dev/null", str(test)], list(found.values())) as running:
        assert [running.kill(found[name]) for name in asked] == [False, True]
    test.write_text("def test_it():\n    assert False\n", encoding="utf-8")
    with pytest.raises(TestsFail):
        MutantTests(path, [f"--rootdir={tmp_path}", "-c", "/dev/null", str(test)], [])


def test_a_sample_is_an_estimate_with_an_interval() -> None:
    """Weighed by hand: a module of 300 with 9 of 10 killed, one of 100 with all of 10."""
    found = mutants.estimate([mutants.Count(300, 10, 9), mutants.Count(100, 10, 10)])
    assert found is not None
    share, least, most = found
    assert share == pytest.approx(0.75 * 0.9 + 0.25)
    variance = 0.5625 * (10 / 12) * (2 / 12) / 10 * (1 - 10 / 300) + 0.0625 * (11 / 12) * (1 / 12) / 10 * 0.9
    assert (share - least, most) == (pytest.approx(1.96 * variance**0.5), 1.0)
    assert mutants.estimate([mutants.Count(4, 4, 3)]) == (0.75, 0.75, 0.75), "all that there are: no estimate"
    assert mutants.estimate([mutants.Count(4, 0, 0)]) is None


def test_a_killed_mutant_stays_killed_and_a_survivor_is_tried_on_new_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = tmp_path / "kept.jsonl"
    lines = [
        {"module": "accept", "name": name, "killed": killed, "of": of, "by": by}
        for name, killed, of, by in (
            ("a", True, "s", "old"),
            ("b", False, "s", "old"),
            ("c", False, "s", "t"),
            ("d", True, "x", "t"),
        )
    ]
    keep.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    monkeypatch.setattr(mutants, "states_of", lambda module: ("s", "t"))
    assert mutants._kept(keep, "accept") == ({"a": True, "b": False, "c": False}, {"b"})
    assert mutants._kept(keep, "adapter") == mutants._kept(None, "accept") == ({}, set())
