"""`specedge train draft`: from a target and audio to a checkpoint that drafts, and one line for what cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the training extra is not installed")

from specedge.errors import ResourceError, UsageError  # noqa: E402
from specedge.export.checkpoint import open_checkpoint  # noqa: E402
from specedge.export.training.checkpoint_files import DRAFT, check_out, write_checkpoint  # noqa: E402
from specedge.export.training.features import Target  # noqa: E402
from specedge.leftovers import REPLACED  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle, encoder_fingerprint  # noqa: E402
from specedge.runtime.cli.main import main  # noqa: E402
from support.drafts import compared, opened  # noqa: E402
from support.exported import bundle, checkpoint, load_transformers  # noqa: E402
from support.sound import NOISE, wav_bytes  # noqa: E402


@pytest.fixture
def audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Target, "is_sure", lambda self, result: True)  # though the weights are random
    (tmp_path / "a.wav").write_bytes(wav_bytes(np.resize(NOISE, 26 * 16000).astype(np.float32)))
    return tmp_path / "a.wav"


def train(source: Path, audio: Path, out: Path, *more: object) -> int:
    arguments = ["train", "draft", source, audio, "-o", out, "--steps", 2, "--language", "en", "--threads", 1, *more]
    return main([str(argument) for argument in arguments])


@pytest.mark.slow
def test_layers_of_the_target_become_a_draft_with_its_encoder(
    audio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "draft"
    assert train(checkpoint(), audio, out, "--layers", 1) == 0
    said = capsys.readouterr()
    assert "2 steps, with the target's encoder; on held-out windows its likeliest token is the target's in " in said.out
    assert said.err.endswith(f"specedge: next: specedge export {out} --learnable\n") and "\r" not in said.err
    assert "a draft whose tokens are right so rarely will not save time" in said.err
    assert main(["export", str(out), "-o", str(tmp_path / "made"), "--learnable"]) == 0
    made = Bundle.open(tmp_path / "made")
    assert encoder_fingerprint(made.manifest) == encoder_fingerprint(bundle().manifest)
    assert made.manifest.dims.n_text_layer == 1
    drafter = opened(bundle(), made)
    compared("plain", "timestamps", drafter)
    drafter.close()
    with open_checkpoint(out) as after, open_checkpoint(checkpoint()) as before:
        name = "model.decoder.layers.{}.fc1.weight"
        assert not np.array_equal(after.tensor(name.format(0)), before.tensor(name.format(1)))
    capsys.readouterr()
    assert train(checkpoint(), audio, out, "--layers", 1) == 0
    assert "going on from step 2" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("start, n_layers", [("draft narrow", 1), ("draft", 1)])
def test_a_smaller_decoder_learns_to_use_the_target_s_encoder(
    start: str, n_layers: int, audio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another width and vocabulary, or the same: it brings nothing of its own encoder, and changes no text."""
    out = tmp_path / "draft.safetensors"
    assert train(checkpoint(), audio, out, "--from", checkpoint(start), "--layers", n_layers) == 0
    said = capsys.readouterr()
    assert "2 steps, with the target's encoder; on held-out windows its likeliest token is the target's in " in said.out
    assert said.err.endswith(f"specedge: next: specedge export {checkpoint()} --draft {out}\n")
    assert main(["export", str(checkpoint()), "--draft", str(out), "-o", str(tmp_path / "made")]) == 0
    inside = Bundle.open(tmp_path / "made" / "draft")
    assert encoder_fingerprint(inside.manifest) == encoder_fingerprint(bundle().manifest)
    assert inside.manifest.tokens.is_multilingual == (start != "draft narrow")
    assert inside.manifest.dims.n_text_layer == n_layers
    drafter = opened(bundle(), inside)
    assert not drafter.listens and compared("plain", "timestamps", drafter).speculation.proposed
    drafter.close()


@pytest.mark.slow
def test_a_checkpoint_of_another_version_learns_from_a_bundle(
    audio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "draft"
    assert train(bundle().path, audio, out, "--from", checkpoint("draft v3")) == 0
    said = capsys.readouterr()
    assert (
        "with the target's encoder" not in said.out and "so its texts are learned and not its probabilities" in said.err
    )
    arguments = ["export", str(checkpoint()), "-o", str(tmp_path / "made"), "--draft"]
    assert main(["export", str(out), "-o", str(tmp_path / "small")]) == 0
    assert main([*arguments, str(tmp_path / "small")]) == 0
    nested = Bundle.open(tmp_path / "made" / "draft")
    assert nested.manifest.dims.n_mels == 128 and nested.tokenizer.special.n_vocab == 1001
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["vocab_size"] == 1001 and config["specedge_draft_of"]


@pytest.mark.slow
def test_a_draft_with_the_target_s_encoder_is_known_by_it(
    audio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    assert train(checkpoint(), audio, tmp_path / "a", "--from", checkpoint("draft same"), "--work", work) == 0
    assert "with the target's encoder" in capsys.readouterr().out
    first = set(work.rglob("0.pt"))
    assert train(checkpoint(), audio, tmp_path / "b", "--layers", 1, "--work", work) == 0
    assert set(work.rglob("0.pt")) == first and len(first) == 1
    for other in ("draft", "draft en"):  # each heard by itself, and none taken for another
        assert train(checkpoint(), audio, tmp_path / "c", "--from", checkpoint(other), "--work", work) == 0
        with open_checkpoint(tmp_path / "c") as made:
            assert made.vocabulary()[1].is_multilingual == (other == "draft")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((checkpoint, "draft"), 2, "--from, or as layers of the target, --layers: give one of them"),
        ((checkpoint, "draft", "--layers", 1, "--from", "x"), 2, "--layers: give one of them"),
        ((checkpoint, "draft", "--layers", 2), 2, "--layers 2: the target's decoder has 2; expected 1 to 1"),
        ((lambda: bundle().path, "draft", "--layers", 1), 2, "is no checkpoint: give that, or a draft by"),
        ((lambda: checkpoint("draft"), "draft", "--from", checkpoint), 2, "is larger than that of target"),
        ((checkpoint, "draft", "--from", lambda: checkpoint("odd lengths")), 2, "--from: draft hears windows of 1.5 s"),
        ((checkpoint, "draft", "--from", lambda: bundle().path), 4, "is a specedge bundle already"),
        ((checkpoint, "draft.safetensors", "--layers", 1), 2, "--from, for a target that is a checkpoint"),
        (
            (lambda: bundle().path, "d.safetensors", "--from", lambda: checkpoint("draft")),
            2,
            "for a target that is a c",
        ),
        ((checkpoint, ".", "--layers", 1), 2, "exists and is no trained draft, so it is not replaced"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: tuple[Any, ...], code: int, message: str, audio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out, *more = arguments
    given = [argument() if callable(argument) else argument for argument in more]
    assert train(source(), audio, tmp_path / out, *given) == code
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("specedge: error: ") and message in line
    assert not (tmp_path / "draft").exists()


def fails_once(error: BaseException, *, at: int) -> Any:
    """os.rename, which raises `error` in its call number `at`."""
    calls = iter(range(1, 99))

    def rename(old: Path, new: Path, rename: Any = os.rename) -> None:
        if next(calls) == at:
            raise error
        rename(old, new)

    return rename


def test_a_checkpoint_is_never_replaced_by_a_draft_and_a_draft_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_checkpoint(checkpoint()) as source:
        names = [f"model.decoder.{name}" for name in ("embed_positions.weight", "layer_norm.weight", "layer_norm.bias")]
        layers = [name for name in source.entries if name.startswith("model.decoder.layers.0.")]
        trained = {name: source.tensor(name) for name in [*names, *layers]}
        for _ in range(2):
            write_checkpoint(tmp_path / "draft", source, trained, n_layers=1, mark=DRAFT, target="x")
        # The old one stays, or comes back, where the new one cannot take its name or its writer is killed.
        old = (tmp_path / "draft" / "config.json").stat().st_ino
        for error in (OSError(28, "no space"), KeyboardInterrupt()):
            with monkeypatch.context() as patch, pytest.raises((ResourceError, KeyboardInterrupt)):
                patch.setattr("specedge.leftovers.os.rename", fails_once(error, at=2))
                write_checkpoint(tmp_path / "draft", source, trained, n_layers=1, mark=DRAFT, target="x")
            assert (tmp_path / "draft" / "config.json").stat().st_ino == old
        dead = tmp_path / f".draft.{'a' * 16}.tmp"
        dead.mkdir()
        (tmp_path / "draft").rename(dead / REPLACED)
        check_out(tmp_path / "draft", DRAFT)
        assert (tmp_path / "draft" / "config.json").stat().st_ino == old and not dead.exists()
        with open_checkpoint(tmp_path / "draft") as made:
            encoder = "model.encoder.layers.0.fc1.weight"
            assert np.array_equal(made.tensor(encoder), source.tensor(encoder))
            assert "alignment_heads" not in made.spec.generation
        assert load_transformers(tmp_path / "draft").config.decoder_layers == 1
        before = sorted(path.name for path in tmp_path.iterdir())
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "config.json").write_text("{}")
        with pytest.raises(UsageError, match="is no trained draft"):
            write_checkpoint(tmp_path / "other", source, trained, n_layers=1, mark=DRAFT, target="x")
        (tmp_path / "draft" / "thesis.txt").write_text("mine")
        with pytest.raises(UsageError, match=r"no part of the trained draft \(thesis\.txt\), so it is not replaced"):
            write_checkpoint(tmp_path / "draft", source, trained, n_layers=1, mark=DRAFT, target="x")
        assert (tmp_path / "draft" / "thesis.txt").read_text() == "mine"
        assert before == ["draft"] and (tmp_path / "other" / "config.json").read_text() == "{}"
