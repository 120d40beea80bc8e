"""`specedge models`: text on stdout can be piped, remarks go to stderr, errors keep their class for the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from specedge.errors import CheckpointError, ModelError, UsageError
from specedge.models import store
from specedge.runtime.cli.models import models
from support.bundles import write_bundle


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of this test, with one bundle."""
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    write_bundle(tmp_path / "home" / "models" / "demo")
    (tmp_path / "package").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "models"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(models, list(arguments))


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stands for the exporter: writes the small bundle and records what it was asked for."""
    calls: list[tuple[Any, ...]] = []

    def export_to(
        source: str, out: Path, *, precision: str, name: str, revision: str | None, draft: Path | None
    ) -> None:
        calls.append((source, Path(out), precision, name))
        write_bundle(Path(out), name=name, precision=precision)

    monkeypatch.setattr("specedge.export.export.export_to", export_to)
    return calls


def test_list_as_a_table_and_as_json(home: Path) -> None:
    write_bundle(home / "mine", precision="fp32")
    lines = run("list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "PRECISION", "DRAFT", "PATH"]
    where = str(home / "demo")
    assert lines[1].split() == ["demo", *lines[1].split()[1:3], "int8", "-", where]
    assert lines[2].split()[3:] == ["fp32", "-", str(home / "mine")]
    rows = json.loads(run("list", "--json").stdout)
    assert [(row["name"], row["precision"]) for row in rows] == [("demo", "int8"), ("mine", "fp32")]
    assert rows[1]["path"] == str(home / "mine") and rows[1]["size_bytes"] > 3000 and rows[1]["problem"] is None


def test_a_broken_bundle_is_listed_as_broken(home: Path) -> None:
    (home / "bad").mkdir(parents=True)
    (home / "bad" / "specedge.json").write_bytes(b"{}")
    assert "broken" in run("list").stdout
    row = json.loads(run("list", "--json").stdout)[0]
    assert row["precision"] is None and "no specedge bundle" in row["problem"]


def test_nothing_installed_is_no_error(home: Path) -> None:
    (home / "demo" / "specedge.json").unlink()
    result = run("list")
    assert (result.exit_code, result.stdout) == (0, "") and "specedge models pull tiny" in result.stderr
    assert run("list", "--json").stdout == "[]\n"


def test_the_known_checkpoints() -> None:
    lines = run("list", "--known").stdout.splitlines()
    assert max(map(len, lines)) <= 80 and lines[0].split() == "NAME MB RAM WORK LANG DRAFT LICENCE".split()
    work = {line.split()[0]: float(line.split()[3]) for line in lines[1:]}
    assert work["whisper-tiny"] == 1 < work["whisper-base"] < work["whisper-small"] < work["whisper-large-v3"]
    assert work["distil-large-v3"] == work["whisper-large-v3-turbo"] == work["whisper-large-v3"]
    assert work["lite-large-v3-fast"] < work["lite-large-v3"] < work["lite-large-v3-acc"] < work["whisper-large-v3"]
    rows = json.loads(run("list", "--known", "--json").stdout)
    assert {
        "name": "whisper-tiny",
        "hub_id": "openai/whisper-tiny",
        "n_params_m": 39,
        "languages": 99,
        "licence": "Apache-2.0",
        "revision": "169d4a4341b33bc18d8881c4b69c2e104e1cc0af",
        "note": "",
        "draft": None,
        "disk_mb": 41,
        "memory_mb": 210,
        "encoder_work": 1.0,
    } in rows
    assert next(row for row in rows if row["name"] == "whisper-large-v3")["draft"] == "distil-large-v3.5"


def test_path_prints_the_folder_alone(tmp_path: Path) -> None:
    result = run("show", "demo", "--path")
    assert result.stdout == f"{tmp_path / 'home' / 'models' / 'demo'}\n"
    write_bundle(tmp_path / "here")  # found by a relative name, printed for use from anywhere
    assert run("show", "here", "--path").stdout == f"{tmp_path / 'here'}\n"
    assert isinstance(run("show", "none", "--path").exception, ModelError)


def test_rm(home: Path) -> None:
    write_bundle(home / "mine")
    result = run("rm", "mine")
    assert result.exit_code == 0 and not (home / "mine").exists() and result.stdout == ""
    assert isinstance(run("rm", "mine").exception, ModelError)


@pytest.mark.parametrize(
    ("arguments", "source", "stored"),
    [
        (["tiny"], "openai/whisper-tiny", "whisper-tiny"),
        (["turbo", "--precision", "int4"], "openai/whisper-large-v3-turbo", "whisper-large-v3-turbo-int4"),
        (["someone/my-whisper"], "someone/my-whisper", "my-whisper"),
        (["./package"], "./package", "package"),  # a folder that is there, as `export` takes it
    ],
)
def test_pull_exports_into_the_store(
    home: Path, exports: list[tuple[Any, ...]], arguments: list[str], source: str, stored: str
) -> None:
    result = run("pull", *arguments)
    precision = arguments[2] if len(arguments) > 1 else "int8"
    assert exports == [(source, home / stored, precision, stored)]
    assert result.stdout == f"{home / stored}\n"
    assert store.find(stored) == home / stored
    again = run("pull", *arguments)  # what is there is not exported twice, and a script gets its path
    assert len(exports) == 1 and again.exit_code == 0 and again.stdout == result.stdout
    assert "is installed already" in again.stderr


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("tinny", CheckpointError, "did you mean whisper-tiny"),
        ("qqqqqq", CheckpointError, "`specedge models list --known` shows the names"),
        ("../package", CheckpointError, "no checkpoint '../package' is known"),
        ("a/b/c", CheckpointError, "no checkpoint"),
        ("someone/.hidden", CheckpointError, "no checkpoint"),
        ("someone/trailing.", UsageError, "is no name for a model"),
        ("nul\0", CheckpointError, "no checkpoint 'nul\\x00'"),
    ],
)
def test_pull_refuses(exports: list[tuple[Any, ...]], name: str, error: type[Exception], message: str) -> None:
    result = run("pull", name)
    assert type(result.exception) is error and message in str(result.exception)
    assert exports == []


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("base", ModelError, "no draft is known for whisper-base"),
        ("someone/fine-tune", ModelError, "export SOURCE --draft MODEL"),
        ("silero-vad", UsageError, "--with-draft goes with a checkpoint"),
    ],
)
def test_pull_with_draft_refuses_before_it_fetches(
    exports: list[tuple[Any, ...]], name: str, error: type[Exception], message: str
) -> None:
    result = run("pull", name, "--with-draft")
    assert type(result.exception) is error and message in str(result.exception)
    assert exports == []
