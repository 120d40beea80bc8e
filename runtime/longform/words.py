"""Word times from the attention of the alignment heads, and what they are used for between windows.

`time_words` follows openai-whisper's timing.py (add_word_timestamps, find_alignment). Two differences: an attention
column that is the same for every token counts as no evidence instead of spoiling the path, and a text that fills the
model's context is timed as far as it fits, where openai-whisper fails. `median_filter` and `dtw_path` give the results
of timing.py to the bit, vectorised.

`follow_words` follows `whisper/transcribe.py`. Words that are too long, too short or improbable make a piece anomalous.
With a silence threshold an anomalous first piece behind a long silence is decoded again from its start, and an
anomalous piece with silence on both sides is dropped with all that follows. One difference: a seek that would not
advance, with which openai-whisper decodes the same window for ever, goes to the window's end.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..bundle.manifest import HOP_SAMPLES, SAMPLE_RATE_HZ
from ..options import TranscribeOptions
from ..text.tokenizer import Tokenizer
from ..text.words import WordTokens, merge_punctuations, split_words
from .segments import Word
from .windows import Cut, Piece, frames_to_s, s_to_frames

if TYPE_CHECKING:
    from ..engine.engine import Alignment, Engine, Features

_DIAGONAL, _UP, _LEFT = 0, 1, 2


def median_filter(x: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Return the median of `width` (odd) neighbours along the last axis of `x` float32, ends mirrored.

    An `x` not longer than half the width comes back as it is. Makes `width` copies of `x`.
    """
    reach = width // 2
    if x.shape[-1] <= reach:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(reach, reach)], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1)
    middle: NDArray[np.float32] = np.partition(windows, reach, axis=-1)[..., reach]
    return middle


def dtw_path(cost: NDArray[np.floating[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the cheapest monotonic path through `cost` `[n_rows, n_columns]`, both at least 1, corner to corner.

    It is the row and the column of each step, int64. A step goes down, right or both; sums are rounded to float32. Of
    equal sums the step to the right is preferred, unless it is dearer than one of the others.
    """
    steps = _steps(cost.astype(np.float64))
    row, column = cost.shape
    path = []
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        step = steps[row, column]
        row -= step != _LEFT
        column -= step != _UP
    rows, columns = np.array(path[::-1], np.int64).T
    return rows, columns


def _steps(cost: NDArray[np.float64]) -> NDArray[np.int8]:
    """The best step to each cell, `[n_rows + 1, n_columns + 1]`, one anti-diagonal at a time.

    Cells of a diagonal depend only on the two before it; `before[i]` and `last[i]` are the sums of row i there.
    """
    n_rows, n_columns = cost.shape
    steps = np.empty((n_rows + 1, n_columns + 1), np.int8)
    before = np.full(n_rows + 1, np.inf, np.float32)
    before[0] = 0
    last = np.full(n_rows + 1, np.inf, np.float32)
    for diagonal in range(2, n_rows + n_columns + 1):
        low, high = max(1, diagonal - n_columns), min(n_rows, diagonal - 1) + 1
        rows = np.arange(low, high)
        columns = diagonal - rows
        corner, up, left = before[low - 1 : high - 1], last[low - 1 : high - 1], last[low:high]
        from_corner = (corner < up) & (corner < left)
        from_up = (up < corner) & (up < left)
        best = np.where(from_corner, corner, np.where(from_up, up, left))
        steps[rows, columns] = np.where(from_corner, _DIAGONAL, np.where(from_up, _UP, _LEFT))
        sums = np.full(n_rows + 1, np.inf, np.float32)
        sums[low:high] = cost[rows - 1, columns - 1] + best
        before, last = last, sums
    steps[0, :] = _LEFT
    steps[:, 0] = _UP
    return steps


MEDIAN_WIDTH = 7
FRAMES_PER_STEP = 2  # the encoder's second convolution halves the frames
STEPS_PER_SECOND = SAMPLE_RATE_HZ / (FRAMES_PER_STEP * HOP_SAMPLES)
SENTENCE_MARKS = ".。!！?？"
LONGEST_MEDIAN_S = 0.7
TRUSTED_SLACK_S = 0.5  # a word may begin or end this much outside its piece before the piece's own time is preferred


def time_words(
    engine: Engine,
    features: Features,
    pieces: Sequence[Piece],
    *,
    tokenizer: Tokenizer,
    options: TranscribeOptions,
    language: str | None,
    n_content_frames: int,
    last_speech_s: float,
    time_offset_s: float,
) -> list[Piece]:
    """Return the pieces of one window with their words, and with starts and ends that fit the words.

    features: the window as `Engine.encode` gave it; options: of which task and marks count; n_content_frames: mel
    frames of the window that are audio, not padding; last_speech_s: end of the speech before this window, seconds of
    the audio; time_offset_s: start of the window, seconds of the audio. Raises BundleError when the bundle has no graph
    for it, UsageError when the model does not know the language or the task.
    """
    special = tokenizer.whisper_special
    texts = [[id_ for id_ in piece.tokens if id_ < special.eot] for piece in pieces]
    ids = [id_ for text in texts for id_ in text]
    if not ids:
        return [replace(piece, words=()) for piece in pieces]
    prompt = special.prompt(language, options.task, timestamps=False)
    code = special.language_of(prompt[1]) if special.is_multilingual else None  # `language` may be a name
    timed = split_words([*ids, special.eot], tokenizer, code)[:-1]  # the last is the end of the text
    if timed:
        alignment = engine.align(features, [*prompt, *ids, special.eot][: engine.dims.n_text_ctx])
        _set_times(timed, alignment, len(ids), first=len(prompt) - 1, n_content_frames=n_content_frames)
    lengths = [word.end_s - word.start_s for word in timed if word.end_s != word.start_s]
    median_s = min(LONGEST_MEDIAN_S, statistics.median(lengths)) if lengths else 0.0
    _shorten_at_sentence_marks(timed, median_s)
    merge_punctuations(timed, options.prepend_punctuations, options.append_punctuations)
    for word in timed:
        word.start_s, word.end_s = round(time_offset_s + word.start_s, 2), round(time_offset_s + word.end_s, 2)
    made: list[Piece] = []
    left = deque(timed)
    for piece, text in zip(pieces, texts, strict=True):
        n_taken = 0
        words: list[WordTokens] = []
        while left and n_taken < len(text):  # a word that lies in two pieces goes to the first
            words.append(left.popleft())
            n_taken += len(words[-1].ids)
        words = [word for word in words if word.text]  # without those merged away
        made.append(_fit(piece, words, median_s, last_speech_s))
        last_speech_s = made[-1].end_s if words else last_speech_s
    return made


def _set_times(words: list[WordTokens], alignment: Alignment, n_ids: int, *, first: int, n_content_frames: int) -> None:
    """Give `words`, made of the `n_ids` tokens of a text, times in seconds of the window, and probabilities.

    The row of a token shows where the next one is said; `first` is the prompt's last row, before the first token.
    """
    rows, steps = token_steps(alignment, n_ids, first=first, n_content_frames=n_content_frames)
    begins = steps[np.diff(rows, prepend=-1) > 0] / STEPS_PER_SECOND
    end_s = _n_steps(alignment, n_content_frames) / STEPS_PER_SECOND
    begins = np.pad(begins, (0, n_ids + 1 - len(begins)), constant_values=end_s)
    probs = alignment.token_probs[first : first + n_ids].astype(np.float64)
    probs = np.pad(probs, (0, n_ids - len(probs)))
    n_done = 0
    for word in words:
        end = n_done + len(word.ids)
        word.start_s, word.end_s = float(begins[n_done]), float(begins[end])
        word.probability = float(probs[n_done:end].mean())
        n_done = end


def token_steps(
    alignment: Alignment, n_ids: int, *, first: int, n_content_frames: int, median_width: int = MEDIAN_WIDTH
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The path of a text's `n_ids` tokens, and the end behind them, through the window: as `dtw_path` returns it.

    first: the prompt's last row; n_content_frames: as in `time_words`; median_width: of the filter, odd.
    """
    evidence = _evidence(alignment.scores[:, :, : _n_steps(alignment, n_content_frames)], median_width)
    return dtw_path(-evidence[first : first + n_ids + 1])


def _n_steps(alignment: Alignment, n_content_frames: int) -> int:
    n_steps: int = alignment.scores.shape[2]
    return min(max(1, n_content_frames // FRAMES_PER_STEP), n_steps)


def _evidence(scores: NDArray[np.float32], median_width: int) -> NDArray[np.float32]:
    """Normalised and filtered attention of each token at each step, `[n_rows, n_steps]`, mean over the heads.

    scores: `[n_heads, n_rows, n_steps]`, one head at a time, because the filter takes several times its input's memory.
    """
    total = np.zeros(scores.shape[1:], np.float32)
    for head in scores:
        mass = np.exp(head - head.max(axis=1, keepdims=True))
        shares = mass / mass.sum(axis=1, keepdims=True)
        mean = shares.mean(axis=0, dtype=np.float64).astype(np.float32)
        spread = shares.std(axis=0, dtype=np.float64).astype(np.float32)
        standing_out = np.divide(shares - mean, spread, out=np.zeros_like(shares), where=spread > 0)
        total += median_filter(standing_out, median_width)
    return total / np.float32(len(scores))


def _shorten_at_sentence_marks(words: Sequence[WordTokens], median_s: float) -> None:
    """Give marks that end a sentence, and the words after them, no more than twice the median duration."""
    longest_s = 2 * median_s
    if median_s == 0:
        return
    for before, word in zip(words, words[1:], strict=False):
        if word.end_s - word.start_s > longest_s:
            if word.text in SENTENCE_MARKS:
                word.end_s = word.start_s + longest_s
            elif before.text in SENTENCE_MARKS:
                word.start_s = word.end_s - longest_s


def _fit(piece: Piece, words: list[WordTokens], median_s: float, last_speech_s: float) -> Piece:
    """The piece with its words, with times moved so that they agree."""
    start_s, end_s = piece.start_s, piece.end_s
    if words:
        _shorten_after_pause(words, median_s, last_speech_s)
        first, last = words[0], words[-1]
        if first.start_s < start_s - TRUSTED_SLACK_S and start_s < first.end_s:
            first.start_s = max(0.0, min(first.end_s - median_s, start_s))
        else:
            start_s = first.start_s
        if last.start_s < end_s and end_s + TRUSTED_SLACK_S < last.end_s:
            last.end_s = max(last.start_s + median_s, end_s)
        else:
            end_s = last.end_s
    done = (Word(start=w.start_s, end=w.end_s, word=w.text, probability=w.probability) for w in words)
    return replace(piece, start_s=start_s, end_s=end_s, words=tuple(done))


def _shorten_after_pause(words: list[WordTokens], median_s: float, last_speech_s: float) -> None:
    """Let the first two words after a pause last no longer than suspected words may."""
    longest_s = 2 * median_s
    first = words[0]
    second = words[1] if len(words) > 1 else None
    if first.end_s - last_speech_s <= 4 * median_s:
        return
    pair_is_long = second is not None and second.end_s - first.start_s > 2 * longest_s
    if not pair_is_long and first.end_s - first.start_s <= longest_s:
        return
    if second is not None and second.end_s - second.start_s > longest_s:
        first.end_s = second.start_s = max(second.end_s / 2, second.end_s - longest_s)
    first.start_s = max(0.0, first.end_s - longest_s)


_PUNCTUATION = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"
_N_WORDS = 8
_IMPROBABLE = 0.15
_SHORT_S = 0.133
_SHORT_WEIGHT = 15
_LONG_S = 2.0
_NEAR_EDGE_S = 2.0


def follow_words(
    cut: Cut,
    pieces: Sequence[Piece],
    *,
    seek: int,
    n_content_frames: int,
    n_window_frames: int,
    last_speech_s: float,
    ends_within: Callable[[float, float], bool],
    threshold_s: float | None,
) -> tuple[Sequence[Piece] | None, int | None]:
    """Return what is kept of a window's `pieces`, which have words, and the next window's first frame.

    No pieces (None): nothing of the window counts, and it is decoded again from that frame. No frame: the audio ends.
    cut: how its timestamps divided the window from frame `seek` on; last_speech_s: when speech ended before it;
    ends_within: says of `(end_s, limit_s)` whether less than `limit_s` of audio follows `end_s`; threshold_s:
    `hallucination_silence_threshold`, None to keep everything.
    """
    start_s, end_s, spoken_s = frames_to_s(seek), frames_to_s(seek + n_window_frames), last_end_s(pieces)
    following: int | None = seek + cut.n_advance
    if not cut.ends_with_single and spoken_s is not None and spoken_s > start_s:
        is_near_end = threshold_s is not None and end_s - spoken_s <= threshold_s
        following = seek + n_content_frames if is_near_end else s_to_frames(spoken_s)
    if threshold_s is not None:
        first = _next_with_words(pieces)
        if first is not None and first.start_s - start_s > threshold_s and _is_anomalous(first):
            return None, seek + max(1, s_to_frames(first.start_s - start_s))
        for i, piece in enumerate(pieces):
            if not piece.words:
                continue
            next_piece = _next_with_words(pieces[i + 1 :])
            next_s = start_s + frames_to_s(n_content_frames) if next_piece is None else next_piece.words[0].start
            is_behind_silence = (
                piece.start_s - last_speech_s > threshold_s
                or piece.start_s < threshold_s
                or piece.start_s - start_s < _NEAR_EDGE_S
            )
            is_before_silence = (
                next_s - piece.end_s > threshold_s
                or (next_piece is not None and _is_anomalous(next_piece))
                or end_s - piece.end_s < _NEAR_EDGE_S
            )
            if is_behind_silence and is_before_silence and _is_anomalous(piece):
                is_last = ends_within(piece.end_s, threshold_s)
                pieces, following = pieces[:i], None if is_last else s_to_frames(max(start_s + 1, piece.start_s))
                break
            last_speech_s = piece.end_s
    if following is not None and following <= seek:
        following = seek + n_content_frames
    return pieces, following


def last_end_s(pieces: Sequence[Piece]) -> float | None:
    """Return when the last word ends; without words the last piece; None without pieces."""
    words = (word.end for piece in reversed(pieces) for word in reversed(piece.words))
    return next(words, pieces[-1].end_s if pieces else None)


def _next_with_words(pieces: Sequence[Piece]) -> Piece | None:
    return next((piece for piece in pieces if piece.words), None)


def _is_anomalous(piece: Piece) -> bool:
    words = [word for word in piece.words if word.word not in _PUNCTUATION][:_N_WORDS]
    score = sum(map(_anomaly, words))
    return score >= 3 or score + 0.01 >= len(words)


def _anomaly(word: Word) -> float:
    duration_s = word.end - word.start
    score = 1.0 if word.probability < _IMPROBABLE else 0.0
    if duration_s < _SHORT_S:
        score += (_SHORT_S - duration_s) * _SHORT_WEIGHT
    if duration_s > _LONG_S:
        score += duration_s - _LONG_S
    return score
