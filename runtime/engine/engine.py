"""The engine: the graphs of a bundle, loaded, and the KV caches of the texts in work.

`Engine.encode` turns a log-mel into encoder output and cross-attention keys and values, `forward` token rows into
logits, and `align` a text into the attention scores that word times are read from. `forward_many` runs rows of several
texts in one pass, `forward_paths` several continuations of one text. Graphs for several texts and for alignment are
loaded when they are first used.

A row's logits have the same bits however many rows share its pass; speculative decoding is lossless because of this.
ONNX Runtime's kernels have this property for even numbers of rows, so every pass is padded to one (`exactness` measures
it).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import Interrupted, SpecedgeError, UsageError

from ..bundle.bundle import Bundle
from ..bundle.dims import GROUP_POSITIONS
from ..bundle.manifest import (
    ALIGN_GRAPH,
    GRAPH_NAMES,
    LOG_COUNTS,
    MANY_GRAPH,
    SHORT_ENCODER_GRAPH,
    WHISPER,
    require_align,
)
from ..device import most_threads, threads_allowed, trim_heap
from ..options import AUTO_PROVIDER, CPU
from .exactness import rows_are_exact
from .kv_cache import MAX_TEXTS, KvCache, PassArrays, TextMemory, WantedRows, copy_rows
from .kv_cache import Factors as Factors
from .kv_cache import Features as Features
from .kv_cache import State as State
from .many import BIAS, ManyPass, by_position
from .providers import ProviderEncoder, has_choice, quicker_encoder, require_provider
from .scheduler import Budget, Scheduler, Turn
from .session import (
    Canceller,
    Session,
    load_graph,
    logit_columns,
    runtime_release,
)
from .session import cross_keys_values as cross_keys_values
from .session import encoder_output as encoder_output

MAX_PATHS = 4  # beyond a few dozen rows a pass costs as much as two
MANY_SINCE = (1, 32)  # the version of ONNX Runtime whose attention takes texts of different lengths
MAX_SHARED_ROWS = 64  # of several texts: beyond a few dozen a pass costs as much as two, and 5 MB for each row of eight
MAX_FEATURE_BYTES = 16 << 20
SHARED_POSITIONS = 1024  # windows of 30 s gain nothing from sharing a pass (docs/experiments)
ALIGN_CHUNK_ROWS = 32  # 6.6 MB of logits with Whisper's vocabulary
_FORK_WAITS_S = 10.0
_ENCODER, _CROSS_KV, _DECODER = GRAPH_NAMES  # a speech LLM has a projector in the place of the second
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """One text over one window.

    scores: each alignment head's attention before the softmax, float32 `[n_heads, n_rows, n_ctx]`. token_probs: the
    probability of each row but the first among text tokens (ids below the end of text), float32 `[n_rows - 1]`; 0 for
    other tokens.
    """

    scores: NDArray[np.float32]
    token_probs: NDArray[np.float32]


Rows = tuple[State, Sequence[int], Sequence[int] | None]
"""A text in a pass over several: its rows' ids, and indices into them whose logits are wanted, None for all."""


class Engine:
    """A bundle that runs, on `threads` worker threads.

    Several threads may use it at once, each for texts of its own. They take turns by the pass: `encode_all`, `project`,
    `align` and passes over texts take `lock` themselves and wait for each other, first come, first served. `start`,
    `fork`, `commit`, `rewind` and `release` do not wait for a pass, nor do `cancel` and `reset`. Whoever holds `lock`
    has the engine alone.

    bundle: opened and verified; threads: by default the physical cores that this process may use; canceller: give one
    to stop the loading too; loads: the graphs to load now, by default those of any transcription, any other when it is
    first used; decoder: the graph that decodes, another one for a draft that learns or that knows the frequent tokens
    alone; budget_bytes: of keys and values of the windows in work, see `budget`; encoder_provider: what the encoder
    runs on, see `providers`.

    Raises BundleError when a graph cannot be loaded or is not the manifest's, UsageError when `threads` is out of
    range, the bundle holds another kind of model or the provider is not there, ProviderError when the provider fails,
    Interrupted when cancelled while loading.
    """

    _kind = WHISPER

    def __init__(
        self,
        bundle: Bundle,
        *,
        threads: int | None = None,
        canceller: Canceller | None = None,
        loads: Collection[str] | None = None,
        decoder: str = _DECODER,
        budget_bytes: int | None = None,
        encoder_provider: str = CPU,
    ) -> None:
        if bundle.manifest.kind != self._kind:
            raise UsageError(
                f"{bundle.path}: holds a model of the kind {bundle.manifest.kind}, and {type(self).__name__} runs "
                f"{self._kind}; use WhisperModel, which takes both"
            )
        if budget_bytes is not None and budget_bytes < 1:
            raise UsageError(f"budget_bytes: got {budget_bytes}, expected 1 or more, or None for no limit")
        if threads is not None and not 1 <= threads <= most_threads():
            raise UsageError(
                f"threads: got {threads}, expected 1 to {most_threads()}, four for each CPU of this process"
            )
        self.bundle = bundle
        self.dims = bundle.manifest.dims
        self._graphs = bundle.manifest.graph_names
        if loads is None:  # short audio may be all that comes, so that one of two encoders is enough
            loads = self._graphs[1:] if SHORT_ENCODER_GRAPH in bundle.manifest.graphs else self._graphs
        self.threads = threads or threads_allowed()
        # Whether texts share passes where they can, the most paths that `forward_paths` takes, and the most texts.
        self.shares_passes = (
            decoder == _DECODER
            and MANY_GRAPH in bundle.manifest.graphs
            and not any(tensor.name == "beyond" for tensor in bundle.manifest.graphs[MANY_GRAPH].inputs)  # of before
            and runtime_release() >= MANY_SINCE
        )
        self.n_paths, self.n_texts = MAX_PATHS if self.shares_passes else 1, MAX_TEXTS
        self._has_bias = any(tensor.name == BIAS for tensor in bundle.manifest.graphs[_DECODER].inputs)
        self.pads_rows = True
        # Whether windows of different lengths can share one.
        self.pads_windows = self.shares_passes and self._has_bias
        # See `exactness.rows_are_exact`, which the first pass over several texts asks; None before.
        self.is_exact: bool | None = None
        self.windows_are_exact: bool | None = None
        self.lock = Scheduler(self._run_passes, self._merges, self._can_share)
        self._budget = Budget(budget_bytes, lambda: self.lock.idle_s)
        self.canceller = canceller or Canceller()
        self._decoder = decoder
        self._sessions: dict[str, Session] = {}
        self._n_columns = 0  # of the decoder's logits, of which the first `n_vocab` count
        self._positions = np.minimum(np.arange(self.dims.n_text_ctx + 2, dtype=np.int64), self.dims.n_text_ctx - 1)
        self._kv_cache = KvCache(self.dims, lambda: (self._session(self._decoder), self._n_columns))
        self._many: ManyPass | None = None
        self._row_numbers = itertools.count()
        self._shares_exactly: dict[tuple[int, int], bool] = {}  # by windows in a pass and frames in a window
        self._chooses = encoder_provider == AUTO_PROVIDER and has_choice(bundle)
        self._provider: ProviderEncoder | None = None
        if place := require_provider(encoder_provider, bundle):
            self._provider = ProviderEncoder(
                encoder_provider, place, bundle, threads=self.threads, canceller=self.canceller
            )
        for graph in loads:
            if graph != _ENCODER or not (self._provider or self._chooses):
                self._session(decoder if graph == _DECODER else graph)
        _engines.add(self)

    def choose_encoder(self) -> None:
        """Decide what whole windows are encoded on, where that is left to the first of them: short audio needs none.

        Raises Interrupted.
        """
        if not self._chooses:
            return
        with self.lock:
            if self._chooses:  # still
                self._provider = quicker_encoder(self.bundle, threads=self.threads, canceller=self.canceller)
                self._chooses = False

    # ------------------------------------------------------------------------------------------------------- encoder
    @property
    def encoder_provider(self) -> str:
        """What whole windows are encoded on so far, in a line: "cpu", or a provider with its version and device."""
        return CPU if self._provider is None else self._provider.label

    @property
    def n_at_once(self) -> int:
        """The most windows for `encode_all` whose features take 16 MiB, at least 1."""
        return max(1, MAX_FEATURE_BYTES // self._features_bytes(self.dims.n_audio_ctx))

    def _features_bytes(self, n_ctx: int) -> int:
        """Of a window of `n_ctx` positions: its encoder output, its cross-attention keys and values."""
        return sum(
            np.dtype(tensor.dtype).itemsize
            * math.prod([axis if isinstance(axis, int) else 1 if axis == "batch" else n_ctx for axis in tensor.shape])
            for graph in self._graphs[:2]
            for tensor in self.bundle.manifest.graphs[graph].outputs
        )

    def _window_bytes(self, n_ctx: int) -> int:
        """Of a window in work and its text: in passes over several windows its keys and values are there twice."""
        text = math.prod(self._kv_cache.shape(1)) * np.dtype(np.float32).itemsize
        return text + self._features_bytes(n_ctx) * (2 if self.shares_passes else 1)

    @property
    def knows_silence(self) -> bool:
        """Whether `encode` takes windows that end in silence by their audio alone."""
        return SHORT_ENCODER_GRAPH in self.bundle.manifest.graphs

    def encode(self, mel: NDArray[np.float32], *, ends_in_silence: bool = False) -> Features:
        """Encode one window: mel float32 `[n_mels, n_frames]`, `n_frames` at most the bundle's window.

        ends_in_silence: of a whole window that is silent from before its last frame here on, where the engine
        `knows_silence`; an approximation (export/encoder_graph.py). `n_frames` are those of whole groups of
        `GROUP_POSITIONS` and two more. Raises UsageError for another shape, Interrupted, ResourceError.
        """
        return self.encode_all([mel], ends_in_silence=ends_in_silence)[0]

    def encode_all(self, mels: Sequence[NDArray[np.float32]], *, ends_in_silence: bool = False) -> list[Features]:
        """Encode windows of one length, best `n_at_once`; each gets the bits that `encode` gives. Raises as `encode`.

        Short windows share passes if the first pass of a size has shown that the bits are the same. A thread that has
        no window in work waits until there is room for these in the budget. An encoder that runs elsewhere takes one
        window at a time, padded to a length that it takes, and gives the features of all of it; those that end in
        silence stay on the CPU.
        """
        dims = self.dims
        for mel in mels:
            if mel.ndim != 2 or mel.shape[0] != dims.n_mels or not 2 <= mel.shape[1] <= dims.n_frames:
                raise UsageError(
                    f"mel has shape {list(mel.shape)}, expected {dims.n_mels} bands and 2 to {dims.n_frames} frames"
                )
        if len({mel.shape for mel in mels}) != 1:
            raise UsageError("windows of one pass: expected at least one, and all of one length")
        if ends_in_silence and (not self.knows_silence or mels[0].shape[1] % (2 * GROUP_POSITIONS) != 2):
            raise UsageError(f"{mels[0].shape[1]} frames and silence: expected whole groups and two more")
        if not ends_in_silence:
            self.choose_encoder()
        provider = None if ends_in_silence else self._provider
        if provider is not None:
            mels = [provider.padded(mel) for mel in mels]
        n_shared = 1 if provider is not None else max(1, SHARED_POSITIONS * 2 // mels[0].shape[1])
        is_whole = ends_in_silence and not self._has_bias
        n_bytes = self._window_bytes(self.dims.positions(self.dims.n_frames if is_whole else mels[0].shape[1]))
        features: list[Features] = []
        with contextlib.nullcontext() if self.lock.is_mine else self._budget.room(n_bytes * len(mels)):
            for first in range(0, len(mels), n_shared):
                windows = np.ascontiguousarray(mels[first : first + n_shared], np.float32)
                with self.lock:
                    features += self._encode_shared(windows, ends_in_silence=ends_in_silence)
                    trim_heap()
            for window in features:
                self._budget.hold(window, n_bytes)
        return features

    def project(self, hidden: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> Features:
        """The features of a window from another model's encoder output, float32 `[n_ctx, n_audio_state]`.

        bias: float32 `[1, 1, 1, n_ctx]`, the logarithm of the positions that each row stands for, by default of one.

        Both encoders must be the same. Raises Interrupted.
        """
        with self.lock:
            (features,) = self._features(np.ascontiguousarray(hidden[None], np.float32), bias)
        return features

    def _encode_shared(self, windows: NDArray[np.float32], *, ends_in_silence: bool) -> list[Features]:
        """As `_encode_pass`, in one pass where that gives the bits of a pass for each window."""
        size = len(windows), windows.shape[2]
        encode = self._encode_short if ends_in_silence else self._encode_pass
        if self._shares_exactly.get(size, len(windows) == 1):
            return encode(windows)
        alone = [features for window in windows for features in encode(window[None])]
        if size not in self._shares_exactly:
            self._shares_exactly[size] = all(map(_same_bits, alone, encode(windows)))
        return alone

    def _encode_short(self, windows: NDArray[np.float32]) -> list[Features]:
        """As `_encode_pass`, of windows with silence up to the end behind `n_frames`."""
        n_groups = windows.shape[2] // (2 * GROUP_POSITIONS)
        n_states = n_groups * GROUP_POSITIONS - (-self.dims.n_audio_ctx // GROUP_POSITIONS) - n_groups
        bias = np.empty((1, 1, 1, n_states), np.float32)
        session, n_state = self._session(SHORT_ENCODER_GRAPH), self.dims.n_audio_state
        hidden = encoder_output(session, windows, n_state, n_states, {LOG_COUNTS: bias})
        if self._has_bias:
            found = self._features(hidden, bias)
        else:  # then a state stands where its positions were
            found = self._features(by_position(hidden, bias))
        return [replace(features, n_frames=windows.shape[2], ends_in_silence=True) for features in found]

    def _encode_pass(self, windows: NDArray[np.float32]) -> list[Features]:
        """`windows`, float32 `[n_windows, n_mels, n_frames]`, through encoder and projection."""
        return self._features(self._encoded(windows))

    def _encoded(self, windows: NDArray[np.float32]) -> NDArray[np.float32]:
        """The encoder's output, float32 `[n_windows, n_ctx, n_audio_state]`."""
        if self._provider is not None:
            return self._provider.run(windows)
        return encoder_output(self._session(_ENCODER), windows, self.dims.n_audio_state)

    def _features(self, hidden: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> list[Features]:
        cross, more = cross_keys_values(self._session(_CROSS_KV), hidden), dict[str, NDArray[Any]]()
        if self._has_bias:
            more[BIAS] = np.zeros((1, 1, 1, hidden.shape[1]), np.float32) if bias is None else bias
        return [
            Features(hidden=hidden[i], cross={name: array[i : i + 1] for name, array in cross.items()} | more)
            for i in range(len(hidden))
        ]

    # ------------------------------------------------------------------------------------------------------- decoder
    def start(self, features: Features, factors: Factors | None = None, *, keeps_hidden: bool = False) -> State:
        """An empty text over one window; `release` gives its buffers back.

        factors: for an engine that `learns`; keeps_hidden: whether `hidden` of the state is wanted.
        """
        self._budget.hold(features, self._window_bytes(len(features.hidden)))
        n_hidden = self.dims.n_text_state if keeps_hidden else 0
        memory = self._kv_cache.take(n_hidden, shares_passes=self.shares_passes)
        return State(memory=memory, features=features, factors=factors)

    def fork(self, state: State) -> State:
        """A second text with the committed rows of `state`; `release` gives its buffers back."""
        memory = self._kv_cache.take(state.memory.n_hidden, state.memory, shares_passes=self.shares_passes)
        copy = State(memory=memory, features=state.features, factors=state.factors, is_fork=True)
        copy_rows(state, copy)
        copy.memory.hidden[: state.length] = state.memory.hidden[: state.length]
        return copy

    def forward(self, state: State, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> NDArray[np.float32]:
        """Run token rows at positions `state.length` onwards; nothing is committed.

        ids: token ids, at least one; logit_rows: indices into `ids` whose logits are wanted, by default all. Returns
        logits, float32 `[len(logit_rows), n_vocab]`, which the caller may change, valid until the next pass over
        `state`. Raises UsageError when there is no room for the rows, an id is outside the vocabulary, or a logit row
        outside the pass; Interrupted when cancelled.
        """
        (logits,) = self.forward_many([(state, ids, logit_rows)])
        return logits

    def forward_many(self, texts: Sequence[Rows]) -> list[NDArray[np.float32]]:
        """Run token rows of several texts in one pass, each as `forward` would; nothing is committed.

        The texts may hear the same window or different ones. Up to `MAX_TEXTS` share a pass where `shares_passes`;
        those that cannot have passes of their own. Either way each gets the bits that `forward` gives it, float32
        `[len(logit_rows), n_vocab]`, valid until the next pass over that text. Raises as `forward`, and BundleError
        when the graph cannot be loaded.
        """
        wanted = [WantedRows(state, ids, self._wanted(state, ids, rows)) for state, ids, rows in texts]
        for state, _, _ in texts:
            state.n_open, state.lease = (), None
        return list(self.lock.run(wanted))

    def _run_passes(self, turns: Sequence[Turn]) -> None:
        """Run what callers asked for, in one pass where its texts can share one."""
        texts = [text for turn in turns for text in turn.texts]
        for state, _, _ in texts:
            del state.memory.rows[state.length :]
        logits = list(self._run_shared(texts) if self._can_share(texts) else self._run_alone(texts))
        for turn in turns:
            turn.logits, logits = logits[: len(turn.texts)], logits[len(turn.texts) :]

    def _run_alone(self, texts: Sequence[WantedRows]) -> Iterator[NDArray[np.float32]]:
        for state, ids, wanted in texts:
            if not state.memory.is_heard:
                state.memory.hear(state.features, state.factors)
            arrays = self._run_rows(state.memory, state.length, ids, wanted)
            state.n_open, state.new_hidden = (len(ids),), (arrays.hidden,)
            yield arrays.logits[0, : len(wanted), : self.dims.n_vocab]

    def _run_rows(
        self,
        memory: TextMemory,
        first: int,
        ids: Sequence[int],
        wanted: Sequence[int],
        audio: NDArray[np.float32] | None = None,
    ) -> PassArrays:
        """A pass over rows from `first` on, those of `audio`, float32 `[n_audio, n_text_state]`, before those of `ids`.

        A padding row makes their number even, where rows are to be exact, and is forgotten after the pass.
        """
        n_ids, n_wanted, n_audio = len(ids), len(wanted), 0 if audio is None else len(audio)
        n_rows = n_audio + n_ids + (n_audio + n_ids) % 2 * self.pads_rows
        arrays = memory.arrays(n_rows, n_wanted + n_wanted % 2 * self.pads_rows, n_audio)
        if n_audio:
            arrays.audio[0] = audio
        arrays.ids[0, :n_ids], arrays.ids[0, n_ids:] = ids, 0
        arrays.logit_rows[:n_wanted], arrays.logit_rows[n_wanted:] = wanted, 0
        arrays.positions[0] = self._positions[first : first + n_rows]
        memory.total_len[()], memory.past_len[0] = first + n_rows, first + n_rows - 1
        memory.session.run(memory.binding)
        return arrays

    def _run_shared(self, texts: Sequence[WantedRows]) -> Iterator[NDArray[np.float32]]:
        return (rows[:, : self.dims.n_vocab] for rows in self._many_pass().run(texts))

    def _merges(self) -> bool:
        """Whether texts of several callers share passes here. Raises Interrupted."""
        if not self.shares_passes:
            return False
        try:
            self._ask_exactness()
            if self.is_exact:
                self._many_pass()
        except Interrupted:
            raise
        except SpecedgeError as error:
            self.shares_passes = False
            log.warning("callers of %s share no passes: %s", self.bundle.manifest.name, error)
        return self.shares_passes and self.is_exact is True

    def _can_share(self, texts: Sequence[WantedRows]) -> bool:
        """Whether one pass over `texts` is possible and has their bits."""
        if not self.shares_passes or not 2 <= len(texts) <= MAX_TEXTS:
            return False
        states = [state for state, _, _ in texts]
        # Attention takes as many rows of each text as of the widest, padded to an even number.
        longest, widest = max(state.length for state in states), max(len(ids) for _, ids, _ in texts)
        if len(texts) * widest > MAX_SHARED_ROWS or longest + widest + widest % 2 > self._kv_cache.n_slots:
            return False
        if len({id(state.memory) for state in states}) < len(states):
            return False
        if any(state.memory.values is not self._kv_cache.values or state.factors is not None for state in states):
            return False
        self._ask_exactness()
        windows = {id(state.features): len(state.features.hidden) for state in states}
        if not self.is_exact or len(windows) == 1:
            return self.is_exact is True
        return self.windows_are_exact is True and (len(set(windows.values())) == 1 or self.pads_windows)

    def _ask_exactness(self) -> None:
        if self.is_exact is None:
            rows_are_exact(self, self.bundle)

    def _wanted(self, state: State, ids: Sequence[int], logit_rows: Sequence[int] | None) -> Sequence[int]:
        """The rows whose logits are wanted. Raises UsageError where `ids` or they cannot be run."""
        n_ids, length, n_vocab = len(ids), state.length, self.dims.n_vocab
        if not 1 <= n_ids <= self.dims.n_text_ctx - length:
            raise UsageError(f"a pass of {n_ids} rows after {length}: expected 1 to {self.dims.n_text_ctx - length}")
        if min(ids) < 0 or max(ids) >= self._n_ids(state):
            raise _unknown_ids(ids, n_vocab)
        wanted = range(n_ids) if logit_rows is None else logit_rows
        if not wanted or min(wanted) < 0 or max(wanted) >= n_ids:
            raise UsageError(f"logit rows {list(wanted)[:8]} of a pass of {n_ids}: expected 0 to {n_ids - 1}")
        return wanted

    def _n_ids(self, state: State) -> int:
        """Ids that rows of this text may have."""
        return self.dims.n_vocab

    def forward_paths(
        self, state: State, pending: int, paths: Sequence[Sequence[int]]
    ) -> list[list[NDArray[np.float32]]]:
        """Run 2 to `n_paths` continuations of `state` in one pass: `pending`, then the ids of each of `paths`.

        Nothing is committed. Returns for each path the logits that follow `pending` and each of its ids, float32
        `[n_vocab]`, the same bits as from `forward`, valid until the next pass over several texts; rows that paths
        share are the same array. Raises as `forward`, and BundleError when the graph cannot be loaded.
        """
        n_room = self.dims.n_text_ctx - state.length - 1
        if not 2 <= len(paths) <= self.n_paths or not all(1 <= len(path) <= n_room for path in paths):
            raise UsageError(
                f"{len(paths)} paths of {', '.join(str(len(path)) for path in paths)} rows after {state.length}: "
                f"expected 2 to {self.n_paths} paths of 1 to {n_room}"
            )
        texts = [(state, (pending, *paths[0]))]
        for i, path in enumerate(paths[1:]):
            if i == len(state.branches):
                state.branches.append(self.fork(state))
            copy_rows(state, state.branches[i])
            texts.append((state.branches[i], (pending, *path)))
        # What paths begin with alike is read off once.
        places: dict[tuple[int, ...], tuple[int, int]] = {}
        wanted: list[list[int]] = [[] for _ in texts]
        for i, (_, ids) in enumerate(texts):
            for n in range(len(ids)):
                if ids[: n + 1] not in places:
                    places[ids[: n + 1]] = i, len(wanted[i])
                    wanted[i].append(n)
        found = self.forward_many([(text, ids, rows or [0]) for (text, ids), rows in zip(texts, wanted, strict=True)])
        rows = {prefix: found[i][n] for prefix, (i, n) in places.items()}
        state.n_open = tuple([len(ids) for _, ids in texts])
        state.new_hidden = [text.new_hidden[0] for text, _ in texts]
        return [[rows[ids[: n + 1]] for n in range(len(ids))] for _, ids in texts]

    def commit(self, state: State, n_rows: int, path: int = 0) -> None:
        """Keep the first `n_rows` rows of the last pass, of its path number `path`.

        Raises UsageError for more rows than the pass had there, or when they were committed before.
        """
        n_open = state.n_open[path] if 0 <= path < len(state.n_open) else 0
        if not 0 <= n_rows <= n_open:
            raise UsageError(f"a commit of {n_rows} rows: expected 0 to {n_open}, the rows of the last pass")
        start, stop = state.length, state.length + n_rows
        hidden = state.new_hidden[path] if n_rows else None
        if state.memory.n_hidden and hidden is not None:
            state.memory.hidden[start:stop] = hidden[0, :n_rows]
        rows, state.length = state.memory.rows, stop
        del rows[start:]
        n_new = stop - len(rows)
        rows.extend(itertools.islice(self._row_numbers, n_new))
        if path:
            branch = state.branches[path - 1]
            branch.memory.rows[start:], branch.length = rows[start:], stop
            state.memory.values[:, :, state.memory.place, :, start:stop] = branch.memory.values[
                :, :, branch.memory.place, :, start:stop
            ]
        state.n_open = ()

    def rewind(self, state: State, n_rows: int) -> None:
        """Keep only the first `n_rows` committed rows. Raises UsageError for more than there are."""
        if not 0 <= n_rows <= state.length:
            raise UsageError(f"a rewind to {n_rows} rows: expected 0 to {state.length}, the rows committed")
        state.length = n_rows
        state.n_open = ()

    def release(self, state: State) -> None:
        """Give the buffers of `state` back for the next text; `state` must not be used again."""
        self._kv_cache.give_back(state, shares_passes=self.shares_passes)
        if not state.is_fork:
            self._budget.drop(id(state.features))

    def _many_pass(self) -> ManyPass:
        if self._many is None:
            session = self._session(MANY_GRAPH)
            n_columns = logit_columns(session, MANY_GRAPH, self.dims.n_vocab, self.bundle.path)
            self._many = ManyPass(session, self._kv_cache.shared_values(), n_columns, self._positions)
        return self._many

    # ----------------------------------------------------------------------------------------------------- alignment
    def align(self, features: Features, ids: Sequence[int]) -> Alignment:
        """Attention scores and probabilities of a whole text, prompt and end of text included.

        Raises UsageError for no rows, more than `n_text_ctx`, or an id outside the vocabulary; BundleError when the
        bundle has no such graph; Interrupted.
        """
        dims = self.dims
        if not 1 <= len(ids) <= dims.n_text_ctx:
            raise UsageError(f"an alignment of {len(ids)} rows: expected 1 to {dims.n_text_ctx}")
        if min(ids) < 0 or max(ids) >= dims.n_vocab:
            raise _unknown_ids(ids, dims.n_vocab)
        with self.lock:
            self._session(ALIGN_GRAPH)
            probs = self._token_probs(features, ids)
            scores = self.align_scores(features, ids)
            trim_heap()
        return Alignment(scores=scores, token_probs=probs)

    def align_scores(self, features: Features, ids: Sequence[int]) -> NDArray[np.float32]:
        """The `scores` of an Alignment alone, of ids that have been checked."""
        session, n_rows = self._session(ALIGN_GRAPH), len(ids)
        inputs: dict[str, NDArray[Any]] = {
            "ids": np.array([ids], np.int64),
            "positions": np.arange(n_rows, dtype=np.int64)[None],
            "past_len": np.array([n_rows - 1], np.int32),
            "total_len": np.array(n_rows, np.int32),
            **features.cross,
        }
        n_heads = len(self.bundle.manifest.alignment_heads)
        scores = np.empty((n_heads, n_rows, len(features.hidden)), np.float32)
        session.run_once({name: array for name, array in inputs.items() if name in session.inputs}, {"scores": scores})
        return scores

    def _token_probs(self, features: Features, ids: Sequence[int]) -> NDArray[np.float32]:
        """`Alignment.token_probs`, a chunk of rows at a time, to bound the memory of logits."""
        eot = self.bundle.manifest.tokens.eot
        targets = np.array(ids[1:], np.int64)
        probs = np.zeros(len(targets), np.float32)
        state = self.start(features)
        try:
            for start in range(0, len(targets), ALIGN_CHUNK_ROWS):
                rows = ids[start : start + ALIGN_CHUNK_ROWS][: len(targets) - start]
                logits = self.forward(state, rows)[:, :eot]
                wanted = targets[start : start + len(rows)]
                is_text = np.flatnonzero(wanted < eot)
                mass = np.exp(logits - logits.max(axis=1, keepdims=True))
                probs[start + is_text] = mass[is_text, wanted[is_text]] / mass[is_text].sum(axis=1)
                self.commit(state, len(rows))
        finally:
            self.release(state)
        return probs

    # ------------------------------------------------------------------------------------------------------ stopping
    def cancel(self) -> None:
        """Stop what runs now and later, from any thread, until `reset`; callers get Interrupted."""
        self.canceller.cancel()

    def reset(self) -> None:
        """Run again after `cancel`. What was committed to a state is still there."""
        self.canceller.reset()

    def interruptible(self) -> contextlib.AbstractContextManager[None]:
        return self.canceller.on_sigint()

    def forget_other_threads(self) -> None:
        """In a forked child: whatever other threads held or worked on is not in this process."""
        self.lock.forget_others()
        self._budget.forget()
        self._kv_cache.forget()
        self._many = None

    # ------------------------------------------------------------------------------------------------------- loading
    def unload(self, *graphs: str) -> None:
        """Free graphs, which are loaded again when next used."""
        for graph in graphs:
            self._sessions.pop(graph, None)
        if MANY_GRAPH in graphs:
            self._many = None
        if self._decoder in graphs:
            self._kv_cache.spare.clear()

    def _session(self, graph: str) -> Session:
        """A loaded graph. Raises BundleError when the bundle has none, or one that is not the manifest's."""
        found = self._sessions.get(graph)
        if found is not None:
            return found
        if graph == ALIGN_GRAPH:
            require_align(self.bundle.manifest, self.bundle.path)
        session = load_graph(self.bundle, graph, self.canceller, threads=self.threads)
        if graph == self._decoder:
            self._n_columns = logit_columns(session, graph, self.dims.n_vocab, self.bundle.path)
        self._sessions[graph] = session
        return session


def _same_bits(a: Features, b: Features) -> bool:
    pairs = [(a.hidden, b.hidden), *((array, b.cross[name]) for name, array in a.cross.items())]
    return all(x.tobytes() == y.tobytes() for x, y in pairs)


def _unknown_ids(ids: Sequence[int], n_vocab: int) -> UsageError:
    return UsageError(f"token ids {min(ids)} to {max(ids)}: expected 0 to {n_vocab - 1}")


# Each `os.fork` of this process waits, 10 s at most, until no other thread runs a pass of these engines: a child could
# have half-filled buffers. In the child, nobody else works on a text.
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_forking = threading.local()  # `held`: the engines whose lock the thread that forks has


def _before_fork() -> None:
    until = time.monotonic() + _FORK_WAITS_S
    _forking.held = [e for e in list(_engines) if e.lock.acquire(timeout=max(until - time.monotonic(), 0.0))]


def _after_fork() -> None:
    for engine in _forking.held:
        engine.lock.release()


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        engine.forget_other_threads()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
