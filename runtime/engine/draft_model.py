"""A draft model at work beside its target: loaded once, used by the drafters of any number of targets in turn.

`DraftModel` holds the engine; threads take turns by the pass, and what stops the target stops the draft too. It hears a
window through the target's encoder output where both encoders are the same (distilled models), else through its own.
`DraftText` is one text in it: told another continuation, it goes back to where the two differ and runs only what is
new.
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
from specedge.maps.lru import WordCache

from ..bundle.bundle import Bundle, encoder_fingerprint
from ..bundle.dims import FRAMES_PER_POSITION
from ..bundle.manifest import DECODER_GRAPH, LEARN_GRAPH, SHORTLIST_GRAPH, SPEECH, VECTORS_GRAPH, graph_bytes
from .engine import Factors, Features
from .many import BIAS
from .session import Canceller, Stoppable, load_graph
from .shortlist import Shortlist
from .speech import open_engine


def averaged(hidden: NDArray[Any], bias: NDArray[np.float32] | None, n: int) -> tuple[NDArray[Any], Any]:
    """The mean of each `n` rows of an encoder's output `[n_ctx, n_state]`, the last of what is left, and its bias.

    bias: float32 `[1, 1, 1, n_ctx]`, the logarithm of the positions that each row stands for, None for one.
    """
    if n == 1:
        return hidden, bias
    counts = np.ones(len(hidden), np.float32) if bias is None else np.exp(bias[0, 0, 0])
    n_padding = -len(hidden) % n
    rows = (np.pad(hidden, ((0, n_padding), (0, 0))) if n_padding else hidden).reshape(-1, n, hidden.shape[1])
    shares = np.pad(counts, (0, n_padding)).reshape(-1, 1, n)
    sums = shares.sum(2)
    means = np.matmul(shares / sums[:, None], rows)[:, 0]
    return means.astype(hidden.dtype), None if bias is None else np.log(sums[:, 0])[None, None, None]


class VocabularyVectors:
    """The rows that the decoder multiplies its last hidden row with, for what learns. Raises BundleError.

    The bundle's graph `vectors` reads them from the decoder's data file where it is mapped.
    """

    def __init__(self, bundle: Bundle, canceller: Canceller) -> None:
        self.n_state = bundle.manifest.dims.n_text_state
        self._session = load_graph(bundle, VECTORS_GRAPH, canceller, threads=1)

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of token ids, int64 [n]: float32 [n, n_text_state]. Raises Interrupted."""
        found = np.empty((len(ids), self.n_state), np.float32)
        self._session.run_once({"rows": np.ascontiguousarray(ids, np.int64)}, {"vectors": found})
        return found


_WARM_POSITIONS = 48  # a whole number of rows of any speech LLM
_loaded: weakref.WeakValueDictionary[tuple[str, str, int, bool], DraftModel] = weakref.WeakValueDictionary()
_loading = threading.Lock()


class _Relay(Canceller):
    """Runs under the target's canceller, so that what stops the target stops the draft too."""

    def __init__(self) -> None:
        super().__init__()
        self.works_for: Canceller | None = None

    def stoppable(self, stop: Callable[[], None]) -> Stoppable:
        works_for = self.works_for
        return super().stoppable(stop) if works_for is None else works_for.stoppable(stop)


class DraftModel:
    """An engine over `bundle`. Raises what `Engine` raises, UsageError for a bundle that cannot learn.

    encoder: the fingerprint of its encoder; words: the caches of words in other vocabularies, by the pair of both;
    courses: what was learned, by target; vectors: of what learns or has a shortlist, else None;
    shortlist: the tokens that it may say, None for all, as for one that learns; knows_prompts: whether it may be told
    the text before a window, which drafts over their target's encoder never were in training.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        threads: int,
        canceller: Canceller | None = None,
        learns: bool = False,
    ) -> None:
        if learns and not {LEARN_GRAPH, VECTORS_GRAPH} <= bundle.manifest.graphs.keys():
            raise UsageError(
                f"learn: the draft {bundle.manifest.name} cannot learn; make it so with "
                f"`specedge export {bundle.path} --learnable`, or leave out --learn"
            )
        has_shortlist = {SHORTLIST_GRAPH, VECTORS_GRAPH} <= bundle.manifest.graphs.keys()
        # Of before: a shortlist of other ids.
        has_shortlist = has_shortlist and len(bundle.manifest.graphs[VECTORS_GRAPH].outputs) == 1
        decoder = LEARN_GRAPH if learns else SHORTLIST_GRAPH if has_shortlist else DECODER_GRAPH
        self.bundle = bundle
        n_averaged = bundle.manifest.quantisation.get("positions_a_key")
        self._n_averaged = n_averaged if isinstance(n_averaged, int) else 1
        self.knows_prompts = self._n_averaged == 1
        self.encoder = encoder_fingerprint(bundle.manifest)
        self.words: dict[bytes, WordCache] = {}
        self.courses: dict[str, Any] = {}
        self._relay = _Relay()
        self._lock = threading.RLock()
        self._is_warm: set[bool] = set()
        with self.working_for(canceller):
            self.engine = open_engine(
                bundle,
                threads=threads,
                canceller=self._relay,
                loads=bundle.manifest.graph_names[1:],
                decoder=decoder,
            )
            self.engine.pads_rows = learns  # else what is wrong in the last bits is at worst a refused draft
            self.vectors = None if decoder == DECODER_GRAPH else VocabularyVectors(bundle, self._relay)
        self.shortlist = None
        if decoder == SHORTLIST_GRAPH and self.vectors is not None:
            self.shortlist = Shortlist(bundle.manifest, self.vectors.of)

    @contextlib.contextmanager
    def working_for(self, canceller: Canceller | None) -> Iterator[None]:
        """While inside, the engine is this thread's and stops when `canceller` is cancelled."""
        with self._lock:
            before, self._relay.works_for = self._relay.works_for, canceller
            try:
                yield
            finally:
                self._relay.works_for = before

    def hear(self, window: Any, target_encoder: str, mel: Callable[[int], NDArray[np.float32]] | None) -> Features:
        """The window's features: from the target's `window` where the encoders are the same, else from the draft's mel.

        Before silence, and of a speech LLM, as much is heard as by the target. Raises UsageError if there is neither.
        """
        hidden = getattr(window, "hidden", None)
        if target_encoder == self.encoder and hidden is not None:
            return self.engine.project(*averaged(hidden, window.cross.get(BIAS), self._n_averaged))
        if mel is None:
            raise UsageError("a draft model with an encoder of its own needs the audio of the window")
        manifest = self.bundle.manifest
        n_frames = manifest.n_frames
        ends_in_silence = self.engine.knows_silence and getattr(window, "ends_in_silence", False)
        if manifest.kind == SPEECH or ends_in_silence:
            n_frames = getattr(window, "n_frames", n_frames)
        own = mel(manifest.dims.n_mels)[:, :n_frames]
        own = np.pad(own, ((0, 0), (0, n_frames - own.shape[1])))
        return self.engine.encode(own, ends_in_silence=ends_in_silence)

    @property
    def pass_bytes(self) -> int:
        """What a pass over one row reads."""
        manifest = self.bundle.manifest
        n_unread = 0 if self.shortlist is None else manifest.dims.n_vocab - self.shortlist.n_columns
        row_bytes = manifest.dims.n_text_state * (4 if manifest.precision == "fp32" else 1)
        return graph_bytes(manifest, DECODER_GRAPH) - n_unread * row_bytes

    def add_to_shortlist(self, ids: Sequence[int]) -> None:
        """The draft may say these from now on, ids of its own: the target has said them, or is expected to."""
        if self.shortlist is not None:
            self.shortlist.add(ids)

    def warm(self, target_encoder: str) -> None:
        """Load what hearing windows of this target needs, and run it once: a first pass reads all weights from disk.

        So no window's account is charged with it. Done once for each encoder. Raises as `hear` and `Engine.forward`.
        """
        is_same = target_encoder == self.encoder
        if is_same in self._is_warm:
            return
        dims = self.bundle.manifest.dims
        if is_same:
            features = self.engine.project(np.zeros((_WARM_POSITIONS, dims.n_audio_state), np.float32))
        else:
            features = self.engine.encode(np.zeros((dims.n_mels, FRAMES_PER_POSITION * _WARM_POSITIONS), np.float32))
        learned = None
        if self.vectors is not None and self.shortlist is None:
            learned = np.zeros((self.vectors.n_state, 1), np.float32), np.zeros((1, self.vectors.n_state), np.float32)
        text = DraftText(self, features, learned)
        text.follow([self.bundle.manifest.tokens.eot])
        text.release()
        self._is_warm.add(is_same)


class DraftText:
    """One text over one window, used inside `working_for`; `n_rows` counts the rows that were run for it.

    factors: for a model that learns; gives_hidden: whether `hidden` is wanted.
    """

    def __init__(
        self, model: DraftModel, features: Features, factors: Factors | None = None, *, gives_hidden: bool = False
    ) -> None:
        self._engine = model.engine
        self._shortlist = model.shortlist
        if self._shortlist is not None:
            self._row = np.empty(self._shortlist.n_vocab, np.float32)
        keeps_hidden = gives_hidden or self._shortlist is not None
        self._state = self._engine.start(features, factors, keeps_hidden=keeps_hidden)
        self._ids: list[int] = []
        self.n_rows = 0

    @property
    def hidden(self) -> NDArray[np.float32]:
        """The hidden row behind the ids of the last `follow`, before any factors, float32 [n_text_state].

        Valid until the next `follow`; for a text that `gives_hidden` or has a shortlist.
        """
        row: NDArray[np.float32] = self._state.memory.hidden[self._state.length - 1]
        return row

    def follow(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """The logits behind `ids`, at least one, float32 [n_vocab]; only rows that differ from the last call are run.

        Valid until the next call, and raises, as `Engine.forward`.
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
        if self._shortlist is None:
            return logits
        self._shortlist.spread(logits, self.hidden, self._row)
        return self._row

    def release(self) -> None:
        self._engine.release(self._state)


def load_draft(bundle: Bundle, *, threads: int, canceller: Canceller | None = None, learns: bool = False) -> DraftModel:
    """The draft model of `bundle`, shared within this process. Raises what `DraftModel` raises."""
    key = (str(bundle.path), bundle.digest, threads, learns)
    with _loading:
        found = _loaded.get(key)
        if found is None:
            found = _loaded[key] = DraftModel(bundle, threads=threads, canceller=canceller, learns=learns)
        return found
