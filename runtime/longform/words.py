"""When each word is said: attention of the alignment heads, warped onto the tokens, becomes words with times.

Semantics of openai-whisper's timing.py (add_word_timestamps, find_alignment), among them its clipping of words that
last too long at sentence marks and pauses. Two differences: an attention column that is the same for every token
counts as no evidence instead of spoiling the path, and a text that fills the model's context is timed as far as it
fits, where openai-whisper fails. Knows no audio, no files and nothing of what makes a text look invented.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.manifest import HOP_SAMPLES, SAMPLE_RATE_HZ, Dims
from specedge.runtime.longform.dtw import dtw_path, median_filter
from specedge.runtime.longform.segments import Word
from specedge.runtime.longform.windows import Piece
from specedge.runtime.text.special import SpecialTokens
from specedge.runtime.text.tokenizer import Tokenizer
from specedge.runtime.text.word_split import WordTokens, merge_punctuations, split_words

if TYPE_CHECKING:
    from specedge.runtime.passes.aligner import Alignment
    from specedge.runtime.passes.engine import Features

__all__ = ["time_words"]

MEDIAN_WIDTH = 7
FRAMES_PER_STEP = 2  # the encoder's second convolution halves the frames
STEPS_PER_SECOND = SAMPLE_RATE_HZ / (FRAMES_PER_STEP * HOP_SAMPLES)
SENTENCE_MARKS = ".。!！?？"
LONGEST_MEDIAN_S = 0.7
TRUSTED_SLACK_S = 0.5  # a word may begin or end this much outside its piece before the piece's own time is preferred


class Aligning(Protocol):
    """The part of `Engine` that word times need."""

    dims: Dims

    def align(self, features: Features, ids: Sequence[int]) -> Alignment: ...


@dataclass(frozen=True, kw_only=True)
class _Durations:
    """What the words of a window last: the median, and twice that, above which a word is suspected."""

    median_s: float
    longest_s: float

    @classmethod
    def of(cls, words: Sequence[WordTokens]) -> _Durations:
        lengths = [word.end_s - word.start_s for word in words if word.end_s != word.start_s]
        median_s = min(LONGEST_MEDIAN_S, statistics.median(lengths)) if lengths else 0.0
        return cls(median_s=median_s, longest_s=2 * median_s)


def time_words(
    engine: Aligning,
    features: Features,
    pieces: Sequence[Piece],
    *,
    tokenizer: Tokenizer,
    special: SpecialTokens,
    language: str | None,
    task: str,
    n_content_frames: int,
    prepend_punctuations: str,
    append_punctuations: str,
    last_speech_s: float,
    time_offset_s: float,
) -> list[Piece]:
    """The pieces of one window with their words, and with starts and ends that fit the words.

    Parameters
    ----------
    features
        the window as `Engine.encode` gave it.
    n_content_frames
        mel frames of the window that are audio, not padding.
    last_speech_s
        end of the speech before this window, seconds of the audio.
    time_offset_s
        start of the window, seconds of the audio.

    Raises
    ------
    BundleError
        when the bundle has no graph for it.
    UsageError
        when the model does not know the language or the task.
    """
    texts = [[id_ for id_ in piece.tokens if id_ < special.eot] for piece in pieces]
    ids = [id_ for text in texts for id_ in text]
    if not ids:
        return [replace(piece, words=()) for piece in pieces]
    prompt = special.prompt(language, task, timestamps=False)
    code = special.language_of(prompt[1]) if special.is_multilingual else None  # `language` may be a name
    timed = split_words([*ids, special.eot], tokenizer, code)[:-1]  # the last is the end of the text
    if timed:
        alignment = engine.align(features, [*prompt, *ids, special.eot][: engine.dims.n_text_ctx])
        _set_times(timed, alignment, len(ids), first=len(prompt) - 1, n_content_frames=n_content_frames)
    durations = _Durations.of(timed)
    _shorten_at_sentence_marks(timed, durations)
    merge_punctuations(timed, prepend_punctuations, append_punctuations)
    made: list[Piece] = []
    for piece, words in zip(pieces, _dealt(timed, [len(text) for text in texts], time_offset_s), strict=True):
        made.append(_fit(piece, words, durations, last_speech_s))
        last_speech_s = made[-1].end_s if words else last_speech_s
    return made


def _set_times(words: list[WordTokens], alignment: Alignment, n_ids: int, *, first: int, n_content_frames: int) -> None:
    """Give `words`, made of the `n_ids` tokens of a text, times in seconds of the window, and probabilities.

    The row of a token shows where the next one is said; `first` is the prompt's last row, before the first token.
    """
    n_steps = min(max(1, n_content_frames // FRAMES_PER_STEP), alignment.scores.shape[2])
    matrix = _evidence(alignment.scores[:, :, :n_steps])[first : first + n_ids + 1]
    rows, steps = dtw_path(-matrix)
    begins = steps[np.diff(rows, prepend=-1) > 0] / STEPS_PER_SECOND
    begins = np.pad(begins, (0, n_ids + 1 - len(begins)), constant_values=n_steps / STEPS_PER_SECOND)
    probs = alignment.token_probs[first : first + n_ids].astype(np.float64)
    probs = np.pad(probs, (0, n_ids - len(probs)))
    n_done = 0
    for word in words:
        end = n_done + len(word.ids)
        word.start_s, word.end_s = float(begins[n_done]), float(begins[end])
        word.probability = float(probs[n_done:end].mean())
        n_done = end


def _evidence(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """How much each token stands out at each step, `[n_rows, n_steps]`, of scores `[n_heads, n_rows, n_steps]`.

    One head at a time: the filter takes several times the memory of what it filters.
    """
    total = np.zeros(scores.shape[1:], np.float32)
    for head in scores:
        mass = np.exp(head - head.max(axis=1, keepdims=True))
        shares = mass / mass.sum(axis=1, keepdims=True)
        mean = shares.mean(axis=0, dtype=np.float64).astype(np.float32)
        spread = shares.std(axis=0, dtype=np.float64).astype(np.float32)
        standing_out = np.divide(shares - mean, spread, out=np.zeros_like(shares), where=spread > 0)
        total += median_filter(standing_out, MEDIAN_WIDTH)
    return total / np.float32(len(scores))


def _shorten_at_sentence_marks(words: Sequence[WordTokens], durations: _Durations) -> None:
    """Give marks that end a sentence, and the words after them, no more than the longest duration."""
    if durations.median_s == 0:
        return
    for before, word in zip(words, words[1:], strict=False):
        if word.end_s - word.start_s > durations.longest_s:
            if word.text in SENTENCE_MARKS:
                word.end_s = word.start_s + durations.longest_s
            elif before.text in SENTENCE_MARKS:
                word.start_s = word.end_s - durations.longest_s


def _dealt(timed: Sequence[WordTokens], lengths: Sequence[int], offset_s: float) -> Iterator[list[WordTokens]]:
    """The words of pieces of `lengths` tokens, at hundredths of seconds of the audio; what was merged away is left out.

    A word that lies in two pieces goes to the first.
    """
    at = 0
    for n_tokens in lengths:
        n_taken = 0
        words: list[WordTokens] = []
        while at < len(timed) and n_taken < n_tokens:
            word = timed[at]
            n_taken += len(word.ids)
            if word.text:
                start_s, end_s = round(offset_s + word.start_s, 2), round(offset_s + word.end_s, 2)
                words.append(replace(word, start_s=start_s, end_s=end_s))
            at += 1
        yield words


def _fit(piece: Piece, words: list[WordTokens], durations: _Durations, last_speech_s: float) -> Piece:
    """The piece with its words, both moved until they agree."""
    start_s, end_s = piece.start_s, piece.end_s
    if words:
        _shorten_after_pause(words, durations, last_speech_s)
        first, last = words[0], words[-1]
        if first.start_s < start_s - TRUSTED_SLACK_S and start_s < first.end_s:
            first.start_s = max(0.0, min(first.end_s - durations.median_s, start_s))
        else:
            start_s = first.start_s
        if last.start_s < end_s and end_s + TRUSTED_SLACK_S < last.end_s:
            last.end_s = max(last.start_s + durations.median_s, end_s)
        else:
            end_s = last.end_s
    done = (Word(start=w.start_s, end=w.end_s, word=w.text, probability=w.probability) for w in words)
    return replace(piece, start_s=start_s, end_s=end_s, words=tuple(done))


def _shorten_after_pause(words: list[WordTokens], durations: _Durations, last_speech_s: float) -> None:
    """Let the first two words after a pause last no longer than suspected words may."""
    longest_s = durations.longest_s
    first = words[0]
    second = words[1] if len(words) > 1 else None
    if first.end_s - last_speech_s <= 4 * durations.median_s:
        return
    pair_is_long = second is not None and second.end_s - first.start_s > 2 * longest_s
    if not pair_is_long and first.end_s - first.start_s <= longest_s:
        return
    if second is not None and second.end_s - second.start_s > longest_s:
        first.end_s = second.start_s = max(second.end_s / 2, second.end_s - longest_s)
    first.start_s = max(0.0, first.end_s - longest_s)
