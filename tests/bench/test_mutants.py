"""The mutation run changes what it says, a mutant is what runs, and reasons for survivors are of mutants that exist."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from bench import mutants

SOURCE = '''"""Not -1."""
LIMIT: int = 3


class Kind:
    def keeps(self, p: float, q: float) -> bool:
        if p < 0:
            raise ValueError(f"{p - 1}")
        return p > LIMIT * q and not q == 0.5
'''


def test_each_mutant_is_one_change_with_a_name() -> None:
    found = {mutant.name: mutant for mutant in mutants.mutants_of("m", SOURCE)}
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
    assert [m.name for m in mutants.mutants_of("m", "a = 1\nb = 1\n")] == ["module: 1 -> 2", "module: 1 -> 2 #2"]


@pytest.mark.parametrize("module", mutants.CLAIMS)
def test_the_files_are_there_and_so_are_the_mutants_that_may_live(module: str) -> None:
    assert all((mutants.ROOT / file).is_file() for file in mutants.CLAIMS[module])
    source = (mutants.ROOT / mutants.CLAIMS[module][0]).read_text(encoding="utf-8")
    reasons = json.loads(Path(mutants.__file__).with_name("mutants_survived.json").read_text(encoding="utf-8"))
    names = {mutant.name for mutant in mutants.mutants_of(module, source)} if module in reasons else set()
    assert set(reasons) <= set(mutants.CLAIMS)
    assert not set(reasons.get(module, ())) - names, "no such mutant any more"
    assert all(reasons.get(module, {}).values()), "a reason for each"


def test_a_mutant_is_what_a_test_imports(tmp_path: Path) -> None:
    (tmp_path / "calculus.py").write_text("def double(n):\n    return n + n\n", encoding="utf-8")
    test = tmp_path / "test_double.py"
    test.write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport calculus\n"
        "def test_it():\n    assert calculus.double(3) == 6\n",
        encoding="utf-8",
    )
    path = (tmp_path / "calculus.py").resolve()
    (mutant,) = mutants.mutants_of("calculus", path.read_text(encoding="utf-8"))
    arguments = [f"--rootdir={tmp_path}", "-c", "/dev/null", str(test)]
    assert mutant.name == "double: n + n -> n - n"
    assert mutants.waited(mutants.start(path, None, arguments, slow=False), 60) == 0
    assert mutants.waited(mutants.start(path, mutant.tree, arguments, slow=False), 60) == 1
    assert path.read_text(encoding="utf-8").endswith("n + n\n"), "no file is written"
