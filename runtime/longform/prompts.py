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

    n_text_ctx: the model's text positions; begun: the ids that the first window's text begins with. Raises what
    `Tokenizer.encode` raises.
    """

    def __init__(
        self, options: TranscribeOptions, tokenizer: Tokenizer, special: SpecialTokens, *, n_text_ctx: int
    ) -> None:
        self._options, self._special = options, special
        self._limit = n_text_ctx // 2 - 1
        self._initial = _ids("initial_prompt", options.initial_prompt, tokenizer, self._limit)
        prefix = _ids("prefix", options.prefix, tokenizer, self._limit)[-self._limit :]
        starts = () if options.without_timestamps or not prefix else (special.timestamp_begin,)
        self.begun = (*starts, *prefix)
        self._hotwords = () if prefix else _ids("hotwords", options.hotwords, tokenizer, self._limit)[-self._limit :]
        self._earlier: list[int] = []
        self._has_initial = True
        self._text: list[int] = []

    @property
    def history(self) -> tuple[int, ...]:
        """Text ids of the audio so far, the last half of the model's positions, kept at every temperature."""
        return tuple(self._text)

    def window(self, language: str | None, *, is_first: bool, n_audio: int = 0) -> list[int]:
        """Return a window's prompt. n_audio: rows of audio, for a speech LLM.

        Raises UsageError for a language or task that the model does not have.
        """
        prefix = self.begun if is_first else ()
        earlier = self._before() if prefix or not self._hotwords else self._behind_hotwords()
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

    def _before(self) -> list[int]:
        if self._options.carry_initial_prompt:
            # With a prompt that leaves no room this slices as openai-whisper does: [-0:] is everything.
            n_left = self._limit - len(self._initial)
            tokens = [*self._initial, *self._earlier[-n_left:]]
        else:
            tokens = [*(self._initial if self._has_initial else ()), *self._earlier]
        return tokens[-self._limit :]

    def _behind_hotwords(self) -> list[int]:
        n_left = self._limit - len(self._hotwords)
        return [*self._hotwords, *(self._before()[-n_left:] if n_left else ())]


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


class SpeechPrompts:
    """The prompts of a speech LLM's windows: the model's own words, the audio, the language, and a prefix.

    Initial prompt and hotwords stand in every window's context; nothing of the text so far is in a prompt. Raises
    UsageError for a text that is longer than the context may be.
    """

    def __init__(
        self,
        options: TranscribeOptions,
        tokenizer: Tokenizer,
        special: SpeechTokens,
        *,
        n_text_ctx: int,
        n_context: int = 0,
    ) -> None:
        self._special, self._limit = special, n_text_ctx // 2 - 1
        self.context: tuple[int, ...] = ()
        for name in ("initial_prompt", "hotwords"):
            self.context += _context_ids(getattr(options, name), tokenizer, is_first=not self.context)
        if len(self.context) > n_context:
            raise UsageError(
                f"initial_prompt and hotwords: {len(self.context)} tokens, and this model has room for {n_context}; "
                "give less"
            )
        self.begun = _ids("prefix", options.prefix, tokenizer, self._limit)[-self._limit :]
        self._text: list[int] = []

    @property
    def history(self) -> tuple[int, ...]:
        return tuple(self._text)

    def window(self, language: str | None, *, is_first: bool, n_audio: int = 0) -> list[int]:
        return [*self._special.prompt(n_audio, language, self.context), *(self.begun if is_first else ())]

    def add(self, segments: Sequence[Sequence[int]], temperature: float) -> None:
        self._text += [token for segment in segments for token in segment if token < self._special.eot]
        del self._text[: -self._limit]


def _context_ids(text: str | Sequence[int] | None, tokenizer: Tokenizer, *, is_first: bool) -> tuple[int, ...]:
    """Ids of a part of a context: as they are, or of a text with a space before it unless it is the first part."""
    if isinstance(text, str):
        return tuple(tokenizer.encode(text.strip() if is_first else f" {text.strip()}"))
    return tuple(text or ())
