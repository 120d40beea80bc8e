"""The KV cache of an engine: where its texts have their keys and values.

A text (`State`) has buffers of its own while it is in work (`TextMemory`). The next text gets them, without those rows
of them that it does not share. Keys and values of texts that may share passes lie in one array, at a place each.
"""

from __future__ import annotations

import bisect
import heapq
import math
import mmap
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..bundle.dims import Dims
from .session import Binding, Session, bind_array_input, ort_value

MAX_TEXTS = 16  # that can share a pass
MAX_SIZES = 64  # of passes whose arrays are kept

Factors = tuple[NDArray[np.float32], NDArray[np.float32]]
"""A f32 `[n_text_state, n_rank]` and B f32 `[n_rank, n_text_state]` of a draft that learns."""


@dataclass(frozen=True, kw_only=True)
class Features:
    """One audio window as the decoder sees it.

    `hidden` is the encoder's output, float32 `[n_audio_ctx, n_audio_state]`; `cross` are the cross-attention keys and
    values of all decoder layers under the names of the decoder's inputs, and what is added to scores (
    export/encoder_graph.py has the shapes);
    n_frames: mel frames that the encoder of a speech LLM saw, or of a window that ends in silence.
    """

    hidden: NDArray[np.float32]
    cross: dict[str, NDArray[Any]]
    n_frames: int = 0
    ends_in_silence: bool = False

    @property
    def n_audio(self) -> int:
        """Rows of audio in a speech LLM, whose `cross` has `audio`, float32 [1, n_audio, n_text_state]; else 0."""
        return self.cross["audio"].shape[1] if "audio" in self.cross else 0


class Lease:
    """Keeps an array of logits as it is while somebody may read it; then it is used again."""

    __slots__ = ("array", "_unused")

    def __init__(self, array: NDArray[np.float32], unused: list[NDArray[np.float32]]) -> None:
        self.array, self._unused = array, unused

    def __del__(self) -> None:
        self._unused.append(self.array)


class PassArrays:
    """The arrays of passes of one size. `logits` is a view; hidden: float32 [1, n_rows, n_hidden], None if not kept.

    In a speech LLM the first `n_audio` rows are `audio`, float32 [1, n_audio, n_text_state].
    """

    audio: NDArray[np.float32]

    def __init__(
        self, session: Session, n_rows: int, logits: NDArray[np.float32], n_hidden: int, n_audio: int = 0
    ) -> None:
        self.ids = np.empty((1, n_rows - n_audio), np.int64)
        self.positions = np.empty((1, n_rows), np.int64)
        self.logit_rows = np.empty(logits.shape[1], np.int64)
        self.logits = logits
        self.hidden = np.empty((1, n_rows, n_hidden), np.float32) if n_hidden else None
        inputs: dict[str, NDArray[Any]] = {"ids": self.ids, "logit_rows": self.logit_rows}
        if "positions" in session.inputs:
            inputs["positions"] = self.positions
        if "audio" in session.inputs:
            width = session.inputs["audio"].shape[2]
            self.audio = np.empty((1, n_audio, width if isinstance(width, int) else 0), np.float32)
            inputs["audio"] = self.audio
        outputs = {"logits": logits, **({} if self.hidden is None else {"hidden": self.hidden})}
        self._inputs = [(name, ort_value(array)) for name, array in inputs.items()]
        self._outputs = [(name, ort_value(array)) for name, array in outputs.items()]

    def bind(self, binding: Binding) -> None:
        for name, value in self._inputs:
            binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs:
            binding.bind_ortvalue_output(name, value)


class TextMemory:
    """The buffers of one text, used again for the next one: everything that is bound but the audio.

    values: keys and values of several texts, float32 [n_text_layer, 2, n_places, n_head, n_slots, head_dim]; this text
    has those at `place`. caches: the same by input name, float32 [1, n_head, n_slots, head_dim]; rows: a number for
    each committed row, equal in two texts that have the same row; hidden: hidden rows of committed rows, float32
    [n_slots, n_hidden], n_hidden 0 if none are kept; is_heard: whether the text's audio is bound, which the first pass
    does.
    """

    def __init__(
        self, session: Session, values: NDArray[np.float32], place: int, n_columns: int, *, n_hidden: int
    ) -> None:
        self.values, self.place = values, place
        self.caches = {
            f"self_{'kv'[part]}_{layer}": values[layer, part, place : place + 1]
            for layer, part in np.ndindex(*values.shape[:2])
        }
        self.rows: list[int] = []
        self.n_hidden = n_hidden
        self.hidden = np.empty((values.shape[4] if n_hidden else 0, n_hidden), np.float32)
        self.past_len, self.total_len = np.zeros(1, np.int32), np.zeros((), np.int32)
        self.is_heard = False
        self.session = session
        self.binding = session.binding()
        for name, array in self.caches.items():
            value = ort_value(array)
            self.binding.bind_ortvalue_input(name, value)
            self.binding.bind_ortvalue_output(f"new_{name}", value)
        bind_array_input(self.binding, "past_len", self.past_len)
        bind_array_input(self.binding, "total_len", self.total_len)
        # Passes of all sizes write their logits here, as fresh memory costs a page fault for each 4 KiB.
        self._logits = np.empty((1, 2, n_columns), np.float32)
        self._arrays: dict[tuple[int, int, int], PassArrays] = {}
        self._bound: tuple[int, int, int] | None = None

    def hear(self, features: Features, factors: Factors | None) -> None:
        for name, array in features.cross.items():
            bind_array_input(self.binding, name, array)
        for name, factor in zip(("learn_a", "learn_b"), factors or (), strict=False):
            bind_array_input(self.binding, name, factor)
        self.is_heard = True

    def arrays(self, n_rows: int, n_logit_rows: int, n_audio: int) -> PassArrays:
        """The arrays of a pass of this size, bound."""
        size = n_rows, n_logit_rows, n_audio
        if self._logits.shape[1] < n_logit_rows:
            self._logits = np.empty((1, n_logit_rows, self._logits.shape[2]), np.float32)
            self._bound, self._arrays = None, {}
        found = self._arrays.get(size)
        if found is None:
            if len(self._arrays) >= MAX_SIZES:
                self._arrays.clear()
            logits = self._logits[:, :n_logit_rows]
            found = self._arrays[size] = PassArrays(self.session, n_rows, logits, self.n_hidden, n_audio)
            self._bound = None
        if self._bound != size:
            found.bind(self.binding)
            self._bound = size
        return found


@dataclass(eq=False, kw_only=True)
class State:
    """The KV cache of one text: `length` rows are committed, rows beyond are scratch.

    branches: texts for the other paths of a pass over several; is_fork: whether it
    began as another text. Of the last pass: n_open, the rows of each path that `commit` may keep; new_hidden, their
    hidden rows, for each path float32 [1, n_rows, n_text_state]; lease, what keeps its logits, where they were shared.
    """

    length: int = 0
    memory: TextMemory
    features: Features
    factors: Factors | None = None
    branches: list[State] = field(default_factory=list)
    n_open: tuple[int, ...] = ()
    new_hidden: Sequence[NDArray[np.float32] | None] = ()
    lease: Lease | None = None
    is_fork: bool = False

    @property
    def hidden(self) -> NDArray[np.float32] | None:
        """The decoder's last hidden row of each committed row, float32 [n_slots, n_text_state]; None if not kept."""
        return self.memory.hidden if self.memory.n_hidden else None


class WantedRows(NamedTuple):
    """The rows of a text in a pass: their ids, and indices into them whose logits are wanted, at least one."""

    state: State
    ids: Sequence[int]
    wanted: Sequence[int]


class KvCache:
    """The buffers of all texts of one engine. Threads may share it, by `lock`.

    opens: gives the decoder's graph, loaded, and the columns of its logits. n_slots: rows of a text; spare: buffers
    that no text has; values: keys and values of the texts that can share a pass, see `TextMemory`, None before there is
    one; free: places in it.
    """

    def __init__(self, dims: Dims, opens: Callable[[], tuple[Session, int]]) -> None:
        self._dims, self._opens = dims, opens
        # One more than positions, rounded up to even, for the padding row.
        self.n_slots = dims.n_text_ctx + 2 - dims.n_text_ctx % 2
        self.forget()

    def forget(self) -> None:
        """In a forked child: nobody else has a text."""
        self.lock = threading.RLock()
        self.spare: list[TextMemory] = []
        self.values: NDArray[np.float32] | None = None
        self.free: list[int] = []

    def give_back(self, state: State, *, shares_passes: bool) -> None:
        """Take the buffers of `state` back, and those of its branches."""
        with self.lock:
            for text in (state, *state.branches):
                text.lease = None
                alike = [memory for memory in self.spare if memory.n_hidden == text.memory.n_hidden]
                is_shared = text.memory.values is self.values
                if text.memory not in alike and (is_shared or not (alike or shares_passes)):
                    self.spare.append(text.memory)
        state.branches = []

    def take(self, n_hidden: int = 0, like: TextMemory | None = None, *, shares_passes: bool) -> TextMemory:
        """Buffers for a text: the spare ones that share most rows with `like`, else at the lowest place, or new."""
        with self.lock:
            spare = [memory for memory in self.spare if memory.n_hidden == n_hidden]
            if not spare:
                memory = self._new(n_hidden, shares_passes=shares_passes)
            elif like is None:
                memory = min(spare, key=lambda memory: memory.place)
            else:
                memory = max(spare, key=lambda memory: (common_rows(memory.rows, like.rows), -memory.place))
            if spare:
                self.spare.remove(memory)
        memory.is_heard = False
        if like is None:
            memory.rows.clear()
        return memory

    def _new(self, n_hidden: int, *, shares_passes: bool) -> TextMemory:
        session, n_columns = self._opens()
        shared = self.shared_values() if shares_passes else None
        if shared is not None and not self.free:
            self.spare.clear()
        if shared is None or not self.free:  # for a text that shares no pass
            return TextMemory(session, zeros_by_page(self.shape(1)), 0, n_columns, n_hidden=n_hidden)
        place = heapq.heappop(self.free)
        memory = TextMemory(session, shared, place, n_columns, n_hidden=n_hidden)
        weakref.finalize(memory, heapq.heappush, self.free, place)
        return memory

    def shared_values(self) -> NDArray[np.float32]:
        """Keys and values of the texts that can share a pass."""
        if self.values is None:
            self.values = zeros_by_page(self.shape(MAX_TEXTS))
            self.free = list(range(MAX_TEXTS))
        return self.values

    def shape(self, n_texts: int) -> tuple[int, ...]:
        """Of the keys and values of so many texts."""
        dims = self._dims
        return dims.n_text_layer, 2, n_texts, dims.n_kv_head, self.n_slots, dims.head_dim


def copy_rows(source: State, target: State) -> None:
    """Give `target` the committed keys and values of `source`, those that it has not yet."""
    ours, theirs = target.memory, source.memory
    n_same, length = common_rows(ours.rows, theirs.rows[: source.length]), source.length
    if n_same < length:
        ours.values[:, :, ours.place, :, n_same:length] = theirs.values[:, :, theirs.place, :, n_same:length]
    ours.rows[n_same:] = theirs.rows[n_same:length]
    target.length = length


def zeros_by_page(shape: Sequence[int]) -> NDArray[np.float32]:
    """Zeros whose memory is taken page by page where it is first written.

    NumPy asks for huge pages, with which a few rows of a text take the memory of all that it may have: 33 MB and not 5
    for a model of small's size.
    """
    n_bytes = math.prod(shape) * np.dtype(np.float32).itemsize
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(shape, np.float32)
    pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.float32).reshape(shape)


def common_rows(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first rows two texts share, by the numbers of their rows: of equal ones all before are equal, too."""
    return bisect.bisect_left(range(min(len(a), len(b))), True, key=lambda i: a[i] != b[i])
