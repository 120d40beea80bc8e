"""The engine of a speech LLM, and `open_engine`, which opens the engine that a bundle needs.

A window's features are its encoder output and the rows that the projector makes of it, which stand among the rows of
the text: an id from `n_vocab` on is a row of the audio (`text.speech_tokens`). The decoder has one graph for all
passes, in which rows of audio come before rows of tokens; a pass over ids before, in and behind the audio is run in
two. Where a prompt is cut into passes changes no bit, as long as each has an even number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    def _encode_pass(self, windows: NDArray[np.float32]) -> list[Features]:
        return [replace(features, n_frames=windows.shape[2]) for features in super()._encode_pass(windows)]

    def _encoded(self, windows: NDArray[np.float32]) -> NDArray[np.float32]:
        dims = self.dims
        # Stretches that do not see each other have passes of their own: less memory, and bits that audio behind them
        # does not change.
        session, outputs = self._session(SPEECH_GRAPHS[0]), []
        for first in range(0, windows.shape[2], dims.n_window_frames):
            part = np.ascontiguousarray(windows[:, :, first : first + dims.n_window_frames])
            outputs.append(encoder_output(session, part, dims.n_audio_state, dims.positions(part.shape[2])))
        return np.concatenate(outputs, axis=1)

    def _features(self, hidden: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> list[Features]:
        session, dims = self._session(PROJECTOR_GRAPH), self.dims
        n_windows, n_ctx, _ = hidden.shape
        audio = np.empty((n_windows, n_ctx, dims.n_text_state), np.float32)
        session.run_once({"features": hidden}, {"audio": audio})
        return [Features(hidden=hidden[i], cross={"audio": audio[i : i + 1]}) for i in range(n_windows)]

    def _n_ids(self, state: State) -> int:
        return self.dims.n_vocab + state.features.n_audio

    def _run_alone(self, texts: Sequence[WantedRows]) -> Iterator[NDArray[np.float32]]:
        n_vocab = self.dims.n_vocab
        for state, ids, wanted in texts:
            audio, start = state.features.cross["audio"][0], 0
            logits: list[NDArray[np.float32]] = []
            hidden: list[NDArray[np.float32]] = []
            while start < len(ids):
                middle = next((i for i in range(start, len(ids)) if ids[i] < n_vocab), len(ids))
                end = next((i for i in range(middle, len(ids)) if ids[i] >= n_vocab), len(ids))
                rows = sorted(row - start for row in wanted if start <= row < end)
                heard = audio[[id_ - n_vocab for id_ in ids[start:middle]]]
                arrays = self._run_rows(state.memory, state.length + start, ids[middle:end], rows, heard)
                # The next run writes to the same arrays.
                keep = np.asarray if end == len(ids) else np.copy
                logits.append(keep(arrays.logits[0, : len(rows), :n_vocab]))
                if arrays.hidden is not None:
                    hidden.append(keep(arrays.hidden[:, : end - start]))
                start = end
            state.n_open = (len(ids),)
            state.new_hidden = (hidden[0] if len(hidden) == 1 else np.concatenate(hidden, axis=1) if hidden else None,)
            found = logits[0] if len(logits) == 1 else np.concatenate(logits)
            order = np.argsort(wanted, kind="stable")
            yield found[np.argsort(order)] if (np.diff(order) != 1).any() else found


def open_engine(bundle: Bundle, **options: Any) -> Engine:
    """The engine of a bundle of any kind; `options` and errors are `Engine`'s."""
    return SpeechEngine(bundle, **options) if bundle.manifest.kind == SPEECH else Engine(bundle, **options)
