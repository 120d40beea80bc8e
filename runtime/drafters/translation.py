"""What a draft model says, in its target's ids, and what the target has decided, in the draft's.

`Remapped` is for models that cut text alike: the same ids, or v2 and v3, which differ in special tokens only. A prompt
is translated too, or the draft would be asked in ids that mean something else. `across_words` has models that cut text
differently. Does not know: models, drafts, how many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.decoding.accept import Drawn
from specedge.runtime.drafters.special_map import special_map
from specedge.runtime.text.special import SpecialTokens

__all__ = ["Reader", "Remapped", "Translation", "drawn_among", "prompt_in"]


@dataclass(kw_only=True)
class Reader(ABC):
    """The draft's tokens as they come, in the target's ids. `is_ended` once nothing more can follow.

    confidences: for each token the probability that the draft gave it; drawn: the distribution that it was drawn from,
    None for one that was not drawn, or where that is not known; origins: which draft token it comes from, the first of
    several; n_read: draft tokens taken so far.
    """

    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    drawn: list[Drawn | None] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    is_ended: bool = False
    n_read: int = 0

    @abstractmethod
    def push(self, token: int, confidence: float, drawn: Drawn | None = None) -> None:
        """One more draft token, its probability, and what it was drawn from, in the draft's ids."""


class Translation(Protocol):
    """Between one target and one draft."""

    def prompt(self, ids: Sequence[int]) -> list[int] | None:
        """A prompt in the draft's ids; None where the draft cannot be asked this."""

    def text(self, ids: Sequence[int]) -> list[int]:
        """Text and timestamps in the draft's ids; what it has no token for is left out."""

    def reader(self) -> Reader:
        """For a new draft."""

    def spelt(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """As `text`, and for each id the index of the token that is the same alone, -1 where there is none."""

    def counterparts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The draft's ids that alone mean the same as ids of the target i64 [n], -1 for none."""

    def end(self, tokens: Sequence[int]) -> None:
        """A window's text was kept."""

    def close(self) -> None:
        """Write down what is to be kept, and let it go."""


@dataclass(kw_only=True)
class _IdReader(Reader):
    to_target: Sequence[int]
    eot: int

    def push(self, token: int, confidence: float, drawn: Drawn | None = None) -> None:
        """See `Reader.push`."""
        there = self.to_target[token]
        self.is_ended = there < 0 or there == self.eot
        if not self.is_ended:
            self.origins.append(self.n_read)
            self.n_read += 1
            self.tokens.append(there)
            self.confidences.append(confidence)
            # What ends a draft is no draft, so what was drawn was drawn from the rest.
            self.drawn.append(drawn_among(drawn, lambda id_: t if (t := self.to_target[id_]) != self.eot else -1))


class Remapped:
    """For a draft whose text ids are the target's: special tokens by meaning, text as it is.

    empty: text ids without any text, which a draft is never made of.
    """

    def __init__(self, draft: SpecialTokens, target: SpecialTokens, *, empty: Iterable[int] = ()) -> None:
        self._draft, self._target = draft, target
        self._to_target = _table(draft, target)
        self._to_draft = _table(target, draft)
        for token in empty:
            self._to_target[token] = -1

    def prompt(self, ids: Sequence[int]) -> list[int] | None:
        """See `Translation.prompt`."""
        return prompt_in(self._draft, self._target, ids, self.text)

    def text(self, ids: Sequence[int]) -> list[int]:
        """See `Translation.text`."""
        return [there for token in ids if (there := self._to_draft[token]) >= 0]

    def reader(self) -> Reader:
        """See `Translation.reader`."""
        return _IdReader(to_target=self._to_target, eot=self._target.eot)

    def spelt(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """See `Translation.spelt`."""
        pairs = [(there, i) for i, token in enumerate(tokens) if (there := self._to_draft[token]) >= 0]
        return [there for there, _ in pairs], [i for _, i in pairs]

    def counterparts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Translation.counterparts`."""
        return np.array([self._to_draft[id_] for id_ in ids.tolist()], np.int64)

    def end(self, tokens: Sequence[int]) -> None:
        """Nothing to learn."""

    def close(self) -> None:
        """Nothing to keep."""


def drawn_among(drawn: Drawn | None, to_target: Callable[[int], int]) -> Drawn | None:
    """`drawn` given that the outcome is one that `to_target` has an id for, in those ids; -1 is none."""
    if drawn is None:
        return None
    pairs = [(there, q) for id_, q in zip(*drawn, strict=True) if (there := to_target(int(id_))) >= 0]
    weights = np.array([q for _, q in pairs], np.float64)
    return np.array([there for there, _ in pairs], np.int64), weights / weights.sum()


def prompt_in(
    draft: SpecialTokens, target: SpecialTokens, ids: Sequence[int], text_of: Callable[[Sequence[int]], list[int]]
) -> list[int] | None:
    """`ids`, a prompt of `target`, as `draft` must be asked; `text_of` translates all but languages and tasks.

    An English-only draft is asked without language and task, and can be asked for English text alone; a draft that
    knows languages is asked for English where the target knows no other.
    """
    languages = {token: code for code, token in target.languages.items()}
    tasks = {target.transcribe: draft.transcribe, target.translate: draft.translate}
    found: list[int] = []
    run: list[int] = []
    for token in ids:
        code = languages.get(token)
        if code is None and (token not in tasks or token == target.sot):
            run.append(token)
            if token == target.sot and draft.is_multilingual and not target.is_multilingual:
                if draft.transcribe is None or "en" not in draft.languages:
                    return None
                found += [*text_of(run), draft.languages["en"], draft.transcribe]
                run = []
            continue
        if not draft.is_multilingual:
            if code not in (None, "en") or token == target.translate:
                return None
            continue
        there = tasks[token] if code is None else draft.languages.get(code)
        if there is None:
            return None
        found += [*text_of(run), there]
        run = []
    return [*found, *text_of(run)]


def _table(source: SpecialTokens, target: SpecialTokens) -> list[int]:
    """Id -> id, -1 for what has no counterpart; text is the same up to the end of the text."""
    table = [*range(source.eot), *([-1] * (source.n_vocab - source.eot))]
    for here, there in special_map(source, target).items():
        table[here] = there
    return table
