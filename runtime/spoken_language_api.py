"""Which language is spoken: one window or several, until one language is likely enough, else a vote.

Semantics: faster-whisper 1.2.1, `WhisperModel.detect_language`; for one window openai-whisper's `detect_language`.
Does not know: audio, what is done with the language.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.decode import detect_language
from specedge.runtime.special import SpecialTokens
from specedge.runtime.transcribe import SpeechEngine

__all__ = ["SpokenLanguage", "spoken_language"]


@dataclass(frozen=True, kw_only=True)
class SpokenLanguage:
    """The language, its probability, and those of all languages in the last window looked at, likeliest first.

    `first_window`: mel and features of the first one; `encoder_s`: time in the encoder, seconds.
    """

    language: str
    probability: float
    probabilities: list[tuple[str, float]]
    first_window: tuple[NDArray[np.float32], Any] = field(repr=False, compare=False)
    encoder_s: float = field(default=0.0, compare=False)


def spoken_language(
    engine: SpeechEngine, special: SpecialTokens, windows: Iterable[NDArray[np.float32]], threshold: float | None
) -> SpokenLanguage:
    """Look at windows (mel float32 [n_mels, n_frames], at least one) until a language is likelier than `threshold`.

    If none is, or `threshold` is None, the language that came first in most windows is taken, with the highest
    probability it had. Raises Interrupted, ResourceError.
    """
    highest: dict[str, float] = {}
    votes: Counter[str] = Counter()
    first_window = None
    encoder_s = 0.0
    ranked: list[tuple[str, float]] = []
    for mel in windows:
        started = time.perf_counter()
        features = engine.encode(mel)
        encoder_s += time.perf_counter() - started
        first_window = first_window or (mel, features)
        ranked = list(detect_language(engine, features, special.sot, dict(special.languages)).items())
        language, probability = ranked[0]
        votes[language] += 1
        highest[language] = max(probability, highest.get(language, 0.0))
        if threshold is not None and probability > threshold:
            break
    else:
        language = votes.most_common(1)[0][0]
        probability = highest[language]
    assert first_window is not None  # there is at least one window
    return SpokenLanguage(
        language=language,
        probability=probability,
        probabilities=ranked,
        first_window=first_window,
        encoder_s=encoder_s,
    )
