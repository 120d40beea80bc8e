"""Every promise of docs/promises.md has its tests, and every test it names is there and in the lane it says."""

from __future__ import annotations

import ast
import re

from support.tree import ROOT

PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")


def _rows() -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| ")]


def _named() -> dict[str, str]:
    """Path or path::name of each test, with its lane."""
    return {name: row[2] for row in _rows() if len(row) == 4 for name in re.findall(r"`(tests/[^`]+)`", row[3])}


def test_every_promise_and_every_test_of_the_26_has_a_row() -> None:
    cells = [row[0] for row in _rows()]
    promises = {f"P{n}" for n in range(1, 12)}
    assert promises <= set(cells)
    assert {f"T{n}" for n in range(1, 27)} <= {cell.split(" ")[0] for cell in cells}
    assert promises == set(re.findall(r"P\d+", " ".join(cell for cell in cells if cell.startswith("T"))))


def test_every_test_that_is_named_is_there_and_in_its_lane() -> None:
    assert len(_named()) > 50
    for name, lane in _named().items():
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), name
        if function:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            found = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
            assert function in found, name
            whole = [
                ast.unparse(a.value) for a in tree.body if isinstance(a, ast.Assign) and "pytestmark" in ast.unparse(a)
            ]
            marks = " ".join([*map(ast.unparse, found[function].decorator_list), *whole])
            is_fast = not re.search(r"mark\.(slow|stress|network)", marks)
            assert is_fast == (lane == "fast") or lane in ("fuzz", "kills"), f"{name} is not in the lane {lane}"


def test_every_lane_is_one_that_runs() -> None:
    lanes = (ROOT / "tests" / "lanes.py").read_text(encoding="utf-8")
    assert all(f'"{lane}": Lane(' in lanes for lane in set(_named().values()) - {"fast"})
