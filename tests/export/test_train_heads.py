"""`specedge train heads`: from a checkpoint and audio to a drafter, and one line for what cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specedge.runtime.bundles.bundle import Bundle
from specedge.runtime.cli import main
from specedge.runtime.passes.heads_pass import HeadsPass
from specedge.runtime.passes.session import Canceller
from support.edits import read_tensors
from support.exported import bundle, checkpoint
from support.sound import NOISE, wav_bytes


def test_heads_are_trained_and_fit_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the training extra is not installed")
    from specedge.export.training.unlabelled import Target

    monkeypatch.setattr(Target, "is_sure", lambda self, result: True)  # though the weights are random
    (tmp_path / "a.wav").write_bytes(wav_bytes(np.resize(NOISE, 26 * 16000).astype(np.float32)))
    work, given = tmp_path / "work", []
    for kind in ("mtp-latent", "medusa-block"):
        file = tmp_path / f"{kind}.safetensors"
        arguments = ["train", "heads", str(checkpoint()), str(tmp_path / "a.wav"), "-o", str(file), "--kind", kind]
        arguments += ["--heads", "2", "--steps", "2", "--language", "en", "--threads", "1", "--work", str(work)]
        assert main(arguments) == 0
        assert "2 steps, " in capsys.readouterr().out
        given += ["--heads", str(file)]
    assert main(["export", str(checkpoint()), "-o", str(tmp_path / "made"), *given]) == 0
    made = Bundle.open(tmp_path / "made")
    for kind in ("mtp-latent", "medusa-block"):
        assert HeadsPass(made, kind, Canceller()).n_heads == 2
    capsys.readouterr()
    assert main(arguments) == 0
    assert "going on from step 2" in capsys.readouterr().err
    for kind in ("mtp-latent", "medusa-block"):
        tuned = tmp_path / f"{kind}-mwer.safetensors"
        arguments = ["train", "heads", str(checkpoint()), str(tmp_path / "a.wav"), "-o", str(tuned), "--steps", "2"]
        arguments += ["--mwer", str(tmp_path / f"{kind}.safetensors"), "--optimizer", "adafactor"]
        assert main([*arguments, "--language", "en", "--threads", "1", "--work", str(work)]) == 0
        assert "expected word errors" in capsys.readouterr().out
        assert read_tensors(tuned).keys() == read_tensors(tmp_path / f"{kind}.safetensors").keys()


@pytest.mark.parametrize(
    ("target", "out", "code", "message"),
    [
        (lambda: checkpoint(), "h.bin", 2, "expected a name that ends in .safetensors"),
        (lambda: bundle().path, "h.safetensors", 4, "is a specedge bundle already"),
    ],
)
def test_what_cannot_be_is_one_line(
    target: object, out: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the training extra is not installed")
    (tmp_path / "a.wav").write_bytes(wav_bytes(NOISE[:16000]))
    source = target()  # type: ignore[operator]
    assert main(["train", "heads", str(source), str(tmp_path / "a.wav"), "-o", str(tmp_path / out)]) == code
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("specedge: error: ") and message in line
