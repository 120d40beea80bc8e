"""Tokens and the rows of the decoder's vocabulary: one each, or one for all tokens that are the same bits to the model.

A model trained with a part of its vocabulary has one and the same vector for all that it never met. A bundle then holds
each distinct vector once ("compact") and a file that says which token has which: uint32 little-endian [n_vocab], where
rows are numbered in the order of their first tokens. Ids become rows on the way into a pass. What comes out are logits
of rows: `choices` decides among them, and who needs those of all tokens asks for them here.

Knows nothing of graphs or passes; `export.distinct_rows` makes such vocabularies.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.errors import BundleError

from .strict_json import REMEDY

__all__ = ["FILE_DTYPE", "TokenRows"]

FILE_DTYPE = np.dtype("<u4")


class TokenRows:
    """The row of each token, int64 `[n_vocab]`; without `rows` each token has one of its own, under its id.

    counts: the tokens of each row, float32 [n_rows], None where it is always one.
    """

    counts: NDArray[np.float32] | None = None

    def __init__(self, n_vocab: int, rows: NDArray[np.int64] | None = None) -> None:
        self.n_vocab = n_vocab
        self.n_rows = n_vocab if rows is None else int(rows.max()) + 1
        self._rows = rows
        if rows is not None:
            self.counts = np.bincount(rows).astype(np.float32)
            self._commonest = int(self.counts.argmax())
            self._others = np.flatnonzero(rows != self._commonest)
            self._rows_of_others = rows[self._others]

    @classmethod
    def load(cls, path: Path, n_vocab: int) -> TokenRows:
        """The file's rows. Raises BundleError when it is none for `n_vocab` tokens."""
        try:
            rows = np.frombuffer(path.read_bytes(), FILE_DTYPE).astype(np.int64)
        except (OSError, ValueError) as error:
            raise BundleError(f"{path}: cannot be read ({error}); {REMEDY}") from None
        highest = np.maximum.accumulate(np.concatenate([[-1], rows]))
        if len(rows) != n_vocab or (rows > highest[:-1] + 1).any():
            raise BundleError(f"{path}: not the rows of {n_vocab} tokens in the order of their first tokens; {REMEDY}")
        return cls(n_vocab, rows)

    def of(self, ids: NDArray[np.int64] | Sequence[int]) -> NDArray[np.int64] | Sequence[int]:
        """The rows of token ids in range."""
        return ids if self._rows is None else self._rows[np.asarray(ids)]  # a tuple would be one index

    @property
    def is_compact(self) -> bool:
        """Whether tokens share rows."""
        return self._rows is not None

    def of_tokens(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits of tokens, `[..., n_vocab]`, from those of rows, `[..., n_rows]`; the same array where both are."""
        if self._rows is None:
            return logits
        # Most tokens have the commonest row: to fill and then to write the others is several times faster than to look
        # each up.
        wide = np.empty((*logits.shape[:-1], self.n_vocab), np.float32)
        wide[...] = logits[..., self._commonest, None]
        wide[..., self._others] = logits[..., self._rows_of_others]
        return wide
