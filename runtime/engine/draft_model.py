"""A draft model at work beside its target: loaded once, used by the drafters of any number of targets in turn.

`DraftModel` holds the engine; threads take turns by the pass, and a pass can be stopped by whoever stops the target.
One that learns runs the graph with factors, which each text brings along: without any, it is the draft as it was.
`DraftText` is one text in it whose keys and values are kept in step: told another continuation, it goes back to where
the two part ways and runs only what is new. A window is heard through the target's own encoder output where both
bundles hold the same encoder (distilled models), else through the draft's, over as much of it as the target has heard
where the draft was trained with short windows.
Does not know: drafts, vocabularies other than the draft's, what is done with logits.

The vectors of a vocabulary, by token: what the decoder multiplies its last hidden rows with.

They come from the bundle's graph `vectors`, which reads the decoder's data file where it is mapped. Only what learns
needs them. Does not know: what is learned.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError
from specedge.maps.word_cache import WordCache

from ..bundle.bundle import Bundle, encoder_fingerprint
from ..bundle.manifest import LEARN_GRAPH, VECTORS_GRAPH
from .engine import Engine, Factors, Features
from .session import Canceller, bind_array_input, bind_array_output, load_graph

__all__ = ["DraftModel", "DraftText", "VocabularyVectors", "load_draft"]


class VocabularyVectors:
    """The loaded graph of a bundle that has one. Raises BundleError."""

    def __init__(self, bundle: Bundle, canceller: Canceller) -> None:
        self.n_state = bundle.manifest.dims.n_text_state
        self._session = load_graph(bundle, VECTORS_GRAPH, canceller, folder=bundle.path, threads=1)

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Of token ids in range, int64 [n]: float32 [n, n_text_state]. Raises Interrupted."""
        rows = np.ascontiguousarray(ids, np.int64)
        found = np.empty((len(rows), self.n_state), np.float32)
        binding = self._session.binding()
        bind_array_input(binding, "rows", rows)
        bind_array_output(binding, "vectors", found)
        self._session.run(binding)
        return found


FRAMES_PER_POSITION = 2  # the encoder's second convolution halves the frames
_loaded: weakref.WeakValueDictionary[tuple[str, str, int, bool], DraftModel] = weakref.WeakValueDictionary()
_loading = threading.Lock()


class _Relay(Canceller):
    """Runs under the canceller of whom it works for, so that what stops the target stops the draft too."""

    def __init__(self) -> None:
        super().__init__()
        self.works_for: Canceller | None = None

    def stoppable(self, stop: Callable[[], None]) -> Canceller:
        """See `Canceller.stoppable`."""
        works_for = self.works_for
        return super().stoppable(stop) if works_for is None else works_for.stoppable(stop)


class DraftModel:
    """An engine over `bundle`; see the module. `encoder` is the fingerprint of its encoder; `words` are the caches of
    words in other vocabularies, by the pair of both, which the drafters of one target after another share, and
    `courses` is what was learned, by target and domain; `vectors` are those of the vocabulary, None where nothing is
    learned.

    Raises what `Engine` raises, UsageError for a bundle that cannot learn.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        threads: int,
        cache: bool = True,
        canceller: Canceller | None = None,
        learns: bool = False,
    ) -> None:
        if learns and not {LEARN_GRAPH, VECTORS_GRAPH} <= bundle.manifest.graphs.keys():
            raise UsageError(
                f"learn: the draft {bundle.manifest.name} cannot learn; make it so with "
                f"`specedge export {bundle.path} --learnable`, or leave out --learn"
            )
        self.bundle = bundle
        self.encoder = encoder_fingerprint(bundle.manifest)
        self.words: dict[bytes, WordCache] = {}
        self.courses: dict[bytes, Any] = {}
        self._relay = _Relay()
        self._lock = threading.RLock()
        with self.working_for(canceller):
            self.engine = Engine(
                bundle,
                threads=threads,
                cache=cache,
                canceller=self._relay,
                loads=("cross_kv", "decoder"),
                decoder_threads=1,
                learns=learns,
            )
            self.vectors = VocabularyVectors(bundle, self._relay) if learns else None

    @contextlib.contextmanager
    def working_for(self, canceller: Canceller | None) -> Iterator[None]:
        """While inside, the engine is this thread's and stops when `canceller` is told to."""
        with self._lock:
            before, self._relay.works_for = self._relay.works_for, canceller
            try:
                yield
            finally:
                self._relay.works_for = before

    def hear(self, window: Any, target_encoder: str, mel: Callable[[int], NDArray[np.float32]] | None) -> Features:
        """The window's features: of `window`, the target's, where the encoders are the same, else of the draft's mel.

        Raises UsageError where neither can be had.
        """
        hidden = getattr(window, "hidden", None)
        if target_encoder == self.encoder and hidden is not None:
            return self.engine.project(hidden)
        if mel is None:
            raise UsageError("a draft model with an encoder of its own needs the audio of the window")
        manifest = self.bundle.manifest
        n_frames = manifest.n_frames
        if manifest.short_windows and hidden is not None:
            n_frames = min(n_frames, FRAMES_PER_POSITION * len(hidden))
        own = mel(manifest.dims.n_mels)[:, :n_frames]
        return self.engine.encode(np.pad(own, ((0, 0), (0, n_frames - own.shape[1]))))


class DraftText:
    """One text over one window. `n_rows` counts the rows that were run for it. Use it inside `working_for`.

    factors: what a model that learns runs with; gives_hidden: whether `hidden` is wanted.
    """

    def __init__(
        self, model: DraftModel, features: Features, factors: Factors | None = None, *, gives_hidden: bool = False
    ) -> None:
        self._engine = model.engine
        self._state = self._engine.start(features, factors)
        if gives_hidden:
            self._engine.keep_hidden(self._state)
        self._ids: list[int] = []
        self.n_rows = 0

    @property
    def hidden(self) -> NDArray[np.float32]:
        """The hidden row behind the ids of the last `follow`, before any factors, f32 [n_text_state], until the next.

        Raises UsageError where it was not asked for.
        """
        if self._state.hidden is None:
            raise UsageError("the hidden rows of this text were not asked for")
        row: NDArray[np.float32] = self._state.hidden[self._state.length - 1]
        return row

    def follow(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """The logits behind `ids` (`Engine.forward`), the caller's to change until the next call; `ids` not empty.

        Rows that the last call's text has in common are not run again. Raises what `Engine.forward` raises.
        """
        n_known = 0
        for mine, theirs in zip(self._ids, ids[:-1], strict=False):
            if mine != theirs:
                break
            n_known += 1
        self._engine.rewind(self._state, n_known)
        del self._ids[n_known:]
        new = list(ids[n_known:])
        logits: NDArray[np.float32] = self._engine.forward(self._state, new, [len(new) - 1])[0]
        self._engine.commit(self._state, len(new))
        self._ids += new
        self.n_rows += len(new)
        return logits

    def release(self) -> None:
        """Give the buffers back; the text must not be used again."""
        self._engine.release(self._state)


def load_draft(bundle: Bundle, *, threads: int, canceller: Canceller | None = None, learns: bool = False) -> DraftModel:
    """The draft model of `bundle`: the one that somebody in this process uses already, or a new one.

    Raises what `DraftModel` raises.
    """
    key = (str(bundle.path), bundle.digest, threads, learns)
    with _loading:
        found = _loaded.get(key)
        if found is None:
            found = _loaded[key] = DraftModel(bundle, threads=threads, canceller=canceller, learns=learns)
        return found
