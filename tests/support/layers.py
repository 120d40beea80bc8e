"""Who may import whom, read off the syntax tree: export -> runtime -> maps, and each library in its one place.

It sees imports inside functions too, which a fresh process does not; what a library drags in, it does not see
(tests/test_imports.py does).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch

from support.tree import Module

EVERYTHING = ("specedge",)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What the files that match `pattern` may import besides the standard library; `lazy` only inside functions."""

    pattern: str
    ours: tuple[str, ...] = ()
    libraries: frozenset[str] = frozenset()
    lazy: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported name, e.g. `specedge.runtime.errors.AudioError`, and where it stands."""

    name: str
    line: int
    at_top: bool

    @property
    def top_name(self) -> str:
        return self.name.split(".")[0]


_MODELS = ("specedge.models.catalogue", "specedge.models.store")
_RUNTIME = ("specedge.runtime", "specedge.maps", *_MODELS)
_EXPORT = frozenset({"numpy", "onnx", "safetensors", "huggingface_hub"})
_TRAIN = frozenset({"torch", "transformers", "librosa", "soundfile", "soxr", "click"})

# The first rule that matches is the one that holds.
RULES = (
    Rule(pattern="runtime/errors.py"),
    Rule(
        pattern="runtime/_specedge/__init__.py",
        ours=("specedge.runtime", "specedge.models.store", "specedge.models.download"),
    ),
    Rule(pattern="runtime/_specedge/__main__.py", ours=("specedge.runtime.cli", "specedge.runtime.sigterm")),
    Rule(pattern="export/training/*", ours=EVERYTHING, libraries=_EXPORT | _TRAIN),
    Rule(pattern="models/download.py", ours=("specedge.models", "specedge.export", "specedge.runtime.errors")),
    Rule(pattern="*/cli.py", ours=EVERYTHING, libraries=frozenset({"click", "numpy"}), lazy=_EXPORT),
    Rule(
        pattern="runtime/commands/*",
        ours=_RUNTIME,
        libraries=frozenset({"click"}),
        lazy=frozenset({"numpy", "soundfile", "soxr"}),
    ),
    Rule(
        pattern="runtime/sound/microphone.py",
        ours=_RUNTIME,
        libraries=frozenset({"numpy"}),
        lazy=frozenset({"sounddevice"}),
    ),
    Rule(pattern="runtime/passes/session.py", ours=_RUNTIME, libraries=frozenset({"numpy", "onnxruntime"})),
    Rule(pattern="runtime/sound/audio.py", ours=_RUNTIME, libraries=frozenset({"numpy"}), lazy=frozenset({"soxr"})),
    Rule(
        pattern="runtime/sound/sndfile.py", ours=_RUNTIME, libraries=frozenset({"numpy"}), lazy=frozenset({"soundfile"})
    ),
    Rule(pattern="runtime/*", ours=_RUNTIME, libraries=frozenset({"numpy"})),
    Rule(pattern="maps/*", ours=("specedge.maps", "specedge.runtime.errors"), libraries=frozenset({"numpy"})),
    Rule(pattern="models/*", ours=("specedge.models", "specedge.runtime.errors")),
    Rule(pattern="export/*", ours=("specedge.export", *_RUNTIME), libraries=_EXPORT, lazy=frozenset({"torch"})),
)

_COMPOSITION_ROOTS = ("*/cli.py", "runtime/commands/*", "runtime/_specedge/__main__.py", "models/download.py")
_COMMANDS = "specedge.runtime.commands"
_TRAINING = "specedge.export.training"


def violations(module: Module) -> list[str]:
    """One line for each import that the module's rule forbids."""
    rule = next((r for r in RULES if fnmatch(module.relative, r.pattern)), None)
    if rule is None:
        return [f"{module.relative}: no rule in tests/support/layers.py covers it"]
    found = []
    for item in imports(module):
        reason = _reason(module, rule, item)
        if reason:
            found.append(f"{module.relative}:{item.line}: {item.name}: {reason}")
    return found


def _reason(module: Module, rule: Rule, item: Import) -> str | None:
    if item.top_name == "specedge":
        return _reason_ours(module, rule, item)
    if rule.pattern == "runtime/errors.py" and item.top_name != "__future__":
        return "runtime/errors.py imports nothing"
    if item.top_name in sys.stdlib_module_names or item.top_name in rule.libraries:
        return None
    if item.top_name in rule.lazy:
        return "only inside the function that needs it" if item.at_top else None
    return "this library has no place in this layer"


def _reason_ours(module: Module, rule: Rule, item: Import) -> str | None:
    is_root = any(fnmatch(module.relative, p) for p in _COMPOSITION_ROOTS)
    if ".cli" in item.name and not is_root:
        return "a cli.py puts things together; nothing but another command imports it"
    if _within(item.name, (_COMMANDS,)) and not is_root:
        return "a subcommand is called by the command; nothing but another command imports it"
    if _within(item.name, (_TRAINING,)) and not is_root and not module.name.startswith(_TRAINING):
        return "only the command and the recipe itself may import the training recipe"
    if rule.ours and item.name == "specedge.__version__":
        return None
    return None if _within(item.name, rule.ours) else "against the direction export -> runtime -> maps"


def _within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def imports(module: Module) -> Iterator[Import]:
    """Every import statement and every `import_module("literal")`, with whether it runs when the module is imported."""
    yield from _walk(module, module.syntax, at_top=True)


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
