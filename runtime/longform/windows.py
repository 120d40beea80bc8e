"""Where windows begin and end, and the segments that a window's tokens make (`whisper/transcribe.py`).

Times are seconds of the audio, seeks and lengths mel frames of 10 ms. A seek never falls behind its window's start, so
windows can be read off a stream.
Does not know: mel, engines, text, which of the pieces are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specedge.runtime.bundles.manifest import HOP_SAMPLES, SAMPLE_RATE_HZ
from specedge.runtime.longform.segments import Word
from specedge.runtime.text.special import SpecialTokens

__all__ = ["Cut", "Piece", "Span", "spans_of_clips", "cut_window", "frames_to_s", "s_to_frames"]

FRAMES_PER_S = SAMPLE_RATE_HZ // HOP_SAMPLES

Span = tuple[int, int | None]
"""First frame and the one behind the last; None is the end of the audio."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A segment to be: seconds, the ids, timestamps included, and the words once they are timed.

    first: the place of the first id among the window's.
    """

    start_s: float
    end_s: float
    tokens: tuple[int, ...]
    words: tuple[Word, ...] = ()
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A window's pieces, how many frames to advance (1 or more), and whether it ends with a lone timestamp."""

    pieces: tuple[Piece, ...]
    n_advance: int
    ends_with_single: bool


def spans_of_clips(clip_timestamps: Sequence[float]) -> list[Span]:
    """The spans of (start, end, start, end, ...) in seconds; without the last end up to the end of the audio."""
    points: list[int | None] = [s_to_frames(time_s) for time_s in clip_timestamps] or [0]
    if len(points) % 2:
        points.append(None)
    return [(start or 0, end) for start, end in zip(points[::2], points[1::2], strict=True)]


def cut_window(
    tokens: Sequence[int],
    n_content_frames: int,
    special: SpecialTokens,
    *,
    time_offset_s: float = 0.0,
    as_generate: bool = False,
    keeps_start: bool = False,
) -> Cut:
    """The pieces of a window that starts at `time_offset_s` and holds `n_content_frames` frames.

    Two timestamps in a row end one piece and begin the next. Text after the last pair is unfinished and is decoded
    again from there, unless it ends with a timestamp of its own: then nothing follows in this window. Without any pair
    the window is one piece up to its last timestamp, or its end. A piece without a timestamp at its beginning, which
    only a model that was asked for none may say, starts with the window (in openai-whisper before it).

    `as_generate`: as transformers does it, the last piece keeps the timestamp behind it among its ids, and a window
    without a timestamp ends at its last whole step. `keeps_start`: a window that is one piece begins at its first
    timestamp; in openai-whisper, which this leaves there, at the window's start.
    """
    tokens = tuple(tokens)
    is_timestamp = [special.is_timestamp(token) for token in tokens]
    frames_per_step = special.time_precision_s * FRAMES_PER_S
    ends_with_single = is_timestamp[-2:] == [False, True]

    def step(token: int) -> int:
        return token - special.timestamp_begin if special.is_timestamp(token) else 0

    def piece(begin: int, end: int) -> Piece:
        part = tokens[begin:end]
        first_s, last_s = (step(token) * special.time_precision_s for token in (part[0], part[-1]))
        return Piece(start_s=time_offset_s + first_s, end_s=time_offset_s + last_s, tokens=part, first=begin)

    ends = [i for i in range(1, len(tokens)) if is_timestamp[i - 1] and is_timestamp[i]]
    if not ends:
        last_step = next((step(token) for token in reversed(tokens) if special.is_timestamp(token)), 0)
        if not last_step and as_generate:
            last_step = _whole_steps(n_content_frames, special.time_precision_s)
        duration_s = last_step * special.time_precision_s if last_step else frames_to_s(n_content_frames)
        start_s = step(tokens[0]) * special.time_precision_s if keeps_start and tokens else 0.0
        start_s = time_offset_s + (start_s if start_s < duration_s else 0.0)
        whole = Piece(start_s=start_s, end_s=time_offset_s + duration_s, tokens=tokens)
        return Cut(pieces=(whole,), n_advance=n_content_frames, ends_with_single=ends_with_single)

    if ends_with_single:
        ends.append(len(tokens))
    pieces = tuple(piece(begin, end) for begin, end in zip([0, *ends], ends, strict=False))
    if as_generate and not ends_with_single:
        pieces = (*pieces[:-1], replace(pieces[-1], tokens=(*pieces[-1].tokens, tokens[ends[-1]])))
    n_advance = n_content_frames if ends_with_single else round(step(tokens[ends[-1] - 1]) * frames_per_step)
    # The rules make a closing timestamp later than 0; without rules a window must not be decoded for ever.
    return Cut(pieces=pieces, n_advance=n_advance or n_content_frames, ends_with_single=ends_with_single)


def _whole_steps(n_frames: int, step_s: float) -> int:
    """Timestamp steps within this many frames, in float32 and cut off, as torch does it."""
    return int(np.float32(n_frames) * np.float32(1 / FRAMES_PER_S) / np.float32(step_s))


def frames_to_s(n_frames: int) -> float:
    """Seconds of this many mel frames."""
    return n_frames * HOP_SAMPLES / SAMPLE_RATE_HZ


def s_to_frames(seconds: float) -> int:
    """The nearest mel frame; halves go to the even one, as in openai-whisper."""
    return round(seconds * FRAMES_PER_S)
