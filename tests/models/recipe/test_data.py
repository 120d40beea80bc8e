"""Windows and batches: what is heard is what is labelled, and a batch depends on the seed and the step alone."""

from __future__ import annotations

import dataclasses
import random
from functools import cache

import numpy as np
import pytest

from specedge.export.training import corpus
from specedge.export.training.corpus import RATE_HZ, Utterance  # noqa: E402
from specedge.export.training.labels import IGNORE  # noqa: E402
from specedge.models.recipe import augment  # noqa: E402
from specedge.models.recipe.data import Mix, Pool, collate, compose, vary  # noqa: E402
from specedge.models.recipe.labels import LAYOUTS, Vocabulary, tokenizer_of  # noqa: E402
from specedge.runtime.audio.mel import filterbank  # noqa: E402

WINDOW = 10 * RATE_HZ
TEXTS = ("Check the filter.", "Stop pump two.", "Call the electrician.")


@cache
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
            if before:  # before the first sentence there may be the end of another
                pause = slice(int((before + 0.025) * RATE_HZ), int((sentence.start_s - 0.025) * RATE_HZ))
                assert not window.samples[pause].any()
            before = sentence.end_s
        assert [sentence.cut for sentence in window.sentences].count(True) <= (1 if cut else 0)


def test_some_packed_windows_end_in_a_cut_sentence() -> None:
    windows = [compose(random.Random(s), _pool(), WINDOW, "packed", silent=0.0, cut=True) for s in range(40)]
    assert any(window.sentences[-1].cut for window in windows)
    assert any(len(window.sentences) > 2 for window in windows)


def test_some_windows_begin_in_the_end_of_a_sentence_that_is_not_theirs() -> None:
    n_with = 0
    for seed in range(200):
        window = compose(random.Random(seed), _pool(), WINDOW, "packed", silent=0.0, cut=True)
        first = int((window.sentences[0].start_s - 0.025) * RATE_HZ)
        sounds = np.flatnonzero(window.samples[: max(0, first)])
        if sounds.size:
            n_with += 1
            assert sounds[-1] <= 0.3 * RATE_HZ
            assert sounds[-1] + 0.1 * RATE_HZ < window.sentences[0].start_s * RATE_HZ
    assert 30 < n_with < 100


def test_content_often_ends_with_its_last_word() -> None:
    windows = [compose(random.Random(s), _pool(), WINDOW, "padded", silent=0.0, cut=False) for s in range(200)]
    after_s = [window.n_content / RATE_HZ - window.sentences[-1].end_s for window in windows]
    assert min(after_s) > -0.001
    assert 40 < sum(seconds < 0.05 for seconds in after_s) < 120
    assert max(after_s) > 1.5


def test_a_varied_utterance_keeps_its_marks_and_fits() -> None:
    pool, changed = _pool(80), 0
    for seed, item in enumerate(pool.items):
        varied = vary(random.Random(seed), item)
        changed += varied is not item
        ratio = varied.samples.size / item.samples.size
        assert 1 / 1.16 < ratio < 1 / 0.84
        assert varied.start == pytest.approx(item.start * ratio, abs=1)
        assert varied.end == pytest.approx(item.end * ratio, abs=1)
        assert varied is item or varied.samples.size <= 9.5 * RATE_HZ
    assert 20 < changed < 60


def test_full_windows_end_in_either_padding_and_short_ones_in_none() -> None:
    pool, vocabulary = _pool(), _vocabulary()
    for kind in ("padded", "prompted", "packed", "short"):
        mix = dataclasses.replace(Mix(short=0, n_full=16, n_prompted=16), **{kind: 1})  # type: ignore[arg-type]
        batch = collate(1, 3, pool, mix, vocabulary, window_samples=WINDOW, n_ctx=448)
        n_frames = batch.samples.shape[1] // 160
        assert batch.kind == kind
        assert ((batch.n_frames == batch.n_content) | (batch.n_frames == n_frames)).all()
        assert (0 < batch.n_content).all() and (batch.n_content <= n_frames).all()
        blank = int((batch.n_frames < n_frames).sum())
        assert (1 < blank < 15) if kind in ("padded", "prompted") else blank == 0
        assert (batch.louder >= 0).all() and (batch.louder.any() or kind == "short")
        for samples, end in zip(batch.samples, batch.n_content, strict=True):
            assert not samples[(end + 1) * 160 :].any()


def test_prompted_windows_are_full_and_mostly_have_a_prompt() -> None:
    pool, vocabulary = _pool(), _vocabulary()
    mix = Mix(short=0, prompted=1, n_prompted=40, timestamps=1.0)
    batch = collate(1, 3, pool, mix, vocabulary, window_samples=WINDOW, n_ctx=448)
    assert batch.samples.shape == (40, WINDOW)
    special = vocabulary.layout.special
    n_prompted = int((batch.tokens[:, 0] == vocabulary.row_of[special.sot_prev]).sum())
    assert 24 < n_prompted < 40
    assert batch.tokens.shape[1] > 100 and not batch.position.any()


def test_workers_share_a_step_s_kind_and_nothing_else() -> None:
    pool, vocabulary = _pool(), _vocabulary()
    mix = Mix(short=1, packed=1, padded=1, prompted=1)
    for step in range(4):
        one, two = (
            collate(1, step, pool, mix, vocabulary, window_samples=WINDOW, n_ctx=448, worker=worker)
            for worker in (0, 1)
        )
        assert one.kind == two.kind
        assert one.samples.shape != two.samples.shape or not np.array_equal(one.samples, two.samples)


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


@pytest.mark.parametrize("n_steps", [8, pytest.param(40, marks=pytest.mark.slow)])
def test_a_batch_fits_the_model(n_steps: int) -> None:
    pool, vocabulary = _pool(), _vocabulary()
    mix = Mix(short=1, packed=1, padded=1, prompted=1, silent=0.3)
    for step in range(n_steps):
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
    np.testing.assert_allclose(filters[len(augment.WARPS) // 2], filterbank(80), atol=1e-6)
    assert augment.WARPS[len(augment.WARPS) // 2] == pytest.approx(1.0)
    # a tone at 1000 Hz is heard by the filters around 1000 / alpha
    power = np.zeros(201, np.float32)
    power[25] = 1.0
    lower, upper = (int(np.argmax(filters[i] @ power)) for i in (0, len(augment.WARPS) - 1))
    assert lower > int(np.argmax(filterbank(80) @ power)) > upper


@pytest.mark.parametrize("factor", [0.75, 1.0, 1.35])
def test_stretching_changes_the_length_and_keeps_the_pitch(factor: float) -> None:
    tone = np.sin(2 * np.pi * 200 / RATE_HZ * np.arange(2 * RATE_HZ)).astype(np.float32)
    out = augment.stretch(tone, factor)
    assert out.size == pytest.approx(tone.size * factor, rel=0.03)
    middle = out[RATE_HZ // 2 : RATE_HZ]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(middle.size)))
    assert np.argmax(spectrum) * RATE_HZ / middle.size == pytest.approx(200, abs=3)
    assert float(np.sqrt(np.mean(middle * middle))) == pytest.approx(np.sqrt(0.5), rel=0.1)


def test_stretching_leaves_a_short_sound_alone() -> None:
    assert augment.stretch(np.ones(900, np.float32), 1.3).size == 900


def test_equalising_stays_within_its_reach() -> None:
    rng = np.random.default_rng(1)
    impulse = np.zeros(4096, np.float32)
    impulse[0] = 1.0
    for _ in range(10):
        gain_db = 20 * np.log10(np.abs(np.fft.rfft(corpus.equalise(rng, impulse, 9.0))) + 1e-9)
        assert -9.1 < gain_db.min() and gain_db.max() < 9.1
        assert gain_db.max() - gain_db.min() > 1


@pytest.mark.parametrize("seed", range(12))
def test_noise_has_unit_power(seed: int) -> None:
    noise = corpus.noise(np.random.default_rng(seed), 40000, [np.ones(100, np.float32)])
    assert noise.shape == (40000,)
    assert float(np.mean(noise * noise)) == pytest.approx(1.0, rel=1e-2)
