"""The guide of the decoder's attention: characters lie where they are spelled, tokens where their characters are."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

pytest.importorskip("torch", reason="the training extra is not installed")

import torch  # noqa: E402

from specedge.export.training.labels import IGNORE  # noqa: E402
from specedge.models.recipe.labels import LAYOUTS, Sentence, build, characters, spelled, tokenizer_of  # noqa: E402
from specedge.models.recipe.network import MODELS, Net  # noqa: E402
from specedge.models.recipe.trainer import (
    attention_loss,
    demo_vocabulary,  # noqa: E402
    guided_layers,
    token_frames,
    viterbi,
    watch_attention,
)


def _log_probs(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    logits = rng.standard_normal(shape).astype(np.float32) * 2
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def _best_by_trying_all(log_probs: np.ndarray, text: list[int]) -> float:
    """The likeliest frame labels that collapse to `text`, among all there are."""
    n_frames, n_symbols = log_probs.shape
    best = -np.inf
    for labels in itertools.product(range(n_symbols), repeat=n_frames):
        collapsed = [s for s, _ in itertools.groupby(labels) if s]
        if collapsed == text:
            best = max(best, sum(log_probs[t, s] for t, s in enumerate(labels)))
    return float(best)


def _score_through(log_probs: np.ndarray, text: list[int], reached: np.ndarray) -> float:
    """The likeliest frame labels that begin each character of `text` at the frame where it is said to be reached."""
    best = -np.inf
    n_frames, n_symbols = log_probs.shape
    for labels in itertools.product(range(n_symbols), repeat=n_frames):
        runs = [(s, next(iter(frames))) for s, frames in itertools.groupby(range(n_frames), key=labels.__getitem__)]
        if [run for run in runs if run[0]] == list(zip(text, reached.tolist(), strict=True)):
            best = max(best, sum(log_probs[t, s] for t, s in enumerate(labels)))
    return float(best)


@pytest.mark.parametrize("text", [[1], [1, 2], [1, 1], [2, 1, 2], [1, 1, 2]])
def test_the_path_is_the_likeliest_of_all(text: list[int]) -> None:
    for seed in range(4):
        log_probs = _log_probs(np.random.default_rng(seed), (1, 6, 3))
        reached = viterbi(log_probs, [text], [6])[0]
        assert np.all(np.diff(reached) > 0)
        assert _score_through(log_probs[0], text, reached) == pytest.approx(_best_by_trying_all(log_probs[0], text))


def test_samples_of_a_batch_do_not_touch_and_only_their_frames_count() -> None:
    log_probs = _log_probs(np.random.default_rng(5), (3, 40, 8))
    texts, n_frames = [[1, 2, 3, 3, 4], [7], [5, 6, 5]], [40, 9, 22]
    together = viterbi(log_probs, texts, n_frames)
    for i, text in enumerate(texts):
        alone = viterbi(log_probs[i : i + 1, : n_frames[i]], [text], n_frames[i : i + 1])[0]
        assert together[i].tolist() == alone.tolist()
        assert together[i].max() < n_frames[i]


def test_a_text_that_has_no_room_or_is_empty_has_no_guide() -> None:
    log_probs = _log_probs(np.random.default_rng(1), (2, 4, 4))
    assert [item.size for item in viterbi(log_probs, [[1, 1, 1], []], [4, 4])] == [0, 0]


def test_spans_are_the_characters_of_each_token() -> None:
    layout = LAYOUTS["v3"]
    sentences = [
        Sentence(text="Check the filter of valve twelve.", start_s=0.5, end_s=2.0),
        Sentence(text="Call the electrician.", start_s=3.0, end_s=4.5),
        Sentence(text="Never heard to its end.", start_s=9.0, end_s=10.0, cut=True),
    ]
    text = spelled(sentences)
    tokenizer = tokenizer_of("v3")
    for timestamps in (True, False):
        made = build(layout, sentences[: 3 if timestamps else 2], random.Random(0), timestamps=timestamps)
        assert len(made.spans) == len(made.targets)
        found = []
        for target, (first, last) in zip(made.targets, made.spans, strict=True):
            if 0 <= target < layout.special.eot:
                assert text[first : last + 1] == tokenizer.decode([target]).strip()
                found += list(range(first, last + 1))
            else:
                assert (first, last) == (-1, -1)
        assert found == [at for at, c in enumerate(text) if c != " "]
    assert len(characters(text)) == len(text)


def test_a_token_is_heard_from_its_first_character_to_its_last_and_a_time_at_itself() -> None:
    targets = np.array([[3, 105, IGNORE, 9]])
    spans = np.array([[[0, 2], [-1, -1], [0, 1], [-1, -1]]])
    frames = token_frames([np.array([20, 24, 31])], spans, targets, first_stamp=100, n_stamps=50)
    assert frames[0].tolist() == [[15, 37], [0, 16], [0, 0], [0, 0]]
    assert not token_frames([np.zeros(0, np.int64)], spans, targets, first_stamp=100, n_stamps=50)[0, 0].any()


def test_the_loss_falls_when_the_attention_moves_to_the_right_frames() -> None:
    frames = np.array([[[10, 20], [0, 0]]])
    scores = torch.zeros(1, 2, 2, 50, requires_grad=True)
    loss = attention_loss([torch.softmax(scores, -1)], frames)
    assert float(loss.detach()) == pytest.approx(np.log(5), rel=1e-4)
    loss.backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    gradient = scores.grad[0]
    assert bool((gradient[0, 0, 10:20] < 0).all())
    assert bool((gradient[0, 0, :10] > 0).all())
    assert not gradient[0, 1].any()  # an unknown target
    assert not gradient[1].any()  # the other half of the heads is free
    assert float(attention_loss([torch.softmax(scores, -1).detach()], frames * 0)) == 0


def test_the_weights_watched_are_those_of_the_cross_attention() -> None:
    size = MODELS["micro"]
    vocabulary = demo_vocabulary(size)
    net = Net(size, vocabulary).eval()
    layers = list(net.whisper.model.decoder.layers)
    assert list(guided_layers(1)) == [0]
    with torch.no_grad(), watch_attention(layers) as found:
        net.decode(torch.tensor([[1, 2, 3]]), torch.randn(1, 30, size.d_model), torch.tensor([0]))
    assert [weights.shape for weights in found] == [(1, 1, 3, 30)]
    assert torch.allclose(found[0].sum(-1), torch.ones(1, 1, 3))
    with torch.no_grad():
        net.decode(torch.tensor([[1]]), torch.randn(1, 30, size.d_model), torch.tensor([0]))
    assert len(found) == 1
