"""Results of a transcription: words, segments, and facts about the audio.

Names, order and meanings are faster-whisper's. As there, programs may change these objects: nothing is frozen.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..options import CPU

if TYPE_CHECKING:
    from ..options import TranscribeOptions, VadOptions


class _Named:
    """The method of the named tuples that these classes once were."""

    def _asdict(self) -> dict[str, Any]:
        """The fields by name. Deprecated, in faster-whisper too: `dataclasses.asdict` does the same."""
        warnings.warn("_asdict is deprecated, use dataclasses.asdict", DeprecationWarning, stacklevel=2)
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass
class Word(_Named):
    """One word with its leading space and the punctuation merged into it. `start`, `end`: seconds of the audio;
    `probability`: mean probability of its tokens."""

    start: float
    end: float
    word: str
    probability: float


@dataclass
class Segment(_Named):
    """A piece of the transcript.

    start, end: seconds from the start of the audio; seek: first mel frame of its window; text as decoded (usually with
    a leading space); tokens: its ids, timestamps included; words: None unless asked for; temperature, avg_logprob,
    compression_ratio and no_speech_prob describe the whole window it came from.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None = None
    temperature: float = 0.0


@dataclass
class DraftedSegment(Segment):
    """A segment with what is known of each token (`TranscribeOptions.draft_sources`).

    sources: its drafter, "" for tokens without a draft; n_drafted: how many drafted tokens were rows of the pass that
    decided it, () for beams; logprobs: its log-probability. They take no part in comparisons. Each pass ends with a
    token without a draft.
    """

    sources: tuple[str, ...] = field(default=(), compare=False)
    n_drafted: tuple[int, ...] = field(default=(), compare=False)
    logprobs: tuple[float, ...] = field(default=(), compare=False)


@dataclass(kw_only=True)
class TranscriptionInfo:
    """Facts about the audio as a whole. Times in seconds.

    `speculation`, `audio_context`, `drafter_error` and, with a stream of unknown length, `duration` are filled while
    segments are read.
    language_probability: 1.0 for a given language; all_language_probs: likeliest first, None unless detected;
    encoder_provider: what the encoder ran on, with its version and device; drafters: names that the sources of a
    `DraftedSegment` may have; drafter_error: why the drafter was dropped, None where it was not.
    """

    language: str
    language_probability: float
    duration: float
    duration_after_vad: float
    all_language_probs: list[tuple[str, float]] | None
    transcription_options: TranscribeOptions
    vad_options: VadOptions | None
    speculation: Mapping[str, Any] = field(default_factory=dict)
    audio_context: Mapping[str, Any] = field(default_factory=dict)
    encoder_provider: str = CPU
    drafters: tuple[str, ...] = ()
    drafter_error: str | None = None
