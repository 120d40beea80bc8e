"""The graph of a set of heads at work: hidden rows of the decoder in, the likeliest tokens of each head out.

The graph is `export.heads_graph`'s. Heads of the kind medusa-block have a decoder layer of their own, whose keys and
values are kept here: rows that it has not seen are run with the next call. One worker thread, because the decoder's own
wait busily between its passes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import BundleError

from ..bundle.bundle import Bundle
from ..options import BLOCK_KIND, BLOCK_KV_GRAPH
from .engine import cross_keys_values
from .session import Canceller, OrtValue, Session, bind_array_input, bind_array_output, load_graph, ort_value

_MOST_SIZES = 16  # numbers of rows whose arrays are kept


class HeadsPass:
    """The heads of the kind `kind` in `bundle`; one text at a time, from `begin` on. Raises BundleError.

    What stays bound is bound once, because making a binding takes longer than the heads of a small model.
    """

    def __init__(self, bundle: Bundle, kind: str, canceller: Canceller, *, threads: int = 1) -> None:
        self._dims = bundle.manifest.dims
        self._session = load_graph(bundle, kind, canceller, threads=threads)
        n_heads = self._session.outputs["ids"].shape[0]
        if not isinstance(n_heads, int) or n_heads < 1:
            raise BundleError(f"{bundle.path}: the graph {kind} does not say how many heads it has; export again")
        self.n_heads = n_heads
        self._cross_kv: Session | None = None
        if kind == BLOCK_KIND:
            self._cross_kv = load_graph(bundle, BLOCK_KV_GRAPH, canceller, threads=threads)
        self._start()

    def another(self) -> HeadsPass:
        """Heads for one more text at the same time, over the same loaded graphs and the same window at first."""
        twin = copy.copy(self)
        twin._start()
        twin._features, twin._n_heard = self._features, self._n_heard
        return twin

    def _start(self) -> None:
        """Buffers of its own, and no text."""
        self._binding = self._session.binding()
        self._n_choices = np.zeros(1, np.int64)  # of the arrays that are bound
        self._ids, self._probs = np.empty((0, 0), np.int64), np.empty((0, 0), np.float32)
        self._rows: dict[int, tuple[NDArray[np.float32], OrtValue]] = {}  # by their number
        self._n_bound = 0
        self._past_len, self._total_len = np.zeros(1, np.int32), np.zeros((), np.int32)
        self._caches: dict[str, NDArray[np.float32]] = {}
        if self._cross_kv is not None:
            self._bind_caches()
        self._features: NDArray[np.float32] | None = None
        self._n_heard: int | None = None
        self._cross: Mapping[str, NDArray[Any]] = {}
        self._n_seen, self._last = 0, b""

    def begin(self, features: NDArray[np.float32], n_heard: int | None = None) -> None:
        """A new text, over a window whose encoder output is `features`, float32 [n_audio_ctx, n_audio_state].

        n_heard: how many of its first rows are looked at; None for all.
        """
        if self._features is not features or self._n_heard != n_heard:
            self._features, self._n_heard, self._cross = features, n_heard, {}
        self._n_seen = 0

    def guess(self, hidden: NDArray[np.float32], n_choices: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The likeliest tokens of each head behind the text, [n_heads, n_choices], and their probabilities.

        hidden: the decoder's last hidden row of each row of the text, float32 [n_rows, n_text_state], at least one.
        Only rows behind those of the last call are run. Raises Interrupted, ResourceError.
        """
        n_rows = len(hidden)
        if not self._caches:
            self._bind_rows(hidden[n_rows - 1 :])
        else:
            n_seen = self._n_seen
            if not (0 < n_seen < n_rows and hidden[n_seen - 1].tobytes() == self._last):
                n_seen = 0  # another text over the same window, such as another beam
            self._bind_rows(hidden[n_seen:])
            self._past_len[0], self._total_len[()] = n_rows - 1, n_rows
            self._hear()
        if self._n_choices[0] != n_choices:
            self._bind_choices(n_choices)
        self._session.run(self._binding)
        if self._caches:
            self._n_seen, self._last = n_rows, hidden[n_rows - 1].tobytes()
        return self._ids.copy(), self._probs.copy()

    def _bind_caches(self) -> None:
        n_head, n_slots = self._dims.n_text_head, self._dims.n_text_ctx
        shape = (1, n_head, n_slots, self._dims.n_text_state // n_head)
        self._caches = {f"self_{part}_0": np.zeros(shape, np.float32) for part in "kv"}
        for name, array in self._caches.items():
            bind_array_input(self._binding, name, array)
            bind_array_output(self._binding, f"new_{name}", array)
        bind_array_input(self._binding, "past_len", self._past_len)
        bind_array_input(self._binding, "total_len", self._total_len)

    def _bind_rows(self, rows: NDArray[np.float32]) -> None:
        """Have the next guess begin at `rows`."""
        n_rows = len(rows)
        array, value = self._rows.get(n_rows, (None, None))
        if array is None:
            if len(self._rows) >= _MOST_SIZES:
                self._rows.clear()
            array = np.empty((1, *rows.shape), np.float32)
            value = ort_value(array)
            self._rows[n_rows] = array, value
            self._n_bound = 0
        array[0] = rows
        if self._n_bound != n_rows:
            self._binding.bind_ortvalue_input("hidden", value)
            self._n_bound = n_rows

    def _bind_choices(self, n_choices: int) -> None:
        shape = self.n_heads, n_choices
        self._n_choices = np.array([n_choices], np.int64)
        self._ids, self._probs = np.empty(shape, np.int64), np.empty(shape, np.float32)
        bind_array_input(self._binding, "n_choices", self._n_choices)
        bind_array_output(self._binding, "ids", self._ids)
        bind_array_output(self._binding, "probs", self._probs)

    def _hear(self) -> None:
        """Make and bind the block's cross-attention keys and values, once a window."""
        if not self._cross and self._cross_kv is not None and self._features is not None:
            features = np.ascontiguousarray(self._features[: self._n_heard], np.float32)[None]
            self._cross = cross_keys_values(self._cross_kv, features)
            for name, array in self._cross.items():
                bind_array_input(self._binding, name, array)
