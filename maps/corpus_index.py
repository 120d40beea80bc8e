"""The corpus in a token map: the longest piece of the text so far that it has, and how it goes on there.

Where keys have a fixed length, this goes back as far as text and corpus agree, up to `CORPUS_DEPTH` tokens: suffix
decoding (SuffixDecoding, arXiv 2411.04975; REST, arXiv 2311.08252) over a corpus that is kept, not learned. The corpus
stands backwards in the file, so that a text read backwards is a string to look for, and one bisection finds the longest
match. Works on the mapped bytes as they are, already checked. Does not know: files, drafters, how often a sentence was
said before it was kept once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specedge.maps.tmap_format import CORPUS_DEPTH, END

__all__ = ["CorpusIndex", "Match"]

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
