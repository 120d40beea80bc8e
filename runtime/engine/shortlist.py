"""The shortlist: the tokens that a draft model may say, fewer than its vocabulary has.

Two thirds of what a small draft reads in a pass is its vocabulary matrix. The graph `shortlist` gives the logits of the
ids of text below `N_COMMON`, which are common, since byte pairs are merged in the order of their frequency, and of
special tokens and timestamps. Others join where they are to be expected: those of token maps and prompts, and those
that the target has said. Their rows of the matrix are multiplied with the hidden row here. A token that is missing ends
a draft early; it never changes the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ..bundle.manifest import DECODER_GRAPH, SHORTLIST_GRAPH, Manifest

N_COMMON = 8_192  # 70 to 88 % of the tokens of English texts
MOST_SAID = 2_048  # tokens beyond those that are kept, the latest
MOST_EXPECTED = 1_024  # of them from token maps, before the target has said anything
_MULTIPLE = 16  # of columns, as packed weights want them
Span = tuple[int, int]
"""The first id, and the one behind the last."""


def shortlist_spans(n_columns: int, eot: int, n_common: int = N_COMMON) -> tuple[Span, Span] | None:
    """The ids whose logits the graph gives, one span behind the other; None where all are few.

    n_columns: rows of the vocabulary matrix, padding included; eot: the first special token.
    """
    special = eot - eot % _MULTIPLE
    return ((0, n_common), (special, n_columns)) if 2 * n_common <= special else None


class Shortlist:
    """The shortlist of a draft at work, for a manifest that has the graph.

    vectors_of: gives the rows of the vocabulary matrix, float32 [n, n_text_state], of ids int64 [n].
    n_columns: logits of the graph, padding included.
    """

    def __init__(
        self,
        manifest: Manifest,
        vectors_of: Callable[[NDArray[np.int64]], NDArray[np.float32]],
    ) -> None:
        n_whole = _n_columns(manifest, DECODER_GRAPH)
        self.n_columns, self.n_vocab = _n_columns(manifest, SHORTLIST_GRAPH), manifest.dims.n_vocab
        special = manifest.tokens.eot - manifest.tokens.eot % _MULTIPLE
        first = np.arange(self.n_columns - (n_whole - special))
        self._columns = np.concatenate([first, np.arange(special, self.n_vocab)])  # their ids, without padding
        self._is_missing = np.ones(self.n_vocab, bool)
        self._is_missing[self._columns] = False
        self._vectors_of = vectors_of
        self._said = np.empty(0, np.int64)
        self._vectors = np.empty((0, manifest.dims.n_text_state), np.float32)

    def add(self, ids: Iterable[int]) -> None:
        """These are expected or were said: what was missing joins, the oldest of those that joined makes room."""
        known = set(self._said.tolist())
        new = {token for token in ids if 0 <= token < self.n_vocab and self._is_missing[token]} - known
        if not new:
            return
        joined = np.array(sorted(new), np.int64)
        self._said = np.concatenate([self._said, joined])[-MOST_SAID:]
        self._vectors = np.concatenate([self._vectors, self._vectors_of(joined)])[-MOST_SAID:]

    def spread(self, logits: NDArray[np.float32], hidden: NDArray[np.float32], row: NDArray[np.float32]) -> None:
        """Write the logits of all tokens into `row`, float32 [n_vocab], minus infinity where a token is missing.

        logits: of the graph, float32 [n_columns]; hidden: the row that they were made of, float32 [n_text_state].
        """
        row.fill(-np.inf)
        row[self._columns] = logits[: len(self._columns)]
        row[self._said] = self._vectors @ hidden


def _n_columns(manifest: Manifest, graph: str) -> int:
    shape = next(spec.shape for spec in manifest.graphs[graph].outputs if spec.name == "logits")
    return int(shape[2])
