"""Where sentences end, by the last bytes of a token. Does not know: maps, drafts."""

from __future__ import annotations

from collections.abc import Callable

from specedge.runtime.text.tokenizer import Tokenizer

__all__ = ["ends_sentence"]

_SENTENCE_ENDS = tuple(mark.encode() for mark in ".?!。？！…")


def ends_sentence(tokenizer: Tokenizer) -> Callable[[int], bool]:
    """Says of a text id whether a sentence ends with it."""
    return lambda token: tokenizer.ranks[token].endswith(_SENTENCE_ENDS)
