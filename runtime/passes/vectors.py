"""The vectors of a vocabulary, by token: what the decoder multiplies its last hidden rows with.

They come from the bundle's graph `vectors`, which reads the decoder's data file where it is mapped. Only what learns
needs them. Does not know: what is learned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.bundle import Bundle
from specedge.runtime.bundles.manifest import VECTORS_GRAPH
from specedge.runtime.passes.graphs import load_graph
from specedge.runtime.passes.session import Canceller, bind_array_input, bind_array_output

__all__ = ["VocabularyVectors"]


class VocabularyVectors:
    """The loaded graph of a bundle that has one. Raises BundleError."""

    def __init__(self, bundle: Bundle, canceller: Canceller) -> None:
        self._rows = bundle.token_rows
        self.n_state = bundle.manifest.dims.n_text_state
        self._session = load_graph(bundle, VECTORS_GRAPH, canceller, folder=bundle.path, threads=1)

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Of token ids in range, int64 [n]: float32 [n, n_text_state]. Raises Interrupted."""
        rows = np.ascontiguousarray(self._rows.of(ids), np.int64)
        found = np.empty((len(rows), self.n_state), np.float32)
        binding = self._session.binding()
        bind_array_input(binding, "rows", rows)
        bind_array_output(binding, "vectors", found)
        self._session.run(binding)
        return found
