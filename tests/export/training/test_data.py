"""Windows and batches: what is heard is what is labelled, and a batch depends on the seed and the step alone."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("librosa", reason="the training extra is not installed")

from specedge.export.training import augment  # noqa: E402
from specedge.export.training.corpus import RATE_HZ, Utterance  # noqa: E402
from specedge.export.training.data import Mix, Pool, collate, compose  # noqa: E402
from specedge.export.training.labels import IGNORE  # noqa: E402
from specedge.export.training.layout import LAYOUTS, Vocabulary, tokenizer_of  # noqa: E402

WINDOW = 10 * RATE_HZ
TEXTS = ("Check the filter.", "Stop pump two.", "Call the electrician.")


def _pool(n: int = 24) -> Pool:
    rng = np.random.default_rng(3)
    pool = Pool()
    items = []
    for at in range(n):
        n_samples = int(RATE_HZ * (1 + at / 8))
        samples = (rng.standard_normal(n_samples) * 3000).astype(np.int16)
        text = TEXTS[at % len(TEXTS)]
        items.append(Utterance(samples=samples, text=text, voice=str(at), source="s", start=320, end=n_samples - 320))
    pool.add(items)
    return pool


def _vocabulary() -> Vocabulary:
    ids = {198}
    for text in TEXTS:
        ids.update(tokenizer_of("v3").encode(" " + text))
    return Vocabulary(LAYOUTS["v3"], ids, 10.0)


@pytest.mark.parametrize("kind", ["packed", "padded"])
@pytest.mark.parametrize("cut", [True, False])
def test_sentences_are_where_their_labels_say(kind: str, cut: bool) -> None:
    for seed in range(60):
        window = compose(random.Random(seed), _pool(), WINDOW, kind, silent=0.0, cut=cut)
        assert window.samples.size == WINDOW
        assert not window.sentences[0].cut
        before = 0.0
        for sentence in window.sentences:
            assert before <= sentence.start_s < sentence.end_s <= 10.0
            assert np.abs(window.samples[int(sentence.start_s * RATE_HZ) + 1 : int(sentence.end_s * RATE_HZ)]).max() > 0
            assert not window.samples[int((before + 0.021) * RATE_HZ) : int((sentence.start_s - 0.021) * RATE_HZ)].any()
            before = sentence.end_s
        assert [sentence.cut for sentence in window.sentences].count(True) <= (1 if cut else 0)


def test_some_packed_windows_end_in_a_cut_sentence() -> None:
    windows = [compose(random.Random(s), _pool(), WINDOW, "packed", silent=0.0, cut=True) for s in range(40)]
    assert any(window.sentences[-1].cut for window in windows)
    assert any(len(window.sentences) > 2 for window in windows)


def test_quiet_windows_come_at_their_share_and_have_no_sentence() -> None:
    windows = [compose(random.Random(s), _pool(), WINDOW, "padded", silent=0.5, cut=False) for s in range(200)]
    quiet = [window for window in windows if not window.sentences]
    assert 70 < len(quiet) < 130
    assert not any(window.samples.any() for window in quiet)


@pytest.mark.parametrize(
    "mix",
    [Mix(), Mix(short=0, packed=1), Mix(short=0, padded=1, silent=0.5), Mix(short=0, prompted=1)],
    ids=["short", "packed", "padded", "prompted"],
)
def test_a_batch_is_the_seed_s_and_the_step_s(mix: Mix) -> None:
    pool, vocabulary = _pool(), _vocabulary()
    first, again, other = (
        collate(seed, 5, pool, mix, vocabulary, window_samples=WINDOW, n_ctx=448) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.samples, again.samples)
    np.testing.assert_array_equal(first.tokens, again.tokens)
    np.testing.assert_array_equal(first.targets, again.targets)
    assert first.samples.shape != other.samples.shape or not np.array_equal(first.samples, other.samples)


def test_a_batch_fits_the_model() -> None:
    pool, vocabulary = _pool(), _vocabulary()
    mix = Mix(short=1, packed=1, padded=1, prompted=1, silent=0.3)
    for step in range(40):
        batch = collate(1, step, pool, mix, vocabulary, window_samples=WINDOW, n_ctx=448)
        n, length = batch.tokens.shape
        assert batch.targets.shape == (n, length) and len(batch.characters) == n
        assert batch.tokens.min() >= 0 and batch.tokens.max() < vocabulary.n_rows
        assert vocabulary.other not in batch.targets and batch.targets.max() < vocabulary.n_rows
        assert (batch.targets != IGNORE).any(axis=1).all()
        assert (batch.position + length).max() <= 448
        assert batch.samples.shape[1] <= WINDOW and batch.samples.shape[1] % 320 == 0
        assert np.isfinite(batch.samples).all() and np.abs(batch.samples).max() <= 1.0


def test_the_warp_of_one_is_no_warp() -> None:
    filters = augment.warped_filters(80)
    np.testing.assert_allclose(filters[len(augment.WARPS) // 2], augment.mel_filters(80), atol=1e-6)
    assert augment.WARPS[len(augment.WARPS) // 2] == pytest.approx(1.0)
    # a tone at 1000 Hz is heard by the filters around 1000 / alpha
    power = np.zeros(201, np.float32)
    power[25] = 1.0
    lower, upper = (int(np.argmax(filters[i] @ power)) for i in (0, len(augment.WARPS) - 1))
    assert lower > int(np.argmax(augment.mel_filters(80) @ power)) > upper


@pytest.mark.parametrize("seed", range(12))
def test_noise_has_unit_power(seed: int) -> None:
    noise = augment.noise(np.random.default_rng(seed), 40000, [np.ones(100, np.float32)])
    assert noise.shape == (40000,)
    assert float(np.mean(noise * noise)) == pytest.approx(1.0, rel=1e-2)
