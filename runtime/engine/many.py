"""One pass over the rows of several texts (export/derived_graphs.py, `write_many`): its inputs and their memory.

The texts' keys and values lie in one array, one place per text; a pass covers the places from its first text to its
last. If all texts use one window, its tensors are bound directly. Several windows are copied side by side into one
array of keys and one of values when they first share a pass.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kv_cache import Features, Lease, WantedRows
from .session import Session, bind_array_input, bind_array_output

# Added to the scores behind a shorter window's end, which repeat its first: exp of what comes of it is a normal number
# (denormal ones are slow) and leaves a float32 sum of weights of exp(-34) or more as it is. That is `FARTHEST_SCORE`
# below the top, which may stand for a group of silence.
BEYOND = -53.0
BIAS = "cross_bias"  # the input that they are added by
_MOST_SLACK = 1.25  # times as long as the longest window may the memory for windows be
_MOST_ABSENT = 1.5  # times as many windows as are in a pass may have a seat in that memory: they cost it time


def by_position(hidden: NDArray[np.float32], log_counts: NDArray[np.float32]) -> NDArray[np.float32]:
    """States `[..., n_states, n_audio_state]`, each as often as the positions that it stands for."""
    return hidden.repeat(np.rint(np.exp(log_counts.ravel())).astype(np.int64), axis=-2)


class ManyPass:
    """The passes of one session of the many graph.

    values: keys and values of the texts, float32 [n_text_layer, 2, n_places, n_head, n_slots, head_dim]; n_columns:
    those of the logits; positions: int64 [n_slots], the position of each row of a text.
    """

    def __init__(
        self, session: Session, values: NDArray[np.float32], n_columns: int, positions: NDArray[np.int64]
    ) -> None:
        self._session, self._values, self._positions = session, values, positions
        self._binding = session.binding()
        self._n_columns = n_columns
        self._unused: list[NDArray[np.float32]] = []  # arrays of logits, as fresh memory costs page faults
        self._places = (0, 0)
        names = [name for name in session.inputs if name.startswith("cross_")]
        self._windows = _Windows(names, values.shape[2], pads=BIAS in session.inputs)
        self._inputs: dict[str, NDArray[Any]] = {}

    def run(self, texts: Sequence[WantedRows]) -> list[NDArray[np.float32]]:
        """The logits float32 `[n_wanted, n_columns]` of each text, valid while its state has the lease of them.

        What else a state has of its last pass is set. Raises as `Session.run`.
        """
        ends = list(itertools.accumulate(len(text.ids) for text in texts))
        spans = [range(end - len(text.ids), end) for text, end in zip(texts, ends, strict=True)]
        n_rows = ends[-1] + ends[-1] % 2
        places = [text.state.memory.place for text in texts]
        self._bind_caches(min(places), max(places) + 1)
        self._bind_windows(texts, spans, n_rows)
        self._bind_texts(texts, spans, n_rows)
        wanted = [span[row] for span, text in zip(spans, texts, strict=True) for row in text.wanted]
        lease = self._bind_logits(wanted)
        n_hidden = max(text.state.memory.n_hidden for text in texts)
        hidden = np.empty((1, n_rows, n_hidden), np.float32) if n_hidden else None
        if hidden is None:
            self._binding.bind_output("hidden", "cpu")
        else:
            bind_array_output(self._binding, "hidden", hidden)
        self._session.run(self._binding)
        for text, span in zip(texts, spans, strict=True):
            text.state.n_open, text.state.lease = (len(span),), lease
            text.state.new_hidden = (None if hidden is None else hidden[:, span.start : span.stop],)
        cuts = [0, *itertools.accumulate(len(text.wanted) for text in texts)]
        return [lease.array[0, start:end] for start, end in itertools.pairwise(cuts)]

    def _bind(self, name: str, array: NDArray[Any]) -> None:
        self._inputs[name] = array  # kept until the pass is over
        bind_array_input(self._binding, name, array)

    def _bind_caches(self, first: int, end: int) -> None:
        if self._places == (first, end):
            return
        self._places = first, end
        for (layer, part), values in ((at, self._values[at]) for at in np.ndindex(*self._values.shape[:2])):
            name = f"self_{'kv'[part]}_{layer}"
            bind_array_input(self._binding, name, values[first:end])
            bind_array_output(self._binding, f"new_{name}", values[first:end])

    def _bind_windows(self, texts: Sequence[WantedRows], spans: Sequence[range], n_rows: int) -> None:
        windows = list({id(text.state.features): text.state.features for text in texts}.values())
        for name, array in self._windows.bind(windows):
            self._bind(name, array)
        rows: list[list[int]] = [[] for _ in self._windows.bound]
        at = {id(window): i for i, window in enumerate(self._windows.bound)}
        for span, text in zip(spans, texts, strict=True):
            rows[at[id(text.state.features)]] += span
        self._bind_rows("window_rows", "in_window", rows, n_rows)

    def _bind_texts(self, texts: Sequence[WantedRows], spans: Sequence[range], n_rows: int) -> None:
        first, end = self._places
        rows: list[list[int]] = [[] for _ in range(first, end)]
        past, lengths = np.zeros(end - first, np.int32), np.zeros(end - first, np.int32)
        ids, positions = np.empty((1, n_rows), np.int64), np.empty((1, n_rows), np.int64)
        for span, text in zip(spans, texts, strict=True):
            at, n_padded = text.state.memory.place - first, len(span) + len(span) % 2
            rows[at] = list(span)
            past[at], lengths[at] = text.state.length + n_padded - 1, n_padded
            ids[0, span] = text.ids
            positions[0, span] = self._positions[text.state.length : text.state.length + len(span)]
        ids[0, spans[-1].stop :], positions[0, spans[-1].stop :] = ids[0, 0], positions[0, 0]  # the padding row
        self._bind("ids", ids)
        self._bind("positions", positions)
        self._bind("past_len", past)
        self._bind("total_len", np.array(past.max() + 1, np.int32))
        self._bind("text_len", lengths)
        self._bind_rows("text_rows", "in_text", rows, n_rows)

    def _bind_rows(self, name: str, places_name: str, groups: Sequence[Sequence[int]], n_rows: int) -> None:
        """Bind which rows of the pass belong to each of `groups`, and where each row is found among them.

        Attention sees an even number of rows of each group, the products of the whole pass (`ids` is padded): only so
        a row has the bits of a pass of its own.
        """
        widest = max(map(len, groups))
        widest += widest % 2
        table, places = np.zeros((len(groups), widest), np.int64), np.zeros(n_rows, np.int64)
        for i, group in enumerate(groups):
            table[i, : len(group)] = group
            places[group] = range(i * widest, i * widest + len(group))
        self._bind(name, table)
        self._bind(places_name, places)

    def _bind_logits(self, wanted: list[int]) -> Lease:
        wanted += wanted[-1:] * (len(wanted) % 2)
        array = self._unused.pop() if self._unused else np.empty((1, 0, self._n_columns), np.float32)
        if array.shape[1] < len(wanted):
            array = np.empty((1, len(wanted), self._n_columns), np.float32)
        self._bind("logit_rows", np.array(wanted, np.int64))
        bind_array_output(self._binding, "logits", array[:, : len(wanted)])
        return Lease(array, self._unused)


class _Windows:
    """The cross-attention tensors `names` of the windows in a pass: `bound` in the order of the first axis."""

    def __init__(self, names: Sequence[str], n_seats: int, *, pads: bool) -> None:
        self.bound: list[Features | None] = []
        self._names, self._n_seats, self._slack = names, n_seats, _MOST_SLACK if pads else 1.0
        self._memory: dict[str, NDArray[Any]] = {}
        self._buffers: dict[str, NDArray[Any]] = {}  # in which it lies
        self._n_ctx = 0  # positions of `_memory`
        self._seats: list[weakref.ref[Features]] = []
        self._last: list[weakref.ref[Features]] = []  # the windows that are bound, while they live

    def bind(self, windows: Sequence[Features]) -> Sequence[tuple[str, NDArray[Any]]]:
        """The tensors to bind by name for a pass over `windows`; none where those of the last pass are right."""
        before = [window() for window in self._last]
        if len(windows) == 1:
            if len(before) == 1 and before[0] is windows[0]:
                return ()
            self.bound, self._last = list(windows), [weakref.ref(windows[0])]
            return [(name, windows[0].cross[name]) for name in self._names]
        seated = [seat() for seat in self._seats]
        is_new = any(all(window is not other for other in seated) for window in windows)
        if is_new or len(seated) > _MOST_ABSENT * len(windows):
            seated = self._seat(windows)
        elif self._last is self._seats:
            return ()
        self.bound, self._last = seated, self._seats
        return [(name, array[: len(seated)]) for name, array in self._memory.items()]

    def _seat(self, windows: Sequence[Features]) -> list[Features | None]:
        """Copy new windows to seats of others that are not in the pass, or behind them; then no seat is left over."""
        n_ctx = max(len(window.hidden) for window in windows)
        if not n_ctx <= self._n_ctx <= n_ctx * self._slack:
            self._make_room(n_ctx, windows[0].cross)
        seats = [seat() for seat in self._seats][: len(windows)]
        coming = [window for window in windows if all(window is not other for other in seats)]
        seats += [None] * (len(windows) - len(seats))
        self._seats = []  # until all are copied
        for i, seated in enumerate(seats):
            if all(seated is not window for window in windows):
                seats[i] = window = coming.pop()
                self._copy(i, window)
        self._seats = [weakref.ref(window) for window in seats if window is not None]
        return seats

    def _make_room(self, n_ctx: int, like: Mapping[str, NDArray[Any]]) -> None:
        """Seats for as many windows as there may be: memory is taken where it is first written, and used again."""
        self._seats, self._n_ctx = [], n_ctx
        for name in self._names:
            shape = [self._n_seats, *like[name].shape[1:]]
            if "scale" not in name:
                shape[_time_axis(name, like[name])] = n_ctx
            size = math.prod(shape)
            if name not in self._buffers or len(self._buffers[name]) < size:
                self._buffers[name] = np.empty(size, like[name].dtype)
            self._memory[name] = self._buffers[name][:size].reshape(shape)

    def _copy(self, seat: int, window: Features) -> None:
        n_ctx = len(window.hidden)
        for name, memory in self._memory.items():
            array = window.cross[name][0]
            if "scale" in name:
                memory[seat] = array
            elif _time_axis(name, memory) == 3:
                memory[seat, :, :, :n_ctx] = array
                memory[seat, :, :, n_ctx:] = BEYOND if name == BIAS else array[:, :, :1]
            else:
                memory[seat, :, :n_ctx] = array
                memory[seat, :, n_ctx:] = 0


def _time_axis(name: str, array: NDArray[Any]) -> int:
    """The axis of positions: int8 keys lie as [n_head, head_dim, n_audio_ctx], all others but the bias by position."""
    return 3 if name == BIAS or (name.startswith("cross_k_") and array.dtype == np.int8) else 2
