"""What training writes takes no other file's place, and that is said before the work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the training extra is not installed")
pytest.importorskip("transformers", reason="the test extra is not installed")

from safetensors.numpy import save_file  # noqa: E402

from specedge.export.checkpoint import HEADS, TOKENS  # noqa: E402
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
