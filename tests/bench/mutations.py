"""Mutants of a module: one change each to its syntax tree, and the lines that a test must run to see it.

Comparisons, arithmetic, signs, `and`/`or`, numbers and booleans are changed; texts, annotations, decorators and what is
raised are left alone. It runs nothing and knows no tests.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Mutant", "mutants_of"]

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult, ast.Mod: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip

Place = tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """name: "function: before -> after", as `mutants_survived.json` has it; line: of the source; lines: those of its
    statement, without the statements inside, or None where the change is read on import, outside of all functions;
    whole: the module as it is, in which `new` comes to stand at `place`."""

    module: str
    name: str
    line: int
    lines: range | None
    whole: ast.Module
    place: Place
    new: ast.AST

    @property
    def tree(self) -> ast.Module:
        """The changed module, made when it is asked for: all of them at once take a gigabyte."""
        tree = copy.deepcopy(self.whole)
        _put(tree, self.place, self.new)
        return ast.fix_missing_locations(tree)


@dataclass(frozen=True)
class _Where:
    """Of a node: the function it stands in, whether it runs when that is called, and its statement's lines."""

    function: str = "module"
    is_called: bool = False
    lines: range = range(0)


_TOP = _Where()


def mutants_of(module: str, source: str) -> list[Mutant]:
    """All mutants of a module, by line."""
    tree = ast.parse(source)
    seen: dict[str, itertools.count[int]] = {}
    found = []
    for place, node, where in _places(tree):
        changed = _changed(node)
        if changed is None:
            continue
        name = f"{where.function}: {_short(node)} -> {_short(changed)}"
        number = next(seen.setdefault(name, itertools.count(1)))
        name = name if number == 1 else f"{name} #{number}"
        found.append(
            Mutant(
                module=module,
                name=name,
                line=getattr(node, "lineno", 0),
                lines=where.lines if where.is_called else None,
                whole=tree,
                place=place,
                new=changed,
            )
        )
    return found


def _places(node: ast.AST, place: Place = (), where: _Where = _TOP) -> Iterator[tuple[Place, ast.AST, _Where]]:
    """Every node that may be changed, the way to it from the root, and where it stands."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        is_called = where.is_called or (isinstance(node, ast.FunctionDef) and name == "body")
        for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr | ast.Import):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":  # of zip: it only says what is so anyway
                continue
            function, lines = where.function, where.lines
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                function = child.name if function == "module" else f"{function}.{child.name}"
            if isinstance(child, ast.stmt):
                lines = _own_lines(child)
            here, inside = (*place, (name, at)), _Where(function, is_called, lines)
            yield here, child, inside
            yield from _places(child, here, inside)


def _own_lines(statement: ast.stmt) -> range:
    """The lines of a statement up to the first one inside it."""
    inside = [child.lineno for child in ast.walk(statement) if isinstance(child, ast.stmt) and child is not statement]
    end = statement.end_lineno or statement.lineno
    return range(statement.lineno, max(min([end + 1, *inside]), statement.lineno + 1))


def _changed(node: ast.AST) -> ast.AST | None:
    """The one change of a node; None where there is none."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in _OTHER:
        new.ops[0] = _OTHER[type(new.ops[0])]()  # type: ignore[assignment]
    elif isinstance(new, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(new.op) in _OTHER:
        new.op = _OTHER[type(new.op)]()  # type: ignore[assignment]
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not | ast.USub):
        return new.operand
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        new.value = not new.value
    elif isinstance(new, ast.Constant) and isinstance(new.value, int | float):
        new.value = new.value + 1 if isinstance(new.value, int) else new.value * 1.5 or 1.0
    else:
        return None
    return new


def _short(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0][:100]


def _put(tree: ast.Module, place: Place, new: ast.AST) -> None:
    node: Any = tree
    for name, at in place[:-1]:
        node = getattr(node, name) if at is None else getattr(node, name)[at]
    name, at = place[-1]
    if at is None:
        setattr(node, name, new)
    else:
        getattr(node, name)[at] = new
