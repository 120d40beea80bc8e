"""Mutation run: one change at a time to the modules of the papers' methods, and whether their tests see it.

    python tests/bench/mutants.py                                   # 10 minutes, over all modules
    python tests/bench/mutants.py --minutes 60 --keep FILE          # goes on where FILE ends
    python tests/bench/mutants.py --only accept,lookahead --minutes 5 --slow

Comparisons, arithmetic, signs, `and`/`or`, numbers and booleans are changed on the syntax tree; texts, annotations,
decorators and what is raised are left alone. Each mutant is a forked process in which the one module is compiled from
the changed tree (no file is written), and which runs the tests that claim the module until one fails. The order is
drawn, module by module in turn, so a budget of time gives a sample; --keep keeps what was found as lines of JSON, of
which those of an older source or test are run again. mutmut and cosmic-ray change files in place or in copies, and so
need the installed layout to be the source's, which it is not here.

Score: killed mutants over all that were run. `mutants_survived.json` says why a survivor may live: by module, then by
"function: before -> after". All others are printed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib.abc
import importlib.machinery
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.rounds import print_json, print_table  # noqa: E402

__all__ = ["CLAIMS", "Mutant", "main", "mutants_of"]

_DECODING, _DRAFTERS, _DRAFT = "tests/runtime/decoding", "tests/runtime/drafters", "tests/runtime/drafters/draft"
_EQUATIONS = f"{_DRAFTERS}/test_published_equations.py"
CLAIMS = {
    "accept": ("runtime/decoding/accept.py", _EQUATIONS, f"{_DECODING}/test_accept.py"),
    "adapter": ("runtime/drafters/draft/adapter.py", _EQUATIONS, f"{_DRAFT}/test_adapter.py",
                f"{_DRAFT}/test_factor_file.py"),
    "lookahead": ("runtime/drafters/draft/lookahead.py", _EQUATIONS, f"{_DRAFT}/test_lookahead.py",
                  f"{_DRAFT}/test_head.py"),
    "tokenmap": ("runtime/drafters/tokenmap.py", f"{_DRAFTERS}/test_tokenmap.py"),
    "translate": ("runtime/drafters/draft/translate.py", f"{_DRAFT}/test_across_words.py",
                  f"{_DRAFT}/test_drawn_drafts.py", f"{_DRAFTERS}/test_published_mistakes.py"),
    "heads": ("runtime/drafters/heads.py", f"{_DRAFTERS}/test_head_tree.py", f"{_DRAFTERS}/test_heads.py"),
    "beam": ("runtime/decoding/beam.py", f"{_DECODING}/test_grouped_beam.py", f"{_DECODING}/test_beam.py"),
    "build": ("maps/build.py", _EQUATIONS, "tests/maps/test_token_map.py"),
}  # fmt: skip
"""Name -> the module's file, then the tests that claim it, the quickest first."""

_SURVIVED = Path(__file__).with_name("mutants_survived.json")
_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult, ast.Mod: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_IMPORTED = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
_SLOWEST_S = 10.0  # beyond ten times what the unchanged tests take: the mutant hangs, and is killed by that


Place = tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """name: "function: before -> after", as `mutants_survived.json` has it; line: of the source; whole: the module as
    it is, in which `new` comes to stand at `place`."""

    module: str
    name: str
    line: int
    whole: ast.Module
    place: Place
    new: ast.AST

    @property
    def tree(self) -> ast.Module:
        """The changed module, made when it is asked for: all of them at once take a gigabyte."""
        tree = copy.deepcopy(self.whole)
        _put(tree, self.place, self.new)
        return tree


def mutants_of(module: str, source: str) -> list[Mutant]:
    """All mutants of a module, by line."""
    tree = ast.parse(source)
    seen: dict[str, itertools.count[int]] = {}
    found = []
    for place, node, function in _places(tree):
        changed = _changed(node)
        if changed is None:
            continue
        name = f"{function}: {_short(node)} -> {_short(changed)}"
        number = next(seen.setdefault(name, itertools.count(1)))
        name = name if number == 1 else f"{name} #{number}"
        line = getattr(node, "lineno", 0)
        found.append(Mutant(module=module, name=name, line=line, whole=tree, place=place, new=changed))
    return found


def _places(node: ast.AST, place: Place = (), function: str = "module") -> Iterator[tuple[Place, ast.AST, str]]:
    """Every node that may be changed, the way to it from the root, and the function that it stands in."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr | ast.Import):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":  # of zip: it only says what is so anyway
                continue
            inside = function
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inside = child.name if function == "module" else f"{function}.{child.name}"
            here = (*place, (name, at))
            yield here, child, inside
            yield from _places(child, here, inside)


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


class _Changed(importlib.abc.MetaPathFinder):
    """Finds modules as the others do; one of them, by its file, is compiled from another tree."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._path, self._tree = path, tree
        self._others = list(sys.meta_path)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.rpartition(".")[2] != self._path.stem:
            return None
        for other in self._others:
            spec = other.find_spec(name, path, target)
            if spec is None:
                continue
            if spec.origin is not None and Path(spec.origin).resolve() == self._path:
                spec.loader = _FromTree(name, spec.origin, self._tree)
            return spec
        return None


class _FromTree(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(ast.fix_missing_locations(self._tree), self.path, "exec")


def start(path: Path, tree: ast.Module | None, tests: Sequence[str], *, slow: bool) -> int:
    """Fork a process that runs the tests on the module compiled from `tree`, or as it is; its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        os.setpgid(0, 0)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        if tree is not None:
            sys.meta_path.insert(0, _Changed(path, tree))
        import pytest

        lanes = [] if not slow else ["-m", "not stress and not network and not cpus and not programs"]
        code = int(
            pytest.main(["-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", _IMPORTED, *lanes, *tests])
        )
    finally:
        os._exit(code)


def waited(pid: int, limit_s: float) -> int | None:
    """The exit status of a process; None, and it and its children are killed, once it has taken `limit_s`."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def in_turn(mutants: Sequence[Sequence[Mutant]], seed: int) -> list[Mutant]:
    """All of them in drawn order, one of each module after another."""
    drawn = [random.Random(seed).sample(list(of_one), len(of_one)) for of_one in mutants]
    return [mutant for row in itertools.zip_longest(*drawn) for mutant in row if mutant is not None]


def state_of(module: str) -> str:
    """What a result holds for: a hash of the module and of the tests that claim it."""
    return hashlib.sha256(b"".join((ROOT / file).read_bytes() for file in CLAIMS[module])).hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, run what there is time for, print."""
    options = _options(arguments)
    os.chdir(ROOT)
    names = options.only.split(",")
    if unknown := [name for name in names if name not in CLAIMS]:
        raise SystemExit(f"mutants: {unknown[0]!r} is none of {', '.join(CLAIMS)}")
    _load()
    states = {name: state_of(name) for name in names}
    mutants = {name: mutants_of(name, (ROOT / CLAIMS[name][0]).read_text(encoding="utf-8")) for name in names}
    kept = _kept(options.keep, states)
    limits = {name: _limit_s(name, slow=options.slow) for name in names}
    deadline = time.monotonic() + 60 * options.minutes
    for mutant in in_turn(list(mutants.values()), options.seed):
        if time.monotonic() > deadline:
            break
        if (mutant.module, mutant.name) in kept:
            continue
        file, *tests = CLAIMS[mutant.module]
        status = waited(start(ROOT / file, mutant.tree, tests, slow=options.slow), limits[mutant.module])
        kept[mutant.module, mutant.name] = status != 0
        if options.keep is not None:
            line = {"module": mutant.module, "name": mutant.name, "killed": status != 0, "of": states[mutant.module]}
            with options.keep.open("a", encoding="utf-8") as out:
                print(json.dumps(line), file=out)
    _report(mutants, kept)


def _load() -> None:
    """Import what takes long, once for all mutants; nothing of specedge that may be changed."""
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import onnxruntime  # noqa: F401
    import pytest  # noqa: F401

    for name in [name for name in sys.modules if name.split(".")[0] in ("specedge", "support", "bench")]:
        del sys.modules[name]


def _limit_s(name: str, *, slow: bool) -> float:
    """How long tests may take on a mutant. Ends the program where they fail on the module as it is."""
    file, *tests = CLAIMS[name]
    begun = time.monotonic()
    if waited(start(ROOT / file, None, tests, slow=slow), 900) != 0:
        raise SystemExit(f"mutants: {name}: its tests fail, or take 15 minutes, without any change")
    return _SLOWEST_S + 10 * (time.monotonic() - begun)


def _kept(path: Path | None, states: dict[str, str]) -> dict[tuple[str, str], bool]:
    """Whether each mutant of an earlier run was killed, as far as its module and tests are the same."""
    if path is None or not path.is_file():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {
        (line["module"], line["name"]): line["killed"] for line in lines if states.get(line["module"]) == line["of"]
    }


def _report(mutants: dict[str, list[Mutant]], killed: dict[tuple[str, str], bool]) -> None:
    argued = json.loads(_SURVIVED.read_text(encoding="utf-8"))
    rows = [["module", "mutants", "run", "killed", "argued", "others"]]
    modules: dict[str, Any] = {}
    for module, of_one in mutants.items():
        run = [mutant for mutant in of_one if (module, mutant.name) in killed]
        alive = [mutant for mutant in run if not killed[module, mutant.name]]
        reasons = argued.get(module, {})
        others = [mutant for mutant in alive if mutant.name not in reasons]
        counts = (len(of_one), len(run), len(run) - len(alive), len(alive) - len(others), len(others))
        rows.append([module, *map(str, counts)])
        modules[module] = {
            **dict(zip(("mutants", "run", "killed", "argued"), counts, strict=False)),
            "others": [f"{CLAIMS[module][0]}:{mutant.line} {mutant.name}" for mutant in others],
        }
    print_table(rows)
    for found in modules.values():
        print(*found["others"], sep="\n")
    n_run, n_killed = (sum(found[name] for found in modules.values()) for name in ("run", "killed"))
    score = n_killed / n_run if n_run else None
    print(f"killed {n_killed} of {n_run}" + ("" if score is None else f", {score:.1%}"))
    print_json("mutants", score=score, modules=modules)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", default=",".join(CLAIMS), help=f"with commas, of {', '.join(CLAIMS)}  [all]")
    parser.add_argument("--slow", action="store_true", help="run the tests marked slow too")
    parser.add_argument("--keep", type=Path, help="file of results, read and added to")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
