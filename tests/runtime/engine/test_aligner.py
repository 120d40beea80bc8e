"""The alignment pass: probabilities, bounds, when the graph is loaded, and what a bundle must have for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specedge.errors import BundleError, Interrupted, UsageError
from specedge.runtime.engine.engine import Engine, Features
from support.exported import bundle, engine, noise_mel


@pytest.fixture(scope="module")
def features() -> Features:
    return engine("int8").encode(noise_mel(80, 200, 3))


def ids_of(n_rows: int, seed: int = 0) -> list[int]:
    n_vocab = bundle("int8").manifest.dims.n_vocab
    return np.random.default_rng(seed).integers(0, n_vocab, n_rows).tolist()


@pytest.mark.parametrize("n_rows", [2, 5, 33, 64])
def test_probabilities_are_the_decoders_among_text_tokens(features: Features, n_rows: int) -> None:
    """Over several chunks, one of them a single row."""
    made, ids = engine("int8"), ids_of(n_rows)
    eot = made.bundle.manifest.tokens.eot
    state = made.start(features)
    logits = made.forward(state, ids)[:-1, :eot].astype(np.float64)
    made.release(state)
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    expected = [shares[i, id_] if id_ < eot else 0.0 for i, id_ in enumerate(ids[1:])]
    probs = made.align(features, ids).token_probs
    assert probs.dtype == np.float32 and probs == pytest.approx(expected, abs=1e-6)
    assert 0 in probs or n_rows < 33  # some were no text


def test_a_row_sees_the_rows_before_it_only(features: Features) -> None:
    made, ids = engine("fp32"), ids_of(20)
    fp32 = made.encode(noise_mel(80, 200, 3))
    short, full = made.align(fp32, ids[:11]).scores, made.align(fp32, ids).scores
    assert np.abs(short - full[:, :11]).max() < 1e-4
    changed = made.align(fp32, [*ids[:10], (ids[10] + 1) % 500]).scores
    assert np.abs(changed[:, :10] - short[:, :10]).max() < 1e-4
    assert np.abs(changed[:, 10] - short[:, 10]).max() > 1e-2


@pytest.mark.parametrize("ids", [[], [1] * 65, [-1, 2], [1, 1000]])
def test_rows_that_cannot_be_are_refused(features: Features, ids: list[int]) -> None:
    with pytest.raises(UsageError, match="expected"):
        engine("int8").align(features, ids)


def test_decoding_is_not_disturbed(features: Features) -> None:
    made, ids = engine("int8"), ids_of(8)
    state = made.start(features)
    before = made.forward(state, ids).copy()
    made.align(features, ids_of(30, 1))
    assert np.array_equal(made.forward(state, ids), before)
    made.release(state)


def test_it_can_be_cancelled(features: Features) -> None:
    made = Engine(bundle("int8"), threads=1)
    made.cancel()
    with pytest.raises(Interrupted):
        made.align(features, [1, 2])
    made.reset()
    assert made.align(features, [1, 2]).scores.shape[1] == 2


def test_a_graph_for_other_heads_is_refused(features: Features) -> None:
    made = bundle("int8")
    changed = replace(made, manifest=replace(made.manifest, alignment_heads=((1, 0),)))
    with pytest.raises(BundleError, match="scores does not fit the manifest's dimensions"):
        Engine(changed, threads=1).align(features, [1])
