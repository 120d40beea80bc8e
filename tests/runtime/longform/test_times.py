"""Times are in order, inside the audio, and none is without length, however the model's own lie."""

from __future__ import annotations

import pytest

from specedge.runtime.longform.segments import Word
from specedge.runtime.longform.windows import Piece, settle

Times = list[tuple[float, float]]


def piece(start_s: float, end_s: float, *words: tuple[float, float]) -> Piece:
    made = tuple(Word(start=start, end=end, word=" a", probability=1.0) for start, end in words)
    return Piece(start_s=start_s, end_s=end_s, tokens=(1,), words=made)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([piece(0.5, 1.0), piece(1.0, 1.9)], [(0.5, 1.0), (1.0, 1.9)]),
        ([piece(0.0, 4.0)], [(0.0, 2.0)]),  # behind the audio
        ([piece(0.0, 2.5), piece(2.5, 3.0)], [(0.0, 1.98), (1.98, 2.0)]),  # a text behind the audio is kept
        ([piece(-1.0, 0.5), piece(0.2, 0.4)], [(0.0, 0.2), (0.2, 0.4)]),  # running back
        ([piece(0.0, 1.0, (0.2, 0.2), (0.2, 0.2), (0.2, 0.9))], [(0.2, 0.22), (0.22, 0.24), (0.24, 0.9)]),
        ([piece(0.5, 1.0, (0.2, 0.6), (0.6, 1.4))], [(0.2, 0.6), (0.6, 1.4)]),  # outside their segment
        ([piece(0.0, 1.0, (0.1, 1.2)), piece(1.0, 1.5, (1.1, 1.6))], [(0.1, 1.1), (1.1, 1.6)]),
        ([piece(2.0, 2.0, *[(2.0, 2.0)] * 200)], [(0.01 * i, 0.01 * i + 0.01) for i in range(200)]),
    ],
)
def test_settled_times(pieces: list[Piece], expected: Times) -> None:
    settled = settle(pieces, 0.0, 2.0)
    spans = [time for p in settled for time in ([(w.start, w.end) for w in p.words] or [(p.start_s, p.end_s)])]
    assert spans == [pytest.approx(one) for one in expected]
    assert all(p.start_s == p.words[0].start and p.end_s == p.words[-1].end for p in settled if p.words)
