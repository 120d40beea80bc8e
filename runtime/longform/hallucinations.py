"""Where the next window begins once words are timed, and which pieces look invented (`whisper/transcribe.py`).

Words that are too long, too short or improbable make a piece anomalous. With a silence threshold an anomalous first
piece behind a long silence is decoded again from its start, and an anomalous piece with silence on both sides is
dropped with all that follows. The numbers are openai-whisper's. One difference: a seek that would not advance, with
which openai-whisper decodes the same window for ever, goes to the window's end.
Does not know: how words are timed, audio, tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specedge.runtime.longform.segments import Word
from specedge.runtime.longform.windows import Cut, Piece, frames_to_s, s_to_frames

__all__ = ["Outcome", "Window", "follow_words", "last_end_s"]

_PUNCTUATION = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"
_N_WORDS = 8
_IMPROBABLE = 0.15
_SHORT_S = 0.133
_SHORT_WEIGHT = 15
_LONG_S = 2.0
_NEAR_EDGE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window: first frame, frames of content, frames at most; when speech last ended; whether the audio goes on.

    `ends_within(end_s, limit_s)` says whether less than `limit_s` of audio follows `end_s`.
    """

    seek: int
    n_content_frames: int
    n_frames: int
    last_speech_s: float
    ends_within: Callable[[float, float], bool]

    @property
    def start_s(self) -> float:
        return frames_to_s(self.seek)

    @property
    def end_s(self) -> float:
        return frames_to_s(self.seek + self.n_frames)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The pieces kept, the next window's first frame (None: the end of the audio), and when speech last ended.

    `is_skipped`: the window is decoded again from `seek`, and nothing of it counts.
    """

    pieces: tuple[Piece, ...]
    seek: int | None
    last_speech_s: float
    is_skipped: bool = False


def follow_words(cut: Cut, pieces: Sequence[Piece], window: Window, threshold_s: float | None) -> Outcome:
    """What to do after a window whose `pieces` have words; `cut` is how its timestamps divided it.

    `threshold_s`: `hallucination_silence_threshold`, None to keep everything.
    """
    seek: int | None = window.seek + cut.n_advance
    if not cut.ends_with_single:
        seek = _seek_behind_words(pieces, window, threshold_s, seek)
    outcome = Outcome(pieces=tuple(pieces), seek=seek, last_speech_s=window.last_speech_s)
    if threshold_s is not None:
        outcome = _without_hallucinations(outcome, window, threshold_s)
    if outcome.seek is not None and outcome.seek <= window.seek:
        outcome = replace(outcome, seek=window.seek + window.n_content_frames)
    end_s = None if outcome.is_skipped else last_end_s(outcome.pieces)
    return outcome if end_s is None else replace(outcome, last_speech_s=end_s)


def last_end_s(pieces: Sequence[Piece]) -> float | None:
    """When the last word ends; without words the last piece; None without pieces."""
    words = (word.end for piece in reversed(pieces) for word in reversed(piece.words))
    return next(words, pieces[-1].end_s if pieces else None)


def _seek_behind_words(
    pieces: Sequence[Piece], window: Window, threshold_s: float | None, seek: int | None
) -> int | None:
    """The end of the last word, unless less than the threshold of the window follows it."""
    end_s = last_end_s(pieces)
    if end_s is None or end_s <= window.start_s:
        return seek
    if threshold_s is None or window.end_s - end_s > threshold_s:
        return s_to_frames(end_s)
    return window.seek + window.n_content_frames


def _without_hallucinations(outcome: Outcome, window: Window, threshold_s: float) -> Outcome:
    pieces = outcome.pieces
    first = _next_with_words(pieces)
    if first is not None and _is_anomalous(first):
        gap_s = first.start_s - window.start_s
        if gap_s > threshold_s:
            return replace(outcome, pieces=(), seek=window.seek + max(1, s_to_frames(gap_s)), is_skipped=True)
    last_end = window.last_speech_s
    for i, piece in enumerate(pieces):
        if not piece.words:
            continue
        if _is_anomalous(piece) and _is_between_silences(piece, pieces[i + 1 :], window, last_end, threshold_s):
            seek: int | None = s_to_frames(max(window.start_s + 1, piece.start_s))
            if window.ends_within(piece.end_s, threshold_s):
                seek = None
            return replace(outcome, pieces=pieces[:i], seek=seek)
        last_end = piece.end_s
    return outcome


def _is_between_silences(
    piece: Piece, following: Sequence[Piece], window: Window, last_end_s: float, threshold_s: float
) -> bool:
    following_piece = _next_with_words(following)
    if following_piece is None:
        next_start_s = window.start_s + frames_to_s(window.n_content_frames)
    else:
        next_start_s = following_piece.words[0].start
    before = (
        piece.start_s - last_end_s > threshold_s
        or piece.start_s < threshold_s
        or piece.start_s - window.start_s < _NEAR_EDGE_S
    )
    after = (
        next_start_s - piece.end_s > threshold_s
        or (following_piece is not None and _is_anomalous(following_piece))
        or window.end_s - piece.end_s < _NEAR_EDGE_S
    )
    return before and after


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
