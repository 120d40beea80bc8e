"""What README.md says is true: the commands that are run elsewhere, the file tree, the help texts, the exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from specedge import errors
from support.readme import README, command, help_texts, render, tree
from support.tree import ROOT, modules

TEXT = README.read_text(encoding="utf-8")
HOW = "run `python tests/support/readme.py`"


def _part(name: str) -> str:
    found = re.search(rf"<!-- {name}: .*? -->\n```\w*\n(.*?)\n```\n<!-- end of {name} -->", TEXT, re.DOTALL)
    assert found, f"README.md has no part {name!r}"
    return found[1]


def test_ci_runs_the_commands_of_the_readme() -> None:
    """.ci/run cuts the commands out of README.md with its own function; it must find what a reader sees."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    function = re.search(r"^readme_command\(\).*?^}$", script, re.MULTILINE | re.DOTALL)
    assert function, ".ci/run has no function readme_command"
    names = re.findall(r"<!-- command: (\w+) -->", TEXT)
    for name in names:
        cut = subprocess.run(
            ["bash", "-c", f"{function[0]}\nreadme_command {name}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert cut.stdout == command(name)
    assert f"for name in {' '.join(names)}; do" in script


def test_a_newcomer_s_commands_name_what_exists() -> None:
    for name in ("transcribe", "test"):
        text = command(name)
        for path in re.findall(r"(?<=\s)[\w./-]+\.(?:wav|txt|flac)\b", text):
            assert (ROOT / path).is_file(), f"README.md names {path}"
        assert text.count("\n") == 1, "one line to paste"


def test_extras_in_the_readme_are_the_project_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = set(re.findall(r"`\[(\w+)\]`", TEXT))
    assert named == set(project["optional-dependencies"])


def test_the_file_tree_is_true() -> None:
    assert _part("tree").splitlines() == list(tree()), HOW
    for module in modules():
        assert module.path.name in _part("tree") or module.is_package


def test_the_help_texts_are_true() -> None:
    assert _part("help").split() == help_texts().split(), HOW


def test_writing_it_again_changes_nothing() -> None:
    once = render(TEXT)
    assert render(once) == once


@pytest.mark.parametrize("name", errors.__all__)
def test_exit_codes_are_the_ones_of_the_errors(name: str) -> None:
    code = getattr(errors, name).exit_code
    assert re.search(rf"^\| {code} \|", TEXT, re.MULTILINE), f"README.md has no row for exit code {code}"


def test_the_python_example_runs() -> None:
    example = re.search(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert example
    shown = subprocess.run([sys.executable, "-c", example[1]], cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert re.match(r"\[0\.\d\d -> \d+\.\d\d\] \w", shown.stdout), shown.stdout
