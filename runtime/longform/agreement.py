"""Which words of a growing transcript are settled: those on which two hypotheses in a row agree (LocalAgreement-2).

The policy is that of Liu, Spanakis and Niehues (Low-latency sequence-to-sequence speech recognition and translation,
Interspeech 2020), used for Whisper by Macháček, Dabre and Bojar (Turning Whisper into real-time transcription system,
2023). A hypothesis is the transcript of one buffer of audio, heard again and again while it grows at its end and is cut
at its front. What was settled stays settled: where a later hypothesis words it differently, only what follows is new.

Knows strings; nothing of audio, time or models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["LocalAgreement", "prefix_length", "split_units"]

# Scripts written without spaces: Thai, Lao, Tibetan, Myanmar, Khmer, kana, Chinese characters.
_DENSE = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNITS = re.compile(rf"\s*(?:[{_DENSE}]|[^\s{_DENSE}]+)[^\w\s]*|\s+")


def split_units(text: str) -> list[str]:
    """The text in pieces that are settled one by one: words with the space before and the punctuation after them.

    In scripts without spaces a piece is one character. Joined, the pieces are the text.
    """
    return _UNITS.findall(text)


def prefix_length(settled: Sequence[str], units: Sequence[str]) -> int:
    """How many of `units` say what `settled` says: the prefix with the least edit distance to it.

    Among equals one that ends like `settled`, then the one whose length is nearest to it, then the longer.
    """
    row = list(range(len(units) + 1))
    for i, mine in enumerate(settled, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(units, 1):
            cost = min(diagonal + (mine != other), row[j] + 1, row[j - 1] + 1)
            diagonal, row[j] = row[j], cost

    def badness(j: int) -> tuple[int, bool, int, int]:
        ends_alike = bool(settled) and j > 0 and units[j - 1] == settled[-1]
        return row[j], not ends_alike, abs(j - len(settled)), -j

    return min(range(len(row)), key=badness)


class LocalAgreement:
    """What is settled of one buffer of audio. Positions count the units of the hypothesis given last."""

    def __init__(self) -> None:
        self._settled: list[str] = []  # of the audio still in the buffer
        self._tail: list[str] = []  # what the last hypothesis had beyond that

    def hear(self, units: Sequence[str], *, at_least: int = 0) -> tuple[int, int]:
        """A hypothesis; returns from where to where of it is newly settled, in units.

        What agrees with the hypothesis before is settled, and `at_least` so many units from the start in any case.
        """
        start = prefix_length(self._settled, units)
        end = start
        for mine, before in zip(units[start:], self._tail, strict=False):
            if mine != before:
                break
            end += 1
        end = max(end, min(at_least, len(units)))
        self._settled += units[start:end]
        self._tail = list(units[end:])
        return start, end

    def cut(self, n_left: int) -> None:
        """The buffer was cut at its front; the last `n_left` settled units are still in it."""
        self._settled = self._settled[max(0, len(self._settled) - n_left) :] if n_left > 0 else []
