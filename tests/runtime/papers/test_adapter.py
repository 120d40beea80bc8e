"""Learned factors: the gradients are the loss's, the served factors follow the trained ones, and nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

from specedge.runtime.papers.adapter import Adapter, AdapterOptions, Batch

N_STATE, N_SLOTS = 6, 5


def made(direct: bool | None, n: int = 4, seed: int = 0) -> Batch:
    """A batch in float64, so that finite differences can be believed; `direct` None: some are, some are not."""
    rng = np.random.default_rng(seed)
    used = rng.random((n, N_SLOTS)) < 0.8
    used[:, 0] = True
    shares = np.where(used, rng.random((n, N_SLOTS)), 0)
    rest = 0.1 * np.ones(n)
    whole = shares.sum(axis=1) + rest
    return dict(
        hidden=rng.standard_normal((n, N_STATE)),
        vectors=rng.standard_normal((n, N_SLOTS, N_STATE)),
        used=used,
        rest=rng.standard_normal(n),
        logp=np.where(used, np.log(np.where(used, shares, 1) / whole[:, None]), 0),
        logp_rest=np.log(rest / whole),
        direct=rng.random(n) < 0.5 if direct is None else np.full(n, direct),
    )


@pytest.mark.parametrize("direct", [True, False, None])
@pytest.mark.parametrize("weight", [0.2, 1.0, 0.0])
def test_gradients_are_those_of_the_loss(direct: bool | None, weight: float) -> None:
    adapter = Adapter(N_STATE, AdapterOptions(rank=2, ngram_weight=weight))
    rng = np.random.default_rng(1)
    adapter.trained = {"a": rng.standard_normal((N_STATE, 2)), "b": 0.3 * rng.standard_normal((2, N_STATE))}
    batch = made(direct)
    _, gradients = adapter.loss(batch)
    for name, weights in adapter.trained.items():
        for at in np.ndindex(weights.shape):
            here = weights[at]
            losses = []
            for step in (1e-5, -1e-5):
                weights[at] = here + step
                losses.append(adapter.loss(batch)[0])
            weights[at] = here
            expected = (losses[0] - losses[1]) / 2e-5
            assert gradients[name][at] == pytest.approx(expected, abs=2e-6, rel=1e-4), (name, at)


def test_a_batch_that_is_no_numbers_changes_nothing() -> None:
    adapter = Adapter(N_STATE, AdapterOptions(rank=2))
    batch = made(True)
    batch["hidden"][0, 0] = np.nan
    adapter.step(batch)
    assert adapter.is_neutral and not adapter.trained["b"].any()
