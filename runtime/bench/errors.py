"""Errors of words and characters between a reference and what a model heard."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..text.words import edit_distance


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Word errors of a list: `n_errors` of `n_words`, and how many of `n_texts` are exactly right as normalised."""

    n_errors: int
    n_words: int
    n_exact: int
    n_texts: int

    @property
    def rate(self) -> float:
        """Word error rate, 0 when there is nothing to get wrong."""
        return self.n_errors / self.n_words if self.n_words else 0.0


def normalise(text: str) -> list[str]:
    """Words in lower case without punctuation; an apostrophe inside a word stays."""
    return re.findall(r"[^\W_]+(?:'[^\W\d_]+)?", text.replace("’", "'").lower())


def word_errors(pairs: Iterable[tuple[str, str]]) -> Errors:
    """Errors of (reference, hypothesis) pairs."""
    n_errors = n_words = n_exact = n_texts = 0
    for reference, hypothesis in pairs:
        wanted, got = normalise(reference), normalise(hypothesis)
        wrong = edit_distance(wanted, got)
        n_errors, n_words = n_errors + wrong, n_words + len(wanted)
        n_exact, n_texts = n_exact + (wrong == 0), n_texts + 1
    return Errors(n_errors=n_errors, n_words=n_words, n_exact=n_exact, n_texts=n_texts)


def character_error_rate(pairs: Iterable[tuple[str, str]]) -> float:
    """Of (reference, hypothesis) pairs, as normalised, with one space between words; 0 when there is nothing to say."""
    n_errors = n_characters = 0
    for wanted, got in ((" ".join(normalise(text)) for text in pair) for pair in pairs):
        n_errors, n_characters = n_errors + edit_distance(wanted, got), n_characters + len(wanted)
    return n_errors / n_characters if n_characters else 0.0
