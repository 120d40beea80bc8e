"""Whole transcriptions run twice, plainly and with a drafter, and every number of them compared with ==.

Compared are the segments (seek, times, text, tokens, words and the figures of their windows) and, one by one, the
windows that were decoded: ids, log-probabilities, silence and temperature, attempts that were thrown away included.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import specedge.runtime.longform.transcribe as transcribe_module
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.decode import WindowResult, decoding
from specedge.runtime.decoding.drafter import DraftContext, Drafter, DraftTree
from specedge.runtime.decoding.passes import Decoding
from specedge.runtime.decoding.statistics import Speculation
from specedge.runtime.engine.engine import Engine
from specedge.runtime.longform.segments import Segment
from specedge.runtime.longform.transcribe import Transcription
from specedge.runtime.options import TranscribeOptions
from support.drafting import Scripted, guess, plain_fields

Sound = NDArray[np.float32]

BROKEN = ("cycle", "bad parents", "bad columns", "raises", "no tree", "floats", "bad chain")
"""Kinds of drafters that are dropped for what they return, or at least may be."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a transcription gave, and what speculation did in it."""

    segments: list[Segment]
    windows: list[dict[str, Any]]
    speculation: Speculation
    drafter_error: str | None

    @property
    def n_tokens(self) -> int:
        """Decided tokens of all attempts, ends of text included."""
        return sum(len(window["token_logprobs"]) for window in self.windows)


def difference(expected: Run, got: Run) -> str | None:
    """The first thing that is not equal, in words; None where all is."""
    for name, left, right in (
        ("segments", expected.segments, got.segments),
        ("windows", expected.windows, got.windows),
    ):
        if len(left) != len(right):
            return f"{len(right)} {name} for {len(left)}"
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            if a != b:
                return f"{name}[{i}]: {b} for {a}"
    return None


@contextlib.contextmanager
def recorded() -> Iterator[list[dict[str, Any]]]:
    """All that windows give while this is open, statistics left out."""
    windows: list[dict[str, Any]] = []

    def decode(*arguments: Any, **named: Any) -> Decoding[WindowResult]:
        result = yield from decoding(*arguments, **named)
        windows.append(plain_fields(result))
        return result

    with mock.patch.object(transcribe_module, "decoding", decode):
        yield windows


class OnceEncoded:
    """An engine that encodes each of the windows it is given only once: the same features serve every drafter."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._features: dict[tuple[bytes, bool], Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def encode(self, mel: Sound, *, ends_in_silence: bool = False) -> Any:
        key = hashlib.sha256(np.ascontiguousarray(mel).tobytes()).digest(), ends_in_silence
        if key not in self._features:
            self._features[key] = self._engine.encode(mel, ends_in_silence=ends_in_silence)
        return self._features[key]


def run(
    engine: Engine | OnceEncoded, bundle: Bundle, sound: Sound, options: TranscribeOptions, drafter: Drafter | None
) -> Run:
    """Transcribe `sound` f32[n_samples] to its end."""
    with recorded() as windows, open_audio(sound) as stream:
        made = Transcription(engine, bundle, stream, options, drafter=drafter)
        segments = list(made)
    return Run(segments=segments, windows=windows, speculation=made.speculation, drafter_error=made.drafter_error)


@dataclass
class Truths:
    """What each text of a plain run says, ends included, in the order in which they were begun."""

    texts: list[list[int]] = field(default_factory=list)

    def recorder(self) -> Scripted:
        """A drafter that guesses nothing and writes down what is decided."""
        drafter = Scripted(lambda context, budget: DraftTree([]), name="empty")
        begin, observe = drafter.begin, drafter.observe

        def begun(window: Any) -> None:
            self.texts.append([])
            begin(window)

        def observed(verdict: Any) -> None:
            self.texts[-1].append(verdict.token)
            observe(verdict)

        drafter.begin, drafter.observe = begun, observed  # type: ignore[method-assign]
        return drafter

    def sentences(self, eot: int, ends: Callable[[int], bool]) -> Iterator[list[int]]:
        """The text ids of all texts, cut at the ends of sentences."""
        for text in self.texts:
            sentence: list[int] = []
            for token in text:
                if token < eot:
                    sentence.append(token)
                if sentence and (token >= eot or ends(token)):
                    yield sentence
                    sentence = []
            if sentence:
                yield sentence


def adversary(kind: str, truths: Truths, bundle: Bundle, seed: int) -> Scripted:
    """A drafter of one of `drafting.KINDS` that knows what plain decoding says; it errs at another place each time."""
    special = bundle.manifest.tokens
    suppressed = next((token for token in bundle.manifest.suppress_tokens if token < special.eot), special.sot)
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode())])

    def propose(context: DraftContext, budget: int) -> Any:
        begun = len(drafter.windows) - 1
        truth = truths.texts[begun] if begun < len(truths.texts) else []
        noise = [int(token) for token in rng.integers(0, special.n_vocab, rng.integers(1, 13))]
        width, at = int(rng.choice([1, 2, 3, 5, 9, 40])), int(rng.integers(0, 7))
        if kind in BROKEN and rng.random() < 0.9:  # be heard for a while before being dropped
            return DraftTree(truth[len(context.sampled) :][:width])
        return guess(kind, special, suppressed, truth[len(context.sampled) :], width=width, noise=noise, at=at)

    drafter = Scripted(propose, name=kind)
    return drafter


def random_sentences(eot: int, seed: int, n: int = 60) -> Sequence[list[int]]:
    """Sentences that no model says."""
    rng = np.random.default_rng([seed, 1])
    return [[int(token) for token in rng.integers(0, eot, rng.integers(2, 20))] for _ in range(n)]
