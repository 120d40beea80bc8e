"""Which language is spoken, from one window or by the vote of several.

One window is openai-whisper's: the first of the audio, with silence behind it where it is short. Several are
faster-whisper's (`detect_language`): the first window that is sure enough decides, else the most frequent winner.
Does not know: mel, prompts, which windows these are.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["vote"]


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
