"""A draft that is a file of layers: over its model's encoder alone, exact, and brought along where it is shipped."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from specedge.errors import CheckpointError, UsageError
from specedge.export import draft_layers
from specedge.export.checkpoint import Checkpoint, open_checkpoint
from specedge.export.draft_layers import fingerprint, open_layers, shipped, write_layers
from specedge.export.export import export_to
from specedge.runtime.bundle.bundle import Bundle, encoder_fingerprint
from specedge.runtime.drafters.registry import runnable
from specedge.runtime.options import DrafterOptions
from support.drafts import compared, opened
from support.exported import bundle, checkpoint
from support.qwen_checkpoints import qwen_checkpoint


def _trained(source: Checkpoint) -> dict[str, np.ndarray]:
    """The last layer of a decoder of two as a decoder of one, with all that is trained."""
    last, first = "model.decoder.layers.1.", "model.decoder.layers.0."
    names = [
        name for name in source.shapes if name.startswith((last, "model.decoder.layer_norm", "model.decoder.embed_p"))
    ]
    return {name.replace(last, first): source.tensor(name) for name in names}


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    with open_checkpoint(checkpoint()) as source:
        write_layers(tmp_path / "draft.safetensors", source, _trained(source), 1, [7, 300, 7])
    return tmp_path / "draft.safetensors"


def test_layers_read_back_over_their_model_within_a_step_of_rounding(layers: Path) -> None:
    with open_checkpoint(checkpoint()) as source:
        draft = open_layers(layers, source)
        assert draft.spec.dims.n_text_layer == 1
        for name, value in _trained(source).items():
            step = np.abs(value).max(axis=-1, keepdims=True) / 127
            assert (np.abs(draft.tensor(name) - value) <= step * (0.51 if value.ndim > 1 else 0)).all(), name
        encoder = "model.encoder.layers.0.fc1.weight"
        np.testing.assert_array_equal(draft.tensor(encoder), source.tensor(encoder))


def test_a_file_of_another_model_or_of_something_else_is_refused(layers: Path, tmp_path: Path) -> None:
    (tmp_path / "no.safetensors").write_bytes(b"no weights")
    with open_checkpoint(checkpoint("draft v3")) as other, pytest.raises(UsageError, match="for another model"):
        open_layers(layers, other)
    with open_checkpoint(checkpoint()) as source, pytest.raises(CheckpointError, match="no file of draft layers"):
        open_layers(tmp_path / "no.safetensors", source)


@pytest.mark.parametrize("n_layers, scale", [("0", 256), ("1", 7)], ids=["no layers", "a scale of another matrix"])
def test_a_damaged_file_is_refused_in_a_line(tmp_path: Path, n_layers: str, scale: int) -> None:
    with open_checkpoint(checkpoint()) as source:
        said = {"format": "specedge-draft-layers", "target": fingerprint(source), "n_layers": n_layers}
        fc1 = "model.decoder.layers.0.fc1.weight"
        tensors = {fc1: np.zeros((256, 64), np.int8), f"{fc1}.scale": np.ones((scale, 1), np.float32)}
        save_file(tensors, tmp_path / "bad.safetensors", said)
        with pytest.raises(CheckpointError, match=r"bad\.safetensors: (no draft layers|no file of)"):
            open_layers(tmp_path / "bad.safetensors", source)


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
    assert "draft" in runnable(made, DrafterOptions("auto")) and inside.manifest.dims.n_text_layer == 1
    assert encoder_fingerprint(inside.manifest) == encoder_fingerprint(made.manifest)
    assert os.path.samefile(inside.path / "encoder.data", made.path / "encoder.data")
    drafter = opened(bundle(), inside)
    compared("plain", "timestamps", drafter)
    drafter.close()
