"""Sampling: noise is a function of its key alone, and what it picks has the right distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from specedge.errors import UsageError
from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.drafter import DraftTree, Guard
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.decoding.sampling import Draw, Noise, gumbel, log_softmax_at
from specedge.runtime.options import TranscribeOptions
from support.drafting import Scripted, plain_fields
from support.fake_engine import HashEngine, special_tokens

SPECIAL = special_tokens(n_timestamps=31)
PROMPT = [SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe]
GOLDEN = [0.9103632392395569, 0.9879597060070688, -0.5671419253133727, -0.12117620175129286]


def noise(**changes: Any) -> Noise:
    return Noise(**{"seed": 0, "window_key": 0, "temperature": 1.0, "sample": 0, **changes})


def options(**more: Any) -> DecodeOptions:
    rules = RuleSet(SPECIAL, space_ids=[32], suppressed=[33], timestamps=False, max_initial_timestamp_index=None)
    return DecodeOptions(rules=rules, n_text_ctx=48, **more)


def test_noise_is_the_same_on_every_machine() -> None:
    numbers = noise(seed=3, window_key=1500, temperature=0.4, sample=2).numbers(17, 4)
    np.testing.assert_allclose(gumbel(numbers), GOLDEN, rtol=1e-12)


def test_samples_have_the_softmaxs_distribution() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1, 1e-30], np.float32)) * np.float32(0.7)
    drawn = [Draw(0.7, noise(seed=seed), 9).own(logits) for seed in range(20_000)]
    counts = np.bincount(drawn, minlength=5)
    expected = np.array([0.5, 0.25, 0.15, 0.1]) * len(drawn)
    assert counts[4] == 0
    assert ((counts[:4] - expected) ** 2 / expected).sum() < 16.3, "chi-square, 3 degrees of freedom, p = 0.001"


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
def test_a_sample_is_the_best_of_all_tokens(temperature: float) -> None:
    """Tokens that cannot win are passed over; that changes no sample."""
    row = np.random.default_rng(2).standard_normal(3000).astype(np.float32) * 3
    row[::5] = -np.inf
    for seed in range(200):
        scores = row.astype(np.float64) / temperature + gumbel(noise(seed=seed).numbers(9, len(row)))
        assert Draw(temperature, noise(seed=seed), 9).own(row) == int(scores.argmax())


@pytest.mark.parametrize("shift", [0.0, 200.0, -200.0])
def test_log_probabilities_are_torchs(shift: float) -> None:
    torch = pytest.importorskip("torch")
    row = np.random.default_rng(1).standard_normal(5000).astype(np.float32) * 9 + np.float32(shift)
    row[::7] = -np.inf
    expected = torch.log_softmax(torch.from_numpy(row), -1).numpy()
    peak = float(row.max())
    found = [log_softmax_at(row.copy(), token, peak) for token in range(5000)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_run_is_repeated_by_its_key() -> None:
    def run(**more: Any) -> Any:
        return decode_window(HashEngine(SPECIAL), b"x", PROMPT, options(temperature=1.0, **more))

    assert run() == run() and run().temperature == 1.0
    others = [run(seed=1), run(window_key=1), decode_window(HashEngine(SPECIAL), b"x", PROMPT, options())]
    assert len({run().tokens, *(other.tokens for other in others)}) == 4


def test_log_probabilities_above_zero_are_not_divided_by_the_temperature() -> None:
    engine = HashEngine(SPECIAL)
    result = decode_window(engine, b"x", PROMPT, options(temperature=0.5))
    row = engine.logits(b"x", tuple(PROMPT))
    options().rules.apply(row, [])
    shifted = row.astype(np.float64) - row.max()
    expected = shifted[result.tokens[0]] - math.log(np.exp(shifted).sum())
    assert result.token_logprobs[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("length_penalty", [None, 0.0, 1.0])
def test_the_best_of_several_samples_is_whispers_choice(length_penalty: float | None) -> None:
    decoding = pytest.importorskip("whisper.decoding")
    torch = pytest.importorskip("torch")
    chosen = options(temperature=1.0, best_of=5, length_penalty=length_penalty)
    engine = HashEngine(SPECIAL, eot_bias=3.0)
    best = decode_window(engine, b"x", PROMPT, chosen)
    assert engine.n_open == 0
    drafted = decode_window(
        HashEngine(SPECIAL, eot_bias=3.0), b"x", PROMPT, chosen, Scripted(lambda c, b: DraftTree(best.tokens[:3]))
    )
    assert plain_fields(drafted) == plain_fields(best)
    # Each sample again by itself: its noise is told apart by its index alone, so a spy collects them.
    samples = collect_samples(chosen)
    tokens = [[torch.tensor(s[0]) for s in samples]]
    sums = [[s[1] for s in samples]]
    index = decoding.MaximumLikelihoodRanker(length_penalty).rank(tokens, sums)[0]
    assert (list(best.tokens), best.sum_logprob) == samples[index]
    assert len({tuple(s[0]) for s in samples}) > 1


def collect_samples(chosen: DecodeOptions) -> list[tuple[list[int], float]]:
    from unittest import mock

    from specedge.runtime.decoding import decode

    kept: list[Any] = []

    def spy(found: Any, length_penalty: float | None) -> int:
        kept.extend(found)
        return 0

    with mock.patch.object(decode, "best_of", spy):
        decode_window(HashEngine(SPECIAL, eot_bias=3.0), b"x", PROMPT, chosen)
    return [(list(h.tokens), h.sum_logprob) for h in kept]


def test_a_drafter_sees_every_sample_as_a_window() -> None:
    drafter = Scripted(lambda context, budget: DraftTree([5]))
    guard = Guard(drafter)
    result = decode_window(HashEngine(SPECIAL), b"x", PROMPT, options(temperature=0.8, best_of=3), guard)
    guard.end(result.tokens)
    assert len(drafter.windows) == 3 and drafter.windows[0].temperature == 0.8
    assert drafter.ended == [(), (), result.tokens]
    counted = result.speculation
    assert counted.tokens == counted.accepted + counted.passes > len(result.token_logprobs)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -0.1), ("temperature", math.nan), ("best_of", 0), ("beam_size", 0), ("patience", 0.0)],
)
def test_values_that_cannot_be_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name}: got"):
        TranscribeOptions(**{name: (value,) if name == "temperature" else value})
