"""What training writes takes no other file's place, and that is said before the work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the training extra is not installed")
pytest.importorskip("transformers", reason="the test extra is not installed")

from click.testing import CliRunner  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

from specedge.errors import UsageError  # noqa: E402
from specedge.export.checkpoint import HEADS, TOKENS  # noqa: E402
from specedge.models.recipe import convert, evaluate, train  # noqa: E402
from specedge.runtime.cli.main import main  # noqa: E402


@pytest.mark.parametrize(
    ("command", "name", "said"),
    [
        (["ctc"], "model.onnx", "model.onnx: exists and is no CTC head, so it is not replaced"),
        (["ctc"], "talk.onnx", "the output talk.onnx would replace the input"),
        (["heads"], "model.safetensors", "model.safetensors: exists and is no file of trained heads"),
        (["heads", "--mwer", "h.safetensors"], "h.safetensors", "the output h.safetensors would replace the input"),
    ],
)
def test_trained_files_take_no_other_file_s_place(
    command: list[str],
    name: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(b"\x08\x08\x12\x07pytorch" + bytes(99))
    Path("talk.onnx").write_bytes(b"RIFF\x24\0\0\0WAVEfmt ")
    save_file({"model.weight": np.zeros(3, np.float32)}, "model.safetensors")
    save_file({TOKENS: np.zeros(3, np.float32)}, "h.safetensors")
    assert HEADS.begins(Path("h.safetensors").read_bytes())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["train", *command, "checkpoint", "talk.onnx", "-o", name]) == 2
    assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_begins_in_no_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model.safetensors").write_text("mine")
    with pytest.raises(UsageError, match="holds files and is no run's folder"):
        train._claim(tmp_path)
    found = CliRunner().invoke(
        convert.main, [str(tmp_path), "--model", "demo", "--speech", str(tmp_path), "--out", str(tmp_path)]
    )
    assert isinstance(found.exception, UsageError) and "no run's folder" in str(found.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    for _ in range(2):  # a run is taken up
        train._claim(tmp_path / "run").close()


def test_a_report_of_figures_takes_only_such_a_report_s_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "figures.json"
    report.write_text('{"mine": 1}')
    monkeypatch.setattr(evaluate, "evaluate", lambda model, speech, **options: {"model": str(model)})
    arguments = [str(tmp_path), "--speech", str(tmp_path), "--report", str(report)]
    found = CliRunner().invoke(evaluate.main, arguments)
    assert isinstance(found.exception, UsageError) and report.read_text() == '{"mine": 1}'
    report.unlink()
    for _ in range(2):
        assert CliRunner().invoke(evaluate.main, arguments).exit_code == 0
        assert json.loads(report.read_text()) == {"model": str(tmp_path)}
