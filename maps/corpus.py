"""The sentences of a corpus that a token map keeps: each once, the most frequent first, as many as a budget holds.

How often a sentence occurs is counted by 8-byte digests on disk, so memory holds some numbers for each sentence and no
text; only what is kept is sorted. The same sentences give the same arrays. Does not know: files of maps, look-ups.

The corpus in a token map: the longest piece of the text so far that it has, and how it goes on there.

Where keys have a fixed length, this goes back as far as text and corpus agree, up to `CORPUS_DEPTH` tokens: suffix
decoding (SuffixDecoding, arXiv 2411.04975; REST, arXiv 2311.08252) over a corpus that is kept, not learned. The corpus
stands backwards in the file, so that a text read backwards is a string to look for, and one bisection finds the longest
match. Works on the mapped bytes as they are, already checked. Does not know: files, drafters, how often a sentence was
said before it was kept once.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .counting import by_continuation
from .tmap_format import CORPUS_DEPTH, END

__all__ = ["CorpusIndex", "Kept", "Match", "Tally", "corpus_bytes", "keep", "taking_turns"]

_FLUSH = 1 << 16
_TOKEN_BYTES = 6  # in the corpus and in the list of places
_END_BYTES = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """The sections of a corpus as docs/tmap-format.md has them: `corpus` u16 [n_places], `suffix` u32 [n_tokens]."""

    corpus: NDArray[np.uint16]
    suffix: NDArray[np.uint32]

    @property
    def n_sentences(self) -> int:
        return len(self.corpus) - 1 - len(self.suffix)


def corpus_bytes(n_sentences: int, n_tokens: int) -> int:
    """What both sections of so much text take in the file."""
    return _END_BYTES * (n_sentences + 1) + _TOKEN_BYTES * n_tokens


class Tally:
    """Counts equal sentences in the file `path`, made for it; add all of them before asking."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = array("Q")
        path.touch(exist_ok=False)

    def add(self, sentence: Sequence[int]) -> None:
        """The next sentence of the corpus; `sentence` is not empty."""
        digest = hashlib.blake2b(array("H", sentence).tobytes(), digest_size=8).digest()
        self._rows.extend((int.from_bytes(digest, "little"), len(sentence)))
        if len(self._rows) >= _FLUSH:
            self._flush()

    def kept(self, text: NDArray[np.uint16], first: int, budget_bytes: int) -> Iterator[list[int]]:
        """The most frequent sentences, of equals the earlier ones, as many as fit into the budget.

        text: all sentences as they were added, the first at `first`, one `END` behind each.
        """
        self._flush()
        rows = np.fromfile(self._path, dtype=np.uint64).reshape(-1, 2)
        lengths = rows[:, 1].astype(np.int64)
        distinct = _ranked(rows[:, 0])
        del rows
        starts = np.cumsum(lengths + 1) - (lengths + 1) + first
        sizes = _END_BYTES + _TOKEN_BYTES * lengths[distinct]
        fits = sizes <= budget_bytes - _END_BYTES
        distinct, ends = distinct[fits], np.cumsum(sizes[fits]) + _END_BYTES
        for number in distinct[: np.searchsorted(ends, budget_bytes, side="right")]:
            yield text[starts[number] : starts[number] + lengths[number]].tolist()

    def _flush(self) -> None:
        with open(self._path, "ab") as file:
            self._rows.tofile(file)
        del self._rows[:]


def keep(sentences: Iterable[Sequence[int]]) -> Kept | None:
    """The sections of these sentences, all different, most frequent first; None for no sentences.

    Takes about 100 bytes of memory a token while it sorts.
    """
    backwards = array("H", [END])
    for sentence in sentences:
        row = array("H", sentence)
        row.reverse()
        row.append(END)
        backwards.extend(row)
    if len(backwards) == 1:
        return None
    corpus = np.array(backwards, dtype=np.uint16)
    places = np.flatnonzero(corpus != END)
    # Bytes compare as the numbers that they are the other way round.
    text = np.concatenate((corpus.byteswap(), np.full(CORPUS_DEPTH, END, dtype=np.uint16)))
    suffix = places[by_continuation(text, places, CORPUS_DEPTH)].astype(np.uint32)
    return Kept(corpus=corpus, suffix=suffix)


def taking_turns(corpora: Sequence[Iterable[Sequence[int]]], budget_bytes: int) -> Iterator[Sequence[int]]:
    """The first sentence of each corpus, then the second of each, each of them once, as many as fit into the budget."""
    seen: set[bytes] = set()
    left = budget_bytes - _END_BYTES
    waiting = [iter(corpus) for corpus in corpora]
    while waiting:
        for source in tuple(waiting):
            sentence = next(source, None)
            if sentence is None:
                waiting.remove(source)
                continue
            name = array("H", sentence).tobytes()
            size = _END_BYTES + _TOKEN_BYTES * len(sentence)
            if name not in seen and size <= left:
                seen.add(name)
                left -= size
                yield sentence


def _ranked(digests: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The number of each different digest's first occurrence: the most frequent ones first, of equals the earlier."""
    order = np.argsort(digests, kind="stable")
    ordered = digests[order]
    begins = np.flatnonzero(np.concatenate((np.ones(min(1, len(ordered)), np.bool_), ordered[1:] != ordered[:-1])))
    counts = np.diff(np.append(begins, len(ordered)))
    first = order[begins]
    ranked: NDArray[np.int64] = first[np.lexsort((first, -counts))]
    return ranked


_EACH_WAY = 8  # places that are looked at on either side of where the text would stand


class Match(NamedTuple):
    """How the corpus goes on behind the longest piece of a text that it has.

    length: tokens of that piece; n_seen: places where it stands, as far as they were looked at; tokens: ids;
    confidences: of each token, the share of the places that agree so far in which it came next, 0 to 1. With `ends`,
    the sentence ended after the last token, and `confidences` has one entry more, for that end.
    """

    length: int
    n_seen: int
    tokens: tuple[int, ...]
    confidences: tuple[float, ...]
    ends: bool


class CorpusIndex:
    """Views of the two sections of an opened map, to be given back by whoever made them.

    corpus: u16 [n_places], kept sentences backwards, `END` around each; suffix: u32 [n_tokens], the place of every
    token, sorted by the bytes from there on; data: the bytes of corpus.
    """

    def __init__(self, corpus: memoryview, suffix: memoryview, data: memoryview) -> None:
        self._corpus, self._suffix, self._data = corpus, suffix, data

    @property
    def n_tokens(self) -> int:
        return len(self._suffix)

    @property
    def n_sentences(self) -> int:
        return max(0, len(self._corpus) - 1 - len(self._suffix))

    def sentences(self) -> Iterator[array[int]]:
        """Every sentence, the most frequent of the corpus first."""
        start = 1
        for at in range(1, len(self._corpus)):
            if self._corpus[at] == END:
                found = array("H", self._corpus[start:at])
                found.reverse()
                yield found
                start = at + 1

    def longest(self, context: Sequence[int], *, above: int = 0, max_length: int = 32) -> Match | None:
        """What follows the longest piece at the end of `context` that the corpus has; None for one of `above` tokens.

        For the hot path: some microseconds. Follows what most of the places say, of equals the more frequent sentence,
        up to `max_length` tokens or the end of the sentence. Ids that no vocabulary has end the context.
        """
        recent = context[: -CORPUS_DEPTH - 1 : -1]
        if recent and (min(recent) < 0 or max(recent) >= END):
            recent = recent[: next(n for n, id_ in enumerate(recent) if not 0 <= id_ < END)]
        length, places = self._places(array("H", recent).tobytes(), above)
        return self._followed(length, places, max_length) if length > above else None

    def _places(self, needle: bytes, above: int) -> tuple[int, list[int]]:
        """Tokens of the longest match and up to `2 * _EACH_WAY` of its places, rising; (0, []) for a short one."""
        suffix, data, width = self._suffix, self._data, len(needle)

        def at(place: int) -> bytes:
            return data[2 * place : 2 * place + width].tobytes()

        here = bisect_left(suffix, needle, key=at)
        low, high = max(0, here - _EACH_WAY), min(len(suffix), here + _EACH_WAY)
        length = max(
            _n_common(needle, at(suffix[here])) if here < high else 0,
            _n_common(needle, at(suffix[here - 1])) if here > low else 0,
        )
        if length <= above:
            return 0, []
        beginning = needle[: 2 * length]
        first, last = here, here
        while first > low and at(suffix[first - 1]).startswith(beginning):
            first -= 1
        while last < high and at(suffix[last]).startswith(beginning):
            last += 1
        return length, sorted(suffix[first:last])

    def _followed(self, length: int, places: list[int], max_length: int) -> Match:
        corpus = self._corpus
        rests = [corpus[max(0, place - max_length) : place].tolist()[::-1] for place in places]
        tokens, confidences = list[int](), list[float]()
        while len(rests) > 1 and len(tokens) < max_length:
            said = [rest[len(tokens)] for rest in rests]
            best, n_agreeing = said[0], said.count(said[0])
            if 2 * n_agreeing < len(said):
                best = max(said, key=said.count)
                n_agreeing = said.count(best)
            confidences.append(n_agreeing / len(said))
            if best == END:
                return Match(length, len(places), tuple(tokens), tuple(confidences), True)
            if n_agreeing < len(said):
                rests = [rest for rest in rests if rest[len(tokens)] == best]
            tokens.append(best)
        if len(rests) == 1:
            tokens.extend(rests[0][len(tokens) :])
        ends = END in tokens
        if ends:
            del tokens[tokens.index(END) :]
        confidences.extend([1.0] * (len(tokens) + ends - len(confidences)))
        return Match(length, len(places), tuple(tokens), tuple(confidences), ends)


def _n_common(a: bytes, b: bytes) -> int:
    """How many u16 two strings begin with in common."""
    if a == b:
        return len(a) // 2
    differing = int.from_bytes(a, "little") ^ int.from_bytes(b, "little")
    return ((differing & -differing).bit_length() - 1) // 16
