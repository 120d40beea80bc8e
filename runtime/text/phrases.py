"""A hard list of phrases: the nearest line to what was heard, or none. It is lossy: words that were said are lost.

Phrases are compared word by word, without case and punctuation. The distance of two texts is the edit distance in
characters, taken over whole words: a word left out or put in costs its length, and a word that shares less than half
with another is another word. Numbers in digits must be the same. A line is heard if the distance is at most a quarter
of its length, at most 4, and no other line is as near: so "eight" is never heard as "two", however long the line is.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from specedge.errors import UsageError

from .words import edit_distance, normalise

__all__ = ["Phrases"]

_MAX_CHARACTERS = 200  # an utterance of some 15 seconds
_MAX_LINES = 1000
_MAX_BYTES = 4 << 20
_SHARE = 4  # a line may be heard with a wrong character in four
_MAX_DISTANCE = 4  # less than "on" in the place of "off"


@dataclass(frozen=True)
class _Phrase:
    line: str
    words: tuple[str, ...]
    n_characters: int


class Phrases:
    """The lines that may be heard, as they are written in the list.

    Raises UsageError for an empty list, a line without a letter or a digit, one of more than 200 characters, two lines
    that sound alike (they differ in case or punctuation alone), and more than 1000 lines. `where` names the list in
    messages. Empty lines are left out.
    """

    def __init__(self, lines: Sequence[str], where: str = "phrases") -> None:
        self._phrases: list[_Phrase] = []
        seen: dict[tuple[str, ...], int] = {}
        for number, line in enumerate(lines, 1):
            line = " ".join(line.split())
            if not line:
                continue
            here = f"{where}: line {number}"
            words = _words(line)
            if not words or not line.isprintable():
                raise UsageError(f"{here} is no phrase that can be said: {line[:40]!r}; expected words")
            if len(line) > _MAX_CHARACTERS:
                raise UsageError(f"{here} has {len(line)} characters, expected at most {_MAX_CHARACTERS}")
            if words in seen:
                raise UsageError(f"{here} says the same as line {seen[words]}: {line[:40]!r}; leave one of them out")
            seen[words] = number
            self._phrases.append(_Phrase(line, words, sum(map(len, words))))
        if not self._phrases:
            raise UsageError(f"{where}: no phrase in it, expected one on each line")
        if len(self._phrases) > _MAX_LINES:
            raise UsageError(f"{where}: {len(self._phrases)} phrases, expected at most {_MAX_LINES}")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Phrases:
        """The list in a file of UTF-8 text, a phrase on each line. Raises UsageError."""
        where = os.fspath(path)
        try:
            with Path(path).open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise UsageError(f"cannot read {where}: {error.strerror or error}") from None
        if len(data) > _MAX_BYTES:
            raise UsageError(f"{where}: more than {_MAX_BYTES >> 20} MiB, expected a list of phrases")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise UsageError(f"{where}: line {line} is not UTF-8: convert the file first") from None
        return cls(text.split("\n"), where)

    def __len__(self) -> int:
        return len(self._phrases)

    def nearest(self, heard: str) -> str | None:
        """The line that is nearest to `heard`, or None where none is near enough, or two are as near as each other."""
        words = _words(heard)
        n_characters = sum(map(len, words))
        best, found = None, None
        for phrase in self._phrases:
            most = min(phrase.n_characters // _SHARE, _MAX_DISTANCE)
            if abs(n_characters - phrase.n_characters) > most or _numbers(words) != _numbers(phrase.words):
                continue
            distance = _distance(words, phrase.words)
            if distance > most:
                continue
            if best is None or distance < best:
                best, found = distance, phrase.line
            elif distance == best:
                found = None
        return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(normalise(unicodedata.normalize("NFKC", text).casefold()))


def _numbers(words: Sequence[str]) -> list[str]:
    return [word for word in words if any(character.isdigit() for character in word)]


def _distance(left: Sequence[str], right: Sequence[str]) -> int:
    """Edit distance over words, in characters."""
    row = [0]
    for word in right:
        row.append(row[-1] + len(word))
    for mine in left:
        corner, row[0] = row[0], row[0] + len(mine)
        for j, other in enumerate(right, 1):
            swapped = corner + _cost(mine, other)
            corner, row[j] = row[j], min(row[j] + len(mine), row[j - 1] + len(other), swapped)
    return row[-1]


@lru_cache(1 << 14)
def _cost(left: str, right: str) -> int:
    """Of a word in the place of another."""
    distance = edit_distance(left, right)
    return distance if 2 * distance <= max(len(left), len(right)) else len(left) + len(right)
