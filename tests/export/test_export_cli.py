"""`specedge export` and `export_to`: names, messages, exit codes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from specedge.errors import UsageError
from specedge.export import export as export_cli
from specedge.export.export import export_to
from specedge.models import store
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli import export as export_command
from specedge.runtime.cli.main import main
from support.checkpoints import make_checkpoint
from support.exported import bundle, checkpoint


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_one_line_says_what_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["export", str(checkpoint()), "-o", str(out), "--name", "mine", "--no-encoder-plain"]) == 0
    said = capsys.readouterr()
    assert said.err == f"specedge: next: specedge transcribe talk.wav -m {out}\n" and said.out.count("\n") == 1
    assert said.out.startswith(f"{out}: mine, int8, 0.")
    assert " MB; drafting is exact here; checked: rounding moves the encoder's output by " in said.out
    assert "usual for int8 is 4% to 14%" in said.out
    assert Bundle.open(out).manifest.name == "mine"


def test_without_a_folder_it_goes_into_the_store(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "My Model (v2)")
    made = export_to(str(source))
    assert made.path.parent == store.folder().resolve() and made.manifest.name == "My-Model-v2"
    assert store.find("My-Model-v2").samefile(made.path)


def test_an_unusual_error_is_said() -> None:
    check = {"row_invariance": {"exact": False}, "features_relative_error": 0.2, "logits_relative_error": 0.1}
    manifest = SimpleNamespace(selfcheck=check, precision="int8")
    found = export_command._findings(SimpleNamespace(manifest=manifest, size_bytes=10**6))  # type: ignore[arg-type]
    assert found == (
        "1.0 MB; drafting is off here; checked: rounding moves the encoder's output by 20.0% and the logits by 10.0%, "
        "usual for int8 is 4% to 14%; that is much: compare its text with that of --precision fp32"
    )


def test_int4_is_made_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(checkpoint()), "-o", str(tmp_path / "out"), "--precision", "int4"]) == 0
    assert "int4 is smaller, not faster, and costs accuracy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Missing argument 'SOURCE'"),
        (["{checkpoint}", "--precision", "int7"], 2, "'int7' is not one of 'fp32', 'int8', 'int4'"),
        (["{checkpoint}", "--name", "../evil"], 2, "'../evil' is no name for a model"),
        (["{checkpoint}", "-o", "{bundle}"], 2, "exists already; give another -o, remove it, or add --force"),
        (["{checkpoint}", "-o", "{checkpoint}", "--force"], 2, "is no bundle, so it is not replaced"),
        (["{checkpoint}", "--revision", "main", "-o", "{tmp}/out"], 2, "is a local path; a revision can be given"),
        (["{tmp}", "--from", "optimum", "--revision", "x", "-o", "{tmp}/out"], 2, "--revision goes with a hub id"),
        (["{tmp}", "-o", "{tmp}/out"], 4, "is no checkpoint folder (looked for config.json"),
        (["{bundle}", "-o", "{tmp}/out"], 4, "it is a specedge bundle already: use it with -m"),
        (["{tmp}", "--from", "optimum", "-o", "{tmp}/out"], 4, "holds no encoder_model.onnx"),
        (["{checkpoint}", "-o", "/dev/null/out"], 5, "cannot write /dev/null/out: "),
    ],
)
def test_bad_requests_are_one_line_and_a_code(
    arguments: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    places = {"checkpoint": checkpoint(), "bundle": bundle("int8").path, "tmp": empty}
    assert main(["export", *(argument.format(**places) for argument in arguments)]) == code
    line = last_line(capsys)
    assert line.startswith("specedge: error: ") and message in line
    assert not any(empty.iterdir())


def test_a_target_that_is_taken_is_refused_before_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    from specedge.export import hub

    monkeypatch.setattr(hub, "fetch", lambda *_, **__: pytest.fail("downloaded first"))
    with pytest.raises(UsageError, match="exists already"):
        export_to("openai/whisper-tiny", bundle("int8").path)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("openai/whisper-small", "whisper-small"),
        ("tiny", "whisper-tiny"),
        ("somebody/whisper-tiny-de", "whisper-tiny-de"),
        ("./models/tiny.pt", "tiny"),
        ("/", "model"),
        ("./Übung 3", "bung-3"),
    ],
)
def test_names_come_from_sources(source: str, name: str) -> None:
    assert export_cli._base_name(source) == name
    assert store.check_name(name) == name
