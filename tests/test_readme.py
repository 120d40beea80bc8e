"""What README.md says is true: the commands that .ci/run cuts out, the example, drafters, extras. And it is short."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import click

from specedge.runtime.cli.transcribe import transcribe
from support.tree import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def command(name: str) -> str:
    """The code block that follows the marker `<!-- command: NAME -->`, without its fences."""
    found = re.search(rf"^<!-- command: {name} -->\n```\w*\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"README.md has no code block after <!-- command: {name} -->")
    return found[1]


def test_a_reader_gets_through_it() -> None:
    assert len(TEXT.splitlines()) <= 250
    assert len(re.findall(r"!\[", TEXT)) == 1, "one picture"


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
    named = set(re.findall(r"`\[([\w-]+)\]`", TEXT))
    assert named == set(project["optional-dependencies"])


def test_the_table_of_drafters_has_all_of_them() -> None:
    table = TEXT.partition("\n## Drafters\n")[2].partition("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(.*?)`", row)}
    option = next(parameter for parameter in transcribe.params if "--drafter" in parameter.opts)
    assert isinstance(option.type, click.Choice)
    assert named == set(option.type.choices) - {"none"}


def test_the_python_example_runs() -> None:
    example = re.search(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert example
    program = example[1]
    for name, stand_in in (("tiny.en", "demo"), ("docs/examples/jfk.flac", "tests/assets/samples/maintenance.wav")):
        assert program.count(f'"{name}"') == 1, name
        program = program.replace(name, stand_in)
    shown = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert re.match(r"\[0\.\d\d -> \d+\.\d\d\] \w", shown.stdout), shown.stdout
