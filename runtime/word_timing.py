"""What timing the words of a window looks like to transcription, and where it is found.

Does not know: attention, alignment, punctuation.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from specedge.runtime.errors import UsageError
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


def word_timing() -> TimeWords:
    """`words.time_words`. Raises UsageError where this build has none."""
    try:
        module = importlib.import_module("specedge.runtime.words")
    except ModuleNotFoundError:
        raise UsageError("word times are not part of this build: leave --word-timestamps out") from None
    time_words: TimeWords = module.time_words
    return time_words
