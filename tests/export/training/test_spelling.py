"""The head that an encoder was trained with, as the beginning of a head over bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the training extra is not installed")

from specedge.errors import CheckpointError  # noqa: E402
from specedge.export.training.ctc import CtcPlan, CtcTrainer, byte_errors  # noqa: E402
from specedge.export.training.features import Window  # noqa: E402
from specedge.export.training.labels import SPELLING_NAME, read_spelling  # noqa: E402
from specedge.models.recipe.labels import ALPHABET, write_spelling  # noqa: E402

N_STATE = len(ALPHABET)


def _layer(sure: float = 9.0) -> torch.nn.Linear:
    """A head for features that are one-hot in the alphabet."""
    layer = torch.nn.Linear(N_STATE, N_STATE)
    with torch.no_grad():
        layer.weight.copy_(sure * torch.eye(N_STATE))
        layer.bias.zero_()
    return layer


def test_characters_become_bytes(tmp_path: Path) -> None:
    write_spelling(_layer(), tmp_path)
    spelling = read_spelling(tmp_path)
    assert spelling is not None
    assert torch.equal(spelling.weight, _layer().weight) and torch.equal(spelling.bias, _layer().bias)
    assert bytes(spelling.bytes.tolist()).decode() == ALPHABET[1:]


def test_a_checkpoint_from_elsewhere_has_none_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    assert read_spelling(tmp_path) is None
    (tmp_path / SPELLING_NAME).write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="no head of the recipe"):
        read_spelling(tmp_path)


def test_a_head_begins_as_what_the_encoder_was_trained_with(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    windows = []
    for source in range(40):
        text = "".join(rng.choice(list("abcde "), 6))
        frames = [0, *(index for character in text for index in (ALPHABET.index(character), 0))]
        features = np.eye(N_STATE, dtype=np.float16)[frames]
        windows.append(Window(features=features, text=text.encode(), source=source, is_rough=False))
    write_spelling(_layer(), tmp_path)
    spelling = read_spelling(tmp_path)
    assert spelling is not None
    trainer = CtcTrainer(CtcPlan(n_trunk=16, n_hidden=32), windows, tmp_path, spelling)
    weights = trainer.best.weights()
    heard = weights.posteriors(windows[0].features.astype(np.float32))
    known = torch.from_numpy(windows[0].features[heard.frames].astype(np.float32)) @ spelling.weight.T
    expected = known.log_softmax(-1).detach().numpy()
    np.testing.assert_allclose(heard.log_probs[:, 0], expected[:, 0], atol=0.01)
    np.testing.assert_allclose(heard.log_probs[:, spelling.bytes.numpy() + 1], expected[:, 1:], atol=0.05)
    assert byte_errors(weights, trainer.held) == 0
    trainer.judge()
    before = trainer.best_loss
    for _ in range(20):
        trainer.advance()
    trainer.judge()
    assert trainer.best_loss < before
