"""The pieces of text that byte-pair encoding works on: the patterns of GPT-2, Qwen and Tekken, without `\\p{L}`.

Python's `re` knows no Unicode categories. So each character is first replaced by one ASCII character for its class, and
a pattern over classes finds where the pieces are. The classes are the Unicode categories of the running Python plus the
letters, numbers and marks that came after Unicode 14, up to 16.0: so Python 3.11 and 3.14 cut alike.

Qwen's tokenizer composes text first (NFC), as its publishers do; the other two take it as it is.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["GPT2", "PATTERNS", "QWEN", "TEKKEN", "composed", "split"]

GPT2, QWEN, TEKKEN = "gpt2", "qwen", "tekken"
_Ranges = tuple[tuple[int, int], ...]

# White_Space of Unicode, which `\s` is in tiktoken: without U+001C..U+001F, that str.isspace counts in.
_SPACES = frozenset(
    [*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
)

# First and last code points of the letters, numbers and marks assigned in Unicode 15.0 to 16.0.
_NEW_UPPER = ((0x1C89, 0x1C89), (0xA7CB, 0xA7CC), (0xA7DA, 0xA7DA), (0xA7DC, 0xA7DC), (0x10D50, 0x10D65))
_NEW_LOWER = ((0x1C8A, 0x1C8A), (0xA7CD, 0xA7CD), (0xA7DB, 0xA7DB), (0x10D70, 0x10D85), (0x1DF25, 0x1DF2A))
_NEW_LETTERS = (  # without case
    (0x105C0, 0x105F3), (0x10D4A, 0x10D4F), (0x10D6F, 0x10D6F), (0x10EC2, 0x10EC4), (0x1123F, 0x11240),
    (0x11380, 0x11389), (0x1138B, 0x1138B), (0x1138E, 0x1138E), (0x11390, 0x113B5), (0x113B7, 0x113B7),
    (0x113D1, 0x113D1), (0x113D3, 0x113D3), (0x11BC0, 0x11BE0), (0x11F02, 0x11F02), (0x11F04, 0x11F10),
    (0x11F12, 0x11F33), (0x1342F, 0x1342F), (0x13441, 0x13446), (0x13460, 0x143FA), (0x16100, 0x1611D),
    (0x16D40, 0x16D6C), (0x18CFF, 0x18CFF), (0x1B132, 0x1B132), (0x1B155, 0x1B155), (0x1E030, 0x1E06D),
    (0x1E4D0, 0x1E4EB), (0x1E5D0, 0x1E5ED), (0x1E5F0, 0x1E5F0), (0x2B739, 0x2B739), (0x2EBF0, 0x2EE5D),
    (0x31350, 0x323AF),
)  # fmt: skip
_NEW_NUMBERS = (
    (0x10D40, 0x10D49), (0x116D0, 0x116E3), (0x11BF0, 0x11BF9), (0x11F50, 0x11F59), (0x16130, 0x16139),
    (0x16D70, 0x16D79), (0x1CCF0, 0x1CCF9), (0x1D2C0, 0x1D2D3), (0x1E4F0, 0x1E4F9), (0x1E5F1, 0x1E5FA),
)  # fmt: skip
_NEW_MARKS = (
    (0x0897, 0x0897), (0x0CF3, 0x0CF3), (0x0ECE, 0x0ECE), (0x10D69, 0x10D6D), (0x10EFC, 0x10EFF), (0x11241, 0x11241),
    (0x113B8, 0x113C0), (0x113C2, 0x113C2), (0x113C5, 0x113C5), (0x113C7, 0x113CA), (0x113CC, 0x113D0),
    (0x113D2, 0x113D2), (0x113E1, 0x113E2), (0x11F00, 0x11F01), (0x11F03, 0x11F03), (0x11F34, 0x11F3A),
    (0x11F3E, 0x11F42), (0x11F5A, 0x11F5A), (0x13440, 0x13440), (0x13447, 0x13455), (0x1611E, 0x1612F),
    (0x1E08F, 0x1E08F), (0x1E4EC, 0x1E4EF), (0x1E5EE, 0x1E5EF),
)  # fmt: skip

_CONTRACTING = "strevmld"  # the letters of 's 't 're 've 'm 'll 'd stand for themselves
_FOLDED = {**{letter.upper(): letter for letter in _CONTRACTING}, "\u017f": "s"}  # the long s is an s in other case
_MAX_CLASSES = 1 << 15  # entries remembered; a text of a million different characters must not stay in memory


def _within(ranges: _Ranges, code_point: int) -> bool:
    at = bisect_right(ranges, (code_point, 0x110000)) - 1
    return at >= 0 and ranges[at][0] <= code_point <= ranges[at][1]


def _is_letter(code_point: int) -> bool:
    return chr(code_point).isalpha() or any(
        _within(ranges, code_point) for ranges in (_NEW_LETTERS, _NEW_UPPER, _NEW_LOWER)
    )


def _is_number(code_point: int) -> bool:
    return chr(code_point).isnumeric() or _within(_NEW_NUMBERS, code_point)


def _space_of(code_point: int) -> str:
    """White space by what the newer patterns tell apart: the space, line breaks, the rest."""
    return " " if code_point == 0x20 else "\n" if code_point in (0x0A, 0x0D) else "\t"


def _gpt2_class(code_point: int) -> str:
    """Letters [a-z], numbers 0, the space, other white space \\n, the apostrophe, the rest a full stop."""
    character = chr(code_point)
    if character in _CONTRACTING or character in " '":
        return character
    if code_point in _SPACES:
        return "\n"
    return "a" if _is_letter(code_point) else "0" if _is_number(code_point) else "."


def _qwen_class(code_point: int) -> str:
    """As GPT-2's, with contractions in any case, line breaks \\n and other white space but the space \\t."""
    character = chr(code_point)
    if character in _CONTRACTING or character in " '":
        return character
    if code_point in _SPACES:
        return _space_of(code_point)
    if _is_letter(code_point):
        return _FOLDED.get(character, "a")
    return "0" if _is_number(code_point) else "."


def _tekken_class(code_point: int) -> str:
    """Letters U upper and title case, l lower case, o others; marks m, numbers 0, white space as Qwen's, the slash."""
    if code_point in _SPACES:
        return _space_of(code_point)
    category = unicodedata.category(chr(code_point))
    if category in ("Lu", "Lt") or _within(_NEW_UPPER, code_point):
        return "U"
    if category == "Ll" or _within(_NEW_LOWER, code_point):
        return "l"
    if _is_letter(code_point):
        return "o"
    if category[0] == "M" or _within(_NEW_MARKS, code_point):
        return "m"
    return "0" if _is_number(code_point) else "/" if code_point == 0x2F else "."


class _Classes(dict[int, str]):
    """Code point -> class character, filled as code points are met, up to a limit."""

    def __init__(self, class_of: Callable[[int], str]) -> None:
        super().__init__()
        self._class_of = class_of

    def __missing__(self, code_point: int) -> str:
        found = self._class_of(code_point)
        if len(self) < _MAX_CLASSES:
            self[code_point] = found
        return found


@dataclass(frozen=True, eq=False)
class _Pattern:
    """published: the pattern as its publisher writes it; pieces: the same over the class characters of `classes`."""

    published: str
    pieces: re.Pattern[str]
    classes: _Classes


PATTERNS = {
    GPT2: _Pattern(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        re.compile(r"'(?:[stmd]|ll|re|ve)| ?[a-z]+| ?0+| ?[.']+|[ \n]+(?![a-z0.'])|[ \n]+"),
        _Classes(_gpt2_class),
    ),
    QWEN: _Pattern(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+",
        re.compile(
            r"'(?:[stmd]|ll|re|ve)|[ \t.']?[a-z]+|0| ?[.']+\n*|[ \t\n]*\n+|[ \t\n]+(?![a-z0.'])|[ \t\n]+",
        ),
        _Classes(_qwen_class),
    ),
    TEKKEN: _Pattern(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
        r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        re.compile(
            r"[ \tm./]?[Uom]*[lom]+|[ \tm./]?[Uom]+[lom]*|0| ?[m./]+[\n/]*|"
            r"[ \t\n]*\n+|[ \t\n]+(?![Ulom0./])|[ \t\n]+",
        ),
        _Classes(_tekken_class),
    ),
}
"""By the names that tokenizer files have for them."""


def composed(text: str, pattern: str) -> str:
    """`text` as the tokenizer of this pattern sees it."""
    return unicodedata.normalize("NFC", text) if pattern == QWEN else text


def split(text: str, pattern: str = GPT2) -> Iterator[str]:
    """The pieces of `text` by the pattern of this name; joined they are `text` again."""
    chosen = PATTERNS[pattern]
    for match in chosen.pieces.finditer(text.translate(chosen.classes)):
        yield text[match.start() : match.end()]
