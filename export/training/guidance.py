"""Where in the audio each token is said, and a loss that holds the decoder's cross-attention to it.

The encoder spells the known text (CTC); the likeliest way to spell it (Viterbi over the text with blanks, Graves et al.
2006, section 4) says at which frame each character is reached, and so where each token lies. Some heads of the decoder
are then told to look there. Without it a small decoder finds the first sentence of a window and guesses the others: it
has learned what such sentences sound like, not where to read on.

This module knows frames, characters and attention weights. It does not know whether the spelling is right: a text that
the encoder cannot spell yet gives a wrong guide, so the loss is for encoders that have aligned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specedge.export.training.labels import IGNORE

__all__ = ["attention_loss", "guided_layers", "token_frames", "viterbi", "watch_attention"]

Frames = npt.NDArray[np.int64]
_MARGIN = 5  # frames of 20 ms on each side: a character is spelled late in its sound, or early
_LEAST_MASS = 1e-4


def viterbi(
    log_probs: npt.NDArray[np.float32], texts: Sequence[Sequence[int]], n_frames: Sequence[int]
) -> list[Frames]:
    """The frame at which each character of each text is first spelled, int64 [n_characters] for each sample.

    `log_probs` float32 [B, T, n_characters_of_the_alphabet], blank first; the first `n_frames[i]` frames count. A text
    longer than its frames gives an empty array, as does an empty text.
    """
    n_batch, n_all_frames, _ = log_probs.shape
    n_states = 2 * max((len(text) for text in texts), default=0) + 1
    symbols = np.zeros((n_batch, n_states), np.int64)
    skips = np.zeros((n_batch, n_states), bool)
    for i, text in enumerate(texts):
        symbols[i, 1 : 2 * len(text) : 2] = text
        skips[i, 3 : 2 * len(text) : 2] = np.asarray(text[1:]) != np.asarray(text[:-1])
    emit = np.take_along_axis(log_probs, np.repeat(symbols[:, None], n_all_frames, 1), 2)
    score = np.full((n_batch, n_states), -np.inf, np.float32)
    score[:, :2] = emit[:, 0, :2]
    came = np.zeros((n_all_frames, n_batch, n_states), np.int8)
    scores = [score]
    by_one, by_two = np.full_like(score, -np.inf), np.full_like(score, -np.inf)
    for at in range(1, n_all_frames):
        by_one[:, 1:] = score[:, :-1]
        by_two[:, 2:] = np.where(skips[:, 2:], score[:, :-2], -np.inf)
        best = np.maximum(score, by_one)
        came[at] = by_one > score
        came[at][by_two > best] = 2
        score = np.maximum(best, by_two) + emit[:, at]
        scores.append(score)
    return [_trace(scores, came, i, len(text), int(n_frames[i])) for i, text in enumerate(texts)]


def _trace(scores: list[Any], came: npt.NDArray[np.int8], sample: int, n_characters: int, n_frames: int) -> Frames:
    last = n_frames - 1
    state = 2 * n_characters
    if n_characters and scores[last][sample, state - 1] > scores[last][sample, state]:
        state -= 1
    if not n_characters or not np.isfinite(scores[last][sample, state]):
        return np.zeros(0, np.int64)
    reached = np.zeros(n_characters, np.int64)
    for at in range(last, -1, -1):
        if state % 2:
            reached[state // 2] = at
        state -= int(came[at, sample, state])
    return reached


def token_frames(reached: Sequence[Frames], spans: Frames, targets: Frames, first_stamp: int, n_stamps: int) -> Frames:
    """The frames [first, behind the last) where each target is heard, int64 [B, L, 2]; both 0 where nobody knows.

    `reached` is what `viterbi` gives; `spans` int64 [B, L, 2] are each target's first and last character, -1 for none.
    A timestamp says its own frame.
    """
    frames = np.zeros((*targets.shape, 2), np.int64)
    for i, places in enumerate(reached):
        known = (targets[i] != IGNORE) & (spans[i, :, 0] >= 0)
        if places.size:
            frames[i, known, 0] = np.maximum(places[spans[i, known, 0]] - _MARGIN, 0)
            frames[i, known, 1] = places[spans[i, known, 1]] + _MARGIN + 1
    is_stamp = (targets >= first_stamp) & (targets < first_stamp + n_stamps)
    frames[is_stamp, 0] = np.maximum(targets[is_stamp] - first_stamp - 2 * _MARGIN, 0)
    frames[is_stamp, 1] = targets[is_stamp] - first_stamp + 2 * _MARGIN + 1
    return frames


def guided_layers(n_layers: int) -> range:
    """The decoder layers whose heads are guided: all but the first third, which still gathers the text."""
    return range(n_layers // 3, n_layers)


@contextmanager
def watch_attention(layers: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Collect the cross-attention weights [B, n_heads, L, T] of these decoder layers while the block runs."""
    found: list[Tensor] = []
    handles = [
        layer.encoder_attn.register_forward_hook(lambda _module, _given, out: found.append(out[1])) for layer in layers
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def attention_loss(attention: Sequence[Tensor], frames: Frames) -> Tensor:
    """Mean over the known targets of -log(share of a head's attention in their `frames`), for half of the heads."""
    bounds = torch.from_numpy(frames)
    n_frames = attention[0].shape[-1]
    known = bounds[..., 1] > bounds[..., 0]
    if not bool(known.any()):
        return attention[0].sum() * 0.0
    at = torch.arange(n_frames)
    inside = ((at >= bounds[..., :1]) & (at < bounds[..., 1:]))[known]
    loss = torch.zeros(())
    for weights in attention:
        n_heads = max(1, weights.shape[1] // 2)
        share = (weights[:, :n_heads].transpose(1, 2)[known] * inside[:, None]).sum(-1)
        loss = loss - share.float().clamp(min=_LEAST_MASS).log().mean()
    return loss / len(attention)
