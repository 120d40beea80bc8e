"""Drafts of a model that cuts text differently: its words in the target's ids (OmniDraft; algorithms 1.2).

words   a whole word at a time, byte by byte the same: what the target would make of it, remembered in a cache. A word
        is held back until the next token shows that it is over.
tokens  as in the paper: a token that both have is itself, and runs of the draft's tokens that spelt one of the target's
        before become that one.
direct  tokens that both have, and nothing else; for comparison.

Special tokens are translated by meaning and never remembered. Text of the target goes the other way whole.
Does not know: models, files, how many tokens are drafted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specedge.maps.vocabulary_map import direct_map
from specedge.maps.word_cache import WordCache
from specedge.runtime.bpe import split
from specedge.runtime.drafters.special_map import special_map
from specedge.runtime.drafters.translation import Reader, prompt_in
from specedge.runtime.tokenizer import Tokenizer

__all__ = ["MODES", "AcrossWords"]

MODES = ("words", "tokens", "direct")


class AcrossWords:
    """See the module. `cache` holds what was spelt before; `on_close` is called with it when the drafter is closed."""

    def __init__(
        self,
        draft: Tokenizer,
        target: Tokenizer,
        *,
        mode: str = "words",
        cache: WordCache | None = None,
        on_close: Callable[[WordCache], object] | None = None,
    ) -> None:
        self._draft, self._target, self._mode = draft, target, mode
        self._on_close = on_close
        self.cache = WordCache() if cache is None else cache
        eot = draft.special.eot
        self.direct = [int(id_) for id_ in direct_map(draft.ranks[:eot], target.ranks[: target.special.eot])]
        self._to_target = special_map(draft.special, target.special)
        self._to_draft = special_map(target.special, draft.special)
        self._byte_ids = {token: id_ for id_, token in enumerate(draft.ranks[:eot]) if len(token) == 1}
        self._longest: dict[int, int] = {}  # first id of a run -> the most ids that such a run had
        for source, _ in self.cache.items():
            self._note(source)

    @property
    def share(self) -> float:
        """The share of the draft's text tokens that the target has too."""
        return sum(id_ >= 0 for id_ in self.direct) / max(len(self.direct), 1)

    def prompt(self, ids: Sequence[int]) -> list[int] | None:
        """See `Translation.prompt`."""
        return prompt_in(self._draft.special, self._target.special, ids, self.text)

    def text(self, ids: Sequence[int]) -> list[int]:
        """See `Translation.text`."""
        found: list[int] = []
        for is_text, run in itertools.groupby(ids, lambda token: token < self._target.special.eot):
            if is_text:
                found += self._spelt(self._target.decode_bytes(run))
            else:
                found += [self._to_draft[token] for token in run if token in self._to_draft]
        return found

    def reader(self) -> Reader:
        """See `Translation.reader`."""
        kind = {"words": _WordReader, "tokens": _TokenReader, "direct": _DirectReader}[self._mode]
        return kind(of=self)

    def end(self, tokens: Sequence[int]) -> None:
        """Learn the target's tokens that the draft spells with several of its own, where runs become tokens."""
        if self._mode != "tokens":
            return
        known = {id_ for id_ in self.direct if id_ >= 0}
        for token in set(tokens):
            if token < self._target.special.eot and token not in known and self._target.ranks[token]:
                source = tuple(self._spelt(self._target.ranks[token]))
                if len(source) > 1:
                    self.cache.put(source, (token,))
                    self._note(source)

    def close(self) -> None:
        """See `Translation.close`."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(self.cache)

    def special(self, token: int) -> int:
        """The target's id of a special token of the draft, -1 for the end of the text and for what has none."""
        there = self._to_target.get(token, -1)
        return -1 if there == self._target.special.eot else there

    def is_text(self, token: int) -> bool:
        """Whether an id of the draft is text."""
        return token < self._draft.special.eot

    def words(self, ids: Sequence[int]) -> list[tuple[int, ...]]:
        """Text ids of the draft, cut where words end, and never within a character."""
        sizes = [len(self._draft.ranks[token]) for token in ids]
        text = self._draft.decode_bytes(ids).decode("utf-8", errors="surrogateescape")
        ends = set(itertools.accumulate(len(piece.encode("utf-8", errors="surrogateescape")) for piece in _cut(text)))
        found: list[tuple[int, ...]] = []
        start = n_bytes = 0
        for at, size in enumerate(sizes):
            n_bytes += size
            if n_bytes in ends:
                found.append(tuple(ids[start : at + 1]))
                start = at + 1
        return [*found, tuple(ids[start:])] if start < len(ids) else found

    def word(self, source: tuple[int, ...]) -> tuple[int, ...] | None:
        """A word of the draft as the target spells it, None where it is no text."""
        found = self.cache.get(source)
        if found is None:
            try:
                text = self._draft.decode_bytes(source).decode("utf-8")
            except UnicodeDecodeError:
                return None
            found = tuple(self._target.encode(text))
            self.cache.put(source, found)
        return found or None

    def longest_run(self, token: int) -> int:
        """The most ids of a remembered run that begins with `token`; 1 where there is none."""
        return self._longest.get(token, 1)

    def _note(self, source: tuple[int, ...]) -> None:
        self._longest[source[0]] = max(len(source), self.longest_run(source[0]))

    def _spelt(self, data: bytes) -> list[int]:
        """Text of the target, which may break off within a character, in the draft's ids."""
        try:
            return self._draft.encode(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            start = error.start
        return [*self._draft.encode(data[:start].decode("utf-8")), *(self._byte_ids[bytes([b])] for b in data[start:])]


@dataclass(kw_only=True)
class _AcrossReader(Reader):
    """Tokens of the draft until something is not text; what is pending is not yet part of `tokens`."""

    of: AcrossWords
    pending: list[int] = field(default_factory=list)
    pending_confidences: list[float] = field(default_factory=list)

    def push(self, token: int, confidence: float) -> None:
        """See `Reader.push`."""
        self.n_read += 1
        if self.of.is_text(token):
            self.pending.append(token)
            self.pending_confidences.append(confidence)
            self._take(is_over=False)
            return
        self._take(is_over=True)
        there = self.of.special(token)
        if there < 0 or self.pending:
            self.is_ended = True
        if not self.is_ended:
            self.tokens.append(there)
            self.confidences.append(confidence)

    def _take(self, *, is_over: bool) -> None:
        """Move what is complete from `pending` to `tokens`; all of it where the text is over."""
        raise NotImplementedError

    def _emit(self, n_pending: int, targets: Sequence[int]) -> None:
        """The first `n_pending` draft tokens have become `targets`, of which the first bears the doubt of all."""
        product = 1.0
        for confidence in self.pending_confidences[:n_pending]:
            product *= confidence
        del self.pending[:n_pending], self.pending_confidences[:n_pending]
        self.tokens += targets
        self.confidences += [product, *([1.0] * (len(targets) - 1))]


class _WordReader(_AcrossReader):
    def _take(self, *, is_over: bool) -> None:
        words = self.of.words(self.pending)
        for word in words if is_over else words[:-1]:
            spelt = self.of.word(word)
            if spelt is None:
                self.is_ended = True
                return
            self._emit(len(word), spelt)


class _TokenReader(_AcrossReader):
    def _take(self, *, is_over: bool) -> None:
        while self.pending and not self.is_ended:
            longest = self.of.longest_run(self.pending[0])
            if len(self.pending) < longest and not is_over:
                return
            for n in range(min(longest, len(self.pending)), 1, -1):
                found = self.of.cache.get(tuple(self.pending[:n]))
                if found is not None:
                    self._emit(n, found)
                    break
            else:
                self._direct()

    def _direct(self) -> None:
        there = self.of.direct[self.pending[0]]
        if there < 0:
            self.is_ended = True
        else:
            self._emit(1, [there])


class _DirectReader(_TokenReader):
    def _take(self, *, is_over: bool) -> None:
        while self.pending and not self.is_ended:
            self._direct()


def _cut(text: str) -> list[str]:
    """The pieces of `text`, bytes that are no text in one piece with what is before them."""
    pieces: list[str] = []
    for piece in split(text):
        if pieces and "\udc80" <= piece[0] <= "\udcff":
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces
