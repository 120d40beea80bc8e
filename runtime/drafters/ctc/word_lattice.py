"""Words that may have been said in a span of rows: which may begin where, and how well each fits the sounds.

Words lie between the rows where one was heard to begin, or nearly so (nodes). A word may begin with the tokens that
n-grams have behind the word heard in front of its node, and with the commonest ones. All of them are scored against the
sounds at once (`Lattice.odds`), up to each of the next nodes, so that a word is scored once, whatever goes before it.
Those that come near what was heard are scored again with each token that goes on with them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from ...text.tokenizer import Tokenizer
from .lattice import HeardToken, Lattice
from .ngram_lm import Guide

_N_COMMONEST = 32  # tokens tried at every node
_N_FOLLOWERS = 16  # and of those that follow what was heard in front of it
_N_ENDS = 2  # words that were heard in place of one, at most
_REACH = 32  # rows that a word may take
_N_PIECES = 12  # tokens that may go on with a word
_MOST_PIECES = 32  # for each node, tried at once
_MOST_LOST = 12.1  # nats by which a word may be less likely than what was heard: those of one byte that was not


class Word(NamedTuple):
    """Tokens from a node on.

    stops: the row behind each; ends: indices of the nodes that they may end at, and what they lose there against what
    was heard.
    """

    tokens: tuple[int, ...]
    stops: tuple[int, ...]
    ends: list[tuple[int, float]]


class Span(NamedTuple):
    """Some rows, and what may have been said there.

    tokens: as heard; rows: where the words heard begin, and the stop; heard: those words by the row; nodes: rows at
    which words may begin, rising, and the stop; sentence: the text in front as it was heard; words: those that may
    begin at each node but the last.
    """

    tokens: Sequence[HeardToken]
    rows: list[int]
    heard: dict[int, Word]
    nodes: list[int]
    sentence: tuple[int, ...]
    words: list[list[Word]]


class _Place(NamedTuple):
    """A node at which words may begin: its row, the nodes that they may end at with the rows up to them, the words."""

    row: int
    ends: list[tuple[int, int]]
    words: list[Word]


class _Begun(NamedTuple):
    """The index of a place, tokens, and the row behind each of them but the last."""

    place: int
    tokens: tuple[int, ...]
    stops: tuple[int, ...] = ()


class WordFinder:
    """For one target's tokens and one guide."""

    def __init__(self, tokenizer: Tokenizer, guide: Guide) -> None:
        self._ranks, self._guide = tokenizer.ranks, guide
        self._commonest = sorted(guide.alone, key=lambda id_: -guide.alone[id_])[:_N_COMMONEST]

    def find(self, lattice: Lattice, spans: Sequence[Span]) -> None:
        """Fill in the words that begin with the likely tokens at each node, scored up to each of the next ones."""
        places: list[_Place] = []
        begun: list[_Begun] = []
        n_rows = 0
        for span in spans:
            nodes = span.nodes
            for at, tokens in enumerate(self._likely(span)):
                furthest = nodes.index(span.rows[: bisect_right(span.rows, nodes[at]) + _N_ENDS][-1])
                ends = [(i, nodes[i] - nodes[at]) for i in range(at + 1, furthest + 1)]
                n_rows = max(n_rows, min(_REACH, ends[-1][1]))
                begun += [_Begun(len(places), (token,)) for token in tokens if self._ranks[token]]
                places.append(_Place(nodes[at], [end for end in ends if end[1] <= _REACH], span.words[at]))
        for _ in range(1 + _N_PIECES):
            if begun:
                near = self._score(lattice, places, begun, n_rows)
                begun = [
                    _Begun(place, (*tokens, piece), stops)
                    for place, tokens, stops in near
                    for piece in self._guide.followers(tokens).inside
                ][: _MOST_PIECES * len(places)]

    def _score(self, lattice: Lattice, places: Sequence[_Place], begun: Sequence[_Begun], n_rows: int) -> list[_Begun]:
        """Add those that come near what was heard to the words of their places. Returns them, the nearest first, with
        the row behind each of their tokens."""
        ranks = self._ranks
        spelt = [b"".join([ranks[token] for token in tokens]) for _, tokens, _ in begun]
        odds = lattice.odds([places[place].row for place, _, _ in begun], spelt, n_rows)
        nearest = odds.max(1)
        near = (nearest > -_MOST_LOST).nonzero()[0]
        close = odds[near]
        found: list[tuple[float, _Begun]] = []
        columns = [near.tolist(), nearest[near].tolist(), close.argmax(1).tolist(), close.tolist()]
        for at, sure, peak, losses in zip(*columns, strict=True):
            place, tokens, before = begun[at]
            row, ends, words = places[place]
            stops = (*before, row + peak)
            here = [(end, losses[n]) for end, n in ends if losses[n] > -_MOST_LOST]
            if here and spelt[at] != b" ":  # which is no word
                words.append(Word(tokens, stops, here))
            found.append((sure, _Begun(place, tokens, stops)))
        found.sort(key=lambda item: -item[0])
        return [one for _, one in found]

    def _likely(self, span: Span) -> list[list[int]]:
        """The tokens that may begin a word at each node but the last."""
        before: list[list[tuple[int, ...]]] = [[] for _ in span.nodes]  # texts in front of each node
        before[0].append(span.sentence)
        for word in span.heard.values():
            before[span.nodes.index(word.ends[0][0])].append(word.tokens[-1:])
        return [
            list(
                dict.fromkeys(
                    [
                        *self._commonest,
                        *(id_ for text in texts for id_ in islice(self._guide.followers(text).shares, _N_FOLLOWERS)),
                    ]
                )
            )
            for texts in before[:-1]
        ]
