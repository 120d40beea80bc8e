"""Who may import whom, read off the syntax tree: the floors of the house, and each library in its one place.

It sees imports inside functions and for type checkers too, which a fresh process does not; what a library drags in, it
does not see (tests/test_imports.py does).
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch

from support.tree import Module

# From the top floor down: a room imports only rooms of the floors below its own. A room is a folder, or a file that
# stands by itself. docs/architecture.md draws them.
FLOORS = (
    ("runtime/_specedge/__main__.py",),
    ("runtime/cli",),
    ("serve", "fleet"),
    ("runtime/_specedge/__init__.py",),
    ("export/papers",),
    ("export/training", "compat"),
    ("runtime/batched.py", "export"),
    ("runtime/model.py", "runtime/bench"),
    ("runtime/papers",),
    ("runtime/drafters", "runtime/output"),
    ("runtime/drafters/ctc", "runtime/drafters/draft", "runtime/longform"),
    ("runtime/audio", "runtime/decoding"),
    ("runtime/engine",),
    ("maps", "runtime/bundle", "runtime/device.py"),
    ("models", "runtime/interrupt.py", "runtime/options.py"),
    ("runtime/text",),
    ("runtime/_specedge/files.py",),
    ("runtime/console.py", "runtime/registered.py", "runtime/_specedge/leftovers.py", "runtime/_specedge/errors.py"),
    ("runtime/_specedge/version.py", "runtime/__init__.py"),
)
_FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which libraries the files that match `pattern` may import besides the standard one; `lazy` only in functions."""

    pattern: str
    libraries: frozenset[str] = frozenset()
    lazy: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported name, e.g. `specedge.errors.AudioError`, and where it stands."""

    name: str
    line: int
    at_top: bool

    @property
    def top_name(self) -> str:
        return self.name.split(".")[0]


_EXPORT = frozenset({"numpy", "onnx", "safetensors", "huggingface_hub"})
_TRAIN = frozenset({"torch", "transformers", "av", "soxr", "click"})
_NUMPY = frozenset({"numpy"})

# The first rule that matches is the one that holds.
RULES = (
    Rule(pattern="runtime/_specedge/*"),
    Rule(pattern="compat/*", libraries=_NUMPY),
    Rule(pattern="serve/wyoming.py", libraries=frozenset({"wyoming"})),
    Rule(pattern="serve/*", libraries=_NUMPY | {"prometheus_client", "python_multipart", "starlette", "uvicorn"}),
    Rule(pattern="fleet/*", libraries=_NUMPY, lazy=frozenset({"dask", "distributed", "fsspec"})),
    Rule(pattern="models/*"),
    Rule(pattern="export/papers/*", libraries=_EXPORT | _TRAIN),
    Rule(pattern="export/training/*", libraries=_EXPORT | _TRAIN),
    Rule(pattern="export/*", libraries=_EXPORT, lazy=frozenset({"torch"})),
    Rule(pattern="runtime/cli/*", libraries=frozenset({"click"}), lazy=frozenset({"numpy"})),
    Rule(pattern="runtime/audio/microphone.py", libraries=_NUMPY, lazy=frozenset({"sounddevice"})),
    Rule(pattern="runtime/engine/session.py", libraries=_NUMPY | {"onnxruntime"}),
    Rule(pattern="runtime/engine/providers.py", libraries=_NUMPY, lazy=frozenset({"openvino"})),
    Rule(pattern="runtime/device.py", lazy=frozenset({"onnxruntime"})),
    Rule(pattern="runtime/text/tokenizer.py", lazy=frozenset({"regex"})),
    Rule(pattern="runtime/audio/media.py", libraries=_NUMPY, lazy=frozenset({"av"})),
    Rule(pattern="runtime/bench/peers.py", lazy=frozenset({"faster_whisper", "torch", "whisper"})),
    Rule(pattern="runtime/*", libraries=_NUMPY),
    Rule(pattern="maps/*", libraries=_NUMPY),
)


def violations(module: Module) -> list[str]:
    """One line for each import that goes up, or that the module's rule forbids."""
    rule = next((r for r in RULES if fnmatch(module.relative, r.pattern)), None)
    if rule is None:
        return [f"{module.relative}: no rule in tests/support/layers.py covers it"]
    found = []
    for item in imports(module):
        reason = _reason(module, rule, item)
        if reason:
            found.append(f"{module.relative}:{item.line}: {item.name}: {reason}")
    return found


def room_of(relative: str) -> str:
    """The room that a file lies in. Raises KeyError for a file in no room that FLOORS names."""
    parts = relative.split("/")
    for length in range(len(parts), 0, -1):
        room = "/".join(parts[:length])
        if room in _FLOOR_OF:
            return room
    raise KeyError(f"{relative} is in no room of tests/support/layers.py:FLOORS")


def _reason(module: Module, rule: Rule, item: Import) -> str | None:
    if item.top_name == "specedge":
        return _reason_ours(module, item)
    if module.relative.endswith("_specedge/errors.py") and item.top_name != "__future__":
        return "errors.py imports nothing"
    if item.top_name in sys.stdlib_module_names or item.top_name in rule.libraries:
        return None
    if item.top_name in rule.lazy:
        return "only inside the function that needs it" if item.at_top else None
    return "this library has no place in this layer"


def _reason_ours(module: Module, item: Import) -> str | None:
    here, there = room_of(module.relative), room_of(_file_of(item.name))
    if here == there or _FLOOR_OF[there] > _FLOOR_OF[here]:
        return None
    return f"{here} may not import {there}: it is no floor below"


def _file_of(name: str) -> str:
    """A file or folder of the tree that the dotted `name` lies in, as FLOORS spells it."""
    parts = name.split(".")[1:]
    if not parts or parts[0] not in ("runtime", "maps", "export", "models", "compat", "serve", "fleet"):
        own = f"runtime/_specedge/{parts[0] if parts else '__init__'}.py"
        return own if own in _FLOOR_OF else "runtime/_specedge/__init__.py"
    for length in range(len(parts), 0, -1):
        path = "/".join(parts[:length])
        if f"{path}.py" in _FLOOR_OF or path in _FLOOR_OF:
            return f"{path}.py" if f"{path}.py" in _FLOOR_OF else path
    return "/".join(parts) + "/__init__.py"


@functools.cache
def imports(module: Module) -> tuple[Import, ...]:
    """Every import statement and every `import_module("literal")`, with whether it runs when the module is imported."""
    return tuple(_walk(module, module.syntax, at_top=True))


@functools.cache
def names_of(module: Module) -> set[str]:
    """The names that can be imported from a module."""
    names: set[str] = set()
    waiting: list[ast.AST] = [*module.syntax.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # a name of __all__
            names.add(node.value)
        else:
            waiting += ast.iter_child_nodes(node)
    return names


def _walk(module: Module, node: ast.AST, *, at_top: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        for name in _imported(module, child):
            yield Import(name=name, line=child.lineno, at_top=at_top)  # type: ignore[attr-defined]
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        runs_now = at_top and not is_function and not _is_for_type_checkers(child)
        yield from _walk(module, child, at_top=runs_now)


def _imported(module: Module, node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = _base(module, node)
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def _base(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    keep = len(parts) - node.level + (1 if module.is_package else 0)
    return ".".join([*parts[:keep], *([node.module] if node.module else [])])


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
