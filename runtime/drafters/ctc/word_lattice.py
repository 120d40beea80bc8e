"""Words that may have been said in a span of rows: which may begin where, and how well each fits the sounds.

Words lie between the rows where one was heard to begin, or nearly so (nodes). From left to right it is seen which
tokens may begin a word at each node: by a quick look at the bytes heard there, and by what the n-grams expect behind
the likeliest tokens of the nodes before. Then all of them, and those with a token more that goes on with them, are
scored against the sounds at once (`Lattice.odds`), up to each of the next nodes, so that a word is scored once,
whatever goes before it. Longer words are scored where their beginning came near what was heard.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...text.tokenizer import Tokenizer
from ...text.words import opens_word
from .lattice import HeardToken, Lattice
from .ngram_lm import Guide

_QUICK_BYTES = 8  # of a token, for the first look
_FIRST_BYTES = 3  # of those, looked for nearer
_N_ENDS = 2  # words that were heard in place of one, at most
_MAX_BYTES = 4 << 20  # of scores that are kept
_N_BEFORE = 2  # tokens of a node that are thought of behind it
_REACH = 32  # rows that a word may take
_N_PIECES = 12  # tokens that may go on with a word
_MOST_PIECES = 32  # for each node, tried at once, or nearly
_MOST_BEHIND = 32  # of those behind a word begun
_N_BEGUN = 3  # tokens of that which tell how it goes on
_MAX_KEPT = 1 << 14  # of these that are remembered
_MOSTLY = -0.7  # the logarithm of the share of a mark that belongs to a word, heard or not
_HOPELESS = 8.0  # nats by which a token is worse than another at the same node that is not looked at
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


_String = tuple[int, tuple[int, ...]]  # the index of a place, and tokens


class WordFinder:
    """For one target's tokens and one guide. weight: of the n-grams against the sounds; candidates: tokens of the maps
    tried at each node."""

    def __init__(self, tokenizer: Tokenizer, guide: Guide, *, weight: float, candidates: int) -> None:
        self._ranks, self._guide = tokenizer.ranks, guide
        self._weight, self._n_candidates = np.float32(weight), candidates
        self._ids: list[int] = guide.vocabulary.tolist()
        beginnings = [self._ranks[id_][:_QUICK_BYTES] for id_ in self._ids]
        padded = np.frombuffer(b"".join([b.ljust(_QUICK_BYTES, b"\0") for b in beginnings]), np.uint8)
        units = padded.reshape(len(beginnings), _QUICK_BYTES).astype(np.int64) + 1
        lengths = np.array([len(b) for b in beginnings], np.int64)
        units[np.arange(_QUICK_BYTES) >= lengths[:, None]] = 0
        # A quick look needs the few bytes that the tokens have.
        self._units, places = np.unique(np.append(units, 0), return_inverse=True)
        places = places[:-1].reshape(len(beginnings), _QUICK_BYTES)
        self._first_units, self._more_units = places.T[:_FIRST_BYTES].copy(), places.T[_FIRST_BYTES:].copy()
        self._is_empty = lengths == 0
        self._pieces: dict[tuple[int, ...], list[int]] = {}
        self._followed: dict[int, NDArray[np.float32]] = {}

    def find(self, lattice: Lattice, spans: Sequence[Span]) -> None:
        """Fill in the words that begin with the likely tokens at each node, scored up to each of the next ones."""
        places: list[_Place] = []
        strings: list[_String] = []
        looks = self._quick(lattice, [node for span in spans for node in span.nodes[:-1]]) if self._ids else None
        n_rows = 0
        for span in spans:
            nodes, n_before = span.nodes, len(places)
            likely = self._likely(span, None if looks is None else looks[n_before : n_before + len(nodes) - 1])
            for at, tokens in enumerate(likely):
                furthest = nodes.index(span.rows[: bisect_right(span.rows, nodes[at]) + _N_ENDS][-1])
                ends = [(i, nodes[i] - nodes[at]) for i in range(at + 1, furthest + 1)]
                n_rows = max(n_rows, min(_REACH, ends[-1][1]))
                strings += [(len(places), (token,)) for token in tokens if self._ranks[token]]
                places.append(_Place(nodes[at], [end for end in ends if end[1] <= _REACH], span.words[at]))
        stops: dict[_String, tuple[int, ...]] = {(n, ()): () for n in range(len(places))}
        most = _MOST_PIECES * len(places)
        for _ in range(1 + _N_PIECES):
            if not strings:
                break
            longer, n_lengthened = self._longer(strings, most)
            near = self._score(lattice, places, [*strings, *longer], n_rows, stops)
            done = set(strings[:n_lengthened])
            strings, _ = self._longer([string for string in near if string not in done], most)

    def _longer(self, strings: Sequence[_String], most: int) -> tuple[list[_String], int]:
        """The strings with each token that goes on with them, `most` of them or a few more, and how many have theirs
        among these."""
        pieces = {tokens: self._going_on(tokens) for _, tokens in strings}
        found: list[_String] = []
        for at, (n, tokens) in enumerate(strings):
            if len(found) >= most:
                return found, at
            if behind := pieces[tokens]:
                found += [(n, (*tokens, piece)) for piece in behind]
        return found, len(strings)

    def _score(
        self,
        lattice: Lattice,
        places: Sequence[_Place],
        strings: Sequence[_String],
        n_rows: int,
        stops: dict[_String, tuple[int, ...]],
    ) -> list[_String]:
        """Add those that come near what was heard to the words of their places, if their beginnings did, which are
        further in front; their stops to `stops`. Returns them, the nearest first."""
        ranks = self._ranks
        spelt = [b"".join([ranks[token] for token in tokens]) for _, tokens in strings]
        odds = lattice.odds([places[n].row for n, _ in strings], spelt, n_rows)
        nearest = odds.max(1)
        near = (nearest > -_MOST_LOST).nonzero()[0]
        close = odds[near]
        found: list[tuple[float, _String]] = []
        columns = [near.tolist(), nearest[near].tolist(), close.argmax(1).tolist(), close.tolist()]
        for at, sure, peak, losses in zip(*columns, strict=True):
            string = n, tokens = strings[at]
            before = stops.get((n, tokens[:-1]))
            if before is None:
                continue
            row, ends, words = places[n]
            stops[string] = (*before, row + peak)
            here = [(end, losses[n]) for end, n in ends if losses[n] > -_MOST_LOST]
            if here and spelt[at] != b" ":  # which is no word
                words.append(Word(tokens, stops[string], here))
            found.append((sure, string))
        found.sort(key=lambda item: -item[0])
        return [string for _, string in found]

    def _likely(self, span: Span, quick: NDArray[np.float32] | None) -> list[list[int]]:
        """The tokens that may begin a word at each node but the last, the likeliest first; quick: the quick looks at
        the nodes, None where no map knows anything."""
        guide, nodes, sentence = self._guide, span.nodes, span.sentence
        found: list[list[int]] = []
        lasts: list[list[int]] = [[] for _ in nodes]  # that may lie in front of a node
        for word in span.heard.values():
            lasts[nodes.index(word.ends[0][0])].append(word.tokens[-1])
        for at in range(len(nodes) - 1):
            earlier = found[max(0, at - _N_ENDS) : at]
            before = dict.fromkeys([*lasts[at], *[token for likely in earlier for token in likely[:_N_BEFORE]]])
            here: list[int] = []
            if quick is not None:
                sums = quick[at] + (self._after(before) if at else self._weight * guide.scores(sentence))
                near = (sums > sums.max() - _HOPELESS).nonzero()[0]
                ranked = sorted(zip(sums[near].tolist(), near.tolist(), strict=True), reverse=True)
                here = [self._ids[i] for _, i in ranked[: self._n_candidates]]
            said = [id_ for token in (before if at else sentence[-1:]) for id_, _ in guide.said_behind(token)]
            found.append([*here, *[id_ for id_ in said if id_ not in here]])
        return found

    def _after(self, tokens: Iterable[int]) -> NDArray[np.float32]:
        """The best that the maps say of what follows any of some tokens, or a word that begins with it; weighted."""
        found: NDArray[np.float32] | None = None
        for token in tokens:
            known = self._followed.get(token)
            if known is None:
                guide = self._guide
                known = guide.scores(guide.behind((), token))
                for piece in self._going_on((token,))[:_N_BEFORE]:
                    known = np.maximum(known, guide.scores(guide.behind((), piece)))
                if len(self._followed) * known.nbytes > _MAX_BYTES:
                    self._followed.clear()
                known = self._followed[token] = self._weight * known
            found = known if found is None else np.maximum(found, known)
        return self._weight * self._guide.scores(()) if found is None else found

    def _going_on(self, tokens: tuple[int, ...]) -> list[int]:
        """The tokens that go on with a word begun."""
        tokens = tokens[-_N_BEGUN:]
        found = self._pieces.get(tokens)
        if found is None:
            if len(self._pieces) >= _MAX_KEPT:
                self._pieces.clear()
            found = self._pieces[tokens] = self._inside(self._guide.followers(tokens))[:_MOST_BEHIND]
        said = self._guide.said_behind(tokens[-1])
        return [*found, *[id_ for id_ in self._inside(said) if id_ not in found]] if said else found

    def _inside(self, likely: Iterable[tuple[int, float]]) -> list[int]:
        """Those of some tokens, with the logarithm of the share of each, that go on with a word."""
        ranks = self._ranks
        return [
            id_ for id_, share in likely if ranks[id_][:1] > b" " and (share > _MOSTLY or not opens_word(ranks[id_]))
        ]

    def _quick(self, lattice: Lattice, rows: Sequence[int]) -> NDArray[np.float32]:
        """How well the beginning of each known token's bytes fits anywhere behind some rows, float32 [n, n_known]."""
        begins, goes_on = lattice.near(self._units, rows)
        begins[:, 0] = goes_on[:, 0] = 0.0
        found: NDArray[np.float32] = begins[:, self._first_units].sum(1) + goes_on[:, self._more_units].sum(1)
        found[:, self._is_empty] = -np.inf
        return found
