"""Heads trained with the last layer: what it learns, what stays, and that it goes on where it was cut."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from specedge.export.checkpoint import open_checkpoint
from specedge.export.papers.train_heads import HeadPlan, HeadTrainer, features_of, token_table, vocabulary_of
from specedge.export.training.features import HiddenText
from specedge.export.training.nets import HeadNet, decoder_of
from support.exported import checkpoint
from support.moved import check_moves

PROMPT = (900, 901, 902)
N_TEXTS = 40


@functools.cache
def texts() -> list[HiddenText]:
    """Texts that count, and the rows that the micro checkpoint's decoder has for them."""
    rng = np.random.default_rng(0)
    made = []
    with open_checkpoint(checkpoint()) as source:
        decoder, d = decoder_of(source), source.spec.dims.n_text_state
    for number in range(N_TEXTS):
        start = int(rng.integers(0, 20))
        ids = (*PROMPT, *((start + i) % 20 + 3 for i in range(12)), 2)
        features = rng.standard_normal((20, d)).astype(np.float16)
        with torch.no_grad():
            rows = decoder(torch.tensor([ids[:-2]]), torch.from_numpy(features.astype(np.float32))[None])[0]
        hidden = rows.numpy().astype(np.float16)
        made.append(HiddenText(ids=ids, n_prompt=3, hidden=hidden, features=features, source=number))
    return made


def trainer(folder: Path, kind: str = "mtp-latent", **changes: object) -> HeadTrainer:
    folder.mkdir(exist_ok=True)
    given = texts()
    tokens = vocabulary_of(given)
    plan = HeadPlan(
        **{
            "kind": kind,
            "n_heads": 2,
            "steps": 40,
            "every": 20,
            "learning_rate": 2e-2,
            "n_batch": 8,
            "warm_up": 5,
            "unfreezes_last": True,
            **changes,
        }  # type: ignore[arg-type]
    )
    torch.manual_seed(0)
    with open_checkpoint(checkpoint()) as source:
        decoder = decoder_of(source)
    matrix = decoder.get_buffer("matrix")
    net = HeadNet(kind, 2, matrix[tokens])
    net.unfreeze(decoder)
    return HeadTrainer(plan, net, given, token_table(tokens, len(matrix)), folder, decoder)


def test_the_model_itself_and_its_heads_learn_and_the_layers_below_stay(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    assert made._decoder is not None and made.net.last is not None and len(made._decoder.layers) > 1
    kept = {name: value.clone() for name, value in made._decoder.named_parameters() if "layers.1." not in name}
    before = {name: value.clone() for name, value in made.net.last.named_parameters()}
    losses = [float(one.loss.detach()) for one in made.losses(made.held)]
    made.run("train", lambda line: None)
    assert len(made.figures) == 3
    for was, now in zip(losses, made.losses(made.held), strict=True):
        assert float(now.loss.detach()) < 0.8 * was
    assert any(not torch.equal(value, before[name]) for name, value in made.net.last.named_parameters())
    assert kept and all(torch.equal(dict(made._decoder.named_parameters())[name], kept[name]) for name in kept)
    rates = [group["lr"] for group in made.optimizer.param_groups]
    assert rates[1] == pytest.approx(rates[0] / 10)


@pytest.mark.slow
def test_the_divergence_keeps_the_model_near(tmp_path: Path) -> None:
    def moved(weight: float) -> float:
        made = trainer(tmp_path / str(weight), kl_weight=weight, patience=100)
        made.run("train", lambda line: None)
        with torch.no_grad():
            ids, decoder = torch.tensor([text.ids[:-2] for text in made.train]), made._decoder
            own = torch.tensor(np.stack([text.hidden for text in made.train]).astype(np.float32))
            new, old = (
                torch.log_softmax(decoder.logits(rows[:, 2:].flatten(0, 1)), -1)
                for rows in (decoder(ids, features_of(made.train)), own)
            )
        return float(torch.nn.functional.kl_div(new, old, reduction="batchmean", log_target=True))

    assert moved(10.0) < 0.5 * moved(0.0)


def test_training_moves_to_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(tmp_path)
    check_moves(made, monkeypatch)
    assert all(value.is_meta for value in [*made._decoder.parameters(), *made._decoder.buffers()])
