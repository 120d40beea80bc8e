"""The head that predicts acceptance: gradients, what it learns, and that it ends drafts at the paper's gamma."""

from __future__ import annotations

import numpy as np
import pytest

from specedge.runtime.device import CostTable
from specedge.runtime.drafters.draft.lookahead import DraftCost
from specedge.runtime.papers.lookahead import N_SIGNS, AcceptanceHead, joint

N = 6
FREE = CostTable((1, 64), (1.0, 1.0))


def test_gradients_are_those_of_the_loss() -> None:
    head = AcceptanceHead(N, seed=3)
    rng = np.random.default_rng(0)
    head.weights = {name: rng.standard_normal(array.shape) for name, array in head.weights.items()}
    features, odds, came = rng.standard_normal((9, N)), rng.standard_normal(9), (rng.random(9) < 0.6).astype(float)
    _, gradients = head.loss(features, odds, came)
    for name, weights in head.weights.items():
        for at in list(np.ndindex(weights.shape))[::7]:
            here = weights[at]
            losses = []
            for step in (1e-6, -1e-6):
                weights[at] = here + step
                losses.append(head.loss(features, odds, came)[0])
            weights[at] = here
            assert gradients[name][at] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-5)


def test_the_latest_tokens_are_kept_and_few_teach_nothing() -> None:
    head = AcceptanceHead(1, n_kept=40, refused_weight=1.0)
    before = {name: array.copy() for name, array in head.weights.items()}
    for i in range(31):
        head.learn(np.ones(1, np.float32), 0.5, accepted=True)
        head.train(1)
        assert head.n_seen == i + 1
    assert all((head.weights[name] == before[name]).all() for name in before), "31 are too few"
    head.learn(np.ones(1, np.float32), 0.5, accepted=True)
    head.train(1)
    assert any((head.weights[name] != before[name]).any() for name in before)
    # Forty refused ones take the places of all that were accepted.
    for _ in range(40):
        head.learn(np.ones(1, np.float32), 0.5, accepted=False)
    head.train(300)
    assert head.predict(np.ones(1, np.float32), 0.5) < 0.2


def taught(seed: int, n: int = 1500) -> AcceptanceHead:
    """One feature decides, and the draft is always as sure."""
    head = AcceptanceHead(N, seed=seed, refused_weight=1.0)
    rng = np.random.default_rng(5)
    for _ in range(n // 10):
        for _ in range(10):
            features = rng.standard_normal(N).astype(np.float32)
            head.learn(features, 0.7, accepted=bool(features[2] > 0))
        head.train(4)
    return head


def test_it_learns_what_the_draft_does_not_know() -> None:
    head = taught(0)
    rng = np.random.default_rng(6)
    tried = rng.standard_normal((200, N)).astype(np.float32)
    right = [(head.predict(features, 0.7) > 0.5) == (features[2] > 0) for features in tried]
    assert np.mean(right) > 0.9


def test_it_is_trained_with_the_draft_or_alone() -> None:
    rule = joint(FREE, DraftCost(0.01))
    signs = [np.random.default_rng(i).standard_normal(N_SIGNS).astype(np.float32) for i in range(8)]
    for i in range(8):
        rule.learn([0.6] * 8, i, refused=True, signs=signs)
    assert rule.head.n_seen == sum(i + 1 for i in range(8))
    before = rule.head.weights["w2"].copy()
    rule.end()
    alone = rule.head.weights["w2"].copy()
    assert (alone != before).any()
    rule.train()
    after = rule.head.weights["w2"].copy()
    rule.end()
    np.testing.assert_array_equal(rule.head.weights["w2"], after)
    rule.end()
    assert (rule.head.weights["w2"] != after).any(), "a window in which the draft did not learn"
