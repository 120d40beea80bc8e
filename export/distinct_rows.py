"""A vocabulary without repetitions: tokens whose weights are the same bits get one row of the vocabulary's matrices.

Models trained with a part of their vocabulary have such tokens by the thousand, and the product with the vocabulary is
a good part of a pass. Two tokens share a row when they do so in every matrix (embedding, and projection where it is not
tied), so the logits of tokens are what they were, bit for bit. `runtime.token_rows` undoes it.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from specedge.export.decoder_graph import PROJECTION, VOCABULARY
from specedge.export.layers import Weights

LARGEST_SHARE = 0.75  # of rows that must be left for a vocabulary to be worth a file of its own


def rows_of_tokens(weights: Weights) -> NDArray[np.int64] | None:
    """The row of each token, int64 `[n_vocab]`, numbered by first token; None where too few tokens share theirs."""
    names = [name for name in (VOCABULARY, PROJECTION) if weights.has(name)]
    known: dict[bytes, int] = {}
    digests: list[bytes] | None = None
    for name in names:  # one matrix in memory at a time
        found = [hashlib.blake2b(row.data, digest_size=32).digest() for row in weights.tensor(name)]
        digests = found if digests is None else [a + b for a, b in zip(digests, found, strict=True)]
    rows = np.array([known.setdefault(digest, len(known)) for digest in digests or []], np.int64)
    return rows if 0 < len(known) <= LARGEST_SHARE * len(rows) else None


class DistinctRows:
    """The weights of a model with the first token of each row as its whole vocabulary."""

    def __init__(self, weights: Weights, rows: NDArray[np.int64]) -> None:
        self._weights = weights
        self._first_tokens = np.unique(rows, return_index=True)[1]

    def tensor(self, name: str) -> NDArray[np.float32]:
        value = self._weights.tensor(name)
        return value[self._first_tokens] if name in (VOCABULARY, PROJECTION) else value

    def has(self, name: str) -> bool:
        return self._weights.has(name)
