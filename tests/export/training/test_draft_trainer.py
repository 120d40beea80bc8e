"""A draft's decoder learns what its target says, goes on where it was stopped, and is Whisper's decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the training extra is not installed")

from specedge.export.checkpoint import open_checkpoint  # noqa: E402
from specedge.export.training.draft import (  # noqa: E402
    DraftPlan,
    DraftText,  # noqa: E402
    DraftTrainer,
    Teacher,
)
from specedge.export.training.nets import DraftNet, decoder_of, vocabulary_matrix  # noqa: E402
from support.exported import checkpoint, transformers_model  # noqa: E402
from support.moved import check_moves  # noqa: E402

D, PROMPT = 64, (900, 901, 902)


def net(n_layers: int | None = 1, variant: str = "plain") -> DraftNet:
    with open_checkpoint(checkpoint(variant)) as source:
        return decoder_of(source, n_layers)


def matrix() -> Any:
    with open_checkpoint(checkpoint()) as source:
        return vocabulary_matrix(source)


def texts(n: int = 40) -> list[DraftText]:
    """Texts that count from where their features say, over rows of a target that is sure of it."""
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((20, D))
    table = matrix().numpy()
    made = []
    for source in range(n):
        start = int(rng.integers(0, 20))
        ids = (*PROMPT, *((start + i) % 20 + 3 for i in range(6)), 2)
        # A hidden row along a token's vector makes it likely.
        hidden = np.stack([3 * table[token] for token in ids[1:-1]])
        rows = np.array([at if 2 <= at < len(hidden) else -1 for at in range(len(ids))])
        features = np.repeat(codes[start : start + 1], 10, axis=0)
        made.append(
            DraftText(
                ids=ids,
                n_prompt=3,
                rows=rows,
                hidden=hidden.astype(np.float16),
                features=features.astype(np.float16),
                source=source,
            )
        )
    return made


def trainer(folder: Path, teacher: Teacher | None = None, **changes: Any) -> DraftTrainer:
    folder.mkdir(exist_ok=True)
    plan = DraftPlan(**{"student": "x", "steps": 40, "every": 20, "learning_rate": 3e-3, "warm_up": 5, **changes})
    return DraftTrainer(plan, net(), texts(), teacher, folder)


@pytest.mark.parametrize("variant", ["plain", "untied", "deep text"])
def test_the_decoder_is_transformers(variant: str) -> None:
    with open_checkpoint(checkpoint(variant)) as source:
        made = decoder_of(source).eval()
    model = transformers_model(variant)
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.standard_normal((2, 100, D)).astype(np.float32))
    ids = torch.from_numpy(rng.integers(0, 900, (2, 9)))
    with torch.no_grad():
        rows = model.model.decoder(input_ids=ids, encoder_hidden_states=features).last_hidden_state
        assert torch.allclose(made(ids, features), rows, atol=1e-4)
        assert torch.allclose(made.logits(rows[0]), model.proj_out(rows[0]), atol=1e-4)


@pytest.mark.parametrize("has_teacher", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_draft_learns_and_its_frozen_tables_stay(has_teacher: bool, tmp_path: Path) -> None:
    teacher = Teacher(matrix(), np.arange(1000), 1000) if has_teacher else None
    made = trainer(tmp_path, teacher)
    untrained = trainer(tmp_path, teacher)
    untrained.judge()
    agreed = untrained.figures
    made.run("train", lambda line: None)
    assert made.step == 40 and made.best_loss < 0.7 * untrained.best_loss
    assert made.first == agreed and made.figures[0] > agreed[0] + 0.3
    assert torch.equal(made.best.get_buffer("table"), matrix())
    assert not any("embed_tokens" in name for name, _ in made.best.named_weights())


def test_a_draft_that_training_makes_worse_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(tmp_path, every=2, patience=2, warm_up=1)
    monkeypatch.setattr(made, "loss", lambda batch: -DraftTrainer.loss(made, batch))
    made.run("train", lambda line: None)
    assert made.step == 4
    first = dict(net().named_weights())
    assert all(torch.equal(value, first[name]) for name, value in made.best.named_weights())


def test_the_loss_is_cross_entropy_and_the_weighed_divergence_of_the_known_rows(tmp_path: Path) -> None:
    teacher = Teacher(matrix(), np.arange(1000), 1000)
    plain, taught = trainer(tmp_path, None), trainer(tmp_path, teacher, kl_weight=0.5)
    (text,) = plain.train[:1]
    with torch.no_grad():
        rows = plain.net(torch.tensor([text.ids]), torch.from_numpy(text.features.astype(np.float32))[None])[0]
        said = torch.log_softmax(plain.net.logits(rows), -1)
        wanted = torch.tensor(text.ids[3:])
        entropy = -said[2 : len(text.ids) - 1].gather(1, wanted[:, None]).mean()
        assert float(plain.loss([text])) == pytest.approx(float(entropy), rel=1e-4)
        known = [at for at in range(len(text.ids)) if text.rows[at] >= 0]
        p = torch.softmax(torch.from_numpy(text.hidden[text.rows[known]].astype(np.float32)) @ matrix().T, -1)
        divergence = (p * (p.log() - said[known])).sum(-1).mean()
        assert float(taught.loss([text])) == pytest.approx(float(entropy + 0.5 * divergence), rel=1e-4)


def test_training_moves_to_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = Teacher(matrix(), np.arange(1000), 1000)
    check_moves(trainer(tmp_path, teacher), monkeypatch)
    assert all(value.is_meta for value in teacher.buffers())
