"""The engine of a speech LLM, and `open_engine`, which opens the engine that a bundle needs.

A window's features are its encoder output and the rows that the projector makes of it, which stand among the rows of
the text: an id from `n_vocab` on is a row of the audio (`text.speech_tokens`). The decoder has one graph for all
passes, in which rows of audio come before rows of tokens; a pass over ids before, in and behind the audio is run in
two. Where a prompt is cut into passes changes no bit, as long as each has an even number of rows.

So what was heard need not be heard again. Qwen's encoder hears stretches of 8 s that do not see each other: a stretch
whose log-mel has the bits that it had in the window before keeps its output. And a text whose prompt begins like that
of the text before begins behind the rows that are still in its buffers (`recall`). Live audio gains most, window after
window of which begins alike; so do the temperatures of one window, and a text behind the question for its language.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bundle.bundle import Bundle
from ..bundle.dims import SpeechDims
from ..bundle.manifest import PROJECTOR_GRAPH, SPEECH, SPEECH_GRAPHS
from .engine import Engine, State, encoder_output
from .kv_cache import Features, WantedRows


class SpeechEngine(Engine):
    """A bundle of the kind "speech" that runs. As `Engine`; texts of several windows have passes of their own."""

    dims: SpeechDims
    _kind = SPEECH
    # What the encoder made of each stretch of the last window, by its first frame and the bits of its log-mel.
    _stretches: Mapping[tuple[int, bytes], NDArray[np.float32]] = {}

    def _encode_pass(self, windows: NDArray[np.float32]) -> list[Features]:
        return [replace(features, n_frames=windows.shape[2]) for features in super()._encode_pass(windows)]

    def _encoded(self, windows: NDArray[np.float32]) -> NDArray[np.float32]:
        dims = self.dims
        # Stretches that do not see each other have passes of their own: less memory, and bits that audio behind them
        # does not change.
        found: dict[tuple[int, bytes], NDArray[np.float32]] = {}
        for first in range(0, windows.shape[2], dims.n_window_frames):
            part = np.ascontiguousarray(windows[:, :, first : first + dims.n_window_frames])
            output = self._stretches.get((first, part.tobytes()))
            if output is None:
                n_ctx = dims.positions(part.shape[2])
                output = encoder_output(self._session(SPEECH_GRAPHS[0]), part, dims.n_audio_state, n_ctx)
            found[first, part.tobytes()] = output
        self._stretches = found if len(windows) == 1 else {}
        return np.concatenate(list(found.values()), axis=1)

    def _features(self, hidden: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> list[Features]:
        session, dims = self._session(PROJECTOR_GRAPH), self.dims
        n_windows, n_ctx, _ = hidden.shape
        audio = np.empty((n_windows, n_ctx, dims.n_text_state), np.float32)
        session.run_once({"features": hidden}, {"audio": audio})
        return [Features(hidden=hidden[i], cross={"audio": audio[i : i + 1]}) for i in range(n_windows)]

    def forget(self) -> None:
        self._stretches = {}
        self._kv_cache.forget_rows()

    def recall(self, state: State, ids: Sequence[int]) -> None:
        """See `Engine.recall`. Nothing where rows are not exact. Raises Interrupted, BundleError."""
        memory = state.memory
        left, memory.left = memory.left, []
        if state.length or not left:
            return
        n_same = 0
        for mine, theirs in zip(self._said(state, ids), left, strict=False):
            if mine != theirs:
                break
            n_same += 1
        self._ask_exactness()
        if n_same and self.is_exact:
            memory.said = left[:n_same]
            memory.rows[:] = itertools.islice(self._row_numbers, n_same)
            state.length = n_same

    def commit(self, state: State, n_rows: int, path: int = 0) -> None:
        start, memory = state.length, state.memory
        super().commit(state, n_rows, path)
        if len(memory.said) == start:  # not behind rows that no pass has run, which a probe makes up
            memory.said += self._said(state, memory.asked[:n_rows])

    def _said(self, state: State, ids: Sequence[int]) -> Iterator[int | bytes]:
        """What rows of a text are run from; see `TextMemory`."""
        audio, n_vocab = state.features.cross["audio"][0], self.dims.n_vocab
        return (id_ if id_ < n_vocab else audio[id_ - n_vocab].tobytes() for id_ in ids)

    def _n_ids(self, state: State) -> int:
        return self.dims.n_vocab + state.features.n_audio

    def _run_alone(self, texts: Sequence[WantedRows]) -> Iterator[NDArray[np.float32]]:
        for state, ids, wanted in texts:
            state.memory.left, state.memory.asked = [], ids
            del state.memory.said[state.length :]
            n_vocab, audio = self.dims.n_vocab, state.features.cross["audio"][0]
            # Rows of audio stand first in a run of the graph, so another one begins where they follow tokens.
            cuts = [at for at in range(1, len(ids)) if ids[at - 1] < n_vocab <= ids[at]]
            found: list[NDArray[np.float32]] = []
            kept: list[NDArray[np.float32]] = []
            for start, end in itertools.pairwise([0, *cuts, len(ids)]):
                heard = [id_ - n_vocab for id_ in ids[start:end] if id_ >= n_vocab]
                rows = sorted(row - start for row in wanted if start <= row < end)
                tokens = ids[start + len(heard) : end]
                arrays = self._run_rows(state.memory, state.length + start, tokens, rows, audio[heard])
                logits = arrays.logits[0, : len(rows), :n_vocab]
                found.append(logits.copy() if cuts else logits)  # the next run writes to the same arrays
                if arrays.hidden is not None:
                    hidden = arrays.hidden[:, : end - start]
                    kept.append(hidden.copy() if cuts else hidden)
            state.n_open = (len(ids),)
            logits = np.concatenate(found) if cuts else found[0]
            state.new_hidden = ((np.concatenate(kept, axis=1) if cuts else kept[0]) if kept else None,)
            order = np.argsort(wanted, kind="stable")
            if (np.diff(order) != 1).any():
                logits = logits[np.argsort(order)]
            yield logits


def open_engine(bundle: Bundle, **options: Any) -> Engine:
    """The engine of a bundle of any kind; `options` and errors are `Engine`'s."""
    return SpeechEngine(bundle, **options) if bundle.manifest.kind == SPEECH else Engine(bundle, **options)
