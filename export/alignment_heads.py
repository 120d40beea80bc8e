"""Which heads of the decoder follow the audio: found on recordings, for a checkpoint that does not name them.

Word times are read from the cross-attention of a few heads. OpenAI lists them for its own checkpoints
(whisper/__init__.py); fine-tunes and distilled decoders often carry no list, or that of another decoder.

The bundle transcribes the recordings. Each window's text then goes through the decoder once, and every head's attention
is warped alone, as word times are (`longform/words.py`). A head's score is how much more of a token's attention lies on
the head's own path than the other tokens give the same place: 0 for a head that always looks at one place or spreads
its attention evenly, nearly 1 for one that walks along with the words. The heads with the best scores are kept.

The scores of all heads are held at once: for large-v3 0.4 GB with a text of 100 tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import ALIGN_GRAPH, GraphSpec, require_cross_attention
from specedge.runtime.console import Progress
from specedge.runtime.engine.engine import Alignment, Engine, Features
from specedge.runtime.longform.transcribe import Transcription
from specedge.runtime.longform.windows import Piece
from specedge.runtime.longform.words import FRAMES_PER_STEP, token_steps
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.text.special import SpecialTokens

from .derived_graphs import write_align_graph
from .onnx_builder import signature

MOST_WINDOWS = 20  # as many as the list of distil-small.en was made from (its commit b76dc29)
LEAST_TOKENS = 8  # of a window: a shorter text says little about what follows what
MOST_HEADS = 10  # OpenAI's lists have 6 to 23
LEAST_OF_BEST = 0.75  # of the best head's score: the cut that gives the demo's own list
_REACH = 2  # steps of 20 ms beside the path
_GRAPH = f".{ALIGN_GRAPH}.all"  # hidden, so that it is no file of the bundle's


def find_heads(bundle: Bundle, recordings: Sequence[Path]) -> tuple[tuple[int, int], ...]:
    """The (layer, head) pairs of the decoder that follow the audio best, in rising order.

    bundle: an opened bundle of a Whisper, or one that is being written. recordings: audio of the kind that the model
    was made for, all together at least a few sentences; the first 20 windows with text are used.

    Raises AudioError for a recording that cannot be read, or where the model hears no text, UsageError for a speech
    LLM, BundleError when the decoder graph is none of ours, OSError when the folder cannot be written, ResourceError,
    Interrupted.
    """
    require_cross_attention(bundle.manifest)
    check_recordings(recordings)
    dims = bundle.manifest.dims
    every = tuple((layer, head) for layer in range(dims.n_text_layer) for head in range(dims.n_text_head))
    with _seen_by(bundle, every) as seen:
        scores = _Scores(len(every))
        engine = Engine(seen, cache=False)
        with engine.interruptible(), Progress(MOST_WINDOWS, "windows", "alignment heads") as progress:
            for recording in recordings:
                _listen(engine, seen, recording, scores, progress)
    if not scores.n_windows:
        named = ", ".join(str(recording) for recording in recordings)
        raise AudioError(
            f"{named}: the model hears no text of {LEAST_TOKENS} tokens or more there, from which its alignment heads "
            "could be found; give recordings of speech in its language"
        )
    return best_heads(scores.mean.reshape(dims.n_text_layer, dims.n_text_head))


def check_recordings(recordings: Sequence[Path]) -> None:
    """Raises AudioError for the first that cannot be opened, before the work of minutes."""
    for recording in recordings:
        open_audio(recording).close()


def best_heads(scores: NDArray[np.float64], n_most: int = MOST_HEADS) -> tuple[tuple[int, int], ...]:
    """The (layer, head) pairs with the largest of `scores` [n_layers, n_heads], in rising order: at most `n_most`, none
    with less than `LEAST_OF_BEST` of the best one's."""
    order = np.argsort(-scores, axis=None, kind="stable")[:n_most]
    kept = [int(at) for at in order if scores.flat[at] >= LEAST_OF_BEST * scores.flat[order[0]]]
    return tuple(sorted(divmod(at, scores.shape[1]) for at in kept))


def score_on_path(scores: NDArray[np.float32]) -> float:
    """How well one head follows the audio: from about 0, not at all, to nearly 1.

    scores: its attention before the softmax, float32 [n_rows, n_steps], a row for each token and one for what follows
    the last. It is the mean share of a row's attention on the row's steps of the path, `_REACH` beside them included,
    beyond what the rows give these steps on average.
    """
    alone = Alignment(scores=scores[None], token_probs=np.zeros(0, np.float32))
    n_frames = FRAMES_PER_STEP * scores.shape[1]
    rows, steps = token_steps(alone, len(scores) - 1, first=0, n_content_frames=n_frames)
    mass = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = mass / mass.sum(axis=1, keepdims=True)
    beyond = shares - shares.mean(axis=0)
    places = (steps[rows == row] for row in range(len(scores)))
    found = [
        beyond[row, max(0, at[0] - _REACH) : at[-1] + _REACH + 1].sum(dtype=np.float64) for row, at in enumerate(places)
    ]
    return float(np.mean(found))


class _Scores:
    """The mean of `score_on_path` of `n_heads` heads over windows, which it is called with in place of `time_words`."""

    def __init__(self, n_heads: int) -> None:
        self._total = np.zeros(n_heads)
        self.n_windows = 0

    @property
    def mean(self) -> NDArray[np.float64]:
        return self._total / max(1, self.n_windows)

    def __call__(
        self,
        engine: Engine,
        features: Features,
        pieces: Sequence[Piece],
        *,
        special: SpecialTokens,
        language: str | None,
        task: str,
        n_content_frames: int,
        **_: Any,
    ) -> list[Piece]:
        ids = [id_ for piece in pieces for id_ in piece.tokens if id_ < special.eot]
        prompt = special.prompt(language, task, timestamps=False)
        if len(ids) >= LEAST_TOKENS and len(prompt) + len(ids) < engine.dims.n_text_ctx:
            scores = engine.align_scores(features, [*prompt, *ids, special.eot])
            n_steps = min(n_content_frames // FRAMES_PER_STEP, scores.shape[2])
            first = len(prompt) - 1  # whose attention shows where the first token is said
            heard = scores[:, first : first + len(ids) + 1, :n_steps]
            self._total += [score_on_path(head) for head in heard]
            self.n_windows += 1
        return list(pieces)


def _listen(engine: Engine, bundle: Bundle, recording: Path, scores: _Scores, progress: Progress) -> None:
    """Add the windows of a recording, until there are `MOST_WINDOWS` in all."""
    # Words of earlier windows would be another reason to say the next ones than the audio.
    options = TranscribeOptions(word_timestamps=True, condition_on_previous_text=False)
    with open_audio(recording) as stream:
        transcription = Transcription(engine, bundle, stream, options, time_words=scores)
        with contextlib.closing(transcription):
            while scores.n_windows < MOST_WINDOWS and next(transcription, None) is not None:
                progress.update_to(scores.n_windows)


@contextlib.contextmanager
def _seen_by(bundle: Bundle, heads: Sequence[tuple[int, int]]) -> Iterator[Bundle]:
    """The bundle with the graph of other alignment heads, in a hidden file that is gone afterwards."""
    path = bundle.path / f"{_GRAPH}.onnx"
    try:
        write_align_graph(bundle.path / "decoder.onnx", path, bundle.manifest.dims, heads)
        spec: GraphSpec = signature(bundle.path, _GRAPH)
        graphs = {**bundle.manifest.graphs, ALIGN_GRAPH: spec}
        manifest = replace(bundle.manifest, alignment_heads=tuple(heads), graphs=graphs)
        yield replace(bundle, manifest=manifest)
    finally:
        path.unlink(missing_ok=True)
