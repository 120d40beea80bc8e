"""A loaded bundle that runs: mel to cross-attention keys and values, token rows to logits.

The encoder half is here, the decoder half in `text_decoder`. Knows token ids and positions; nothing of text, rules or
audio files.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.bundle import Bundle
from specedge.runtime.bundles.manifest import GRAPH_NAMES, TREE_GRAPH
from specedge.runtime.cpu import most_threads, threads_allowed
from specedge.runtime.errors import BundleError, Interrupted, SpecedgeError, UsageError
from specedge.runtime.passes import prepack, residency
from specedge.runtime.passes.aligner import Aligner, Alignment
from specedge.runtime.passes.cross_kv import cross_keys_values
from specedge.runtime.passes.graphs import load_graph, logit_columns
from specedge.runtime.passes.probe import probe_ids, probe_mel
from specedge.runtime.passes.session import RUNTIME_VERSION, Canceller, Session, bind_array_input, bind_array_output
from specedge.runtime.passes.text_decoder import Factors, Features, State, TextDecoder
from specedge.runtime.passes.tree_pass import TreePass

__all__ = ["AudioEncoder", "Engine", "Features", "State", "TextDecoder"]

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
        self.dims, self.token_rows = bundle.manifest.dims, bundle.token_rows
        self.threads = threads or threads_allowed()
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
        self._decoder.release_weights()  # one half of the model at work, one half of the model in memory
        return self._encoder.encode(mels)

    def project(self, hidden: NDArray[np.float32]) -> Features:
        """The features of a window whose encoder output, float32 `[n_ctx, n_audio_state]`, is another model's.

        Right only where both encoders are the same. Raises UsageError for a shape that is not the model's, Interrupted.
        """
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
        logits, float32 `[len(logit_rows), n_rows]`, of the rows of the vocabulary (`token_rows`; in most bundles its
        tokens), the caller's to change, valid until the next pass over `state`.

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
        `pending` and each of its ids, float32 `[n_rows]`, the same bits as from `forward`; rows that paths share are
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
        rows = self.bundle.token_rows
        return TreePass(session, self.dims, rows, logit_columns(session, rows.n_rows, folder)).probe_bits()


def _same_bits(a: Features, b: Features) -> bool:
    pairs = [(a.hidden, b.hidden), *((array, b.cross[name]) for name, array in a.cross.items())]
    return all(x.tobytes() == y.tobytes() for x, y in pairs)
