"""Minimum word error rate: the loss is the expected errors by definition, and steps lower them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from specedge.export.papers.mwer import MwerPlan, MwerTrainer, NBest  # noqa: E402
from specedge.export.papers.train_heads import token_table  # noqa: E402
from specedge.export.training.nets import HeadNet  # noqa: E402
from specedge.runtime.papers.grouped_beam import Emitted  # noqa: E402

D, TOKENS = 8, [3, 5, 6, 9]


def net() -> HeadNet:
    torch.manual_seed(0)
    return HeadNet("mtp-latent", 2, torch.randn(len(TOKENS), D))


def lists(n: int) -> list[NBest]:
    """Two hypotheses each: one takes token 5 from head 0 and is right, one takes 9 and has two words wrong."""
    found, rng = [], np.random.default_rng(0)
    for source in range(n):
        hidden = rng.standard_normal((6, D)).astype(np.float32)
        right, wrong = (
            Emitted(
                tokens=tokens,
                token_logprobs=logprobs,
                emitters=emitters,
                sum_logprob=0.0,
                finished=False,
                hidden=hidden,
            )
            for tokens, logprobs, emitters in (
                ((7, 5), (-1.0, -9.0), (0, 1)),
                ((7, 9, 3), (-0.5, -9.0, -9.0), (0, 1, 2)),
            )
        )
        found.append(
            NBest(hypotheses=((right, 0), (wrong, 2)), ids=(0, 1, 2, 3, 5, 5, 6), n_prompt=3, hidden=hidden,
                  features=np.zeros((4, D), np.float32), source=source)
        )  # fmt: skip
    return found


def test_expected_errors_are_those_of_the_renormalised_list(tmp_path: Path) -> None:
    one, made = lists(20), net()
    trainer = MwerTrainer(MwerPlan(ce_weight=0.0), made, one, token_table(TOKENS, 12), tmp_path)
    item = one[4]
    row = torch.from_numpy(item.hypotheses[0][0].hidden)[2:3]
    shares = [torch.log_softmax(made.logits(row, head), -1)[0] for head in range(2)]
    scores = torch.stack([-1.0 + shares[0][1], -0.5 + shares[0][3] + shares[1][0]])
    weights = scores.softmax(0).detach()
    assert float(trainer.loss([item]).detach()) == pytest.approx(
        float((weights * torch.tensor([-1.0, 1.0])).sum()), abs=1e-5
    )


def test_steps_lower_the_expected_errors(tmp_path: Path) -> None:
    made = net()
    plan = MwerPlan(steps=60, every=20, learning_rate=1e-2)
    trainer = MwerTrainer(plan, made, lists(40), token_table(TOKENS, 12), tmp_path)
    trainer.run("fine-tune", lambda line: None)
    before, after = trainer.first[0], trainer.figures[0]
    assert after < 0.8 * before
    again = MwerTrainer(plan, net(), trainer.train + trainer.held, token_table(TOKENS, 12), tmp_path)
    assert again.load() and again.is_done
