"""`specedge compat`: the program, its arguments, its exit code, its children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specedge.models import store

PROGRAM = """
import os, subprocess, sys
import faster_whisper
chosen = [os.environ[name] for name in sorted(os.environ) if name.startswith("SPECEDGE_COMPAT_")]
print(faster_whisper.WhisperModel.__module__, sys.argv[1:], *chosen)
child = "import faster_whisper, specedge; print(issubclass(faster_whisper.WhisperModel, specedge.WhisperModel))"
sys.stdout.flush()
subprocess.run([sys.executable, "-c", child], check=True)
raise SystemExit(int(sys.argv[-1]))
"""


def _run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specedge", "compat", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.slow
def test_a_script_with_options_of_its_own(program: Path) -> None:
    done = _run("--model", "demo", "--encoder-provider", "openvino", "--", program, "--debug", "-m", "7")
    assert done.stdout == "faster_whisper.transcribe ['--debug', '-m', '7'] openvino demo\nTrue\n", done.stderr
    assert done.returncode == 7


def test_a_module_and_a_command(program: Path, tmp_path: Path) -> None:
    done = _run("--", "-m", "program", "0", cwd=tmp_path)
    assert done.stdout == "faster_whisper.transcribe ['0']\nTrue\n" and done.returncode == 0, done.stderr
    command = tmp_path / "command"
    command.write_text(f"#!{sys.executable}\n{PROGRAM}")
    command.chmod(0o755)
    done = _run("--", command, "3")
    assert done.stdout.startswith("faster_whisper.transcribe ['3']") and done.returncode == 3, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--", "no-such-program"], 2, "no-such-program: no such program or script"),
        (["--", "-m"], 2, "-m: expected a module"),
        ([], 2, "PROGRAM"),
        (["--model", "nonesuch", "--", "x.py"], 4, "no model 'nonesuch'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    done = _run(*arguments, cwd=tmp_path)
    assert done.returncode == code and message in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_program_of_a_python_without_specedge_ends_in_one_line(tmp_path: Path) -> None:
    command = tmp_path / "command"
    command.write_text(f"#!{sys.executable} -S\nimport faster_whisper\n")  # -S: without site-packages
    command.chmod(0o755)
    done = _run("--", command)
    assert done.returncode == 1 and done.stderr.endswith("has no specedge: install it beside the program\n")
    assert done.stderr.count("\n") == 1


def test_the_path_is_a_folder_with_nothing_else_to_import() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specedge", "compat", "--path"], capture_output=True, text=True, check=True
    )
    names = {p.name for p in Path(done.stdout.strip()).iterdir()} - {"__init__.py", "__pycache__"}
    assert names == {"faster_whisper"} and store.find("demo").is_dir()
