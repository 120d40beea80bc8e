"""The pieces of text that byte-pair encoding works on: the patterns of GPT-2 and Qwen.

Qwen's tokenizer composes text first (NFC), as its publishers do; GPT-2's takes it as it is.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any

GPT2, QWEN = "gpt2", "qwen"
PATTERNS = {
    GPT2: r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    QWEN: (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+"
    ),
}
"""As their publishers write them, by the names that tokenizer files have for them."""


@cache
def _compiled(pattern: str) -> Any:
    import regex

    return regex.compile(PATTERNS[pattern], regex.VERSION0)


def composed(text: str, pattern: str) -> str:
    """`text` as the tokenizer of this pattern sees it."""
    return unicodedata.normalize("NFC", text) if pattern == QWEN else text


def split(text: str, pattern: str = GPT2) -> Iterator[str]:
    """The pieces of `text` by the pattern of this name; joined they are `text` again."""
    for match in _compiled(pattern).finditer(text):
        yield match.group()
