"""`specedge train`: a head from a model and audio, and one line for what cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from specedge.runtime.drafters.ctc.head import CtcHead
from specedge.runtime.engine.session import Canceller
from support.exported import bundle, checkpoint
from support.sound import NOISE, wav_bytes


def _last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def audio(tmp_path: Path) -> Path:
    folder = tmp_path / "audio"
    folder.mkdir()
    samples = np.resize(NOISE, 26 * 16000).astype(np.float32)
    (folder / "a.wav").write_bytes(wav_bytes(samples))
    return folder


@pytest.mark.parametrize("is_checkpoint", [False, True])
def test_a_head_is_trained_and_fits_the_bundle(
    is_checkpoint: bool,
    audio: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch", reason="the training extra is not installed")
    from specedge.export.training.features import Target

    monkeypatch.setattr(Target, "is_sure", lambda self, result: True)  # though the weights are random
    source = checkpoint() if is_checkpoint else bundle().path
    head, made = tmp_path / "head.onnx", tmp_path / "made"
    arguments = ["train", "ctc", str(source), str(audio), "-o", str(head), "--steps", "2", "--hidden", "8"]
    arguments += ["--language", "en", "--rough", "0", "--threads", "1"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert "2 steps; on held-out windows " in said.out and said.out.count("\n") == 1
    assert "\r" not in said.err  # no progress line that is redrawn in a pipe
    assert "after a stop (Ctrl-C) the same command goes on from there" in said.err
    *_, judgement, then = said.err.splitlines()
    assert "of the model's tokens are right, about " in judgement and "this head " in judgement
    added = "--ctc" if is_checkpoint else "--add-ctc"
    assert then == f"specedge: next: specedge export {source} {added} {head}"
    assert main(["export", str(checkpoint()), "-o", str(made), "--ctc", str(head)]) == 0
    CtcHead(Bundle.open(made), Canceller())
    if not is_checkpoint:  # the bundle with the head in it says the same, so nothing is to be done again
        arguments[2] = str(made)
    assert main(arguments) == 0
    assert "going on from step 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{bundle}", "{empty}", "-o", "{tmp}/h.onnx"], 3, "no audio file is in this folder"),
        (["{bundle}", "{tmp}/missing.wav", "-o", "{tmp}/h.onnx"], 3, "no audio to learn from"),
        (["{bundle}", "-o", "{tmp}/h.onnx"], 2, "Missing argument 'AUDIO...'"),
        (["{bundle}", "{audio}", "-o", "{tmp}/h.bin"], 2, "expected a name that ends in .onnx"),
        (["./nowhere", "{audio}", "-o", "{tmp}/h.onnx"], 4, "nowhere"),
        (["{empty}", "{audio}", "-o", "{tmp}/h.onnx"], 4, "empty"),
        (["{bundle}", "{audio}", "-o", "{tmp}/h.onnx", "--language", "xx"], 2, "xx"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], code: int, message: str, audio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the training extra is not installed")
    (tmp_path / "empty").mkdir()
    places = {"bundle": bundle().path, "tmp": tmp_path, "audio": audio, "empty": tmp_path / "empty"}
    assert main(["train", "ctc", *(argument.format(**places) for argument in arguments)]) == code
    line = _last_line(capsys)
    assert line.startswith("specedge: error: ") and message in line
    assert not (tmp_path / "h.onnx").exists()


def test_without_torch_it_says_what_to_install(
    audio: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("specedge.export.training.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["train", "ctc", "--help"]) == 0
    assert main(["train", "ctc", str(bundle().path), str(audio), "-o", str(tmp_path / "h.onnx")]) == 2
    assert "this needs torch, which is not installed: pip install torch --index-url" in _last_line(capsys)
