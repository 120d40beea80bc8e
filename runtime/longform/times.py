"""The times of segments and words as results have them: in order, inside their audio, none without length.

Models predict times behind the end of the audio; times of words from attention may be equal, and a segment's own time
may be trusted more than a word's. Only what a reader gets is moved here: seeks and prompts follow the model's times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .windows import Piece

LEAST_S = 0.02  # a step of the model's time


def settle(pieces: Sequence[Piece], begin_s: float, end_s: float) -> list[Piece]:
    """Return the pieces with their times and those of their words moved into `begin_s` to `end_s`, as little as needed.

    Each lasts `LEAST_S`, less only where there is no room for all. A piece with words is as long as they are.
    """
    spans = [
        (span.start, span.end) if not isinstance(span, Piece) else (span.start_s, span.end_s)
        for piece in pieces
        for span in piece.words or (piece,)
    ]
    least_s = min(LEAST_S, max(end_s - begin_s, 0.0) / max(len(spans), 1))
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    at = begin_s
    for i, start in enumerate(starts):
        starts[i] = max(start, at)
        ends[i] = at = max(min([ends[i], *starts[i + 1 : i + 2]]), starts[i] + least_s)
    at = end_s
    for i in reversed(range(len(starts))):
        ends[i] = min(ends[i], at)
        starts[i] = at = min(starts[i], ends[i] - least_s)
    moved = iter([(round(start, 6), round(end, 6)) for start, end in zip(starts, ends, strict=True)])
    return [_moved(piece, [next(moved) for _ in piece.words or (piece,)]) for piece in pieces]


def _moved(piece: Piece, spans: Sequence[tuple[float, float]]) -> Piece:
    words = tuple([replace(w, start=start, end=end) for w, (start, end) in zip(piece.words, spans, strict=False)])
    return replace(piece, start_s=spans[0][0], end_s=spans[-1][1], words=words)
