"""The decoder of a bundle and the texts in work: token rows to logits, keys and values kept between passes.

Exactness lives here: a row's logits depend on its own prefix alone, bit for bit, however many rows share the pass.
The kernels promise that for an even number of rows, so every pass is padded to one with a row that is forgotten
(graph recipe, section 3; measured by `doctor`). Knows token ids and positions; nothing of text, rules or audio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.bundle import Bundle
from specedge.runtime.bundles.manifest import LEARN_GRAPH, TREE_GRAPH
from specedge.runtime.errors import UsageError
from specedge.runtime.passes.graphs import load_graph, logit_columns
from specedge.runtime.passes.session import Binding, Canceller, Session, bind_array_input, ort_value
from specedge.runtime.passes.tree_pass import MAX_PATHS, TreePass, TreeRows

MOST_SIZES = 64  # of passes whose arrays are kept

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


class PassBuffers:
    """The arrays of passes of one size, `logits` a part of the text's memory for them, and how they are bound.

    hidden: float32 [1, n_rows, n_hidden], None where nobody keeps hidden rows.
    """

    def __init__(self, n_rows: int, logits: NDArray[np.float32], n_hidden: int) -> None:
        self.ids = np.empty((1, n_rows), np.int64)
        self.positions = np.empty((1, n_rows), np.int64)
        self.logit_rows = np.empty(logits.shape[1], np.int64)
        self.logits = logits
        self.hidden = np.empty((1, n_rows, n_hidden), np.float32) if n_hidden else None
        inputs = {"ids": self.ids, "positions": self.positions, "logit_rows": self.logit_rows}
        self._inputs = [(name, ort_value(array)) for name, array in inputs.items()]
        self._logits = ort_value(logits)
        self._hidden = None if self.hidden is None else ort_value(self.hidden)

    def bind(self, binding: Binding) -> None:
        """Have the next passes of `binding` use these arrays."""
        for name, value in self._inputs:
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("logits", self._logits)
        if self._hidden is not None:
            binding.bind_ortvalue_output("hidden", self._hidden)


class TextMemory:
    """The buffers of one text, kept for the next: everything that is bound but the audio.

    caches: keys and values by the names of the graph's inputs; logits: float32 `[1, n, n_columns]`, where passes of all
    sizes write theirs, for fresh memory for each size would cost a page fault for each 4 KiB of it; n_hidden: width of
    the hidden rows that its passes give, 0 for none; hidden: float32 [n_slots, n_hidden], those of committed rows;
    last: the buffers of the last pass; heard: whether this text's audio is bound, which waits for the first pass.
    """

    def __init__(
        self, binding: Binding, caches: dict[str, NDArray[np.float32]], n_columns: int, *, n_hidden: int = 0
    ) -> None:
        self.binding, self.caches, self.n_hidden = binding, caches, n_hidden
        self.last: PassBuffers | None = None
        self.heard = False
        n_slots = next(iter(caches.values())).shape[2]
        self.hidden = np.empty((n_slots if n_hidden else 0, n_hidden), np.float32)
        self.past_len, self.total_len = np.zeros(1, np.int32), np.zeros((), np.int32)
        self.logits = np.empty((1, 2, n_columns), np.float32)
        self._bound: tuple[int, int] | None = None
        self._buffers: dict[tuple[int, int], PassBuffers] = {}
        self._values = {name: ort_value(array) for name, array in caches.items()}
        for name, value in self._values.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"new_{name}", value)
        bind_array_input(binding, "past_len", self.past_len)
        bind_array_input(binding, "total_len", self.total_len)

    def hear(self, features: Features, factors: Factors | None) -> None:
        """Bind a text's audio, and the factors that it runs with."""
        for name, array in features.cross.items():
            bind_array_input(self.binding, name, array)
        for name, factor in zip(("learn_a", "learn_b"), factors or (), strict=False):
            bind_array_input(self.binding, name, factor)
        self.heard = True

    def buffers(self, n_rows: int, n_logit_rows: int) -> PassBuffers:
        """Arrays for a pass of this size, bound."""
        size = n_rows, n_logit_rows
        if self.logits.shape[1] < n_logit_rows:
            self.logits = np.empty((1, n_logit_rows, self.logits.shape[2]), np.float32)
            self._bound, self._buffers = None, {}
        found = self._buffers.get(size)
        if found is None:
            if len(self._buffers) >= MOST_SIZES:
                self._buffers.clear()
            found = PassBuffers(n_rows, self.logits[:, :n_logit_rows], self.n_hidden)
            self._buffers[size] = found
            self._bound = None
        if self._bound != size:
            found.bind(self.binding)
            self._bound = size
        self.last = found
        return found


@dataclass(kw_only=True)
class State:
    """The text decoded so far, as keys and values: `length` rows are committed, rows beyond are scratch.

    `n_open` is the number of rows of the last pass that `commit` may still keep; after a pass over several paths they
    are in `tree_rows` instead. `hidden`, float32 [n_text_ctx, n_text_state], has the decoder's last hidden row of each
    committed row, until `Engine.release`; None unless `Engine.keep_hidden` asked for it.
    """

    length: int = 0
    n_open: int = 0
    memory: TextMemory
    features: Features
    factors: Factors | None = None
    tree_rows: TreeRows | None = None
    hidden: NDArray[np.float32] | None = None

    @property
    def caches(self) -> dict[str, NDArray[np.float32]]:
        """Keys and values by the names of the graph's inputs."""
        return self.memory.caches


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
        self.token_rows = bundle.token_rows
        self._n_columns = logit_columns(self._decoder, self.token_rows.n_rows, folder)
        # One slot more than positions, rounded up to even, so that the padding row always has a place.
        self._n_slots = self.dims.n_text_ctx + 2 - self.dims.n_text_ctx % 2
        self._positions = np.minimum(np.arange(self._n_slots), self.dims.n_text_ctx - 1)  # the table's end is its own
        self._spare: dict[int, TextMemory] = {}  # by the width of their hidden rows
        self._tree: TreePass | None = None
        where = tree_folder or (lambda: bundle.path)
        self._load_tree: Callable[[], Session] = lambda: load_graph(
            bundle, TREE_GRAPH, canceller, folder=where(), threads=threads
        )
        self.n_paths = MAX_PATHS if TREE_GRAPH in bundle.manifest.graphs else 1

    def start(self, features: Features, factors: Factors | None = None) -> State:
        """See `Engine.start`."""
        return State(memory=self._memory(n_hidden=0), features=features, factors=factors)

    def _memory(self, *, n_hidden: int) -> TextMemory:
        """Buffers for a text: what the last one of this kind has left, or new ones."""
        memory = self._spare.pop(n_hidden, None)
        if memory is None:
            memory = TextMemory(self._decoder.binding(), self._new_caches(), self._n_columns, n_hidden=n_hidden)
        memory.heard = False
        return memory

    def fork(self, state: State) -> State:
        """See `Engine.fork`."""
        copy = self.start(state.features, state.factors)
        if state.hidden is not None:
            self.keep_hidden(copy)
            copy.memory.hidden[: state.length] = state.hidden[: state.length]
        for name, array in state.caches.items():
            copy.caches[name][:, :, : state.length] = array[:, :, : state.length]
        copy.length = state.length
        return copy

    def keep_hidden(self, state: State) -> None:
        """See `Engine.keep_hidden`."""
        if state.length:
            raise UsageError(f"hidden rows are kept from the first row on, and {state.length} are committed")
        self.release(state)
        state.memory = self._memory(n_hidden=self.dims.n_text_state)
        state.hidden = state.memory.hidden[: self.dims.n_text_ctx]

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
        memory, n_rows = state.memory, _even(len(ids))
        if not memory.heard:
            memory.hear(state.features, state.factors)
        buffers = memory.buffers(n_rows, _even(len(rows)))
        buffers.ids[0, : len(ids)] = self.token_rows.of(ids)
        buffers.ids[0, len(ids) :] = buffers.ids[0, len(ids) - 1]  # the padding row, forgotten after the pass
        buffers.logit_rows[: len(rows)] = rows
        buffers.logit_rows[len(rows) :] = rows[-1]
        buffers.positions[0] = self._positions[state.length : state.length + n_rows]
        memory.total_len[()] = state.length + n_rows
        memory.past_len[0] = state.length + n_rows - 1
        self._decoder.run(memory.binding)
        state.n_open = len(ids)
        return buffers.logits[0, : len(rows), : self.token_rows.n_rows]

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
            self._tree = TreePass(self._load_tree(), self.dims, self.token_rows, self._n_columns)
        state.n_open, state.tree_rows = 0, None
        logits, rows = self._tree.run(
            state.length, state.caches, state.features.cross, pending, paths, keep_hidden=state.hidden is not None
        )
        state.tree_rows = rows
        return logits

    def _check_ids(self, ids: Sequence[int]) -> None:
        if min(ids) < 0 or max(ids) >= self.dims.n_vocab:
            raise UsageError(f"token ids {min(ids)} to {max(ids)}: expected 0 to {self.dims.n_vocab - 1}")

    def commit(self, state: State, n_rows: int, path: int = 0) -> None:
        """See `Engine.commit`."""
        rows = state.tree_rows
        n_open = state.n_open if rows is None else rows.n_open[path] if 0 <= path < len(rows.n_open) else 0
        if not 0 <= n_rows <= n_open or (rows is None and path):
            raise UsageError(f"a commit of {n_rows} rows: expected 0 to {n_open}, the rows of the last pass")
        if state.hidden is not None and n_rows:
            state.hidden[state.length : state.length + n_rows] = _hidden_rows(state, path)[:n_rows]
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
        self._spare.setdefault(state.memory.n_hidden, state.memory)

    def forget_chain(self, states: Iterable[State]) -> None:
        """Give up the graph of single texts and its memory: after that only passes over several paths can be run."""
        for state in states:
            del state.memory.binding
        self._spare.clear()
        del self._decoder

    def release_weights(self) -> None:
        """Give back the resident pages of mapped weights until the next pass."""
        self._decoder.release_weights()
        if self._tree is not None:
            self._tree.release_weights()

    def _new_caches(self) -> dict[str, NDArray[np.float32]]:
        dims = self.dims
        shape = (1, dims.n_text_head, self._n_slots, dims.n_text_state // dims.n_text_head)
        return {f"self_{part}_{i}": np.zeros(shape, np.float32) for i in range(dims.n_text_layer) for part in "kv"}


def _hidden_rows(state: State, path: int) -> NDArray[np.float32]:
    """Of the last pass, or a path of it, float32 [n_rows, n_text_state]."""
    made: NDArray[np.float32] | None = None
    if state.tree_rows is not None:
        made = None if state.tree_rows.hidden is None else state.tree_rows.hidden[path]
    elif state.memory.last is not None and state.memory.last.hidden is not None:
        made = state.memory.last.hidden[0]
    return np.empty((0, 0), np.float32) if made is None else made


def _even(n: int) -> int:
    return n + n % 2
