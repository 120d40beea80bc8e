"""The graph of a set of heads at work: hidden rows of the decoder in, the likeliest tokens of each head out.

The graph is `export.heads_graph`'s. Heads of the kind medusa-block have a decoder layer of their own, whose keys and
values are kept in step here: rows that it has not seen are run with the next call. One worker thread, because the
decoder's own wait busily between its passes. Does not know: drafts, which rows are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.bundle import Bundle
from specedge.runtime.errors import BundleError
from specedge.runtime.passes.cross_kv import cross_keys_values
from specedge.runtime.passes.graphs import load_graph
from specedge.runtime.passes.head_graphs import BLOCK_KIND, BLOCK_KV_GRAPH
from specedge.runtime.passes.session import Canceller, Session, bind_array_input, bind_array_output

__all__ = ["HeadsPass"]


class HeadsPass:
    """The heads of the kind `kind` in `bundle`, loaded. One text at a time, from `begin` on.

    Raises BundleError.
    """

    def __init__(self, bundle: Bundle, kind: str, canceller: Canceller) -> None:
        self._dims = bundle.manifest.dims
        self._session = load_graph(bundle, kind, canceller, folder=bundle.path, threads=1)
        n_heads = self._session.outputs["ids"].shape[0]
        if not isinstance(n_heads, int) or n_heads < 1:
            raise BundleError(f"{bundle.path}: the graph {kind} does not say how many heads it has; export again")
        self.n_heads = n_heads
        self._cross_kv: Session | None = None
        self._caches: dict[str, NDArray[np.float32]] = {}
        if kind == BLOCK_KIND:
            self._cross_kv = load_graph(bundle, BLOCK_KV_GRAPH, canceller, folder=bundle.path, threads=1)
            n_head, n_slots = self._dims.n_text_head, self._dims.n_text_ctx
            shape = (1, n_head, n_slots, self._dims.n_text_state // n_head)
            self._caches = {f"self_{part}_0": np.zeros(shape, np.float32) for part in "kv"}
        self._features: NDArray[np.float32] | None = None
        self._n_heard: int | None = None
        self._cross: Mapping[str, NDArray[Any]] = {}
        self._n_seen, self._last = 0, np.empty((0, 0), np.float32)

    def begin(self, features: NDArray[np.float32], n_heard: int | None = None) -> None:
        """A new text, over a window whose encoder output is `features`, float32 [n_audio_ctx, n_audio_state].

        n_heard: how many of its rows, from the first on, are looked at; all of them if None.
        """
        if self._features is not features or self._n_heard != n_heard:
            self._features, self._n_heard, self._cross = features, n_heard, {}
        self._n_seen = 0

    def guess(self, hidden: NDArray[np.float32], n_choices: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The likeliest tokens [n_heads, n_choices] that each head sees behind the text, and their probabilities.

        hidden: the decoder's last hidden row of each row of the text, float32 [n_rows, n_text_state], one at least.
        Rows of the last call that come first again are not run again. Raises Interrupted, ResourceError.
        """
        n_seen = self._n_seen
        if not (n_seen < len(hidden) and np.array_equal(hidden[n_seen - 1 : n_seen], self._last)):
            n_seen = 0  # another text over the same window, such as another beam
        first = n_seen if self._caches else len(hidden) - 1
        rows = np.ascontiguousarray(hidden[first:], np.float32)[None]
        inputs: dict[str, NDArray[Any]] = {"hidden": rows, "n_choices": np.array([n_choices], np.int64)}
        if self._caches:
            inputs |= {
                "past_len": np.array([len(hidden) - 1], np.int32),
                "total_len": np.array(len(hidden), np.int32),
                **self._caches,
                **self._heard(),
            }
        ids = np.empty((self.n_heads, n_choices), np.int64)
        probs = np.empty((self.n_heads, n_choices), np.float32)
        binding = self._session.binding()
        for name, array in inputs.items():
            bind_array_input(binding, name, array)
        for name, array in self._caches.items():
            bind_array_output(binding, f"new_{name}", array)
        bind_array_output(binding, "ids", ids)
        bind_array_output(binding, "probs", probs)
        self._session.run(binding)
        self._n_seen, self._last = len(hidden), rows[0, -1:].copy()
        return ids, probs

    def _heard(self) -> Mapping[str, NDArray[Any]]:
        """The block's cross-attention keys and values, made when they are first needed in a window."""
        if not self._cross and self._cross_kv is not None and self._features is not None:
            features = np.ascontiguousarray(self._features[: self._n_heard], np.float32)[None]
            self._cross = cross_keys_values(self._cross_kv, features)
        return self._cross
