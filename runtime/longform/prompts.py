"""Prompts of windows: the text before a window, the initial prompt, hotwords, and a prefix.

    [sot_prev, hotwords or carried prompt, earlier text] sot, language, task, [no_timestamps], [<|0.00|>, prefix]

The ids between sot_prev and sot take at most half of the text positions less one and lose their beginning when they are
too long (openai-whisper's `DecodingTask._get_initial_tokens`). Hotwords and prefix are faster-whisper's (`get_prompt`):
hotwords stand before every window, without a prefix; the prefix begins the first window alone, with timestamps behind
<|0.00|>, and is part of its text. One difference: hotwords take room from the earlier text, where faster-whisper lets
both grow to the full length; and what is too long loses its beginning in all three, which is said once.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from specedge.errors import UsageError

from ..options import TranscribeOptions
from ..text.special import SpecialTokens
from ..text.speech_tokens import SpeechTokens
from ..text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
_CHARACTERS = 64  # of a token: far more than texts have


class Prompts:
    """The prompts of one recording's windows, and as much of the text so far as prompts can hold.

    n_text_ctx: the model's text positions; n_audio_rows: those that a speech LLM's audio takes at most; begun: the ids
    that the first window's text begins with; context: those of a speech LLM's context. Raises what `Tokenizer.encode`
    raises, and UsageError for text that a speech LLM has not enough room for.
    """

    def __init__(
        self,
        options: TranscribeOptions,
        tokenizer: Tokenizer,
        special: SpecialTokens | SpeechTokens,
        *,
        n_text_ctx: int,
        n_audio_rows: int = 0,
    ) -> None:
        self._options, self._special = options, special
        self._limit = n_text_ctx // 2 - 1
        self._has_initial = True
        self._earlier: list[int] = []
        self._text: list[int] = []
        self._initial = self._hotwords = self.context = self.begun = tuple[int, ...]()
        prefix = _ids("prefix", options.prefix, tokenizer, self._limit)[-self._limit :]
        if isinstance(special, SpeechTokens):
            # Half of the room beside the audio, less the model's own words, is the text's.
            n_words = len(special.prompt(0, next(iter(special.languages), None)))
            self.context = _context(options, tokenizer, (n_text_ctx - n_audio_rows) // 2 - n_words)
            self.begun = prefix
            return
        self._initial = _ids("initial_prompt", options.initial_prompt, tokenizer, self._limit)
        if prefix:
            self.begun = prefix if options.without_timestamps else (special.timestamp_begin, *prefix)
        else:
            self._hotwords = _ids("hotwords", options.hotwords, tokenizer, self._limit)[-self._limit :]

    @property
    def history(self) -> tuple[int, ...]:
        """Text ids of the audio so far, the last half of the model's positions, kept at every temperature."""
        return tuple(self._text)

    def window(self, language: str | None, *, is_first: bool, n_audio: int = 0) -> list[int]:
        """Return a window's prompt. n_audio: rows of audio, for a speech LLM.

        Raises UsageError for a language or task that the model does not have.
        """
        prefix = self.begun if is_first else ()
        if isinstance(self._special, SpeechTokens):
            return [*self._special.prompt(n_audio, language, self.context), *prefix]
        if self._options.carry_initial_prompt:
            # With a prompt that leaves no room this slices as openai-whisper does: [-0:] is everything.
            before = [*self._initial, *self._earlier[-(self._limit - len(self._initial)) :]]
        else:
            before = [*(self._initial if self._has_initial else ()), *self._earlier]
        n_left = self._limit - len(self._hotwords)
        earlier = [*self._hotwords, *(before[-n_left:] if n_left else ())]
        sot = self._special.prompt(language, self._options.task, not self._options.without_timestamps)
        return [*([self._special.sot_prev, *earlier] if earlier else []), *sot, *prefix]

    def add(self, segments: Sequence[Sequence[int]], temperature: float) -> None:
        """Add the ids of a window's segments; a high temperature drops the earlier text."""
        tokens = [token for segment in segments for token in segment]
        self._text += [token for token in tokens if token < self._special.eot]
        del self._text[: -self._limit]
        self._earlier += tokens
        del self._earlier[: -(self._limit + len(self._initial))]
        if not self._options.condition_on_previous_text or temperature > self._options.prompt_reset_on_temperature:
            self._earlier, self._has_initial = [], False


def _ids(name: str, text: str | Sequence[int] | None, tokenizer: Tokenizer, limit: int) -> tuple[int, ...]:
    """Return ids as they are, and the ids of a text with one space in front, as in the middle of a transcript.

    Of a text that cannot fit only the end is looked at. limit: how many there is room for, beyond which a line says so.
    """
    if text is None:
        return ()
    if isinstance(text, str):
        whole = text.strip()
        part = whole[-_CHARACTERS * limit :]
        ids = tuple(tokenizer.encode(" " + (part if part == whole else part.split(None, 1)[-1])))
    else:
        ids = tuple(text)
    if len(ids) > limit:
        _say_cut(name, limit)
    return ids


@functools.lru_cache(maxsize=64)
def _say_cut(name: str, limit: int) -> None:
    """Once: a live session makes the same prompt again for every look."""
    _log.warning("%s: longer than the %d tokens that a model takes: only its end counts", name, limit)


def _context(options: TranscribeOptions, tokenizer: Tokenizer, n_context: int) -> tuple[int, ...]:
    """Initial prompt and hotwords in at most `n_context` ids, a space before the second text. Raises UsageError."""
    context: tuple[int, ...] = ()
    for name in ("initial_prompt", "hotwords"):
        text = getattr(options, name)
        if isinstance(text, str):
            text = tokenizer.encode(f" {text.strip()}" if context else text.strip())
        context += tuple(text or ())
    if len(context) > n_context:
        raise UsageError(
            f"initial_prompt and hotwords: {len(context)} tokens, and this model has room for {n_context}; give less"
        )
    return context
