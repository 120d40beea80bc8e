"""Heads learn what follows hidden rows, go on where they were stopped, and compute in torch what their graphs do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from specedge.export.checkpoint import open_checkpoint, open_heads
from specedge.export.papers.train_heads import (
    HeadPlan,
    HeadTrainer,
    last_layer,
    rows_and_labels,
    token_table,
    vocabulary_of,
    write_heads,
)
from specedge.export.training.features import HiddenText
from specedge.export.training.nets import IGNORE, HeadNet
from specedge.runtime.options import HEAD_KINDS
from support import heads
from support.exported import checkpoint

D, N_VOCAB, PROMPT = 64, 1000, (900, 901, 902)


def texts(n: int = 40) -> list[HiddenText]:
    """Texts that count, and rows from which the next tokens can be had."""
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((20, D))
    made = []
    for source in range(n):
        start = int(rng.integers(0, 20))
        ids = (*PROMPT, *((start + i) % 20 + 3 for i in range(12)), 2)
        hidden = np.stack([codes[token % 20] for token in ids[:-2]])
        features = rng.standard_normal((20, D)).astype(np.float16)
        made.append(HiddenText(ids=ids, n_prompt=3, hidden=hidden.astype(np.float16), features=features, source=source))
    return made


def trainer(kind: str, folder: Path, **changes: object) -> HeadTrainer:
    given = texts()
    tokens = vocabulary_of(given)
    plan = HeadPlan(**{"kind": kind, "n_heads": 3, "steps": 60, "every": 20, "learning_rate": 1e-2, **changes})  # type: ignore[arg-type]
    torch.manual_seed(0)
    with open_checkpoint(checkpoint()) as source:
        block = last_layer(source) if kind == "medusa-block" else None
    net = HeadNet(kind, plan.n_heads, torch.randn(len(tokens), D) * 0.4, block)
    return HeadTrainer(plan, net, given, token_table(tokens, N_VOCAB), folder)


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_every_kind_learns(kind: str, tmp_path: Path) -> None:
    made = trainer(kind, tmp_path)
    untrained = trainer(kind, tmp_path)
    untrained.judge()
    made.run("train", lambda line: None)
    assert made.step == 60 and made.best_loss < 0.6 * untrained.best_loss
    assert made.figures[0] > 0.3  # of 21 tokens


def test_a_head_is_taught_the_tokens_behind_the_next(tmp_path: Path) -> None:
    made = trainer("mtp-latent", tmp_path)
    text = made.train[0]
    tokens = vocabulary_of(texts())
    hidden, labels = rows_and_labels([text], made._places, 3)
    ids = list(text.ids)
    for head in range(3):
        for row in range(labels.shape[1]):
            label = int(labels[0, row, head])
            if row < 2 or row + 2 + head >= len(ids):  # within the prompt, or behind the end
                assert label == IGNORE
            else:
                assert tokens[label] == ids[row + 2 + head]
    assert hidden.shape[1] == len(text.hidden) + 3 and not hidden[0, len(text.hidden) :].any()


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_the_file_of_trained_heads_is_the_net(kind: str, tmp_path: Path) -> None:
    """Read back, in plain NumPy, which the graphs are compared with elsewhere."""
    with open_checkpoint(checkpoint()) as source:
        spec = source.spec
        tokens = [3, 5, 700, 701]
        matrix = torch.from_numpy(source.tensor("model.decoder.embed_tokens.weight")[tokens])
        torch.manual_seed(1)
        block = last_layer(source) if kind == "medusa-block" else None
        net = HeadNet(kind, 2, matrix, block).eval()
        for parameter in net.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        write_heads(tmp_path / "h.safetensors", net, tokens)
        found = open_heads(tmp_path / "h.safetensors", spec)
        rng = np.random.default_rng(2)
        hidden, features = (rng.standard_normal((n, D)).astype(np.float32) for n in (7, 30))
        expected = heads.guesses(found, hidden, features, spec.dims, source)
    assert found.spec.kind == kind and found.tokens is not None and list(found.tokens) == tokens
    with torch.no_grad():
        rows = net.rows(torch.from_numpy(hidden)[None], torch.from_numpy(features)[None])[0, -1:]
        got = torch.stack([torch.softmax(net.logits(rows, head), -1)[0] for head in range(2)])
    assert np.abs(got.numpy() - expected).max() < 1e-4
