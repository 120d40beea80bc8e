"""The prompts of a speech LLM, as ids: what stands before and behind the audio, its languages, and the ends of a text.

    before, audio, behind, language, text, end

The ids of a context, names and terms that may be said, stand within `before`. The model says the language before a
text, or `unknown` where it hears none; `runtime/decoding/languages.py` asks for it.

The rows of a window's audio have ids of their own in a prompt: row i is `n_vocab + i`, which is no token. So a prompt
says by itself which row is which, however it is cut into passes. Text tokens have the ids below `eot`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specedge.errors import ModelError, UsageError

from .special import TokenLayout

_MOST_IDS = 64  # of a part of a prompt
_IDS = ("other_ends", "before", "behind", "unknown")


@dataclass(frozen=True, kw_only=True)
class SpeechTokens(TokenLayout):
    """See the module. Raises ModelError for ids that cannot be.

    languages: for each code the ids that tell the model the language; unknown: those that stand for none. context_at:
    how many ids of `before` stand before a context.
    """

    n_vocab: int
    eot: int
    before: tuple[int, ...]
    behind: tuple[int, ...]
    other_ends: tuple[int, ...]
    languages: Mapping[str, tuple[int, ...]] = field(hash=False)
    context_at: int
    unknown: tuple[int, ...]
    n_timestamps: int = field(default=0, init=False)
    timestamp_begin: int = field(default=0, init=False)
    time_precision_s: float = field(default=0.02, init=False)
    no_speech = None
    begins_with_space = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "languages", dict(self.languages))
        object.__setattr__(self, "timestamp_begin", self.n_vocab)
        parts = {name: getattr(self, name) for name in _IDS}
        parts |= {"eot": (self.eot,), **{f"language {code!r}": ids for code, ids in self.languages.items()}}
        for name, ids in parts.items():
            if len(ids) > _MOST_IDS or not all(type(id_) is int and 0 <= id_ < self.n_vocab for id_ in ids):
                raise ModelError(
                    f"special tokens: {name} has the ids {list(ids)[:8]}, expected up to {_MOST_IDS} "
                    f"from 0 to {self.n_vocab - 1}"
                )
        if any(id_ < self.eot for id_ in self.other_ends):
            raise ModelError(f"special tokens: an end of texts lies below eot ({self.eot}), where text tokens are")
        language_ids = sorted([*self.languages.values(), self.unknown])
        if any(longer[: len(shorter)] == shorter for shorter, longer in itertools.pairwise(language_ids)):
            raise ModelError("special tokens: the ids of a language begin those of another one")
        if type(self.context_at) is not int or self.context_at not in range(len(self.before) + 1):
            raise ModelError(f"special tokens: context_at is {self.context_at}, expected 0 to {len(self.before)}")

    def check_request(self, language: str | None, task: str) -> None:
        if task != "transcribe":
            raise UsageError(f"task {task!r}: a speech LLM is asked to transcribe; give a Whisper model to translate")
        if language is not None:
            self.find_code(language)

    def is_asked_like(self, other: TokenLayout) -> bool:
        """Whether the prompts of `other` are this model's, too, whatever languages both know."""
        return isinstance(other, SpeechTokens) and replace(self, languages={}) == replace(other, languages={})

    def question(self, n_audio: int, context: Sequence[int] = ()) -> list[int]:
        """The ids before the language, with `n_audio` rows of audio."""
        audio, at = range(self.n_vocab, self.n_vocab + n_audio), self.context_at
        return [*self.before[:at], *context, *self.before[at:], *audio, *self.behind]

    def prompt(self, n_audio: int, language: str | None = None, context: Sequence[int] = ()) -> list[int]:
        """The ids before a window's text. Raises UsageError for an unknown language."""
        language_ids = self.unknown if language is None else self.languages[self.find_code(language)]
        return [*self.question(n_audio, context), *language_ids]

    def language_in(self, prompt: Sequence[int]) -> str | None:
        """The code of the language that a prompt tells, None where it tells none."""
        ids = tuple(prompt)
        for code, language_ids in self.languages.items():
            end = (*self.behind, *language_ids)
            if ids[len(ids) - len(end) :] == end:
                return code
        return None

    @classmethod
    def from_json(cls, data: Any, n_vocab: int) -> SpeechTokens:
        """The inverse of `to_json`. Raises as that of `SpecialTokens`, and LookupError and AttributeError."""
        lists = {name: tuple(data[name]) for name in _IDS}
        languages = {code: tuple(ids) for code, ids in data["languages"].items()}
        return cls(n_vocab=n_vocab, **{**data, **lists, "languages": languages})
