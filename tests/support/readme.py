"""The parts of README.md that are written by a command, so that they cannot become untrue.

    python tests/support/readme.py        # writes the file tree and the --help texts into README.md

tests/test_readme.py fails while README.md differs from what this would write.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Run as a program, Python puts this file's folder, not tests/, in front of its path.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.tree import FOLDERS, ROOT, Module, modules, project_files  # noqa: E402

README = ROOT / "README.md"

# What has no docstring to take a line from.
_PLAIN = {
    ".ci/run": "the two commands above, word for word, then the linter, the formatter and the types",
    "CHANGELOG.md": "what changed, by version",
    "constraints.txt": "the version of torch that the tests are tied to",
    "docs/": "promises.md: each promise and its test; experiments/: what was measured; cpus.md: each CPU",
    "LICENSE": "MIT",
    "pyproject.toml": "the package, its extras, and the settings of every tool",
    "runtime/_specedge/py.typed": "says that the packages carry their types",
    "runtime/passes/kernels.onnx": "what `passes/kernels.py` runs, written by `export/kernel_graph.py`",
    "models/bundled/": "the demo model and its samples",
    "models/vocabularies/": "the byte tables of Whisper's two vocabularies",
    "export/training/lists/": "the sentences that the demo model was trained on",
    "tests/bench/": "benchmarks; the last line each prints is one JSON document",
    "tests/cpus/": "the CPU lane: masked x86 and emulated Arm CPUs (docs/cpus.md)",
    "tests/export/": "tests of export/",
    "tests/fuzz/": "readers of files under any bytes",
    "tests/kills/": "commands that are killed at any moment",
    "tests/golden/": "small files with the command that made each",
    "tests/maps/": "tests of maps/",
    "tests/models/": "tests of models/",
    "tests/runtime/": "tests of runtime/",
    "tests/support/": "what several tests share",
}
_HELP = ("", "transcribe", "bench", "export", "doctor", "inspect", "models")


def command(name: str, text: str | None = None) -> str:
    """The code block that follows the marker `<!-- command: NAME -->`, without its fences."""
    text = README.read_text(encoding="utf-8") if text is None else text
    found = re.search(rf"^<!-- command: {name} -->\n```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"README.md has no code block after <!-- command: {name} -->")
    return found[1]


def render(text: str) -> str:
    """README.md with its written parts as they should be."""
    return _replace(_replace(text, "tree", _fenced("\n".join(tree()), "")), "help", _fenced(help_texts(), "console"))


def tree() -> Iterator[str]:
    """Every installed module with the first line of its docstring, and every other thing by its entry above."""
    entries = {m.relative: m.summary.rstrip(".") for m in modules() if not m.is_package}
    for module in modules():
        if module.is_package:
            entries[f"{module.path.parent.relative_to(ROOT).as_posix()}/"] = module.summary.rstrip(".")
    entries["tests/"] = "tests, in folders that mirror the ones above"
    for path in sorted((ROOT / "tests").glob("*.py")):
        entries[path.relative_to(ROOT).as_posix()] = Module(path=path, name=path.stem).summary.rstrip(".")
    present = {p.relative_to(ROOT).as_posix() for p in project_files()}
    entries |= {e: words for e, words in _PLAIN.items() if e in present or any(p.startswith(e) for p in present)}
    width = max(len(_indented(entry)) for entry in entries) + 2
    for entry in sorted(entries, key=_order):
        yield f"{_indented(entry):{width}}{entries[entry]}"


def _order(entry: str) -> list[tuple[bool, str]]:
    """The installed folders first, then tests and docs, then single files; in each folder the folders last."""
    parts = entry.rstrip("/").split("/")
    tops = [*FOLDERS, "tests", "docs", ".ci"]
    first = (False, f"{tops.index(parts[0]):02}") if parts[0] in tops else (True, parts[0])
    inner = [(i < len(parts) - 1 or entry.endswith("/"), part) for i, part in enumerate(parts)][1:]
    return [first, *inner]


def _indented(entry: str) -> str:
    if entry == ".ci/run":
        return entry
    depth = entry.rstrip("/").count("/")
    name = entry.rstrip("/").split("/")[-1] + ("/" if entry.endswith("/") else "")
    return "  " * depth + name


@functools.cache
def help_texts() -> str:
    """What the command says of itself, on a terminal of 100 columns; asked once in a test run."""
    texts = []
    for name in _HELP:
        arguments = [name, "--help"] if name else ["--help"]
        shown = subprocess.run(
            [sys.executable, "-m", "specedge", *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        ).stdout
        # Run as a module, the command calls itself "python -m specedge".
        texts.append(f"$ specedge {' '.join(arguments)}\n{shown.replace('python -m specedge', 'specedge').strip()}")
    return "\n\n".join(texts)


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"


def _replace(text: str, name: str, content: str) -> str:
    pattern = re.compile(rf"(<!-- {name}: .*? -->\n).*?(\n<!-- end of {name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise LookupError(f"README.md has no part <!-- {name}: ... --> with an end")
    return pattern.sub(lambda m: m[1] + content + m[2], text)


if __name__ == "__main__":
    README.write_text(render(README.read_text(encoding="utf-8")), encoding="utf-8")
