"""The pass that word times are made of: attention scores of the alignment heads, and probabilities of the tokens.

The scores come from the bundle's graph `align`, loaded at first use; the probabilities from the decoder, a chunk of
rows at a time, so that the logits of a long text are never held at once. The align graph uses the decoder's data file
where it is mapped and packs nothing: it runs once a window, and packed weights would take the decoder's size again, in
memory or in the cache of packed weights. Without packing the activations are not rounded either.
It does not know words, times or segments (`words` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.bundle import Bundle
from specedge.runtime.bundles.manifest import ALIGN_GRAPH, require_align
from specedge.runtime.errors import UsageError
from specedge.runtime.passes import residency
from specedge.runtime.passes.graphs import load_graph
from specedge.runtime.passes.session import Canceller, bind_array_input, bind_array_output

if TYPE_CHECKING:
    from specedge.runtime.passes.engine import Features, TextDecoder

__all__ = ["Aligner", "Alignment"]

CHUNK_ROWS = 32  # logits of a chunk: 6.6 MB for Whisper's vocabulary


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """One text over one window.

    scores: float32 `[n_heads, n_rows, n_ctx]`, query times key over sqrt(head_dim) of each alignment head, before the
    softmax. token_probs: float32 `[n_rows - 1]`, the probability of each row but the first after those before it, among
    the text tokens (ids below the end of text) alone; 0 for other tokens.
    """

    scores: NDArray[np.float32]
    token_probs: NDArray[np.float32]


class Aligner:
    """The align graph of a bundle. Raises BundleError when it has none or one that is not the manifest's."""

    def __init__(self, bundle: Bundle, canceller: Canceller, *, threads: int) -> None:
        require_align(bundle.manifest, bundle.path)
        self._dims = bundle.manifest.dims
        self._token_rows = bundle.token_rows
        self._eot = bundle.manifest.tokens.eot
        self._n_heads = len(bundle.manifest.alignment_heads)
        self._session = load_graph(bundle, ALIGN_GRAPH, canceller, folder=bundle.path, threads=threads)

    def align(self, features: Features, ids: Sequence[int], decoder: TextDecoder) -> Alignment:
        """Score and rate the whole text `ids`, prompt and end of text included, from position 0 on.

        Raises
        ------
        UsageError
            when there are no rows, more than `n_text_ctx`, or an id outside the vocabulary.
        Interrupted
            when cancelled.
        """
        dims = self._dims
        if not 1 <= len(ids) <= dims.n_text_ctx:
            raise UsageError(f"an alignment of {len(ids)} rows: expected 1 to {dims.n_text_ctx}")
        if min(ids) < 0 or max(ids) >= dims.n_vocab:
            raise UsageError(f"token ids {min(ids)} to {max(ids)}: expected 0 to {dims.n_vocab - 1}")
        probs = self._token_probs(features, ids, decoder)
        decoder.release_weights()  # the align graph maps them once more
        scores = self.scores(features, ids)
        residency.trim_heap()
        return Alignment(scores=scores, token_probs=probs)

    def scores(self, features: Features, ids: Sequence[int]) -> NDArray[np.float32]:
        """The `scores` of an Alignment alone, of ids that have been checked."""
        n_rows = len(ids)
        inputs: dict[str, NDArray[Any]] = {
            "ids": np.array([self._token_rows.of(ids)], np.int64),
            "positions": np.arange(n_rows, dtype=np.int64)[None],
            "past_len": np.array([n_rows - 1], np.int32),
            "total_len": np.array(n_rows, np.int32),
            **features.cross,
        }
        scores = np.empty((self._n_heads, n_rows, len(features.hidden)), np.float32)
        binding = self._session.binding()
        for name, array in inputs.items():
            if name in self._session.inputs:
                bind_array_input(binding, name, array)
        bind_array_output(binding, "scores", scores)
        self._session.run(binding)
        self._session.release_weights()
        return scores

    def _token_probs(self, features: Features, ids: Sequence[int], decoder: TextDecoder) -> NDArray[np.float32]:
        targets = np.array(ids[1:], np.int64)
        probs = np.zeros(len(targets), np.float32)
        state = decoder.start(features)
        try:
            for start in range(0, len(targets), CHUNK_ROWS):
                rows = ids[start : start + CHUNK_ROWS][: len(targets) - start]
                logits = self._token_rows.of_tokens(decoder.forward(state, rows))[:, : self._eot]
                wanted = targets[start : start + len(rows)]
                is_text = np.flatnonzero(wanted < self._eot)
                mass = np.exp(logits - logits.max(axis=1, keepdims=True))
                probs[start + is_text] = mass[is_text, wanted[is_text]] / mass[is_text].sum(axis=1)
                decoder.commit(state, len(rows))
        finally:
            decoder.release(state)
        return probs
