"""Every library of the default, [serve] and [fleet] installations, and those behind them, has wheels everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from support.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.network]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
WANTED = [*PROJECT["dependencies"], *EXTRAS["serve"], *EXTRAS["fleet"]]
PYTHONS = ("3.11", "3.12", "3.13")


def _linux(machine: str) -> tuple[str, ...]:
    """What glibc 2.28 (2018: Debian 10, RHEL 8) and newer can install; pip does not count down by itself."""
    newer = [f"manylinux_2_{minor}_{machine}" for minor in range(28, 16, -1)]
    return (*newer, f"manylinux2014_{machine}", f"linux_{machine}")


PLATFORMS = {
    "Linux x86-64": _linux("x86_64"),
    "Linux aarch64": _linux("aarch64"),
    "macOS arm64": ("macosx_14_0_arm64",),
    "Windows": ("win_amd64",),
}


def _plan(wanted: list[str], python: str, platforms: tuple[str, ...], target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    command += ["--only-binary=:all:", "--target", str(target), "--python-version", python, "--implementation", "cp"]
    for platform in platforms:
        command += ["--platform", platform]
    return subprocess.run([*command, *wanted], capture_output=True, text=True)


@cache
def _index_is_down() -> str:
    """Why the package index cannot be asked, or nothing."""
    asked = [sys.executable, "-m", "pip", "index", "versions", "click", "--retries", "0", "--timeout", "10"]
    result = subprocess.run(asked, capture_output=True, text=True)
    return result.stderr.strip().splitlines()[-1] if result.returncode else ""


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_wheels_for(platform: str, python: str, tmp_path: Path) -> None:
    if reason := _index_is_down():
        pytest.skip(f"the package index cannot be reached: {reason}")
    result = _plan(WANTED, python, PLATFORMS[platform], tmp_path)
    assert result.returncode == 0, f"{platform}, Python {python}: {result.stderr.strip()}"
    urls = {
        item["metadata"]["name"].lower(): item["download_info"]["url"] for item in json.loads(result.stdout)["install"]
    }
    assert {"numpy", "onnxruntime", "click", "av", "regex", "onnx", "safetensors"} <= urls.keys()
    assert all(url.endswith(".whl") for url in urls.values()), urls
    print(platform, python, *(url.rpartition("/")[2] for url in urls.values()), sep="\n  ")


def test_a_library_without_a_wheel_is_found(tmp_path: Path) -> None:
    if reason := _index_is_down():
        pytest.skip(f"the package index cannot be reached: {reason}")
    assert _plan(["onnxruntime>=1.31"], "3.11", ("linux_armv7l",), tmp_path).returncode != 0
