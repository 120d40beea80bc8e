"""What a draft model says in its target's ids, and the target's text and prompt in the draft's.

`Remapped` is for models that cut text alike: the same ids, or v2 and v3, which differ in special tokens only. Special
tokens are translated by meaning: control tokens by name, languages by code, times by time, since ids say nothing (v3's
<|transcribe|> is v2's <|startoflm|>). Two speech LLMs of one layout have all ids in common.

`papers.across_words` is for models that cut text differently; it is found by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from ...decoding.accept import Classed, Drawn
from ...text.special import SpecialTokens, TokenLayout
from ...text.speech_tokens import SpeechTokens
from ...text.tokenizer import Tokenizer

_NAMES = ("eot", "sot", "sot_prev", "sot_lm", "no_speech", "no_timestamps", "translate", "transcribe")


def special_map(source: TokenLayout, target: TokenLayout) -> dict[int, int]:
    """Return id in `source` -> id in `target` of every special token that both have; of a speech LLM's only the end."""
    found: dict[int, int] = {source.eot: target.eot}
    if not isinstance(source, SpecialTokens) or not isinstance(target, SpecialTokens):
        return found
    for name in _NAMES:
        here, there = getattr(source, name), getattr(target, name)
        if here is not None and there is not None:
            found[here] = there
    for code, here in source.languages.items():
        if code in target.languages:
            found[here] = target.languages[code]
    for step in range(source.n_timestamps):
        there = round(step * source.time_precision_s / target.time_precision_s)
        if there < target.n_timestamps:
            found[source.timestamp_begin + step] = target.timestamp_begin + there
    return found


@dataclass(kw_only=True)
class Reader(ABC):
    """The draft's tokens as they come, in the target's ids. `is_ended` once nothing more can follow.

    confidences: for each token the probability that the draft gave it; drawn: the distribution that it was drawn from,
    None for one that was not drawn, or where that is not known; origins: which draft token it comes from, the first of
    several; n_read: draft tokens taken so far; differs: the draft has no word that begins as the text ends.
    """

    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    drawn: list[Drawn | Classed | None] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    is_ended: bool = False
    n_read: int = 0
    differs: bool = False

    def finish(self) -> None:  # noqa: B027
        """No more draft tokens follow: what was waiting for them is taken as it is."""

    @abstractmethod
    def push(self, token: int, confidence: float, drawn: Drawn | None = None) -> None:
        """One more draft token, its probability, and what it was drawn from, in the draft's ids."""


class Translation(ABC):
    """Between one target and one draft."""

    @abstractmethod
    def prompt(self, ids: Sequence[int]) -> list[int] | None:
        """Return a prompt in the draft's ids; None where the draft cannot be asked this."""

    @abstractmethod
    def text(self, ids: Sequence[int]) -> list[int]:
        """Return text and timestamps in the draft's ids; what it has no token for is left out."""

    def before_word(self, ids: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
        """As `text`, but for a last word that may go on, which is given apart, in the target's ids."""
        return self.text(ids), ()

    @abstractmethod
    def reader(self, word: Sequence[int] = (), *, is_start: bool = False) -> Reader:
        """Return a reader for a new draft behind `before_word`; `is_start`: with `word` a window's text begins."""

    @abstractmethod
    def spelt(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """As `text`, and for each id the index of the token that is the same alone, -1 where there is none."""

    @abstractmethod
    def counterparts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the draft's ids that alone mean the same as ids of the target i64 [n], -1 for none."""

    def end(self, tokens: Sequence[int]) -> None:  # noqa: B027
        """A window's text was kept."""


@dataclass(kw_only=True)
class _IdReader(Reader):
    to_target: Sequence[int]
    eot: int

    def push(self, token: int, confidence: float, drawn: Drawn | None = None) -> None:
        there = self.to_target[token]
        self.is_ended = there < 0 or there == self.eot
        if not self.is_ended:
            self.origins.append(self.n_read)
            self.n_read += 1
            self.tokens.append(there)
            self.confidences.append(confidence)
            # What ends a draft is no draft, so what was drawn was drawn from the rest.
            self.drawn.append(drawn_among(drawn, lambda id_: t if (t := self.to_target[id_]) != self.eot else -1))


class Remapped(Translation):
    """For a draft whose tokens of text the target has too: special tokens by meaning, text as it is; of two speech LLMs
    of one layout, whose prompts are alike, rows of audio included, all but the text ends a draft.

    text: the target's id of each of the draft's tokens of text, by default the same; -1 for none, of which a draft is
    never made.
    """

    def __init__(self, draft: TokenLayout, target: TokenLayout, text: Sequence[int] | None = None) -> None:
        self._draft, self._target, self._eot = draft, target, target.eot
        text = range(draft.eot) if text is None else text
        self._to_target, self._to_draft = [-1] * draft.n_vocab, [-1] * target.n_vocab
        for here, there in enumerate(text):
            if there >= 0:
                self._to_target[here], self._to_draft[there] = there, here
        for here, there in special_map(draft, target).items():
            self._to_target[here] = there
        for there, here in special_map(target, draft).items():
            self._to_draft[there] = here

    @classmethod
    def between(cls, draft: Tokenizer, target: Tokenizer) -> Remapped | None:
        """For two that cut text alike, or where the draft has nothing but some of the target's tokens; else None."""
        mine, theirs = draft.special, target.special
        is_alike = mine.is_asked_like(theirs) if isinstance(mine, SpeechTokens) else isinstance(theirs, SpecialTokens)
        if not is_alike or mine.eot > theirs.eot:
            return None
        here, there = draft.ranks[: mine.eot], target.ranks[: theirs.eot]
        if here == there:
            return cls(mine, theirs, [token if text else -1 for token, text in enumerate(here)])
        ids = {text: token for token, text in enumerate(there) if text}
        text = [ids.get(text, -1) for text in here]
        return None if mine.eot == theirs.eot or -1 in text else cls(mine, theirs, text)

    def prompt(self, ids: Sequence[int]) -> list[int] | None:
        if isinstance(self._draft, SpeechTokens):
            return list(ids)
        return prompt_in(self._draft, self._target, ids, self.text)

    def text(self, ids: Sequence[int]) -> list[int]:
        return [there for token in ids if (there := self._to_draft[token]) >= 0]

    def reader(self, word: Sequence[int] = (), *, is_start: bool = False) -> Reader:
        return _IdReader(to_target=self._to_target, eot=self._eot)

    def spelt(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        pairs = [(there, i) for i, token in enumerate(tokens) if (there := self._to_draft[token]) >= 0]
        return [there for there, _ in pairs], [i for _, i in pairs]

    def counterparts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([self._to_draft[id_] for id_ in ids.tolist()], np.int64)


def drawn_among(drawn: Drawn | None, to_target: Callable[[int], int]) -> Drawn | None:
    """`drawn` given that the outcome is one that `to_target` has an id for, in those ids; -1 is none."""
    if drawn is None:
        return None
    pairs = [(there, q) for id_, q in zip(*drawn, strict=True) if (there := to_target(int(id_))) >= 0]
    weights = np.array([q for _, q in pairs], np.float64)
    return np.array([there for there, _ in pairs], np.int64), weights / weights.sum()


def prompt_in(
    draft: TokenLayout, target: TokenLayout, ids: Sequence[int], text_of: Callable[[Sequence[int]], list[int]]
) -> list[int] | None:
    """`ids`, a prompt of `target`, as `draft` must be asked; `text_of` translates all but languages and tasks.

    An English-only draft is asked without language and task, and can be asked for English text alone; a draft that
    knows languages is asked for English where the target knows no other. Beside a speech LLM a Whisper is asked for its
    text in the same language, English where none is told, without times.
    """
    if not isinstance(draft, SpecialTokens):
        return None
    try:
        if isinstance(target, SpeechTokens):
            return draft.prompt(target.language_in(ids) or "en", timestamps=False)
        whisper = cast(SpecialTokens, target)
        start = ids.index(whisper.sot) + 1
        stop = start + 2 * whisper.is_multilingual  # behind the language and the task
        language = whisper.language_of(ids[start]) if whisper.is_multilingual else "en"
        task = "translate" if whisper.translate in ids[start:stop] else "transcribe"
        return [*text_of(ids[:start]), *draft.prompt(language, task)[1:], *text_of(ids[stop:])]
    except UsageError:
        return None
