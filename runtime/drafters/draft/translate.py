"""What a draft model says in its target's ids, and the target's text and prompt in the draft's.

`Remapped` is for models that cut text alike: the same ids, or v2 and v3, which differ in special tokens only. Special
tokens are translated by meaning: control tokens by name, languages by code, times by time, since ids say nothing (v3's
<|transcribe|> is v2's <|startoflm|>). `Alike` is for two speech LLMs of one layout, which have all ids in common.

`AcrossWords` is for models that cut text differently (OmniDraft, arXiv 2507.02659), in one of three modes:

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

import bisect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specedge.maps.tmap_format import text_fingerprint
from specedge.maps.word_cache import WordCache

from ...decoding.accept import Classed, Drawn
from ...text.special import SpecialTokens, TokenLayout
from ...text.speech_tokens import SpeechTokens
from ...text.splitting import split
from ...text.tokenizer import Tokenizer

__all__ = [
    "AcrossWords",
    "Alike",
    "Reader",
    "Remapped",
    "Translation",
    "direct_map",
    "drawn_among",
    "prompt_in",
    "special_map",
]

_MORE_RUNS = 64  # that were forgotten may be noted still
_NO_RUNS: Mapping[tuple[int, ...], int] = {}
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

    def parts(self, tokens: Sequence[int]) -> list[range]:
        """For each id of `spelt` the tokens, by their indices, that it and its neighbours spell; one token is the
        same alone."""
        return [range(place, place + 1) for place in self.spelt(tokens)[1]]

    @abstractmethod
    def counterparts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the draft's ids that alone mean the same as ids of the target i64 [n], -1 for none."""

    def end(self, tokens: Sequence[int]) -> None:  # noqa: B027
        """A window's text was kept."""

    def close(self) -> None:  # noqa: B027
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


class Remapped(Translation):
    """For a draft whose text ids are the target's: special tokens by meaning, text as it is.

    empty: text ids without any text, which a draft is never made of.
    """

    def __init__(self, draft: SpecialTokens, target: SpecialTokens, *, empty: Iterable[int] = ()) -> None:
        self._draft, self._target = draft, target
        self._to_target = _table(draft, target)
        self._to_draft = _table(target, draft)
        for token in empty:
            self._to_target[token] = -1

    @classmethod
    def between(cls, draft: Tokenizer, target: Tokenizer) -> Remapped | None:
        """For two that cut text alike; None for others."""
        eot = draft.special.eot
        if not isinstance(draft.special, SpecialTokens) or not isinstance(target.special, SpecialTokens):
            return None
        here, there = (text_fingerprint(tokenizer.ranks, tokenizer.special.eot) for tokenizer in (draft, target))
        if eot != target.special.eot or here != there:
            return None
        return cls(draft.special, target.special, empty=[token for token in range(eot) if not draft.ranks[token]])

    def prompt(self, ids: Sequence[int]) -> list[int] | None:
        """See `Translation.prompt`."""
        return prompt_in(self._draft, self._target, ids, self.text)

    def text(self, ids: Sequence[int]) -> list[int]:
        """See `Translation.text`."""
        return [there for token in ids if (there := self._to_draft[token]) >= 0]

    def reader(self, word: Sequence[int] = (), *, is_start: bool = False) -> Reader:
        """See `Translation.reader`."""
        return _IdReader(to_target=self._to_target, eot=self._target.eot)

    def spelt(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """See `Translation.spelt`."""
        pairs = [(there, i) for i, token in enumerate(tokens) if (there := self._to_draft[token]) >= 0]
        return [there for there, _ in pairs], [i for _, i in pairs]

    def counterparts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Translation.counterparts`."""
        return np.array([self._to_draft[id_] for id_ in ids.tolist()], np.int64)


class Alike(Translation):
    """For a speech LLM whose ids are the target's, prompts and rows of audio included.

    ranks: the bytes of each text id; the target is not told ids without any.
    """

    def __init__(self, layout: SpeechTokens, ranks: Sequence[bytes]) -> None:
        self._eot = layout.eot
        texts = [id_ if ranks[id_] else -1 for id_ in range(layout.eot)]
        self._to_target = [*texts, *([layout.eot] * (layout.n_vocab - layout.eot))]

    @classmethod
    def between(cls, draft: Tokenizer, target: Tokenizer) -> Alike | None:
        """For two of one layout and vocabulary; None for others."""
        if not isinstance(draft.special, SpeechTokens) or not draft.special.is_asked_like(target.special):
            return None
        here, there = (text_fingerprint(tokenizer.ranks, tokenizer.special.eot) for tokenizer in (draft, target))
        return cls(draft.special, draft.ranks) if here == there else None

    def prompt(self, ids: Sequence[int]) -> list[int] | None:
        """See `Translation.prompt`."""
        return list(ids)

    def text(self, ids: Sequence[int]) -> list[int]:
        """See `Translation.text`."""
        return list(ids)

    def reader(self, word: Sequence[int] = (), *, is_start: bool = False) -> Reader:
        """See `Translation.reader`."""
        return _IdReader(to_target=self._to_target, eot=self._eot)

    def spelt(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """See `Translation.spelt`."""
        return list(tokens), list(range(len(tokens)))

    def counterparts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Translation.counterparts`."""
        return ids.copy()


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
    knows languages is asked for English where the target knows no other.
    """
    if not isinstance(draft, SpecialTokens):
        return None
    if isinstance(target, SpeechTokens):
        return _prompt_beside_speech(draft, target, ids)
    if not isinstance(target, SpecialTokens):
        return None
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


def _prompt_beside_speech(draft: SpecialTokens, target: SpeechTokens, ids: Sequence[int]) -> list[int] | None:
    """What a Whisper is asked beside a speech LLM: its text in the same language, English where none is told, without
    times."""
    code = target.language_in(ids) or "en"
    if code not in (draft.languages if draft.is_multilingual else ("en",)):
        return None
    return draft.prompt(code, timestamps=False)


def _table(source: SpecialTokens, target: SpecialTokens) -> list[int]:
    """Id -> id, -1 for what has no counterpart; text is the same up to the end of the text."""
    table = [*range(source.eot), *([-1] * (source.n_vocab - source.eot))]
    for here, there in special_map(source, target).items():
        table[here] = there
    return table


def direct_map(source: Sequence[bytes], target: Sequence[bytes]) -> NDArray[np.int32]:
    """The id in `target` of every token of `source`, -1 where it has none; the empty token has none.

    Both are byte tables of text tokens, by id. int32 [len(source)].
    """
    id_of = {token: id_ for id_, token in enumerate(target) if token}
    return np.array([id_of.get(token, -1) if token else -1 for token in source], np.int32)


class AcrossWords(Translation):
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
        self._starts_bare = not target.special.begins_with_space
        self._on_close = on_close
        self.cache = WordCache() if cache is None else cache
        eot = draft.special.eot
        self.direct = [int(id_) for id_ in direct_map(draft.ranks[:eot], target.ranks[: target.special.eot])]
        self._to_target = special_map(draft.special, target.special)
        self._to_draft = special_map(target.special, draft.special)
        self._byte_ids = {token: id_ for id_, token in enumerate(draft.ranks[:eot]) if len(token) == 1}
        self._alone: dict[int, int] | None = None  # the target's id -> the draft's, made when first asked for
        self._runs: dict[int, dict[tuple[int, ...], int]] = {}  # of the cache, by their first ids
        self._n_noted = 0
        self._note_all()

    @property
    def share(self) -> float:
        """How many of the draft's text tokens the target has too, as a share of the smaller vocabulary."""
        return sum(id_ >= 0 for id_ in self.direct) / min(len(self.direct), self._target.special.eot)

    def prompt(self, ids: Sequence[int]) -> list[int] | None:
        """See `Translation.prompt`."""
        return prompt_in(self._draft.special, self._target.special, ids, self.text)

    def text(self, ids: Sequence[int]) -> list[int]:
        """See `Translation.text`."""
        found: list[int] = []
        for is_text, run in itertools.groupby(ids, lambda token: token < self._target.special.eot):
            if is_text:
                data = self._target.decode_bytes(run)
                found += self._spelt(b" " + data if self._starts_bare and not found and data[:1] != b" " else data)
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
        """See `Translation.reader`."""
        kinds: dict[str, Callable[..., Reader]] = {
            "words": _WordReader,
            "tokens": _TokenReader,
            "direct": _DirectReader,
        }
        return kinds[self._mode](of=self, word=tuple(word), drops_space=is_start and self._starts_bare)

    def spelt(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """See `Translation.spelt`."""
        ids: list[int] = []
        places: list[int] = []
        for at, run, made in self._pieces(tokens):
            if run[0] < self._target.special.eot:
                alone = {span: at + i for i, span in enumerate(_spans(self._target.ranks[token] for token in run))}
                found = [alone.get(span, -1) for span in _spans(self._draft.ranks[id_] for id_ in made)]
            else:
                found = [at + i for i, token in enumerate(run) if token in self._to_draft]
            ids, places = [*ids, *made], [*places, *found]
        return ids, places

    def parts(self, tokens: Sequence[int]) -> list[range]:
        """See `Translation.parts`."""
        found: list[range] = []
        for at, run, made in self._pieces(tokens):
            if run[0] < self._target.special.eot:
                found += _parts(
                    at, [self._target.ranks[token] for token in run], [self._draft.ranks[id_] for id_ in made]
                )
            else:
                found += [range(at + i, at + i + 1) for i, token in enumerate(run) if token in self._to_draft]
        return found

    def _pieces(self, tokens: Sequence[int]) -> Iterator[tuple[int, list[int], list[int]]]:
        """Text and what is none, in turn: where it begins, its tokens, and the draft's ids of them."""
        at = 0
        for is_text, group in itertools.groupby(tokens, lambda token: token < self._target.special.eot):
            run = list(group)
            yield at, run, self._spelt(self._target.decode_bytes(run)) if is_text else self.text(run)
            at += len(run)

    def counterparts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Translation.counterparts`."""
        if self._alone is None:
            self._alone = {there: here for here, there in enumerate(self.direct) if there >= 0} | self._to_draft
        return np.array([self._alone.get(id_, -1) for id_ in ids.tolist()], np.int64)

    def end(self, tokens: Sequence[int]) -> None:
        """Learn the target's tokens that the draft spells with several of its own, where runs become tokens."""
        if self._mode != "tokens":
            return
        known = set(self.direct)
        for token in set(tokens):
            if token < self._target.special.eot and token not in known and self._target.ranks[token]:
                source = tuple(self._spelt(self._target.ranks[token]))  # of one token it would be known
                self.cache.put(source, (token,))
                self._note(source, token)
        if self._n_noted > 2 * len(self.cache) + _MORE_RUNS:
            self._note_all()

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
        return self._runs.get(token, _NO_RUNS)

    def _note(self, source: tuple[int, ...], token: int) -> None:
        of_first = self._runs.setdefault(source[0], {})
        self._n_noted += source not in of_first
        of_first[source] = token

    def _note_all(self) -> None:
        """Note the runs that the cache remembers, and no others."""
        self._runs, self._n_noted = {}, 0
        for source, target in self.cache.items():
            if len(target) == 1:
                self._note(source, target[0])

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
        """See `Reader.push`."""
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
        product = 1.0
        for confidence in self.pending_confidences[:n_pending]:
            product *= confidence
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
        kept = [(int(id_), p) for id_, p in zip(*drawn, strict=True) if self._is_alone(int(id_))]
        for number, (id_, p) in enumerate(kept):
            members = dict.fromkeys([self.of.direct[id_], *self.of.runs(id_).values()], 0.0)
            members |= {self.of.direct[id_]: 1.0} if id_ != first else within
            ids += members
            q += [p * share for share in members.values()]
            classes += [number] * len(members)
        known = np.array(ids, np.int64), np.array(q) / sum(q)
        return known if len(ids) == len(kept) else (*known, np.array(classes, np.int64))

    def _is_alone(self, id_: int) -> bool:
        return self.of.is_text(id_) and self.of.direct[id_] >= 0

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


class _DirectReader(_TokenReader):
    def _take(self, *, is_over: bool) -> None:
        while self.pending and not self.is_ended:
            self._direct({})


def _spans(pieces: Iterable[bytes]) -> list[tuple[int, int]]:
    """Where each piece begins and ends in bytes."""
    ends = [0, *itertools.accumulate(map(len, pieces))]
    return list(itertools.pairwise(ends))


def _parts(at: int, theirs: Sequence[bytes], mine: Sequence[bytes]) -> list[range]:
    """For each of `mine` the range, from `at` on, of `theirs` between the two places next to it where both end."""
    ends = [end for _, end in _spans(theirs)]
    both = [0, *sorted(set(ends) & {end for _, end in _spans(mine)})]
    index = {0: at, **{end: at + 1 + i for i, end in enumerate(ends)}}
    found = []
    for begin, _ in _spans(mine):
        next_ = bisect.bisect_right(both, begin)
        found.append(range(index[both[next_ - 1]], index[both[next_]]))
    return found


def _cut(text: str, pattern: str) -> list[str]:
    """The pieces of `text` by this pattern, bytes that are no text in one piece with what is before them."""
    pieces: list[str] = []
    for piece in split(text, pattern):
        if pieces and "\udc80" <= piece[0] <= "\udcff":
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces
