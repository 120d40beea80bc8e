"""What follows a window whose words are timed; against openai-whisper's own code in test_transcribe_openai.py."""

from __future__ import annotations

from specedge.runtime.longform.segments import Word
from specedge.runtime.longform.windows import Piece
from specedge.runtime.longform.words import last_end_s


def piece(start_s: float, end_s: float, *words: Word) -> Piece:
    return Piece(start_s=start_s, end_s=end_s, tokens=(1,), words=words)


def test_the_last_end_is_that_of_the_last_word() -> None:
    word = Word(start=1.0, end=1.5, word=" a", probability=1.0)
    assert last_end_s([]) is None
    assert last_end_s([piece(0.0, 3.0)]) == 3.0
    assert last_end_s([piece(1.0, 2.0, word), piece(2.0, 3.0)]) == 1.5
