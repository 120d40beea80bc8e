"""What a row of logits offers to choose from: tokens that neither the model nor a rule tells apart are one choice.

Where each token has a row of its own in the decoder's vocabulary, each token is a choice. In a compact vocabulary
(`token_rows`) most tokens share one row, so they always have the same logit; those of them that every rule treats alike
are one choice, which weighs as much in a sum as it has tokens. Deciding among two thousand choices instead of fifty
thousand tokens takes a fifth of the time and finds the same: the first of the likeliest choices stands for the first
of the likeliest tokens.

Choices are numbered in the order of their first tokens and none spans two parts of the vocabulary, so what is a slice
of tokens is a slice of choices. Timestamps are a choice each: rules of time tell all of them apart. Log-probabilities
over a compact vocabulary may differ in the last bit from those of the same model without one, because sums have other
terms; drafters, precisions and passes see no difference.

Does not know: what rules forbid, only which tokens they name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.token_rows import TokenRows
from specedge.runtime.text.special import SpecialTokens

__all__ = ["ChoiceRow", "Choices"]


class Choices:
    """The choices of a vocabulary; see the module.

    rows: which tokens share a row, by default none. apart: the ids that a rule tells from others, for each such rule;
    None where a rule may name any token, so that each has to be a choice.
    eot, no_timestamps, timestamp_begin, timestamp_end: as in `layout`, but numbers of choices; counts: the tokens of
    each choice, float32 [n], None where it is always one.
    """

    counts: NDArray[np.float32] | None = None

    def __init__(
        self,
        layout: SpecialTokens,
        rows: TokenRows | None = None,
        apart: Iterable[Sequence[int]] | None = (),
    ) -> None:
        self.layout = layout
        self._rows = rows or TokenRows(layout.n_vocab)
        self._first: list[int] | None = None
        if self._rows.is_compact and apart is not None:
            self._group(apart)
        self.eot, self.no_timestamps, self.timestamp_begin = (
            self.of(token) for token in (layout.eot, layout.no_timestamps, layout.timestamp_begin)
        )
        self.timestamp_end = self.timestamp_begin + layout.n_timestamps

    def _group(self, apart: Iterable[Sequence[int]]) -> None:
        layout, ids = self.layout, np.arange(self._rows.n_vocab)
        kinds = np.zeros(len(ids), np.int64)
        kinds[layout.eot] = 1
        kinds[layout.eot + 1 : layout.timestamp_begin] = 2
        kinds[layout.timestamp_end :] = 3
        n_kinds = 4
        for named in apart:
            kinds[np.array(named, np.intp)] += n_kinds
            n_kinds *= 2
        keys = np.asarray(self._rows.of(ids)) * n_kinds + kinds
        begin, end = layout.timestamp_begin, layout.timestamp_end
        n_keys = self._rows.n_rows * n_kinds
        keys[begin:end] = n_keys + np.arange(end - begin)
        first = np.full(n_keys + end - begin, -1, np.int64)
        first[keys[::-1]] = ids[::-1]  # of several writes the last one stays, which is the lowest id's
        tokens = np.sort(first[first >= 0])
        first[keys[tokens]] = np.arange(len(tokens))
        self._of = first[keys]
        self._first = tokens.tolist()
        self._source = np.asarray(self._rows.of(tokens))
        self.counts = np.bincount(self._of).astype(np.float32)

    def is_timestamp(self, token: int) -> bool:
        """Whether a token, not a choice, is a timestamp."""
        return self.layout.is_timestamp(token)

    def of(self, token: int) -> int:
        """The choice of a token."""
        return token if self._first is None else int(self._of[token])

    def token(self, choice: int) -> int:
        """The first token of a choice."""
        return choice if self._first is None else self._first[choice]

    def logits(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of the choices, from a row of the decoder's; the row itself where both are the same."""
        if self._first is not None:
            found: NDArray[np.float32] = row.take(self._source)
            return found
        return self._rows.of_tokens(row)

    def of_tokens(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """The values of all tokens, [n_vocab], from those of choices; the same array where both are the same."""
        if self._first is None:
            return values
        found: NDArray[np.float32] = values.take(self._of)
        return found

    def numbers(self, tokens: NDArray[np.intp]) -> NDArray[np.intp]:
        """The choices of some tokens, sorted, each once."""
        return tokens if self._first is None else np.unique(self._of[tokens])


class ChoiceRow(NamedTuple):
    """A row that was decided by: filtered logits, float32 [n] of `choices`."""

    logits: NDArray[np.float32]
    choices: Choices
