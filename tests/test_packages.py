"""What `packaging/` and the workflows say agrees with the project: versions, options, users, health checks."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from specedge.runtime.cli.main import main
from specedge.runtime.options import DRAFTERS
from specedge.version import __version__
from support.tree import ROOT

yaml = pytest.importorskip("yaml")
PACKAGING = ROOT / "packaging"
APP = PACKAGING / "home-assistant" / "specedge"

# developers.home-assistant.io, "App configuration": the keys that ours may use, and which are required.
REQUIRED = {"name", "version", "slug", "description", "arch"}
OPTIONAL = {"url", "init", "startup", "boot", "discovery", "ports", "ports_description", "map", "options", "schema"}
OPTIONAL |= {"watchdog", "backup_exclude", "image", "stage", "timeout"}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def serve_options(capsys: pytest.CaptureFixture[str]) -> set[str]:
    assert main(["serve", "--help"]) == 0
    return set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


def test_every_package_has_the_version_of_the_project() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__
    project = tomllib.loads((ROOT / "distributions" / "faster-whisper" / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__ and project["dependencies"] == [f"specedge=={__version__}"]
    assert read(PACKAGING / "conda" / "recipe.yaml")["context"]["version"] == __version__
    assert read(APP / "config.yaml")["version"] == __version__
    assert f"SPECEDGE_VERSION={__version__}" in (APP / "Dockerfile").read_text()
    assert f"specedge-{__version__}.tar.gz" in (PACKAGING / "homebrew" / "specedge.rb").read_text()
    assert read(PACKAGING / "container" / "compose.yaml")["services"]["specedge"]["image"] == f"specedge:{__version__}"


def test_conda_asks_for_what_the_wheel_asks_for() -> None:
    needed = [line.split(" ") for line in read(PACKAGING / "conda" / "recipe.yaml")["requirements"]["run"][1:]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {name + floor for name, floor in needed} == set(project["dependencies"])


def test_the_image_is_nobody_s_root_and_asks_for_its_health(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = (PACKAGING / "container" / "Containerfile").read_text()
    assert "\nUSER 1000:1000\n" in recipe and "/health" in recipe and "VOLUME /data" in recipe
    for variable in re.findall(r"SPECEDGE_SERVE_([A-Z_]+)=", recipe):
        assert f"--{variable.lower().replace('_', '-')}" in serve_options(capsys)
    service = read(PACKAGING / "container" / "compose.yaml")["services"]["specedge"]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    words = {word for word in service["command"] if word.startswith("--")}
    assert service["command"][0] == "serve" and words <= serve_options(capsys)


def test_the_app_keeps_to_the_schema_and_starts_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    config = read(APP / "config.yaml")
    assert REQUIRED <= set(config) <= REQUIRED | OPTIONAL
    assert set(config["arch"]) == {"amd64", "aarch64"} and config["discovery"] == ["wyoming"]
    assert (
        set(config["options"]) == set(config["schema"]) == set(read(APP / "translations" / "en.yaml")["configuration"])
    )
    drafters = re.fullmatch(r"list\((.*)\)", config["schema"]["drafter"])
    assert drafters is not None and set(drafters[1].split("|")) <= set(DRAFTERS)
    command = runpy.run_path(str(APP / "run.py"))["command"]
    line = command(config["options"])
    assert line[1:] == shlex.split("serve --host 0.0.0.0 --wyoming tcp://0.0.0.0:10300 --drafter auto")
    line = command({**config["options"], "model": "/share/whisper-small", "threads": 2})
    assert line[6:] == shlex.split("--model /share/whisper-small --drafter auto --threads 2")
    assert {word for word in line if word.startswith("--")} <= serve_options(capsys)


def test_workflows_are_sparing_with_permissions() -> None:
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        workflow = read(path)
        assert workflow["permissions"] == {"contents": "read"}, path.name
        for job in workflow["jobs"].values():
            assert job["timeout-minutes"] <= 60
            for step in job["steps"]:
                checkout = step.get("uses", "").startswith("actions/checkout@")
                assert not checkout or step["with"]["persist-credentials"] is False


def test_the_unit_starts_the_server() -> None:
    unit = (PACKAGING / "systemd" / "specedge.service").read_text()
    assert "ExecStart=/usr/local/specedge/bin/specedge serve\n" in unit and "DynamicUser=yes" in unit
    assert "SuccessExitStatus=143" in unit  # what the server ends with after SIGTERM


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert (tmp_path / "site" / "serve" / "index.html").is_file()
