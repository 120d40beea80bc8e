"""A draft that is a file: over its model's encoder alone, exact, and brought along where it is shipped."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from specedge.errors import CheckpointError, ModelError, UsageError
from specedge.export import draft_layers
from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import Checkpoint, open_checkpoint
from specedge.export.decoder_graph import VOCABULARY
from specedge.export.draft_layers import compact_layout, fingerprint, open_layers, shipped, write_layers
from specedge.export.export import export_to
from specedge.runtime.bundle.bundle import Bundle, encoder_fingerprint
from specedge.runtime.decoding.drafter import WindowContext
from specedge.runtime.drafters.registry import runnable
from specedge.runtime.engine.engine import Engine
from specedge.runtime.options import DrafterOptions
from support.drafts import compared, opened
from support.exported import bundle, checkpoint, engine, noise_mel
from support.qwen_checkpoints import qwen_checkpoint


def _trained(start: Checkpoint, target: Checkpoint, tokens: list[int]) -> dict[str, np.ndarray]:
    """The decoder of `start` over the encoder of `target`, of which it has `tokens`; random where that must differ."""
    table, (ranks, special) = start.tensor(VOCABULARY), start.vocabulary()
    mine, theirs = {text: token for token, text in enumerate(ranks)}, target.vocabulary()[0]
    rows = [mine[theirs[token]] for token in tokens]
    found = {name: start.tensor(name) for name in start.shapes if name.startswith("model.decoder.")}
    found[VOCABULARY] = table[[*rows, *range(special.eot, len(table))]]
    for name in found:
        if name.endswith(("encoder_attn.k_proj.weight", "encoder_attn.v_proj.weight")):
            mixing = np.random.default_rng(7).normal(size=(32, target.spec.dims.n_audio_state)) / 8
            found[name] = (found[name] @ mixing).astype(np.float32)
    return found


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    with open_checkpoint(checkpoint()) as target, open_checkpoint(checkpoint("draft narrow")) as start:
        theirs, (mine, special) = target.vocabulary()[0], start.vocabulary()
        both = [token for token, text in enumerate(theirs) if text in set(mine)]
        tokens = [token for token in both if token % 3 or len(theirs[token]) == 1]
        write_layers(
            tmp_path / "draft.safetensors",
            target,
            _trained(start, target, tokens),
            n_text_head=start.spec.dims.n_text_head,
            tokens=tokens,
            special=compact_layout(special, len(tokens)),
        )
    return tmp_path / "draft.safetensors"


def test_a_draft_reads_back_over_its_model_within_a_step_of_rounding(layers: Path) -> None:
    with open_checkpoint(checkpoint()) as target, open_checkpoint(checkpoint("draft narrow")) as start:
        draft = open_layers(layers, target)
        assert (draft.spec.dims.n_audio_state, draft.spec.dims.n_text_state) == (64, 32)
        fc1 = "model.decoder.layers.0.fc1.weight"
        value = start.tensor(fc1).reshape(-1, 32)
        step = np.abs(value).max(axis=-1, keepdims=True) / 7
        assert (np.abs(draft.tensor(fc1).reshape(-1, 32) - value) <= step).all()
        encoder = "model.encoder.layers.0.fc1.weight"
        np.testing.assert_array_equal(draft.tensor(encoder), target.tensor(encoder))
        ranks, special = draft.vocabulary()
        assert len(ranks) == special.eot < target.vocabulary()[1].eot and set(ranks) < set(target.vocabulary()[0])


def test_a_file_of_another_model_or_of_something_else_is_refused(layers: Path, tmp_path: Path) -> None:
    (tmp_path / "no.safetensors").write_bytes(b"no weights")
    with open_checkpoint(checkpoint("draft v3")) as other, pytest.raises(UsageError, match="for another model"):
        open_layers(layers, other)
    with open_checkpoint(checkpoint()) as source, pytest.raises(CheckpointError, match="no file of a draft"):
        open_layers(tmp_path / "no.safetensors", source)


@pytest.mark.parametrize("damage", ["format", "special", "n_text_head", "tokens", VOCABULARY])
def test_a_damaged_file_is_refused_in_a_line(damage: str, layers: Path, tmp_path: Path) -> None:
    with safe_open(layers, "numpy") as file:
        about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if damage in about:
        about[damage] = "{}"
    else:
        tensors[damage] = np.full_like(tensors[damage], 77)[: len(tensors[damage]) // 2]
    save_file(tensors, tmp_path / "bad.safetensors", about)
    with open_checkpoint(checkpoint()) as source, pytest.raises((CheckpointError, ModelError)) as raised:
        draft = open_layers(tmp_path / "bad.safetensors", source)
        write_bundle(draft, tmp_path / "made", precision="int8", name="x", version="1", is_draft=True)
    assert "\n" not in str(raised.value) and not (tmp_path / "made").exists()


def test_a_published_model_brings_its_shipped_draft_and_its_files_once(
    layers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exported without a word about drafts: `auto` has one, over the same encoder, and the text is plain decoding's."""
    package = tmp_path / draft_layers._SHIPPED
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, draft_layers._SHIPPED, raising=False)
    with open_checkpoint(checkpoint()) as source:
        assert shipped(source) is None
        os.rename(layers, package / f"{fingerprint(source)[:16]}.safetensors")
        assert shipped(source) is not None
    with open_checkpoint(qwen_checkpoint()) as speech_llm:
        assert shipped(speech_llm) is None
    made = export_to(str(checkpoint()), tmp_path / "made")
    inside = Bundle.open(tmp_path / "made" / "draft")
    assert "draft" in runnable(made, DrafterOptions("auto")) and inside.manifest.dims.n_text_state == 32
    assert encoder_fingerprint(inside.manifest) == encoder_fingerprint(made.manifest)
    assert os.path.samefile(inside.path / "encoder.data", made.path / "encoder.data")
    drafter = opened(bundle(), inside)
    compared("plain", "timestamps", drafter)
    drafter.close()


def test_rows_of_a_draft_see_the_audio_as_alone(layers: Path, tmp_path: Path) -> None:
    """Its cross-attention adds what positions a key stands for: the same for each row, and not nothing."""
    with open_checkpoint(checkpoint()) as source:
        draft = open_layers(layers, source)
        write_bundle(draft, tmp_path / "made", precision="int8", name="x", version="1", is_draft=True)
    engine = Engine(Bundle.open(tmp_path / "made"), threads=1)
    hidden = np.random.default_rng(0).standard_normal((9, engine.dims.n_audio_state)).astype(np.float32)
    bias = np.log(np.arange(1, 10, dtype=np.float32))[None, None, None]
    found = []
    for window in (engine.project(hidden, bias), engine.project(hidden)):
        together, alone = engine.start(window), engine.start(window)
        rows = engine.forward(together, [3, 1, 2, 5]).copy()
        for row, id_ in zip(rows, [3, 1, 2, 5], strict=True):
            np.testing.assert_allclose(row, engine.forward(alone, [id_])[0], atol=1e-3)
            engine.commit(alone, 1)
        found.append(rows)
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_a_draft_that_a_model_brings_says_nothing_of_languages_that_it_has_not(
    layers: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = export_to(str(checkpoint()), tmp_path / "made", draft=layers)
    drafter = opened(made, Bundle.open(made.path / "draft"), draft_model=None)
    german = list(made.manifest.whisper_tokens.prompt("de"))
    english = [made.manifest.whisper_tokens.sot_prev, 72, 99, *made.manifest.whisper_tokens.prompt("en")]
    for prompt, is_idle in ((german, True), (english, False)):
        special = made.manifest.tokens
        features = engine(threads=1).encode(noise_mel(80, 200))
        drafter.begin(
            WindowContext(
                features=features,
                prompt=tuple(prompt),
                n_vocab=special.n_vocab,
                n_sample=30,
                eot=special.eot,
                timestamp_begin=special.timestamp_begin,
            )
        )
        assert drafter.rests is is_idle
    assert drafter._prompt == list(drafter.model.bundle.manifest.whisper_tokens.prompt()), "no text before the window"
    assert not caplog.records
    drafter.close()
