"""Tests run on mutants: collected once in a process of their own, which forks for each mutant.

In the fork the functions of the module get the code of the changed tree, wherever they were imported to, and the tests
run that come through the changed statement on the module as it is, until one fails: first those that are quick and saw
most mutants before. What is read on import alone, such as a constant or a default, is no function's code: there the
module is imported anew from the changed tree, and all tests run. So do mutants of statements that no test comes through
once the tests are collected. No file is written. It knows nothing of scores.
"""

from __future__ import annotations

import ast
import gc
import importlib.abc
import importlib.machinery
import json
import math
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import IO, Any

from bench.mutations import Mutant

__all__ = ["MutantTests", "TestsFail"]

_IMPORTED = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
_SLOWEST_S = 5.0  # of the CPU, beyond five times what the unchanged tests take: the mutant hangs, and is killed by that
_IMPORTS_S = 20.0  # beyond that where all is imported anew
_LONGEST_S = 900.0  # of the unchanged tests
_WAITS = 10  # times as long by the clock: it waits for what never comes
_HOPE = 0.1  # mutants that a test is thought to see that saw none yet
_FAILED, _BROKEN = 1, 70  # exit codes of a fork: a test failed; the change could not be made


class TestsFail(Exception):
    """The tests fail, or take too long, without any change."""

    __test__ = False


class MutantTests:
    """The tests of a module, ready to run on its mutants. Use as a context manager. Raises TestsFail.

    arguments: of pytest, tests and options. Nothing that imports the module may be imported here before.
    """

    def __init__(self, path: Path, arguments: Sequence[str], mutants: Sequence[Mutant]) -> None:
        self._path, self._arguments = path.resolve(), arguments
        self._numbers = {mutant.name: number for number, mutant in enumerate(mutants)}
        asked, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        self._pid = _forked(lambda: self._serve(asked, replies, mutants))
        os.close(asked)
        os.close(replies)
        self._lines = os.fdopen(self._replies)
        first = self._lines.readline()
        if not first.startswith("ready "):
            self.close()
            raise TestsFail
        self._cpu_s = float(first.split()[1])

    def __enter__(self) -> MutantTests:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process that holds the tests."""
        os.close(self._requests)
        self._lines.close()
        os.waitpid(self._pid, 0)

    def kill(self, mutant: Mutant) -> bool:
        """Whether a test sees the change."""
        os.write(self._requests, f"{self._numbers[mutant.name]}\n".encode())
        reply = self._lines.readline().strip()
        if reply == "anew":
            limit_s = _limit_s(self._cpu_s) + _IMPORTS_S
            return _waited(_imported_anew(self._path, self._arguments, mutant.tree, limit_s), _WAITS * limit_s) != 0
        if reply not in ("killed", "survived"):
            raise RuntimeError(f"{mutant.name}: the process with the tests ended")
        return reply == "killed"

    def _serve(self, asked: int, replies: int, mutants: Sequence[Mutant]) -> int:
        os.close(self._requests)
        os.close(self._replies)
        _silence()
        with os.fdopen(asked) as requests, os.fdopen(replies, "w") as out:
            return _pytest(self._arguments, _Loop(self._path, mutants, requests, out))


def _pytest(arguments: Sequence[str], *plugins: object) -> int:
    import pytest

    options = ["-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", _IMPORTED]
    return int(pytest.main([*options, *arguments], plugins=list(plugins)))


def _silence() -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)


def _limit_s(cpu_s: float) -> float:
    """What tests may take of the CPU that take so much on the module as it is."""
    return _SLOWEST_S + 5 * cpu_s


def _forked(run: Callable[[], int], cpu_s: float | None = None) -> int:
    """The id of a process of its own group that ends with what `run` returns, or once it has taken so much CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the tests' imports may have begun
        pid = os.fork()
    if pid:
        return pid
    code = _BROKEN
    try:
        os.setpgid(0, 0)
        if cpu_s is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(cpu_s), math.ceil(cpu_s)))
        code = run()
    finally:
        os._exit(code)


def _waited(pid: int, limit_s: float) -> int | None:
    """The exit status of a process; None, and it and its children are killed, once it has taken `limit_s`."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


@dataclass
class _Seen:
    """A test on the module as it is: its seconds of the CPU, and the lines of the module that it ran."""

    seconds: float = 0.0
    lines: set[int] = field(default_factory=set)


class _Loop:
    """A plugin of pytest: runs the collected tests on one mutant after another, as it is asked to."""

    def __init__(self, path: Path, mutants: Sequence[Mutant], requests: IO[str], replies: IO[str]) -> None:
        self._path, self._mutants, self._requests, self._replies = path, mutants, requests, replies
        self._numbers: dict[str, int] = {}  # of the tests
        self._kills = Counter[int]()  # by the test's number
        self._failed = multiprocessing.RawValue("i", -1)  # the number of the test that failed in a fork

    def pytest_runtest_logreport(self, report: Any) -> None:
        """The first failure is enough: this is a fork."""
        if report.failed:
            self._failed.value = self._numbers[report.nodeid]
            os._exit(_FAILED)

    def pytest_runtestloop(self, session: Any) -> bool:
        """In the place of pytest's own loop."""
        items = list(session.items)
        self._numbers = {item.nodeid: number for number, item in enumerate(items)}
        seen = _traced(items, self._path)
        if seen is None:
            return True
        self._say(f"ready {sum(one.seconds for one in seen.values())}")
        functions = _functions_of(self._path)
        for line in self._requests:
            mutant = self._mutants[int(line)]
            chosen = [] if mutant.lines is None else self._through(items, seen, mutant.lines)
            if not chosen:
                self._say("anew")
                continue
            limit_s = _limit_s(sum(seen[item.nodeid].seconds for item in chosen))

            def run(mutant: Mutant = mutant, chosen: list[Any] = chosen) -> int:
                _change(functions, mutant.tree, self._path)
                return _run(chosen)

            status = _waited(_forked(run, limit_s), _WAITS * limit_s)
            if status == _BROKEN:
                return True
            if status == _FAILED:
                self._kills[self._failed.value] += 1
            self._say("survived" if status == 0 else "killed")
        return True

    def _through(self, items: Sequence[Any], seen: dict[str, _Seen], lines: range) -> list[Any]:
        """The tests that come through any of the lines, by their seconds for each mutant that they saw before."""

        def price(item: Any) -> float:
            return seen[item.nodeid].seconds / (_HOPE + self._kills[self._numbers[item.nodeid]])

        return sorted([item for item in items if not seen[item.nodeid].lines.isdisjoint(lines)], key=price)

    def _say(self, line: str) -> None:
        print(line, file=self._replies, flush=True)


def _run(items: Sequence[Any]) -> int:
    for item, after in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
    return 0


def _traced(items: Sequence[Any], path: Path) -> dict[str, _Seen] | None:
    """What each test runs of the module, found in a fork, for a test may leave threads or sessions; None where one
    fails."""
    out, into = os.pipe()

    def run() -> int:
        os.close(out)
        found: dict[str, _Seen] = {}
        for item, after in zip(items, [*items[1:], None], strict=True):
            seen = found[item.nodeid] = _Seen()
            started = time.process_time()
            with _tracing(path, seen.lines):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            seen.seconds = time.process_time() - started
        with os.fdopen(into, "w") as file:
            json.dump({name: [seen.seconds, sorted(seen.lines)] for name, seen in found.items()}, file)
        return 0

    pid = _forked(run)
    os.close(into)
    with os.fdopen(out) as file:
        text = file.read()
    if _waited(pid, _LONGEST_S) != 0:
        return None
    return {name: _Seen(seconds, set(lines)) for name, (seconds, lines) in json.loads(text).items()}


class _tracing:
    """Notes the lines that are run of a file, in all threads that are begun meanwhile."""

    def __init__(self, path: Path, lines: set[int]) -> None:
        self._path, self._lines = str(path), lines
        self._files: dict[str, bool] = {}

    def __enter__(self) -> None:
        threading.settrace(self._call)
        sys.settrace(self._call)

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in self._files:
            self._files[name] = os.path.realpath(name) == self._path
        return self._line if self._files[name] else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._lines.add(frame.f_lineno)
        return self._line


def _functions_of(path: Path) -> dict[tuple[str, int], list[FunctionType]]:
    """All functions that were made of a file's code, by qualified name and first line, whoever holds them."""
    found: dict[tuple[str, int], list[FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and os.path.realpath(thing.__code__.co_filename) == str(path):
            found.setdefault((thing.__code__.co_qualname, thing.__code__.co_firstlineno), []).append(thing)
    return found


def _change(functions: dict[tuple[str, int], list[FunctionType]], tree: ast.Module, path: Path) -> None:
    """Give all functions the code that the tree makes of them."""
    for code in _codes(compile(tree, str(path), "exec")):
        for function in functions.get((code.co_qualname, code.co_firstlineno), ()):
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def _imported_anew(path: Path, arguments: Sequence[str], tree: ast.Module, cpu_s: float) -> int:
    """The id of a process that runs the tests on the module imported from the tree."""

    def run() -> int:
        _silence()
        sys.meta_path.insert(0, _Changed(path, tree))
        return _pytest(arguments)

    return _forked(run, cpu_s)


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
        return compile(self._tree, self.path, "exec")
