"""Byte-level byte-pair encoding: text to token ids, as openai-whisper's tiktoken does it, without tiktoken.

Two steps. `split` cuts text into pieces by the GPT-2 pattern

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

and `Encoder` merges the UTF-8 bytes of each piece, always the pair whose merged bytes have the lowest id, the
leftmost first (ids are ranks in every Whisper vocabulary). Knows nothing of special tokens: `<|en|>` in a text is
seven characters.

Python's `re` has no `\\p{L}`, so every character is first replaced by one ASCII character that stands for its class
(str.translate), and the pattern runs on those. The classes are the Unicode general categories of the running Python
plus the letters and numbers that came after Unicode 14, up to 16.0: so Python 3.11 and 3.14 cut alike.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

__all__ = ["Encoder", "merge", "split"]

# White_Space of Unicode, which `\s` is in tiktoken: without U+001C..U+001F, that str.isspace counts in.
_SPACES = frozenset(
    [*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
)

# First and last code points of the letters and of the numbers assigned in Unicode 15.0 to 16.0.
_NEW_LETTERS = (
    (0x1C89, 0x1C8A), (0xA7CB, 0xA7CD), (0xA7DA, 0xA7DC), (0x105C0, 0x105F3), (0x10D4A, 0x10D65), (0x10D6F, 0x10D85),
    (0x10EC2, 0x10EC4), (0x1123F, 0x11240), (0x11380, 0x11389), (0x1138B, 0x1138B), (0x1138E, 0x1138E),
    (0x11390, 0x113B5), (0x113B7, 0x113B7), (0x113D1, 0x113D1), (0x113D3, 0x113D3), (0x11BC0, 0x11BE0),
    (0x11F02, 0x11F02), (0x11F04, 0x11F10), (0x11F12, 0x11F33), (0x1342F, 0x1342F), (0x13441, 0x13446),
    (0x13460, 0x143FA), (0x16100, 0x1611D), (0x16D40, 0x16D6C), (0x18CFF, 0x18CFF), (0x1B132, 0x1B132),
    (0x1B155, 0x1B155), (0x1DF25, 0x1DF2A), (0x1E030, 0x1E06D), (0x1E4D0, 0x1E4EB), (0x1E5D0, 0x1E5ED),
    (0x1E5F0, 0x1E5F0), (0x2B739, 0x2B739), (0x2EBF0, 0x2EE5D), (0x31350, 0x323AF),
)  # fmt: skip
_NEW_NUMBERS = (
    (0x10D40, 0x10D49), (0x116D0, 0x116E3), (0x11BF0, 0x11BF9), (0x11F50, 0x11F59), (0x16130, 0x16139),
    (0x16D70, 0x16D79), (0x1CCF0, 0x1CCF9), (0x1D2C0, 0x1D2D3), (0x1E4F0, 0x1E4F9), (0x1E5F1, 0x1E5FA),
)  # fmt: skip

_LETTER, _NUMBER, _SPACE, _OTHER = "a", "0", "\n", "."
_CONTRACTING = "strevmld"  # the letters of 's 't 're 've 'm 'll 'd stand for themselves

# The GPT-2 pattern over class characters: letters [a-z], numbers 0, white space [ \n], the rest [.']
_PIECES = re.compile(r"'(?:[stmd]|ll|re|ve)| ?[a-z]+| ?0+| ?[.']+|[ \n]+(?![a-z0.'])|[ \n]+")

_MAX_CLASSES = 1 << 15  # entries remembered; a text of a million different characters must not stay in memory
_MAX_CACHED_CHARS = 64  # longer pieces are merged afresh each time, so the cache is bounded in bytes too
_MAX_CACHED_PIECES = 1 << 14


def _within(ranges: tuple[tuple[int, int], ...], code_point: int) -> bool:
    at = bisect_right(ranges, (code_point, 0x110000)) - 1
    return at >= 0 and ranges[at][0] <= code_point <= ranges[at][1]


def _class_of(code_point: int) -> str:
    character = chr(code_point)
    if character in _CONTRACTING or character in " '":
        return character
    if code_point in _SPACES:
        return _SPACE
    if character.isalpha() or _within(_NEW_LETTERS, code_point):
        return _LETTER
    if character.isnumeric() or _within(_NEW_NUMBERS, code_point):
        return _NUMBER
    return _OTHER


class _Classes(dict[int, str]):
    """Code point -> class character, filled as code points are met, up to a limit."""

    def __missing__(self, code_point: int) -> str:
        found = _class_of(code_point)
        if len(self) < _MAX_CLASSES:
            self[code_point] = found
        return found


_CLASSES = _Classes()


def split(text: str) -> Iterator[str]:
    """The pieces of `text` by the GPT-2 pattern; joined they are `text` again."""
    for match in _PIECES.finditer(text.translate(_CLASSES)):
        yield text[match.start() : match.end()]


def merge(word: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """Token ids of one piece, O(n log n) for n bytes.

    `word` is not empty and `ranks` holds every byte of it. A heap keeps the candidate pairs by (id, position); the
    parts are a linked list of offsets. A pair that a merge has overtaken stays in the heap and is recognised when it
    comes up.
    """
    whole = ranks.get(word)
    if whole is not None:
        return [whole]
    n = len(word)
    end = [*range(1, n + 1), -1]  # end[i]: where the part that starts at i stops; n if no part starts at i any more
    previous = list(range(-1, n))  # previous[i]: start of the part before the one that starts at i
    heap = [(ranks[pair], i, i + 2) for i in range(n - 1) if (pair := word[i : i + 2]) in ranks]
    heapq.heapify(heap)
    while heap:
        _, start, stop = heapq.heappop(heap)
        middle = end[start]
        if end[middle] != stop:
            continue
        end[start], end[middle] = stop, n
        previous[stop] = start
        before, after = previous[start], end[stop]
        if before >= 0 and (rank := ranks.get(word[before:stop])) is not None:
            heapq.heappush(heap, (rank, before, stop))
        if after > 0 and (rank := ranks.get(word[start:after])) is not None:
            heapq.heappush(heap, (rank, start, after))
    ids, at = [], 0
    while at < n:
        ids.append(ranks[word[at : end[at]]])
        at = end[at]
    return ids


def _without_surrogates(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates turned into U+FFFD, as in tiktoken."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class Encoder:
    """Text to token ids, with a bounded cache of pieces. Safe to use from several threads.

    `ranks` maps the bytes of every token to its id and holds all 256 single bytes; the empty byte string is never
    produced.
    """

    def __init__(self, ranks: Mapping[bytes, int]) -> None:
        def encode_piece(piece: str) -> tuple[int, ...]:
            return tuple(merge(piece.encode(), ranks))

        self._encode_piece: Callable[[str], tuple[int, ...]] = encode_piece
        self._cached = lru_cache(maxsize=_MAX_CACHED_PIECES)(encode_piece)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, special tokens not recognised. Lone surrogates count as U+FFFD."""
        ids: list[int] = []
        for piece in split(_without_surrogates(text)):
            ids.extend(self._cached(piece) if len(piece) <= _MAX_CACHED_CHARS else self._encode_piece(piece))
        return ids
