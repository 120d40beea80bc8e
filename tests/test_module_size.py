"""A module fits on a few screens and a function on one, so that a reader can hold it in the head."""

from __future__ import annotations

import ast

import pytest

from support.tree import ROOT, Module, modules

MODULE_LINES = 400
TEST_LINES = 450
FUNCTION_LINES = 60


def _too_long(module: Module) -> list[str]:
    functions = [n for n in ast.walk(module.syntax) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    sizes = {f"{module.relative}:{f.lineno} {f.name}": (f.end_lineno or f.lineno) - f.lineno + 1 for f in functions}
    return [f"{where}: {size} lines" for where, size in sizes.items() if size > FUNCTION_LINES]


def test_functions_fit_on_a_screen() -> None:
    found = [line for module in modules() for line in _too_long(module)]
    assert not found, "\n".join(found)


def test_modules_are_short() -> None:
    limits = {p: TEST_LINES for p in (ROOT / "tests").rglob("*.py")} | {m.path: MODULE_LINES for m in modules()}
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in limits}
    found = [f"{p.relative_to(ROOT)}: {sizes[p]} lines, at most {limits[p]}" for p in limits if sizes[p] > limits[p]]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.relative)
def test_a_module_says_what_it_is(module: Module) -> None:
    """The docstring's first line is the module's line in the README's file tree: one sentence that ends there."""
    assert module.summary, f"{module.relative} has no docstring"
    assert module.summary.endswith((".", "?")), (
        f"{module.relative}: the first line is no whole sentence: {module.summary}"
    )
