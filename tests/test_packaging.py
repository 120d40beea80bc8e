"""What is installed: one top-level name, every module, the data, and nothing heavy behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from support.tree import ROOT, modules, project_files
from support.wheel import build_wheel, copy_tree, runtime_closure, size_bytes

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# The default installation, whole. A name that is new here is a decision, and a few megabytes on every device.
RUNTIME = {"numpy", "onnxruntime", "click", "av", "regex"}
# To fetch and convert a model: the first command of a new installation does it.
EXPORT = {"onnx", "safetensors", "huggingface-hub"}
BEHIND_THEM = {"flatbuffers", "protobuf", "packaging", "cffi", "pycparser", "typing-extensions"}
BEHIND_EXPORT = {
    *("ml-dtypes", "filelock", "fsspec", "hf-xet", "httpx", "httpx2", "httpcore", "httpcore2", "h11", "anyio", "idna"),
    *("certifi", "pyyaml", "tqdm", "typer", "click", "shellingham", "rich", "markdown-it-py", "mdurl", "pygments"),
    *("annotated-doc", "sniffio", "requests", "urllib3", "charset-normalizer", "truststore"),
}
# NumPy and ONNX Runtime are three fifths of it; the rest of this ceiling is room for their growth.
INSTALLED_BYTES = 320_000_000  # av, which has all of FFmpeg, is 106 of them
OWN_BYTES = 6_000_000
WHEEL_BYTES = 1_750_000


def test_every_package_is_installed() -> None:
    listed = SETTINGS["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(m.name for m in modules() if m.is_package)


def test_every_file_in_a_package_is_installed() -> None:
    """A file that is no module is lost from the wheel unless package-data names it; the tree has it, so tests pass."""
    data = SETTINGS["tool"]["setuptools"]["package-data"]
    folders = {m.path.parent: m.name for m in modules() if m.is_package and m.name != "specedge"}
    missing = []
    for path in project_files():
        package = folders.get(path.parent)
        if package and path.suffix != ".py" and not any(path.match(pattern) for pattern in data.get(package, [])):
            missing.append(path.relative_to(ROOT).as_posix())
    assert not missing


def test_the_default_installation_is_lean() -> None:
    closure = runtime_closure()
    assert set(closure) - {"specedge"} <= RUNTIME | EXPORT | BEHIND_THEM | BEHIND_EXPORT
    sizes = {name: size_bytes(d) for name, d in closure.items() if name != "specedge"}
    own = [m.path for m in modules()] + list((ROOT / "models" / "vocabularies").glob("*"))
    total = sum(sizes.values()) + sum(p.stat().st_size for p in own)
    print(f"installed: {total / 1e6:.1f} MB", {n: f"{s / 1e6:.1f}" for n, s in sizes.items()})
    assert total < INSTALLED_BYTES, sizes


def test_no_extra_that_a_first_model_needs() -> None:
    """`pip install '.[export]'`, as people have it written down, installs what `pip install .` does."""
    extras = SETTINGS["project"]["optional-dependencies"]
    assert extras["export"] == []
    assert not [
        need for needs in (SETTINGS["project"]["dependencies"], extras["train"]) for need in needs if "torch" in need
    ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def _new_environment(folder: Path) -> Path:
    """A fresh virtual environment that sees the libraries of this one, but not the specedge in it."""
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    where = subprocess.run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], **_TEXT)
    # A folder named in a .pth file gives its packages, but its own .pth files (an editable install's) are not read.
    (Path(where.stdout.strip()) / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


_TEXT: dict[str, bool] = {"check": True, "capture_output": True, "text": True}


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *arguments], check=True)


def _imported_from(python: Path) -> dict[str, str]:
    """Import every module that needs no [train]; where each came from."""
    names = [m.name for m in modules() if ".training" not in m.name and not m.name.endswith("__main__")]
    code = f"import importlib, json\nprint(json.dumps({{n: importlib.import_module(n).__file__ for n in {names!r}}}))"
    found: dict[str, str] = json.loads(subprocess.run([str(python), "-I", "-c", code], **_TEXT).stdout)
    return found


@pytest.mark.slow
def test_the_wheel_holds_the_modules_and_the_data_and_nothing_else(wheel: Path) -> None:
    names = [n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n]
    assert {n.split("/")[0] for n in names} == {"specedge"}
    expected = {m.name.replace(".", "/") + ("/__init__.py" if m.is_package else ".py") for m in modules()}
    assert {n for n in names if n.endswith(".py")} == expected
    data = {p.relative_to(ROOT).as_posix() for p in project_files()}
    folder = "models/vocabularies/"
    assert {f"specedge/{n}" for n in data if n.startswith(folder)} == {
        n for n in names if n.startswith(f"specedge/{folder}")
    }
    assert not [n for n in names if n.startswith("specedge/models/bundled/")]
    assert wheel.stat().st_size < WHEEL_BYTES
    assert "specedge/py.typed" in names
    own = sum(i.file_size for i in zipfile.ZipFile(wheel).infolist())
    assert own < OWN_BYTES


@pytest.mark.slow
def test_the_wheel_s_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        text = archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode()
    assert "License-Expression: MIT" in text and "Requires-Python: >=3.11" in text
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert wheel.name.endswith("-py3-none-any.whl")


@pytest.mark.slow
def test_the_wheel_installs_and_imports(wheel: Path, tmp_path: Path) -> None:
    python = _new_environment(tmp_path / "environment")
    _pip(python, "--no-deps", "--no-index", str(wheel))
    found = _imported_from(python)
    assert all(Path(path).is_relative_to(tmp_path) for path in found.values()), found
    shown = subprocess.run([str(python.parent / "specedge"), "--version"], **_TEXT)
    assert SETTINGS["project"]["version"] in shown.stdout


@pytest.mark.slow
def test_installs_in_any_order_over_what_earlier_ones_left(tmp_path: Path) -> None:
    """A wheel is built in the source's own folder, where an earlier build has left its own, even of an older tree."""
    source, python = copy_tree(tmp_path / "source"), _new_environment(tmp_path / "environment")
    left = source / "build" / "lib" / "specedge" / "models" / "bundled" / "demo"
    left.mkdir(parents=True)
    (left / "specedge.json").write_text("{}")
    command = str(python.parent / "specedge")
    for what in (["."], [".[export]"], ["-e", "."], [".[serve]"], [".[train]"], ["-e", ".[export]"], ["."], ["."]):
        arguments = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", *what]
        subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *arguments], cwd=source, check=True)
        assert SETTINGS["project"]["version"] in subprocess.run([command, "--version"], **_TEXT).stdout, what


@pytest.mark.slow
def test_the_sdist_builds_the_wheel(wheel: Path, tmp_path: Path) -> None:
    source = copy_tree(tmp_path / "source")
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, **_TEXT)
    arguments = ["wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", *arguments, str(next(tmp_path.glob("*.tar.gz")))], check=True)
    made = next(tmp_path.glob("*.whl"))
    assert sorted(zipfile.ZipFile(made).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())
    packages = [str(wheel), *(str(path) for path in tmp_path.glob("*.tar.gz"))]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *packages], **_TEXT)


@pytest.mark.slow
def test_an_editable_install_imports_and_sees_new_files(tmp_path: Path) -> None:
    source = copy_tree(tmp_path / "source")
    python = _new_environment(tmp_path / "environment")
    _pip(python, "--no-deps", "--no-index", "--no-build-isolation", "--editable", str(source))
    found = _imported_from(python)
    assert all(Path(path).is_relative_to(source) for path in found.values()), found
    (source / "runtime" / "added_later.py").write_text("ANSWER = 42\n")
    code = "from specedge.runtime.added_later import ANSWER; print(ANSWER)"
    assert subprocess.run([str(python), "-I", "-c", code], **_TEXT).stdout.strip() == "42"
