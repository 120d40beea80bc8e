"""The head that an encoder was trained with, as the beginning of a head over bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the training extra is not installed")

from specedge.export.training.ctc_trainer import CtcPlan, CtcTrainer, byte_errors  # noqa: E402
from specedge.export.training.features import Window  # noqa: E402
from specedge.export.training.labels import ALPHABET  # noqa: E402
from specedge.export.training.spelling import SPELLING_NAME, read_spelling, write_spelling  # noqa: E402
from specedge.runtime.ctc_head import N_UNITS  # noqa: E402
from specedge.runtime.errors import CheckpointError  # noqa: E402

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
    found = spelling.log_probs(torch.eye(N_STATE), N_UNITS)
    assert found.shape == (N_STATE, N_UNITS)
    assert found.argmax(-1).tolist() == [0, *(ord(character) + 1 for character in ALPHABET[1:])]
    assert torch.allclose(found.exp().sum(-1), torch.ones(N_STATE))


def test_a_checkpoint_from_elsewhere_has_none_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    assert read_spelling(tmp_path) is None
    (tmp_path / SPELLING_NAME).write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="no head of the recipe"):
        read_spelling(tmp_path)


def test_a_head_begins_as_its_copy(tmp_path: Path) -> None:
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
    plan = CtcPlan(n_trunk=16, n_hidden=32, imitation=60, learning_rate=1e-2, noise=0.0, dropout=0.0)
    trainer = CtcTrainer(plan, windows, tmp_path)
    trainer.imitate(spelling)
    assert trainer.step == 0 and trainer.best_loss < 1
    assert byte_errors(trainer.best.weights(), trainer.held) < 0.1
