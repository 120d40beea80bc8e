"""A loaded bundle that runs: mel to cross-attention keys and values, token rows to logits.

The encoder half is here, the decoder half in `text_decoder`. Knows token ids and positions; nothing of text, rules or
audio files.

The decoder of a bundle and the texts in work: token rows to logits, keys and values kept between passes.

Exactness lives here: a row's logits depend on its own prefix alone, bit for bit, however many rows share the pass.
The kernels promise that for an even number of rows, so every pass is padded to one with a row that is forgotten
(graph recipe, section 3; measured by `doctor`). Knows token ids and positions; nothing of text, rules or audio.

The pass that turns a window's encoder output into cross-attention keys and values, of all decoder layers or of one.

The graph is `export.encoder_graph.build_cross_kv`'s. Does not know: whose layers they are.

One pass over several continuations of a text: batch rows that share its past and one reading of the weights.

The graph is `export.tree_graph`'s. It leaves the text's buffers as they are and gives back the keys and values of the
new rows, of which the path that wins is copied over; the others are dropped. All paths are padded to the same even
number of rows, so that a row's bits are those of a pass of its own. Does not know: which path wins.

The pass that word times are made of: attention scores of the alignment heads, and probabilities of the tokens.

The scores come from the bundle's graph `align`, loaded at first use; the probabilities from the decoder, a chunk of
rows at a time, so that the logits of a long text are never held at once. The align graph uses the decoder's data file
where it is mapped and packs nothing: it runs once a window, and packed weights would take the decoder's size again, in
memory or in the cache of packed weights. Without packing the activations are not rounded either.
It does not know words, times or segments (`words` does).

Made-up audio and tokens for checks that need no files: the same on every machine.

Says nothing about accuracy; knows only dimensions.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import BundleError, Interrupted, SpecedgeError, UsageError

from ..bundle.bundle import Bundle
from ..bundle.manifest import ALIGN_GRAPH, GRAPH_NAMES, LEARN_GRAPH, TREE_GRAPH, Dims, require_align
from ..device import most_threads, threads_allowed
from . import packed as prepack
from . import packed as residency
from .session import (
    RUNTIME_VERSION,
    Binding,
    Canceller,
    Session,
    bind_array_input,
    bind_array_output,
    load_graph,
    logit_columns,
    ort_value,
)

__all__ = [
    "Aligner",
    "Alignment",
    "AudioEncoder",
    "Engine",
    "Factors",
    "Features",
    "MAX_PATHS",
    "MOST_SIZES",
    "N_PROBE_FRAMES",
    "N_PROBE_ROWS",
    "PassBuffers",
    "State",
    "TextDecoder",
    "TextMemory",
    "TreePass",
    "TreeRows",
    "cross_keys_values",
    "probe_ids",
    "probe_mel",
    "wait_before_fork",
]


def cross_keys_values(session: Session, hidden: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """The graph's outputs by name for windows of encoder output, float32 `[n_windows, n_ctx, n_audio_state]`.

    Raises Interrupted, ResourceError.
    """
    n_windows, n_ctx, _ = hidden.shape
    binding = session.binding()
    bind_array_input(binding, "features", hidden)
    cross = {
        name: np.empty(
            [axis if isinstance(axis, int) else n_windows if axis == "batch" else n_ctx for axis in tensor.shape],
            tensor.dtype,
        )
        for name, tensor in session.outputs.items()
    }
    for name, array in cross.items():
        bind_array_output(binding, name, array)
    session.run(binding)
    return cross


MAX_PATHS = 4  # beyond a few dozen rows a pass costs as much as two
_N_PROBE_SLOTS = 32


@dataclass(frozen=True, kw_only=True)
class TreeRows:
    """New keys and values by the names of a text's buffers, float32 [n_paths, 1, n_head, n_rows, head_dim].

    n_open: rows of each path that may be kept; hidden: the last hidden rows, float32 [n_paths, n_rows, n_text_state],
    where they were asked for.
    """

    rows: Mapping[str, NDArray[np.float32]]
    n_open: tuple[int, ...]
    hidden: NDArray[np.float32] | None = None

    def copy(self, path: int, n_rows: int, caches: Mapping[str, NDArray[np.float32]], start: int) -> None:
        """Write the first `n_rows` rows of a path into a text's buffers, from slot `start` on."""
        for name, array in self.rows.items():
            caches[name][:, :, start : start + n_rows] = array[path, :, :, :n_rows]


class TreePass:
    """The loaded graph; `n_columns` is the width of its logits, of which the first `n_vocab` count."""

    def __init__(self, session: Session, dims: Dims, n_columns: int) -> None:
        self._session, self._dims, self._n_columns = session, dims, n_columns

    def run(
        self,
        length: int,
        caches: Mapping[str, NDArray[np.float32]],
        cross: Mapping[str, NDArray[np.generic]],
        pending: int,
        paths: Sequence[Sequence[int]],
        *,
        keep_hidden: bool = False,
    ) -> tuple[list[list[NDArray[np.float32]]], TreeRows]:
        """The logits after `pending` and each id of each path, and the rows; `length` rows of `caches` are the past.

        Raises Interrupted, ResourceError.
        """
        dims = self._dims
        n_path_rows = 1 + max(map(len, paths))
        n_path_rows += n_path_rows % 2
        ids = np.array([[pending, *path, *[path[-1]] * (n_path_rows - 1 - len(path))] for path in paths], np.int64)
        positions = np.minimum(np.arange(length, length + n_path_rows, dtype=np.int64), dims.n_text_ctx - 1)
        places = _places(paths, n_path_rows)
        wanted = sorted({place for row in places for place in row})
        wanted += wanted[-1:] * (len(wanted) % 2)
        inputs = {
            "ids": ids.reshape(1, -1),
            "positions": np.tile(positions, len(paths))[None],
            "logit_rows": np.array(wanted, np.int64),
            "past_len": np.array([length + n_path_rows - 1], np.int32),
            "total_len": np.array(length + n_path_rows, np.int32),
            "n_paths": np.array([len(paths)], np.int64),
            **caches,
            **cross,
        }
        logits = np.empty((1, len(wanted), self._n_columns), np.float32)
        head_dim = dims.n_text_state // dims.n_text_head
        rows = {name: np.empty((len(paths), 1, dims.n_text_head, n_path_rows, head_dim), np.float32) for name in caches}
        binding = self._session.binding()
        for name, array in inputs.items():
            bind_array_input(binding, name, array)
        bind_array_output(binding, "logits", logits)
        for name, output in rows.items():
            bind_array_output(binding, name.replace("self_", "path_"), output)
        hidden = np.empty((1, len(paths) * n_path_rows, dims.n_text_state), np.float32) if keep_hidden else None
        if hidden is not None:
            bind_array_output(binding, "hidden", hidden)
        self._session.run(binding)
        found = {place: logits[0, i, : dims.n_vocab] for i, place in reversed(list(enumerate(wanted)))}
        return (
            [[found[place] for place in row] for row in places],
            TreeRows(
                rows=rows,
                n_open=tuple(1 + len(path) for path in paths),
                hidden=None if hidden is None else hidden.reshape(len(paths), n_path_rows, -1),
            ),
        )

    def probe_bits(self) -> bytes:
        """Logits and rows of made-up input, to compare one way of loading the graph with another."""
        rng = np.random.default_rng(0)
        made: dict[str, NDArray[np.generic]] = {}
        for name, tensor in self._session.inputs.items():
            if name.startswith(("self_", "cross_")):
                shape = [axis if isinstance(axis, int) else _N_PROBE_SLOTS for axis in tensor.shape]
                values = rng.standard_normal(shape)
                made[name] = (values * 40 if tensor.dtype == "int8" else values).astype(tensor.dtype)
        caches = {name: array.astype(np.float32) for name, array in made.items() if name.startswith("self_")}
        cross = {name: array for name, array in made.items() if name.startswith("cross_")}
        ids = np.arange(6) % self._dims.n_vocab
        logits, rows = self.run(3, caches, cross, 0, [ids[1:4].tolist(), ids[2:].tolist()])
        found = [row.tobytes() for path in logits for row in path]
        return b"".join([*found, *(rows.rows[name].tobytes() for name in sorted(rows.rows))])

    def release_weights(self) -> None:
        """Give back the resident pages of mapped weights until the next pass."""
        self._session.release_weights()


def _places(paths: Sequence[Sequence[int]], n_path_rows: int) -> list[list[int]]:
    """For each path, which rows of the pass hold its logits: what paths begin with alike is read off once."""
    first: dict[tuple[int, ...], int] = {}
    return [
        [first.setdefault(tuple(path[:n]), i * n_path_rows + n) for n in range(len(path) + 1)]
        for i, path in enumerate(paths)
    ]


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
        self._n_columns = logit_columns(self._decoder, self.dims.n_vocab, folder)
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
        buffers.ids[0, : len(ids)] = ids
        buffers.ids[0, len(ids) :] = buffers.ids[0, len(ids) - 1]  # the padding row, forgotten after the pass
        buffers.logit_rows[: len(rows)] = rows
        buffers.logit_rows[len(rows) :] = rows[-1]
        buffers.positions[0] = self._positions[state.length : state.length + n_rows]
        memory.total_len[()] = state.length + n_rows
        memory.past_len[0] = state.length + n_rows - 1
        self._decoder.run(memory.binding)
        state.n_open = len(ids)
        return buffers.logits[0, : len(rows), : dims.n_vocab]

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
            self._tree = TreePass(self._load_tree(), self.dims, self._n_columns)
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
            "ids": np.array([ids], np.int64),
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
                logits = decoder.forward(state, rows)[:, : self._eot]
                wanted = targets[start : start + len(rows)]
                is_text = np.flatnonzero(wanted < self._eot)
                mass = np.exp(logits - logits.max(axis=1, keepdims=True))
                probs[start + is_text] = mass[is_text, wanted[is_text]] / mass[is_text].sum(axis=1)
                decoder.commit(state, len(rows))
        finally:
            decoder.release(state)
        return probs


N_PROBE_ROWS = 40
N_PROBE_FRAMES = 250  # an odd number of positions: rows of attention then start at every alignment in memory


def probe_mel(dims: Dims, n_frames: int = N_PROBE_FRAMES) -> NDArray[np.float32]:
    """A made-up log-mel, float32 `[n_mels, n_frames]`, the same on every machine: moving bands over a floor."""
    n_frames = min(n_frames, 2 * dims.n_audio_ctx)
    frames = np.arange(n_frames, dtype=np.float64)[None]
    bands = np.arange(dims.n_mels, dtype=np.float64)[:, None]
    mel = 0.6 * np.sin(0.13 * frames + 0.41 * bands) + 0.5 * np.cos(0.029 * frames * (1 + bands % 7)) - 0.2
    return np.clip(mel, -1.0, 1.5).astype(np.float32)


def probe_ids(dims: Dims, n_rows: int = N_PROBE_ROWS) -> list[int]:
    """Made-up token ids over the whole vocabulary, the same on every machine."""
    n_rows = min(n_rows, dims.n_text_ctx)
    return [(row * row * 7919 + row * 104729 + 17) % dims.n_vocab for row in range(n_rows)]


N_PACKED_PROBE_ROWS = 6
MAX_FEATURE_BYTES = 16 << 20
# Windows of 30 s gain nothing from sharing a pass and take more memory for it (docs/experiments.md).
SHARED_POSITIONS = 1024
PACKED_GROWTH = 3  # packed weights take up to 2.5 times the bundle's size, because embedding and projection part ways
log = logging.getLogger(__name__)


class AudioEncoder:
    """The two graphs that run once per window: encoder, and cross-attention keys and values.

    `folder` holds the graphs: the bundle's own, or the packed copy of it. With `at_once` false the encoder is loaded
    when it is first used. Raises BundleError.
    """

    def __init__(
        self, bundle: Bundle, canceller: Canceller, *, folder: Path, threads: int, at_once: bool = True
    ) -> None:
        self._dims = bundle.manifest.dims
        self._load_encoder: Callable[[], Session] = lambda: load_graph(
            bundle, "encoder", canceller, folder=folder, threads=threads
        )
        self._encoder: Session | None = self._load_encoder() if at_once else None
        self._cross_kv = load_graph(bundle, "cross_kv", canceller, folder=folder, threads=threads)
        self._is_exact: dict[tuple[int, int], bool] = {}  # by windows in a pass and frames in a window

    @property
    def n_at_once(self) -> int:
        """See `Engine.n_at_once`."""
        tensors = [*self._cross_kv.outputs.values(), *self._encoding.outputs.values()]
        dims = self._dims
        n_bytes = sum(
            np.dtype(tensor.dtype).itemsize
            * math.prod(
                axis if isinstance(axis, int) else 1 if axis == "batch" else dims.n_audio_ctx for axis in tensor.shape
            )
            for tensor in tensors
        )
        return max(1, MAX_FEATURE_BYTES // n_bytes)

    def encode(self, mels: Sequence[NDArray[np.float32]]) -> list[Features]:
        """See `Engine.encode_all`."""
        dims = self._dims
        for mel in mels:
            if mel.ndim != 2 or mel.shape[0] != dims.n_mels or not 2 <= mel.shape[1] <= 2 * dims.n_audio_ctx:
                raise UsageError(
                    f"mel has shape {list(mel.shape)}, "
                    f"expected {dims.n_mels} bands and 2 to {2 * dims.n_audio_ctx} frames"
                )
        if len({mel.shape for mel in mels}) != 1:
            raise UsageError("windows of one pass: expected at least one, and all of one length")
        n_shared = max(1, SHARED_POSITIONS * 2 // mels[0].shape[1])
        features = []
        for first in range(0, len(mels), n_shared):
            features += self._together(np.ascontiguousarray(mels[first : first + n_shared], np.float32))
        self._encoding.release_weights()
        self._cross_kv.release_weights()
        residency.trim_heap()
        return features

    def _together(self, windows: NDArray[np.float32]) -> list[Features]:
        """As `_pass`, in one where that gives the bits of a pass for each, which the first pass of a size shows."""
        size = len(windows), windows.shape[2]
        if self._is_exact.get(size, len(windows) == 1):
            return self._pass(windows)
        alone = [features for window in windows for features in self._pass(window[None])]
        if size not in self._is_exact:
            self._is_exact[size] = all(map(_same_bits, alone, self._pass(windows)))
        return alone

    def _pass(self, windows: NDArray[np.float32]) -> list[Features]:
        """`windows`, float32 `[n_windows, n_mels, n_frames]`, through both graphs."""
        n_windows, _, n_frames = windows.shape
        # Outputs go to arrays of ours: in the session's memory they would keep all of it from being given back.
        hidden = np.empty((n_windows, -(-n_frames // 2), self._dims.n_audio_state), np.float32)
        binding = self._encoding.binding()
        bind_array_input(binding, "mel", windows)
        bind_array_output(binding, "features", hidden)
        self._encoding.run(binding)
        return self._cross(hidden)

    def project(self, hidden: NDArray[np.float32]) -> Features:
        """See `Engine.project`."""
        n_ctx, n_state = hidden.shape
        if not 1 <= n_ctx <= self._dims.n_audio_ctx or n_state != self._dims.n_audio_state:
            raise UsageError(
                f"encoder output has shape {[n_ctx, n_state]}, expected 1 to {self._dims.n_audio_ctx} positions of "
                f"{self._dims.n_audio_state}"
            )
        (features,) = self._cross(np.ascontiguousarray(hidden[None], np.float32))
        self._cross_kv.release_weights()
        residency.trim_heap()
        return features

    def _cross(self, hidden: NDArray[np.float32]) -> list[Features]:
        """The features of windows whose encoder output is `hidden`, float32 `[n_windows, n_ctx, n_audio_state]`."""
        cross = cross_keys_values(self._cross_kv, hidden)
        return [
            Features(hidden=hidden[i], cross={name: array[i : i + 1] for name, array in cross.items()})
            for i in range(len(hidden))
        ]

    @property
    def _encoding(self) -> Session:
        if self._encoder is None:
            self._encoder = self._load_encoder()
        return self._encoder


class Engine:
    """The three graphs of a bundle, loaded on `threads` worker threads.

    Threads take turns: whoever works on a text holds `lock` from `start` to `release`; encoding and aligning take it
    themselves. `cancel` and `reset` wait for nobody.

    Parameters
    ----------
    bundle
        an opened (verified) bundle.
    threads
        worker threads; by default the physical cores this process may use.
    cache
        whether weights packed for this CPU are kept in the user's cache folder, so that the next start maps them.
    canceller
        what `cancel` and `interruptible` use; give one to stop the loading too.
    encodes
        False loads the encoder only when `encode` is called, for a model that is given another's encoder output.
    learns
        whether the decoder takes factors that change while it runs: for a draft, whose bundle must have the graph.
    decoder_threads
        the decoder's, when they are not the encoder's: a second model beside another has no workers of its own there,
        because those of both would wait busily on the same cores.

    Raises
    ------
    BundleError
        when a graph cannot be loaded or is not the one the manifest describes.
    UsageError
        when `threads` is out of range.
    Interrupted
        when cancelled while loading.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        threads: int | None = None,
        cache: bool = True,
        canceller: Canceller | None = None,
        encodes: bool = True,
        decoder_threads: int | None = None,
        learns: bool = False,
    ) -> None:
        if threads is not None and not 1 <= threads <= most_threads():
            raise UsageError(
                f"threads: got {threads}, expected 1 to {most_threads()}, four for each CPU of this process"
            )
        self.bundle = bundle
        self.dims = bundle.manifest.dims
        self.threads = threads or threads_allowed()
        self.lock = threading.RLock()
        self.is_exact = True  # until `promise.rows_are_exact` finds otherwise
        self._decoder_threads = decoder_threads or self.threads
        self.canceller = self._canceller = canceller or Canceller()
        self._aligner: Aligner | None = None
        self._packed = packed = self._packed_folder("", self._save_packed) if cache else None
        try:
            self._encoder, self._decoder = self._load(packed or bundle.path, encodes=encodes, learns=learns)
        except BundleError as error:
            if packed is None:
                raise
            # Evicted by another process since it was looked up, or saved by a runtime with a fault.
            prepack.set_aside(packed, str(error))
            self._packed = None
            self._encoder, self._decoder = self._load(bundle.path, encodes=encodes, learns=learns)

    @property
    def n_paths(self) -> int:
        """The most paths of `forward_paths`; 1 where the bundle has no graph for it."""
        return self._decoder.n_paths

    @property
    def n_at_once(self) -> int:
        """As many windows as keep their features within 16 MiB, at least 1: for `encode_all`."""
        return self._encoder.n_at_once

    def encode(self, mel: NDArray[np.float32]) -> Features:
        """Encode one window: mel float32 `[n_mels, n_frames]`, `n_frames` at most the bundle's window.

        Raises
        ------
        UsageError
            when the shape is not the model's.
        Interrupted
            when cancelled.
        """
        return self.encode_all([mel])[0]

    def encode_all(self, mels: Sequence[NDArray[np.float32]]) -> list[Features]:
        """Encode windows of one length; each gets the bits that `encode` gives it. Raises as `encode`.

        Short windows share passes, where the first pass of a size has shown that the bits are the same. The halves of
        the model take turns in memory once for all; memory for features grows with the windows: `n_at_once` is a good
        number.
        """
        with self.lock:
            self._decoder.release_weights()  # one half of the model at work, one half of the model in memory
            return self._encoder.encode(mels)

    def project(self, hidden: NDArray[np.float32]) -> Features:
        """The features of a window whose encoder output, float32 `[n_ctx, n_audio_state]`, is another model's.

        Right only where both encoders are the same. Raises UsageError for a shape that is not the model's, Interrupted.
        """
        with self.lock:
            return self._encoder.project(hidden)

    def start(self, features: Features, factors: Factors | None = None) -> State:
        """An empty text over one window; `release` gives its buffers back.

        factors: what an engine that `learns` runs with, read anew in every pass.
        """
        return self._decoder.start(features, factors)

    def fork(self, state: State) -> State:
        """A second text with the committed rows of `state`; `release` gives its buffers back."""
        return self._decoder.fork(state)

    def keep_hidden(self, state: State) -> None:
        """Keep the decoder's last hidden row of every row committed, in `state.hidden`. UsageError when some are."""
        self._decoder.keep_hidden(state)

    def forward(self, state: State, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> NDArray[np.float32]:
        """Run token rows at positions `state.length` onwards; nothing is committed.

        Parameters
        ----------
        ids
            token ids, at least one; `state.length + len(ids)` is at most `n_text_ctx`.
        logit_rows
            indices into `ids` whose logits are wanted; all by default.

        Returns
        -------
        logits, float32 `[len(logit_rows), n_vocab]`, the caller's to change, valid until the next pass over `state`.

        Raises
        ------
        UsageError
            when there is no room for the rows, an id is outside the vocabulary, or a logit row outside the pass.
        Interrupted
            when cancelled.
        """
        return self._decoder.forward(state, ids, logit_rows)

    def forward_paths(
        self, state: State, pending: int, paths: Sequence[Sequence[int]]
    ) -> list[list[NDArray[np.float32]]]:
        """Run several continuations of `state` in one pass: `pending`, then the ids of each of `paths`.

        There are 2 to `n_paths` paths, none empty; nothing is committed. For each path come the logits that follow
        `pending` and each of its ids, float32 `[n_vocab]`, the same bits as from `forward`; rows that paths share are
        the same array. Valid until the next pass over several paths. Raises as `forward`, and BundleError when the
        graph cannot be loaded.
        """
        return self._decoder.forward_paths(state, pending, paths)

    def commit(self, state: State, n_rows: int, path: int = 0) -> None:
        """Keep the first `n_rows` rows of the last pass, of the path with index `path` where it had several.

        Raises UsageError for more rows than the pass had there, or when they were committed before.
        """
        self._decoder.commit(state, n_rows, path)

    def rewind(self, state: State, n_rows: int) -> None:
        """Keep only the first `n_rows` committed rows. Raises UsageError for more than there are."""
        self._decoder.rewind(state, n_rows)

    def release(self, state: State) -> None:
        """Give the buffers of `state` back for the next window; `state` must not be used again."""
        self._decoder.release(state)

    def align(self, features: Features, ids: Sequence[int]) -> Alignment:
        """What the alignment heads see in the window for each of the rows `ids`, and how likely the rows are.

        The graph for it is loaded at the first call. See `Aligner.align`.
        """
        with self.lock:
            if self._aligner is None:
                self._aligner = Aligner(self.bundle, self._canceller, threads=self.threads)
            return self._aligner.align(features, ids, self._decoder)

    def cancel(self) -> None:
        """Stop what runs now and later, from any thread, until `reset`; callers get Interrupted."""
        self._canceller.cancel()

    def reset(self) -> None:
        """Run again after `cancel`. What was committed to a state before is still there."""
        self._canceller.reset()

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Make Ctrl-C stop the engine within a graph node while inside; see `Canceller.on_sigint`."""
        with self._canceller.on_sigint():
            yield

    def _load(self, folder: Path, *, encodes: bool = True, learns: bool = False) -> tuple[AudioEncoder, TextDecoder]:
        encoder = AudioEncoder(self.bundle, self._canceller, folder=folder, threads=self.threads, at_once=encodes)
        make = functools.partial(TextDecoder, self.bundle, self._canceller, tree_folder=self._tree_folder)
        return encoder, make(folder=folder, threads=self._decoder_threads, learns=learns)

    def _tree_folder(self) -> Path:
        """Where to load the graph for several paths from: packed only where the others are."""
        return (self._packed_folder("-tree", self._save_packed_tree) if self._packed else None) or self.bundle.path

    def _packed_folder(self, part: str, save: Callable[[Path], None]) -> Path | None:
        """The folder of weights packed for this CPU, made on first use by `save`; None where it cannot be made."""
        entry = prepack.entry_path(self.bundle.digest, RUNTIME_VERSION, part)
        found = prepack.lookup(entry)
        if found is not None or prepack.refused(entry):
            return found
        try:
            prepack.store(entry, save, needed_bytes=PACKED_GROWTH * self.bundle.size_bytes)
        except Interrupted:
            raise
        except SpecedgeError as error:  # ONNX Runtime could not write, or run what it wrote; a bad graph says so again
            log.info("packed weights are not kept: %s", error)
            return None
        return prepack.lookup(entry)

    def _save_packed(self, folder: Path) -> None:
        for graph in GRAPH_NAMES:  # one at a time: each is dropped before the next is loaded
            save_to = folder / self.bundle.manifest.graphs[graph].file
            load_graph(
                self.bundle, graph, self._canceller, folder=self.bundle.path, threads=self.threads, save_to=save_to
            )
        if self._probe_bits(folder) != self._probe_bits(self.bundle.path):
            raise prepack.Unusable(f"ONNX Runtime {RUNTIME_VERSION} computes something else with the weights it packed")

    def _save_packed_tree(self, folder: Path) -> None:
        save_to = folder / self.bundle.manifest.graphs[TREE_GRAPH].file
        load_graph(
            self.bundle, TREE_GRAPH, self._canceller, folder=self.bundle.path, threads=self.threads, save_to=save_to
        )
        if self._packed is not None:  # the same weights packed in the same order: in memory and on disk once
            decoder = self._packed / self.bundle.manifest.graphs["decoder"].file
            prepack.share(save_to.with_suffix(".data"), decoder.with_suffix(".data"))
        if self._probe_tree_bits(folder) != self._probe_tree_bits(self.bundle.path):
            raise prepack.Unusable(f"ONNX Runtime {RUNTIME_VERSION} computes something else with the weights it packed")

    def _probe_bits(self, folder: Path) -> bytes:
        """Encoder output and logits of made-up input, from the graphs in `folder`."""
        encoder, decoder = self._load(folder)
        (features,) = encoder.encode([probe_mel(self.dims)])
        logits = decoder.forward(decoder.start(features), probe_ids(self.dims, N_PACKED_PROBE_ROWS))
        return features.hidden.tobytes() + logits.tobytes()

    def _probe_tree_bits(self, folder: Path) -> bytes:
        """What the graph for several paths in `folder` makes of made-up input."""
        session = load_graph(self.bundle, TREE_GRAPH, self._canceller, folder=folder, threads=self.threads)
        return TreePass(session, self.dims, logit_columns(session, self.dims.n_vocab, folder)).probe_bits()


def _same_bits(a: Features, b: Features) -> bool:
    pairs = [(a.hidden, b.hidden), *((array, b.cross[name]) for name, array in a.cross.items())]
    return all(x.tobytes() == y.tobytes() for x, y in pairs)


_FORK_WAITS_S = 10.0
_waited_for: weakref.WeakSet[Engine] = weakref.WeakSet()
_forking = threading.local()  # `held`: the engines whose lock the thread that forks has


def wait_before_fork(engine: Engine) -> None:
    """Let each `os.fork` of this process wait, 10 s at most, until no thread works on a text in `engine`.

    A child that began in the middle of another thread's pass would have half-filled buffers and a lock that nobody
    releases. An engine that was still at work then has a new lock in the child.
    """
    _waited_for.add(engine)


def _before_fork() -> None:
    until = time.monotonic() + _FORK_WAITS_S
    _forking.held = [e for e in list(_waited_for) if e.lock.acquire(timeout=max(until - time.monotonic(), 0.0))]


def _after_fork() -> None:
    for engine in _forking.held:
        engine.lock.release()


def _after_fork_in_child() -> None:
    for engine in list(_waited_for):
        if engine not in _forking.held:  # its thread is not in this process
            engine.lock = threading.RLock()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
