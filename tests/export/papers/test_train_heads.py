"""`specedge train heads`: from a checkpoint and audio to a drafter, and one line for what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.drafters.ctc.head import CtcHead
from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.heads import HeadsPass
from specedge.runtime.engine.session import Canceller
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.papers.heads import HeadsDrafter
from support.drafting import plain_fields
from support.drafts import FREE
from support.edits import read_tensors
from support.exported import bundle, checkpoint, noise_mel
from support.heads import published_checkpoint
from support.qwen_checkpoints import qwen_checkpoint
from support.sound import NOISE, wav_bytes


@pytest.mark.slow
def test_heads_are_trained_and_fit_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the training extra is not installed")
    from specedge.export.training.features import Target

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


@pytest.mark.slow
def test_with_the_last_layer_a_new_checkpoint_is_written_whose_drafts_change_none_of_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the training extra is not installed")
    from specedge.export.training.features import Target

    monkeypatch.setattr(Target, "is_sure", lambda self, result: True)  # though the weights are random
    (tmp_path / "a.wav").write_bytes(wav_bytes(np.resize(NOISE, 26 * 16000).astype(np.float32)))
    out = tmp_path / "new"
    arguments = [
        "train",
        "heads",
        str(checkpoint()),
        str(tmp_path / "a.wav"),
        "-o",
        str(out),
        "--kind",
        "medusa-linear",
    ]
    arguments += ["--heads", "2", "--steps", "2", "--language", "en", "--threads", "1", "--unfreeze-last-layer"]
    assert main(arguments) == 0
    line = capsys.readouterr().out
    assert "a new model: its own next token is the target's in" in line and "its text may differ" in line
    assert main(arguments) == 0  # what was trained here is replaced
    assert "going on from step 2" in capsys.readouterr().err
    old, new = (read_tensors(folder / "model.safetensors") for folder in (checkpoint(), out))
    changed = {name for name in new if not np.array_equal(new[name], old[name])}
    assert new.keys() == old.keys() and changed and all(".decoder.layers.1." in name for name in changed)
    assert main(["export", str(out), "-o", str(tmp_path / "made"), "--heads", str(out)]) == 0
    made = Bundle.open(tmp_path / "made")
    assert HeadsPass(made, "medusa-linear", Canceller()).n_heads == 2
    engine = Engine(made, threads=1)
    features = engine.encode(noise_mel(80, 200))
    rules = window_rules(TranscribeOptions(without_timestamps=True), made.manifest, made.tokenizer)
    options = DecodeOptions(rules=rules, n_text_ctx=made.manifest.dims.n_text_ctx, n_sample=16)
    prompt = made.manifest.tokens.prompt("en", timestamps=False)
    plain = decode_window(engine, features, prompt, options)
    heads = HeadsPass(made, "medusa-linear", Canceller())
    found = decode_window(engine, features, prompt, options, HeadsDrafter("medusa-linear", heads, FREE, gated=False))
    assert plain_fields(found) == plain_fields(plain) and found.speculation.evaluated > 0
    capsys.readouterr()
    (out / "config.json").write_text("{}")
    assert main(arguments) == 2
    assert "is no checkpoint trained with its last layer, so it is not replaced" in capsys.readouterr().err


@pytest.mark.slow
def test_a_base_head_is_not_taken_for_the_models_own_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the training extra is not installed")
    from specedge.export.training.features import Target

    monkeypatch.setattr(Target, "is_sure", lambda self, result: True)
    (tmp_path / "a.wav").write_bytes(wav_bytes(np.resize(NOISE, 26 * 16000).astype(np.float32)))
    folder = published_checkpoint(checkpoint(), tmp_path / "medusa", "medusa-linear")
    arguments = ["train", "heads", str(folder), str(tmp_path / "a.wav"), "--kind", "mtp-latent", "--heads", "2"]
    arguments += ["--steps", "2", "--language", "en", "--threads", "1"]
    assert main([*arguments, "-o", str(tmp_path / "h.safetensors")]) == 0
    assert "its texts are learned and not probabilities" in capsys.readouterr().err
    assert main([*arguments, "-o", str(tmp_path / "new"), "--unfreeze-last-layer"]) == 2
    assert "a base head makes its logits; give a plain Whisper" in capsys.readouterr().err


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


@pytest.mark.slow
def test_heads_of_a_speech_llm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trained and exported; what its decoder has no place for is one line."""
    pytest.importorskip("torch", reason="the training extra is not installed")
    from specedge.export.training.features import Target

    monkeypatch.setattr(Target, "is_sure", lambda self, result: True)  # though the weights are random
    monkeypatch.setattr(Target, "options", lambda self, **_: _short_options(self))
    (tmp_path / "audio").mkdir()
    for i in range(24):
        samples = np.resize(NOISE[1000 * i :], 8000 + 500 * i).astype(np.float32)
        (tmp_path / "audio" / f"{i}.wav").write_bytes(wav_bytes(samples))
    source, file = str(qwen_checkpoint()), tmp_path / "heads.safetensors"
    common = ["--language", "en", "--threads", "1", "--work", str(tmp_path / "work")]
    arguments = ["train", "heads", source, str(tmp_path / "audio"), "-o", str(file), *common]
    assert main([*arguments, "--kind", "medusa-linear", "--heads", "2", "--steps", "2"]) == 0
    assert "2 steps, " in capsys.readouterr().out
    assert main(["export", source, "-o", str(tmp_path / "made"), "--heads", str(file)]) == 0
    assert HeadsPass(Bundle.open(tmp_path / "made"), "medusa-linear", Canceller()).n_heads == 2
    for more, line in (
        (["--kind", "medusa-block"], "its layer attends to an encoder; for a speech LLM give mtp-latent"),
        (
            ["--kind", "mtp-latent", "--unfreeze-last-layer", "-o", str(tmp_path / "new")],
            "is a speech LLM, or a base head makes its logits; give a plain Whisper",
        ),
    ):
        capsys.readouterr()
        assert main([*arguments, *more]) == 2
        assert line in capsys.readouterr().err
    head = str(tmp_path / "h.onnx")
    ctc_work = [*common[:-1], str(tmp_path / "ctc")]
    assert main(["train", "ctc", source, str(tmp_path / "audio"), "-o", head, *ctc_work, "--steps", "2"]) == 0
    assert main(["export", str(tmp_path / "made"), "--add-ctc", head]) == 0
    rows = np.zeros((13, Bundle.open(tmp_path / "made").manifest.dims.n_audio_state), np.float32)
    heard = CtcHead(Bundle.open(tmp_path / "made"), Canceller()).hear(rows)
    assert heard.n_ctx == heard.n_parts * 13 > 26  # a second of Qwen's encoder, which has fewer rows than letters


def _short_options(target: Any) -> DecodeOptions:
    rules = window_rules(TranscribeOptions(), target.manifest, target.tokenizer)
    return DecodeOptions(rules=rules, n_text_ctx=target.manifest.dims.n_text_ctx, n_sample=12)
