"""Which language is spoken: the one given, else from one window or by the vote of several.

One window is openai-whisper's: the first of the audio, with silence behind it where it is short. Several are
faster-whisper's (`detect_language`): the first window that is sure enough decides, else the most frequent winner.
Does not know: mel, prompts, which windows these are.
"""

from __future__ import annotations

from collections.abc import Iterable

from specedge.runtime.longform.options import TranscribeOptions
from specedge.runtime.text.languages import find_language
from specedge.runtime.text.special import SpecialTokens

__all__ = ["language_given", "vote"]


def vote(windows: Iterable[dict[str, float]], threshold: float | None) -> tuple[str, dict[str, float]]:
    """The language, and the probabilities of the window looked at last, likeliest first.

    `windows`: the probabilities of each window, likeliest first, made as they are asked for; one at least.
    `threshold`: a language likelier than this decides at once; None lets all windows vote.
    """
    wins: dict[str, int] = {}
    probabilities: dict[str, float] = {}
    for probabilities in windows:
        language, probability = next(iter(probabilities.items()))
        if threshold is not None and probability > threshold:
            return language, probabilities
        wins[language] = wins.get(language, 0) + 1
    return max(wins, key=wins.__getitem__), probabilities


def language_given(special: SpecialTokens, options: TranscribeOptions) -> str | None:
    """The language as a code, "en" for an English-only model, None where it will be detected. Raises UsageError."""
    code = None if options.language is None else find_language(options.language)
    if not special.is_multilingual:
        special.prompt(code, options.task)
        return "en"
    special.prompt(code or next(iter(special.languages)), options.task)
    return code
