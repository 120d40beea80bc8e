"""A loaded bundle that runs: mel to cross-attention keys and values, token rows to logits.

Exactness lives here: a row's logits depend on its own prefix alone, bit for bit, however many rows share the pass.
The kernels promise that for an even number of rows, so every pass is padded to one with a row that is forgotten
(graph recipe, section 3; measured by `doctor`). Knows token ids and positions; nothing of text, rules or audio files.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime import prepack, residency
from specedge.runtime.aligner import Aligner, Alignment
from specedge.runtime.bundle import Bundle
from specedge.runtime.cpu import threads_allowed
from specedge.runtime.errors import BundleError, Interrupted, SpecedgeError, UsageError
from specedge.runtime.graphs import load_graph, logit_columns
from specedge.runtime.manifest import GRAPH_NAMES
from specedge.runtime.probe import probe_ids, probe_mel
from specedge.runtime.session import (
    RUNTIME_VERSION,
    Binding,
    Canceller,
    bind_array_input,
    bind_array_output,
    ort_value,
)

MAX_THREADS = 256
N_PACKED_PROBE_ROWS = 6
PACKED_GROWTH = 3  # packed weights take up to 2.5 times the bundle's size, because embedding and projection part ways

log = logging.getLogger(__name__)


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

    @classmethod
    def make(cls, n_rows: int, n_logit_rows: int, n_columns: int) -> PassBuffers:
        return cls(
            ids=np.empty((1, n_rows), np.int64),
            positions=np.empty((1, n_rows), np.int64),
            logit_rows=np.empty(n_logit_rows, np.int64),
            logits=np.empty((1, n_logit_rows, n_columns), np.float32),
        )

    @property
    def size(self) -> tuple[int, int]:
        return self.ids.size, self.logit_rows.size


@dataclass(kw_only=True)
class State:
    """The text decoded so far, as keys and values: `length` rows are committed, rows beyond are scratch.

    `n_open` is the number of rows of the last pass that `commit` may still keep.
    """

    length: int = 0
    n_open: int = 0
    binding: Binding
    caches: dict[str, NDArray[np.float32]]
    keep_alive: list[object]
    bound: PassBuffers | None = None
    past_len: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1, np.int32))
    total_len: NDArray[np.int32] = field(default_factory=lambda: np.zeros((), np.int32))


class AudioEncoder:
    """The two graphs that run once per window: encoder, and cross-attention keys and values.

    `folder` holds the graphs: the bundle's own, or the packed copy of it. Raises BundleError.
    """

    def __init__(self, bundle: Bundle, canceller: Canceller, *, folder: Path, threads: int) -> None:
        self._dims = bundle.manifest.dims
        self._encoder = load_graph(bundle, "encoder", canceller, folder=folder, threads=threads)
        self._cross_kv = load_graph(bundle, "cross_kv", canceller, folder=folder, threads=threads)

    def encode(self, mel: NDArray[np.float32]) -> Features:
        """See `Engine.encode`."""
        dims = self._dims
        if mel.ndim != 2 or mel.shape[0] != dims.n_mels or not 2 <= mel.shape[1] <= 2 * dims.n_audio_ctx:
            raise UsageError(
                f"mel has shape {list(mel.shape)}, expected {dims.n_mels} bands and 2 to {2 * dims.n_audio_ctx} frames"
            )
        window = np.ascontiguousarray(mel[None], np.float32)
        n_ctx = -(-mel.shape[1] // 2)
        # Outputs go to arrays of ours: in the session's memory they would keep all of it from being given back.
        hidden = np.empty((1, n_ctx, dims.n_audio_state), np.float32)
        binding = self._encoder.binding()
        bind_array_input(binding, "mel", window)
        bind_array_output(binding, "features", hidden)
        self._encoder.run(binding)
        binding = self._cross_kv.binding()
        bind_array_input(binding, "features", hidden)
        cross = {
            name: np.empty(
                [axis if isinstance(axis, int) else 1 if axis == "batch" else n_ctx for axis in tensor.shape],
                tensor.dtype,
            )
            for name, tensor in self._cross_kv.outputs.items()
        }
        for name, array in cross.items():
            bind_array_output(binding, name, array)
        self._cross_kv.run(binding)
        self._encoder.release_weights()
        self._cross_kv.release_weights()
        residency.trim_heap()
        return Features(hidden=hidden[0], cross=cross)


class TextDecoder:
    """The graph that runs once per pass, and the buffers of the texts in work. Raises BundleError."""

    def __init__(self, bundle: Bundle, canceller: Canceller, *, folder: Path, threads: int) -> None:
        self.dims = bundle.manifest.dims
        self.threads = threads
        self._decoder = load_graph(bundle, "decoder", canceller, folder=folder, threads=threads)
        self._n_columns = logit_columns(self._decoder, self.dims, folder)
        # One slot more than positions, rounded up to even, so that the padding row always has a place.
        self._n_slots = self.dims.n_text_ctx + 2 - self.dims.n_text_ctx % 2
        self._positions = np.arange(self._n_slots, dtype=np.int64)
        self._spare: list[dict[str, NDArray[np.float32]]] = []

    def start(self, features: Features) -> State:
        """See `Engine.start`."""
        binding = self._decoder.binding()
        caches = self._spare.pop() if self._spare else self._new_caches()
        state = State(binding=binding, caches=caches, keep_alive=[features])
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

    def forward(self, state: State, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> NDArray[np.float32]:
        """See `Engine.forward`."""
        dims = self.dims
        if not 1 <= len(ids) <= dims.n_text_ctx - state.length:
            raise UsageError(
                f"a pass of {len(ids)} rows after {state.length}: expected 1 to {dims.n_text_ctx - state.length}"
            )
        if min(ids) < 0 or max(ids) >= dims.n_vocab:
            raise UsageError(f"token ids {min(ids)} to {max(ids)}: expected 0 to {dims.n_vocab - 1}")
        rows = range(len(ids)) if logit_rows is None else logit_rows
        if not rows or min(rows) < 0 or max(rows) >= len(ids):
            raise UsageError(f"logit rows {list(rows)[:8]} of a pass of {len(ids)}: expected 0 to {len(ids) - 1}")
        state.n_open = 0
        buffers = self._buffers(state, _even(len(ids)), _even(len(rows)))
        n_rows, n_logit_rows = buffers.size
        buffers.ids[0, : len(ids)] = ids
        buffers.ids[0, len(ids) :] = ids[-1]  # the padding row, forgotten after the pass
        buffers.logit_rows[: len(rows)] = rows
        buffers.logit_rows[len(rows) :] = rows[-1]
        # The padding row may lie one beyond the table of positions.
        np.minimum(self._positions[state.length : state.length + n_rows], dims.n_text_ctx - 1, out=buffers.positions[0])
        state.total_len[()] = state.length + n_rows
        state.past_len[0] = state.length + n_rows - 1
        self._decoder.run(state.binding)
        state.n_open = len(ids)
        return buffers.logits[0, : len(rows), : dims.n_vocab]

    def _buffers(self, state: State, n_rows: int, n_logit_rows: int) -> PassBuffers:
        """Arrays for a pass of this size, bound to `state`."""
        if state.bound is None or state.bound.size != (n_rows, n_logit_rows):
            state.bound = PassBuffers.make(n_rows, n_logit_rows, self._n_columns)
            for name in ("ids", "positions", "logit_rows"):
                bind_array_input(state.binding, name, getattr(state.bound, name))
            bind_array_output(state.binding, "logits", state.bound.logits)
        return state.bound

    def commit(self, state: State, n_rows: int) -> None:
        """See `Engine.commit`."""
        if not 0 <= n_rows <= state.n_open:
            raise UsageError(f"a commit of {n_rows} rows: expected 0 to {state.n_open}, the rows of the last pass")
        state.length += n_rows
        state.n_open = 0

    def release(self, state: State) -> None:
        """See `Engine.release`."""
        if not self._spare:
            self._spare.append(state.caches)

    def release_weights(self) -> None:
        """Give back the resident pages of mapped weights until the next pass."""
        self._decoder.release_weights()

    def _new_caches(self) -> dict[str, NDArray[np.float32]]:
        dims = self.dims
        shape = (1, dims.n_text_head, self._n_slots, dims.n_text_state // dims.n_text_head)
        return {f"self_{part}_{i}": np.zeros(shape, np.float32) for i in range(dims.n_text_layer) for part in "kv"}


class Engine:
    """The three graphs of a bundle, loaded on `threads` worker threads. One call at a time, but for `cancel`.

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
        self, bundle: Bundle, *, threads: int | None = None, cache: bool = True, canceller: Canceller | None = None
    ) -> None:
        if threads is not None and not 1 <= threads <= MAX_THREADS:
            raise UsageError(f"threads: got {threads}, expected 1 to {MAX_THREADS}")
        self.bundle = bundle
        self.dims = bundle.manifest.dims
        self.threads = threads or threads_allowed()
        self._canceller = canceller or Canceller()
        self._aligner: Aligner | None = None
        packed = self._packed_folder() if cache else None
        try:
            self._encoder, self._decoder = self._load(packed or bundle.path)
        except BundleError as error:
            if packed is None:
                raise
            # Evicted by another process since it was looked up, or saved by a runtime with a fault.
            prepack.set_aside(packed, str(error))
            self._encoder, self._decoder = self._load(bundle.path)

    def encode(self, mel: NDArray[np.float32]) -> Features:
        """Encode one window: mel float32 `[n_mels, n_frames]`, `n_frames` at most the bundle's window.

        Raises
        ------
        UsageError
            when the shape is not the model's.
        Interrupted
            when cancelled.
        """
        self._decoder.release_weights()  # one half of the model at work, one half of the model in memory
        return self._encoder.encode(mel)

    def start(self, features: Features) -> State:
        """An empty text over one window; `release` gives its buffers back."""
        return self._decoder.start(features)

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

    def commit(self, state: State, n_rows: int) -> None:
        """Keep the first `n_rows` rows of the last pass; the next pass overwrites the rest.

        Raises UsageError for more rows than the last pass had, or when they were committed before.
        """
        self._decoder.commit(state, n_rows)

    def release(self, state: State) -> None:
        """Give the buffers of `state` back for the next window; `state` must not be used again."""
        self._decoder.release(state)

    def align(self, features: Features, ids: Sequence[int]) -> Alignment:
        """What the alignment heads see in the window for each of the rows `ids`, and how likely the rows are.

        The graph for it is loaded at the first call. See `Aligner.align`.
        """
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

    def _load(self, folder: Path) -> tuple[AudioEncoder, TextDecoder]:
        encoder = AudioEncoder(self.bundle, self._canceller, folder=folder, threads=self.threads)
        return encoder, TextDecoder(self.bundle, self._canceller, folder=folder, threads=self.threads)

    def _packed_folder(self) -> Path | None:
        """The folder of weights packed for this CPU, made on first use; None where it cannot be made."""
        entry = prepack.entry_path(self.bundle.digest, RUNTIME_VERSION)
        found = prepack.lookup(entry)
        if found is not None or prepack.refused(entry):
            return found
        try:
            prepack.store(entry, self._save_packed, needed_bytes=PACKED_GROWTH * self.bundle.size_bytes)
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

    def _probe_bits(self, folder: Path) -> bytes:
        """Encoder output and logits of made-up input, from the graphs in `folder`."""
        encoder, decoder = self._load(folder)
        features = encoder.encode(probe_mel(self.dims))
        logits = decoder.forward(decoder.start(features), probe_ids(self.dims, N_PACKED_PROBE_ROWS))
        return features.hidden.tobytes() + logits.tobytes()


def _even(n: int) -> int:
    return n + n % 2
