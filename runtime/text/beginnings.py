"""How a window's text begins in a model's tokens, beside how the same words stand behind a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from .tokenizer import Tokenizer
from .transcripts import is_unspaced
from .words import opens_word


class Beginnings:
    """Tells one from the other.

    Token maps have sentences with the space before them. The text of a speech LLM begins without it, so that the tokens
    of its first word are others; those of all other words are the same.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.is_bare = not tokenizer.special.begins_with_space

    def spaced(self, ids: Sequence[int]) -> Sequence[int]:
        """The text ids of a window, from its first, as a map has them."""
        if not self.is_bare or not ids:
            return ids
        n, word = self._first(ids)
        if word is None or word[:1].isspace() or is_unspaced(word[:1]):
            return ids
        return [*self._tokenizer.encode(" " + word), *ids[n:]]

    def bare(self, ids: Sequence[int]) -> Sequence[int]:
        """The text ids that a map has for the beginning of a window, as the model says them there."""
        if not self.is_bare or not ids or not self._tokenizer.ranks[ids[0]].startswith(b" "):
            return ids
        n, word = self._first(ids)
        return ids if word is None else [*self._tokenizer.encode(word[1:]), *ids[n:]]

    def _first(self, ids: Sequence[int]) -> tuple[int, str | None]:
        """How many tokens the first word has, and the word; None while the rest of a character is still to come."""
        n = self.first_word(ids)
        try:
            return n, self._tokenizer.decode_bytes(ids[:n]).decode()
        except UnicodeDecodeError:
            return n, None

    def first_word(self, ids: Sequence[int]) -> int:
        """How many tokens the first word has; a space that is a token of its own belongs to it."""
        ranks = self._tokenizer.ranks
        first = 2 if ranks[ids[0]] == b" " else 1
        return next((i for i in range(first, len(ids)) if opens_word(ranks[ids[i]])), len(ids))
