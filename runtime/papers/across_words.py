"""Translation between vocabularies that cut text differently (OmniDraft, arXiv 2507.02659).

`AcrossWords` works in one of three modes:

    words   a whole word at a time, byte by byte the same: as the target would spell it, remembered in a cache. A word
            is held back until the next token shows that it is over.
    tokens  the paper's n-gram cache: a token that both have is itself, and runs of the draft's tokens that spelt one
            of the target's before become that one.
    direct  tokens that both have, and nothing else; for comparison.

Text is compared by bytes, since over a thousand tokens are no valid UTF-8 alone. A sampled token comes with the
distribution it was drawn from where that is known, else it counts as certain, which is right for any draft. Of a run,
q' is the product of its draws, and its first token alone has what is left (the paper's correction). For a first token
that was not drawn this takes another pass of the draft, so what one first token may become is a class: what of q' is
known are the sums over classes, and the class that was drawn, where it has one run of two tokens.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specedge.maps.lru import WordCache
from specedge.maps.tmap_format import text_fingerprint

from ..bundle.bundle import Bundle
from ..bundle.manifest import check_share
from ..decoding.accept import Classed, Drawn
from ..drafters.draft.translate import Reader, Translation, drawn_among, prompt_in, special_map
from ..engine.draft_model import DraftModel
from ..options import DrafterOptions
from ..text.tokenizer import Tokenizer, split


class AcrossWords(Translation):
    """See the module. `cache` holds what was spelt before, `direct` the target's id of each text token, -1 for none."""

    def __init__(
        self, draft: Tokenizer, target: Tokenizer, *, mode: str = "words", cache: WordCache | None = None
    ) -> None:
        self._draft, self._target, self._mode = draft, target, mode
        self._starts_bare = not target.special.begins_with_space
        self.cache = WordCache() if cache is None else cache
        eot = draft.special.eot
        id_of = {data: id_ for id_, data in enumerate(target.ranks[: target.special.eot]) if data}
        self.direct = [id_of.get(data, -1) for data in draft.ranks[:eot]]
        self._to_target = special_map(draft.special, target.special)
        self._to_draft = special_map(target.special, draft.special)
        self._byte_ids = {token: id_ for id_, token in enumerate(draft.ranks[:eot]) if len(token) == 1}
        self._alone = {there: here for here, there in enumerate(self.direct) if there >= 0} | self._to_draft
        self._note_runs()

    @property
    def share(self) -> float:
        """How many of the draft's text tokens the target has too, as a share of the smaller vocabulary."""
        return sum(id_ >= 0 for id_ in self.direct) / min(len(self.direct), self._target.special.eot)

    def prompt(self, ids: Sequence[int]) -> list[int] | None:
        return prompt_in(self._draft.special, self._target.special, ids, self.text)

    def text(self, ids: Sequence[int]) -> list[int]:
        found: list[int] = []
        for is_text, run in itertools.groupby(ids, lambda token: token < self._target.special.eot):
            if is_text:
                found += self._spelt(self._text_of(run, is_first=not found))
            else:
                found += [self._to_draft[token] for token in run if token in self._to_draft]
        return found

    def before_word(self, ids: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
        """See `Translation.before_word`.

        The target adds a token of its own to each draft that it accepts, which is mostly the beginning of a word where
        its vocabulary is small. A draft that is shown half a word does not know how to go on.
        """
        if not self._starts_bare or self._mode != "words" or not ids or ids[-1] >= self._target.special.eot:
            return self.text(ids), ()
        text = self._target.decode_bytes(ids).decode("utf-8", errors="surrogateescape")
        n_left = len(_cut(text, self._target.pattern)[-1].encode("utf-8", errors="surrogateescape"))
        at = len(ids)
        while n_left > 0:
            at -= 1
            n_left -= len(self._target.ranks[ids[at]])
        return (self.text(ids[:at]), tuple(ids[at:])) if n_left == 0 else (self.text(ids), ())

    def reader(self, word: Sequence[int] = (), *, is_start: bool = False) -> Reader:
        kind = _WordReader if self._mode == "words" else _TokenReader
        return kind(of=self, word=tuple(word), drops_space=is_start and self._starts_bare)

    def spelt(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        places: list[int] = []
        at = 0
        for is_text, group in itertools.groupby(tokens, lambda token: token < self._target.special.eot):
            run = list(group)
            if is_text:
                data = self._text_of(run, is_first=not ids)
                pieces = [self._target.ranks[token] for token in run]
                start = len(data) - sum(map(len, pieces))
                made = self._spelt(data)
                alone = {span: at + i for i, span in enumerate(_spans(pieces, start))}
                places += [alone.get(span, -1) for span in _spans(self._draft.ranks[id_] for id_ in made)]
            else:
                made = self.text(run)
                places += [at + i for i, token in enumerate(run) if token in self._to_draft]
            ids += made
            at += len(run)
        return ids, places

    def counterparts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([self._alone.get(id_, -1) for id_ in ids.tolist()], np.int64)

    def end(self, tokens: Sequence[int]) -> None:
        """Learn the target's tokens that the draft spells with several of its own, where runs become tokens."""
        if self._mode != "tokens":
            return
        is_new = False
        for token in set(tokens):
            if token < self._target.special.eot and token not in self._alone and self._target.ranks[token]:
                source = tuple(self._spelt(self._target.ranks[token]))  # of one token it would be known
                is_new |= source not in self.runs(source[0])
                self.cache.put(source, (token,))
        if is_new:
            self._note_runs()

    def special(self, token: int) -> int:
        """The target's id of a special token of the draft, -1 for the end of the text and for what has none."""
        there = self._to_target.get(token, -1)
        return -1 if there == self._target.special.eot else there

    def is_text(self, token: int) -> bool:
        """Whether an id of the draft is text."""
        return token < self._draft.special.eot

    def words(self, ids: Sequence[int]) -> list[tuple[int, ...]]:
        """Text ids of the draft, cut where words end for the target, and never within a character."""
        sizes = [len(self._draft.ranks[token]) for token in ids]
        text = self._draft.decode_bytes(ids).decode("utf-8", errors="surrogateescape")
        pieces = _cut(text, self._target.pattern)
        ends = set(itertools.accumulate(len(piece.encode("utf-8", errors="surrogateescape")) for piece in pieces))
        found: list[tuple[int, ...]] = []
        start = n_bytes = 0
        for at, size in enumerate(sizes):
            n_bytes += size
            if n_bytes in ends:
                found.append(tuple(ids[start : at + 1]))
                start = at + 1
        return [*found, tuple(ids[start:])] if start < len(ids) else found

    def word(self, source: tuple[int, ...], *, drops_space: bool = False) -> tuple[int, ...] | None:
        """A word of the draft as the target spells it, None where it is no text; `drops_space`: in front of it."""
        if drops_space:
            bare = self._draft.decode_bytes(source).removeprefix(b" ").decode("utf-8", errors="replace")
            return tuple(self._target.encode(bare)) or None
        found = self.cache.get(source)
        if found is None:
            try:
                text = self._draft.decode_bytes(source).decode("utf-8")
            except UnicodeDecodeError:
                return None
            found = tuple(self._target.encode(text))
            self.cache.put(source, found)
        return found or None

    def runs(self, token: int) -> Mapping[tuple[int, ...], int]:
        """The runs that begin with `token`, and what each becomes; some may have been forgotten a while ago."""
        return self._runs.get(token, {})

    def _note_runs(self) -> None:
        """Note the runs that the cache remembers by their first ids, and no others."""
        self._runs: dict[int, dict[tuple[int, ...], int]] = {}
        for source, target in self.cache.items():
            if len(target) == 1:
                self._runs.setdefault(source[0], {})[source] = target[0]

    def _text_of(self, run: Iterable[int], *, is_first: bool) -> bytes:
        """What the target says, with the space that the draft begins a text with."""
        data = self._target.decode_bytes(run)
        return b" " + data if is_first and self._starts_bare and data[:1] != b" " else data

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
    word: tuple[int, ...] = ()  # what the target has of the first word
    drops_space: bool  # of the first word
    pending: list[int] = field(default_factory=list)
    pending_confidences: list[float] = field(default_factory=list)
    pending_drawn: list[Drawn | None] = field(default_factory=list)
    n_taken: int = 0

    def push(self, token: int, confidence: float, drawn: Drawn | None = None) -> None:
        self.n_read += 1
        if self.of.is_text(token):
            self.pending.append(token)
            self.pending_confidences.append(confidence)
            self.pending_drawn.append(drawn)
            self._take(is_over=False)
            return
        self._take(is_over=True)
        there = self.of.special(token)
        if there < 0 or self.pending:
            self.is_ended = True
        if not self.is_ended:
            self.tokens.append(there)
            self.confidences.append(confidence)
            self.drawn.append(None)
            self.origins.append(self.n_read - 1)
            self.n_taken = self.n_read

    @abstractmethod
    def _take(self, *, is_over: bool) -> None:
        """Move what is complete from `pending` to `tokens`; all of it where the text is over."""

    def _emit(self, n_pending: int, targets: Sequence[int], drawn: Drawn | Classed | None = None) -> None:
        """The first `n_pending` draft tokens have become `targets`, of which the first bears the doubt of all."""
        product = math.prod(self.pending_confidences[:n_pending])
        del self.pending[:n_pending], self.pending_confidences[:n_pending], self.pending_drawn[:n_pending]
        if targets:
            self.tokens += targets
            self.confidences += [product, *([1.0] * (len(targets) - 1))]
            self.drawn += [drawn, *([None] * (len(targets) - 1))]
            self.origins += [self.n_taken] * len(targets)
        self.n_taken += n_pending


class _WordReader(_AcrossReader):
    def _take(self, *, is_over: bool) -> None:
        words = self.of.words(self.pending)
        for word in words if is_over else words[:-1]:
            if self.is_ended:
                return
            spelt = self.of.word(word, drops_space=self.drops_space)
            n_begun = len(self.word)
            self.differs = spelt is not None and spelt[:n_begun] != self.word
            self.is_ended = spelt is None or self.differs
            if spelt is not None and not self.differs:
                self._emit(len(word), spelt[n_begun:])
            self.word, self.drops_space = (), False


class _TokenReader(_AcrossReader):
    """Without runs, as in the mode direct, every token is itself or ends the draft."""

    def finish(self) -> None:
        """See `Reader.finish`. Whether a token is drafted may not depend on what it might have become."""
        if not self.is_ended:
            self._take(is_over=True)

    def _take(self, *, is_over: bool) -> None:
        while self.pending and not self.is_ended:
            runs = self.of.runs(self.pending[0])
            longest = max(map(len, runs), default=1)
            if len(self.pending) < longest and not is_over:
                return
            within = self._within(runs)
            for n in range(min(longest, len(self.pending)), 1, -1):
                found = self.of.cache.get(tuple(self.pending[:n])) if tuple(self.pending[:n]) in runs else None
                if found is not None and len(found) == 1:
                    self._emit(n, found, self._classes(found[0], within))
                    break
            else:
                self._direct(within)
                self._know_less(runs)

    def _direct(self, within: Mapping[int, float]) -> None:
        there = self.of.direct[self.pending[0]]
        if there < 0:
            self.is_ended = True
        else:
            self._emit(1, [there], self._classes(there, within))

    def _classes(self, token: int, within: Mapping[int, float]) -> Drawn | Classed | None:
        """What the first pending token was drawn from, given that it is the target's alone too: classes of what each
        may become. `token`: what it becomes; within: what is known of its class, else `token` is certain there."""
        first, drawn = self.pending[0], self.pending_drawn[0]
        if drawn is None or self.of.direct[first] < 0:
            return None
        ids, q, classes = list[int](), list[float](), list[int]()
        within = within if within.get(token, 0.0) > 0 else {token: 1.0}
        pairs = ((int(id_), p) for id_, p in zip(*drawn, strict=True))
        kept = [(id_, p) for id_, p in pairs if self.of.is_text(id_) and self.of.direct[id_] >= 0]
        for number, (id_, p) in enumerate(kept):
            members = dict.fromkeys([self.of.direct[id_], *self.of.runs(id_).values()], 0.0)
            members |= {self.of.direct[id_]: 1.0} if id_ != first else within
            ids += members
            q += [p * share for share in members.values()]
            classes += [number] * len(members)
        known = np.array(ids, np.int64), np.array(q) / sum(q)
        return known if len(ids) == len(kept) else (*known, np.array(classes, np.int64))

    def _within(self, runs: Mapping[tuple[int, ...], int]) -> Mapping[int, float]:
        """Given the first token: the run's token with the second one's probability, the first alone with the rest.

        Nothing where there are other runs than one of two tokens, or the second was not drawn.
        """
        run = next(iter(runs)) if len(runs) == 1 else ()
        second = self.pending_drawn[1] if len(self.pending) > 1 else None
        alone = self.of.direct[self.pending[0]]
        if len(run) != 2 or second is None or alone == runs[run] or self.of.cache.get(run) is None:
            return {}
        # A second token that is no text leaves the first alone too, but known as certain.
        of_text = float(sum(q for id_, q in zip(*second, strict=True) if self.of.is_text(int(id_))))
        merged = float(second[1][second[0] == run[1]].sum()) / of_text
        return {alone: 1.0 - merged, runs[run]: merged}

    def _know_less(self, runs: Mapping[tuple[int, ...], int]) -> None:
        """What is pending was drawn, but not again: it is known now which runs it does not complete."""
        if not runs:
            return
        excluded = {run[1] for run in runs}
        is_known = len(self.pending) == 1 and all(len(run) == 2 for run in runs)
        self.pending_drawn = [
            drawn_among(drawn, lambda id_: -1 if id_ in excluded or not self.of.is_text(id_) else id_)
            if is_known
            else None
            for drawn in self.pending_drawn
        ]


def _spans(pieces: Iterable[bytes], start: int = 0) -> list[tuple[int, int]]:
    """Where each piece begins and ends in bytes."""
    return list(itertools.pairwise(itertools.accumulate(map(len, pieces), initial=start)))


def _cut(text: str, pattern: str) -> list[str]:
    """The pieces of `text` by this pattern, bytes that are no text in one piece with what is before them."""
    pieces: list[str] = []
    for piece in split(text, pattern):
        if pieces and "\udc80" <= piece[0] <= "\udcff":
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces


def translation(model: DraftModel, target: Bundle, options: DrafterOptions) -> AcrossWords:
    """The translation between a draft model and a target. Raises UsageError where they spell too differently."""
    mine, theirs = model.bundle.tokenizer, target.tokenizer
    pair = [text_fingerprint(tokenizer.ranks, tokenizer.special.eot) for tokenizer in (mine, theirs)]
    key = hashlib.sha256(b"".join(pair) + options.translation.encode()).digest()
    cache = model.words.setdefault(key, WordCache())
    made = AcrossWords(mine, theirs, mode=options.translation, cache=cache)
    check_share(made.share, model.bundle.manifest, target.manifest)
    return made
