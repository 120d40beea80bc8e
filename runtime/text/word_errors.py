"""Word errors after normalisation: the edits that make one text of another, over the words of the first.

Knows texts and numbers only. A script that puts no spaces between words has few and long ones here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Errors", "edit_distance", "normalise", "word_errors"]


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


def edit_distance(left: Sequence[object], right: Sequence[object]) -> int:
    """Levenshtein distance of two sequences."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        corner, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return row[-1]


def word_errors(pairs: Iterable[tuple[str, str]]) -> Errors:
    """Errors of (reference, hypothesis) pairs."""
    n_errors = n_words = n_exact = n_texts = 0
    for reference, hypothesis in pairs:
        wanted, got = normalise(reference), normalise(hypothesis)
        wrong = edit_distance(wanted, got)
        n_errors, n_words = n_errors + wrong, n_words + len(wanted)
        n_exact, n_texts = n_exact + (wrong == 0), n_texts + 1
    return Errors(n_errors=n_errors, n_words=n_words, n_exact=n_exact, n_texts=n_texts)
