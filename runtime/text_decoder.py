"""The decoder of a bundle and the texts in work: token rows to logits, keys and values kept between passes.

Exactness lives here: a row's logits depend on its own prefix alone, bit for bit, however many rows share the pass.
The kernels promise that for an even number of rows, so every pass is padded to one with a row that is forgotten
(graph recipe, section 3; measured by `doctor`). Knows token ids and positions; nothing of text, rules or audio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundle import Bundle
from specedge.runtime.errors import UsageError
from specedge.runtime.graphs import load_graph, logit_columns
from specedge.runtime.manifest import LEARN_GRAPH, TREE_GRAPH
from specedge.runtime.session import Binding, Canceller, Session, bind_array_input, bind_array_output, ort_value
from specedge.runtime.tree_pass import MAX_PATHS, TreePass, TreeRows

Factors = tuple[NDArray[np.float32], NDArray[np.float32]]
"""A f32 `[n_text_state, n_rank]` and B f32 `[n_rank, n_text_state]` of a draft that learns."""


@dataclass(frozen=True, kw_only=True)
class Features:
    """One audio window as the decoder sees it.

    `hidden` is the encoder's output, float32 `[n_audio_ctx, n_audio_state]`; `cross` are the cross-attention keys and
    values of all decoder layers under the names of the decoder's inputs (export/encoder_graph.py has the shapes).
    """

    hidden: NDArray[np.float32]
    cross: dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class PassBuffers:
    """The arrays of a pass of one size, bound by address: kept so that passes of the same size need no new binding."""

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    logit_rows: NDArray[np.int64]
    logits: NDArray[np.float32]
    hidden: NDArray[np.float32] | None

    @classmethod
    def make(cls, n_rows: int, logits: NDArray[np.float32], n_hidden: int) -> PassBuffers:
        return cls(
            ids=np.empty((1, n_rows), np.int64),
            positions=np.empty((1, n_rows), np.int64),
            logit_rows=np.empty(logits.shape[1], np.int64),
            logits=logits,
            hidden=np.empty((1, n_rows, n_hidden), np.float32) if n_hidden else None,
        )

    @property
    def size(self) -> tuple[int, int]:
        return self.ids.size, self.logit_rows.size


@dataclass(frozen=True, kw_only=True)
class LogitMemory:
    """What passes of all sizes write logits to: `columns` f32 `[1, n, n_columns]` gets the graph's, `tokens` f32
    `[n, n_vocab]` those of tokens where the vocabulary is compact."""

    columns: NDArray[np.float32]
    tokens: NDArray[np.float32] | None


@dataclass(kw_only=True)
class State:
    """The text decoded so far, as keys and values: `length` rows are committed, rows beyond are scratch.

    `n_open` is the number of rows of the last pass that `commit` may still keep; after a pass over several paths they
    are in `tree_rows` instead. `n_hidden` is the width of the hidden rows that passes give too, 0 where nobody wants
    them: `hidden` f32 `[n_rows, n_text_state]` of the last pass, after the final norm, its padding row included.
    """

    length: int = 0
    n_open: int = 0
    binding: Binding
    caches: dict[str, NDArray[np.float32]]
    logits: LogitMemory
    features: Features
    keep_alive: list[object] = field(default_factory=list)
    tree_rows: TreeRows | None = None
    bound: PassBuffers | None = None
    past_len: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1, np.int32))
    total_len: NDArray[np.int32] = field(default_factory=lambda: np.zeros((), np.int32))
    n_hidden: int = 0

    @property
    def hidden(self) -> NDArray[np.float32]:
        """See the class."""
        if self.bound is None or self.bound.hidden is None:
            raise UsageError("the hidden rows of this text were not asked for, or there was no pass")
        rows: NDArray[np.float32] = self.bound.hidden[0]
        return rows


class TextDecoder:
    """The graph that runs once per pass, and the buffers of the texts in work. Raises BundleError.

    The graph for several paths is loaded when it is first used, for it costs as much memory again; `tree_folder` says
    where it lies then, by default in the bundle. With `learns` the graph with factors runs in the decoder's place
    (export/learn_graphs.py); it always lies in the bundle.
    """

    def __init__(
        self,
        bundle: Bundle,
        canceller: Canceller,
        *,
        folder: Path,
        threads: int,
        tree_folder: Callable[[], Path] | None = None,
        learns: bool = False,
    ) -> None:
        self.dims = bundle.manifest.dims
        self.threads = threads
        graph, where_it_lies = (LEARN_GRAPH, bundle.path) if learns else ("decoder", folder)
        self._decoder = load_graph(bundle, graph, canceller, folder=where_it_lies, threads=threads)
        self._rows = bundle.token_rows
        self._n_columns = logit_columns(self._decoder, self._rows.n_rows, folder)
        # One slot more than positions, rounded up to even, so that the padding row always has a place.
        self._n_slots = self.dims.n_text_ctx + 2 - self.dims.n_text_ctx % 2
        self._positions = np.arange(self._n_slots, dtype=np.int64)
        self._spare: list[tuple[dict[str, NDArray[np.float32]], LogitMemory]] = []
        self._tree: TreePass | None = None
        where = tree_folder or (lambda: bundle.path)
        self._load_tree: Callable[[], Session] = lambda: load_graph(
            bundle, TREE_GRAPH, canceller, folder=where(), threads=threads
        )
        self.n_paths = MAX_PATHS if TREE_GRAPH in bundle.manifest.graphs else 1

    def start(self, features: Features, factors: Factors | None = None, *, gives_hidden: bool = False) -> State:
        """See `Engine.start`."""
        binding = self._decoder.binding()
        caches, logits = self._spare.pop() if self._spare else (self._new_caches(), self._new_logits(2))
        n_hidden = self.dims.n_text_state if gives_hidden else 0
        state = State(binding=binding, caches=caches, logits=logits, features=features, n_hidden=n_hidden)
        for name, array in zip(("learn_a", "learn_b"), factors or (), strict=False):
            bind_array_input(binding, name, array)
            state.keep_alive.append(array)
        bind_array_input(binding, "past_len", state.past_len)
        bind_array_input(binding, "total_len", state.total_len)
        for name, array in caches.items():
            value = ort_value(array)
            state.keep_alive.append(value)
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"new_{name}", value)
        for name, array in features.cross.items():
            bind_array_input(binding, name, array)
        return state

    def fork(self, state: State) -> State:
        """See `Engine.fork`."""
        copy = self.start(state.features)
        for name, array in state.caches.items():
            copy.caches[name][:, :, : state.length] = array[:, :, : state.length]
        copy.length = state.length
        return copy

    def forward(self, state: State, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> NDArray[np.float32]:
        """See `Engine.forward`."""
        dims = self.dims
        if not 1 <= len(ids) <= dims.n_text_ctx - state.length:
            raise UsageError(
                f"a pass of {len(ids)} rows after {state.length}: expected 1 to {dims.n_text_ctx - state.length}"
            )
        self._check_ids(ids)
        rows = range(len(ids)) if logit_rows is None else logit_rows
        if not rows or min(rows) < 0 or max(rows) >= len(ids):
            raise UsageError(f"logit rows {list(rows)[:8]} of a pass of {len(ids)}: expected 0 to {len(ids) - 1}")
        state.n_open, state.tree_rows = 0, None
        buffers = self._buffers(state, _even(len(ids)), _even(len(rows)))
        n_rows, n_logit_rows = buffers.size
        buffers.ids[0, : len(ids)] = self._rows.of(ids)
        buffers.ids[0, len(ids) :] = buffers.ids[0, len(ids) - 1]  # the padding row, forgotten after the pass
        buffers.logit_rows[: len(rows)] = rows
        buffers.logit_rows[len(rows) :] = rows[-1]
        # The padding row may lie one beyond the table of positions.
        np.minimum(self._positions[state.length : state.length + n_rows], dims.n_text_ctx - 1, out=buffers.positions[0])
        state.total_len[()] = state.length + n_rows
        state.past_len[0] = state.length + n_rows - 1
        self._decoder.run(state.binding)
        state.n_open = len(ids)
        return self._rows.of_tokens(buffers.logits[0, : len(rows)], state.logits.tokens)

    def forward_paths(
        self, state: State, pending: int, paths: Sequence[Sequence[int]]
    ) -> list[list[NDArray[np.float32]]]:
        """See `Engine.forward_paths`."""
        n_room = self.dims.n_text_ctx - state.length - 1
        if not 2 <= len(paths) <= self.n_paths or not all(1 <= len(path) <= n_room for path in paths):
            raise UsageError(
                f"{len(paths)} paths of {', '.join(str(len(path)) for path in paths)} rows after {state.length}: "
                f"expected 2 to {self.n_paths} paths of 1 to {n_room}"
            )
        self._check_ids([pending, *(token for path in paths for token in path)])
        if self._tree is None:
            self._tree = TreePass(self._load_tree(), self.dims, self._rows, self._n_columns)
        state.n_open, state.tree_rows = 0, None
        logits, rows = self._tree.run(state.length, state.caches, state.features.cross, pending, paths)
        state.tree_rows = rows
        return logits

    def _check_ids(self, ids: Sequence[int]) -> None:
        if min(ids) < 0 or max(ids) >= self.dims.n_vocab:
            raise UsageError(f"token ids {min(ids)} to {max(ids)}: expected 0 to {self.dims.n_vocab - 1}")

    def _buffers(self, state: State, n_rows: int, n_logit_rows: int) -> PassBuffers:
        """Arrays for a pass of this size, bound to `state`."""
        if state.bound is None or state.bound.size != (n_rows, n_logit_rows):
            if state.logits.columns.shape[1] < n_logit_rows:
                state.logits = self._new_logits(n_logit_rows)
            # Fresh memory for each size would cost a page fault for each 4 KiB of it.
            state.bound = PassBuffers.make(n_rows, state.logits.columns[:, :n_logit_rows], state.n_hidden)
            for name in ("ids", "positions", "logit_rows"):
                bind_array_input(state.binding, name, getattr(state.bound, name))
            bind_array_output(state.binding, "logits", state.bound.logits)
            if state.bound.hidden is not None:
                bind_array_output(state.binding, "hidden", state.bound.hidden)
        return state.bound

    def commit(self, state: State, n_rows: int, path: int = 0) -> None:
        """See `Engine.commit`."""
        rows = state.tree_rows
        n_open = state.n_open if rows is None else rows.n_open[path] if 0 <= path < len(rows.n_open) else 0
        if not 0 <= n_rows <= n_open or (rows is None and path):
            raise UsageError(f"a commit of {n_rows} rows: expected 0 to {n_open}, the rows of the last pass")
        if rows is not None:
            rows.copy(path, n_rows, state.caches, state.length)
        state.length += n_rows
        state.n_open, state.tree_rows = 0, None

    def rewind(self, state: State, n_rows: int) -> None:
        """See `Engine.rewind`."""
        if not 0 <= n_rows <= state.length:
            raise UsageError(f"a rewind to {n_rows} rows: expected 0 to {state.length}, the rows committed")
        state.length = n_rows
        state.n_open, state.tree_rows = 0, None

    def release(self, state: State) -> None:
        """See `Engine.release`."""
        if not self._spare:
            self._spare.append((state.caches, state.logits))

    def forget_chain(self, states: Iterable[State]) -> None:
        """Give up the graph of single texts and its memory: after that only passes over several paths can be run."""
        for state in states:
            del state.binding
        del self._decoder

    def release_weights(self) -> None:
        """Give back the resident pages of mapped weights until the next pass."""
        self._decoder.release_weights()
        if self._tree is not None:
            self._tree.release_weights()

    def _new_logits(self, n_rows: int) -> LogitMemory:
        columns = np.empty((1, n_rows, self._n_columns), np.float32)
        return LogitMemory(columns=columns, tokens=self._rows.new_logits(n_rows))

    def _new_caches(self) -> dict[str, NDArray[np.float32]]:
        dims = self.dims
        shape = (1, dims.n_text_head, self._n_slots, dims.n_text_state // dims.n_text_head)
        return {f"self_{part}_{i}": np.zeros(shape, np.float32) for i in range(dims.n_text_layer) for part in "kv"}


def _even(n: int) -> int:
    return n + n % 2
