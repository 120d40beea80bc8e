"""What timing the words of a window looks like to transcription, and where it is found.

Does not know: attention, alignment, punctuation.
"""

from __future__ import annotations

from typing import Any, Protocol

from specedge.runtime.bundle import Bundle
from specedge.runtime.special import SpecialTokens
from specedge.runtime.tokenizer import Tokenizer
from specedge.runtime.windows import Piece

__all__ = ["TimeWords", "word_timing"]


class TimeWords(Protocol):
    """openai-whisper's `add_word_timestamps` for one window: the pieces with words, their times moved to fit them.

    Times are absolute seconds; `last_speech_s` is the end of the last word before, `time_offset_s` the window's start.
    """

    def __call__(
        self,
        engine: Any,
        features: Any,
        pieces: list[Piece],
        /,
        *,
        tokenizer: Tokenizer,
        special: SpecialTokens,
        language: str | None,
        task: str,
        n_content_frames: int,
        prepend_punctuations: str,
        append_punctuations: str,
        last_speech_s: float,
        time_offset_s: float,
    ) -> list[Piece]: ...


def word_timing(bundle: Bundle) -> TimeWords:
    """`words.time_words`, for a bundle that can time words. Raises BundleError for one that cannot."""
    # Not at the top: the graphs' runtime is behind it, and most transcripts want no word times.
    from specedge.runtime.aligner import require_align
    from specedge.runtime.words import time_words

    require_align(bundle.manifest, bundle.path)
    return time_words
