"""Rescore what a CTC head heard with a language model of n-grams: the words on which sounds and n-grams agree.

The likeliest spelling is where it begins. Words of which the n-grams know every token behind the one before stay as
they are. Elsewhere ("suspect" words, with the word before an unknown pair) the span of rows is spelt again: words lie
between the rows where one was heard to begin, or nearly so (nodes), and are scored against the sounds first
(`word_lattice`); then the best texts are put together from left to right with a beam, as in Ney and Ortmanns (1999).
At each node a few are kept, and of two that go on alike the better one. What was heard is always a word too, so the
vocabulary stays open. A text that can neither beat the one that was heard nor come near it is dropped, for no text is
worth more than its sounds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...text.tokenizer import Tokenizer
from ...text.words import opens_word, sentence_so_far
from .lattice import HeardToken, Lattice
from .ngram_lm import Guide
from .word_lattice import Span, Word, WordFinder

_WEIGHT = 0.9  # of the n-grams against the sounds
_BEAM = 2  # texts kept at a node
_CANDIDATES = 8  # tokens tried behind each of them
_MORE_UNKNOWN = -3.0  # of a word, each token behind its first unknown one
_UNDECIDED = 2.0  # nats below the text as it was heard at which a beginning is still followed
_HOPELESS = 8.0  # nats by which a text is worse than another at the same node that is followed no further
_N_CONTEXT_IDS = 2  # ids by which texts differ for what follows


class _Text(NamedTuple):
    """A beginning of the span's text, up to a node.

    sentence: what its n-grams go on from; lost: that its last token is unknown; stops: the row behind each token; gap:
    nats by which the next best text that goes on like this one is worse.
    """

    score: float
    sentence: tuple[int, ...]
    lost: bool = False
    tokens: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    gap: float = np.inf


class Respeller:
    """For one target's tokens and one guide."""

    def __init__(self, tokenizer: Tokenizer, guide: Guide) -> None:
        self._tokenizer, self._guide, self._eot = tokenizer, guide, tokenizer.special.eot
        self._words = WordFinder(tokenizer, guide, weight=_WEIGHT, candidates=_CANDIDATES)
        self._marks = sentence_marks(tokenizer, guide)

    def looked_at(
        self, lattice: Lattice, spans: Sequence[tuple[Sequence[HeardToken], int, Sequence[int]]]
    ) -> list[Span]:
        """What spans of a window may be instead: of each its tokens, the row behind it, the text ids in front of it."""
        found = []
        for tokens, stop, before in spans:
            heard = self._heard(tokens, stop)
            rows = [*heard, stop]
            nodes = self._nodes(lattice, rows)
            sentence = sentence_so_far(before, self._eot, self._guide.ends)
            found.append(Span(tokens, rows, heard, nodes, sentence, [[] for _ in nodes[:-1]]))
        self._words.find(lattice, found)
        return found

    def respelt(self, span: Span, before: Sequence[int], right: Sequence[int]) -> list[HeardToken]:
        """The best tokens for the rows of a span.

        before: the text ids in front of it; right: those behind it, which its words must go with.
        """
        nodes, heard, words = span.nodes, span.heard, span.words
        sentence = sentence_so_far(before, self._eot, self._guide.ends)
        as_heard = tuple([heard.token for heard in span.tokens])
        worth = self._worth(sentence, as_heard) + self._right_worth(before, as_heard, right)
        ranked: list[tuple[float, _Text]] = [(worth, _Text(worth, sentence, tokens=as_heard))]
        reached: list[dict[tuple[int, ...], _Text]] = [{} for _ in nodes]
        reached[0][sentence] = _Text(0.0, sentence)
        least = [worth - _UNDECIDED] * len(nodes)
        for at, node in enumerate(nodes[:-1]):
            texts = sorted(reached[at].values(), key=lambda text: -text.score)[:_BEAM]
            if node in heard:
                word = heard[node]
                words[at].insert(0, word._replace(ends=[(nodes.index(word.ends[0][0]), 0.0)]))
            for text in texts:
                if text.score > least[at]:
                    self._follow(text, words[at], nodes, reached, least)
        for text in reached[-1].values():
            ranked.append((text.score + self._right_worth(before, text.tokens, right), text))
        ranked.sort(key=lambda item: -item[0])
        score, best = ranked[0]
        if best.tokens == as_heard:
            return list(span.tokens)
        others = (score - lower for lower, text in ranked[1:] if text.tokens != best.tokens)
        return self._as_heard(best, nodes[0], min(best.gap, next(others, np.inf)), before)

    def _heard(self, span: Sequence[HeardToken], stop: int) -> dict[int, Word]:
        """The words that were heard, by the row that each begins at; `ends` has the row where the next one does."""
        firsts = [0]
        for i, heard in enumerate(span):
            if opens_word(self._tokenizer.ranks[heard.token]) and span[firsts[-1]].start < heard.start < stop:
                firsts.append(i)
        found: dict[int, Word] = {}
        for first, end in zip(firsts, [*firsts[1:], len(span)], strict=True):
            node = span[end].start if end < len(span) else stop
            here = span[first:end]
            stops = tuple([min(heard.stop, node) for heard in here])
            found[span[first].start] = Word(tuple([heard.token for heard in here]), stops, [(node, 0.0)])
        return found

    def _nodes(self, lattice: Lattice, rows: Sequence[int]) -> list[int]:
        """Rows at which words may begin, rising: where they were heard to, or a space was nearly heard."""
        spaces = lattice.spaces
        inside = spaces[bisect_left(spaces, rows[0]) : bisect_left(spaces, rows[-1])]
        taken = set(rows)
        more = [row for row in inside if not taken & {row - 2, row - 1, row, row + 1, row + 2}]
        return sorted({*rows, *more})

    def _follow(
        self,
        text: _Text,
        words: Sequence[Word],
        nodes: Sequence[int],
        reached: Sequence[dict[tuple[int, ...], _Text]],
        least: list[float],
    ) -> None:
        """Go on with each of some words; `reached` has the texts by node, `least` what one must be worth there."""
        for tokens, stops, ends in words:
            near = [end for end in ends if text.score + end[1] > least[end[0]]]
            if not near:
                continue
            score, sentence, lost = 0.0, text.sentence, text.lost
            for token in tokens:
                said, sentence, lost = self._said(sentence, token, lost)
                score += said
            score = text.score + _WEIGHT * score
            for end, loss in near:
                here = score + loss
                if here > least[end]:
                    least[end] = max(least[end], here - _HOPELESS)
                    _keep(reached[end], text, here, sentence, lost, tokens, (*stops[:-1], min(stops[-1], nodes[end])))

    def _worth(self, sentence: tuple[int, ...], tokens: Sequence[int]) -> float:
        """The weighted score of tokens behind a sentence begun."""
        worth, lost = 0.0, False
        for token in tokens:
            said, sentence, lost = self._said(sentence, token, lost)
            worth += said
        return _WEIGHT * worth

    def _right_worth(self, before: Sequence[int], tokens: Sequence[int], right: Sequence[int]) -> float:
        """The weighted score of what comes next: some tokens, or at the end of the window the mark that fits best."""
        guide = self._guide
        sentence = sentence_so_far([*before, *tokens], self._eot, guide.ends)
        if right or not sentence or not self._marks:
            return self._worth(sentence, right)
        return _WEIGHT * max(guide.score(sentence, mark) for mark in self._marks)

    def _said(self, sentence: tuple[int, ...], token: int, lost: bool) -> tuple[float, tuple[int, ...], bool]:
        """The score of a token, the sentence with it, and whether it is unknown; `lost`: that the one before is.

        A word that nobody knows is charged once, for its first token above all.
        """
        guide = self._guide
        score = guide.score(sentence, token)
        is_lost = score <= guide.unknown
        if is_lost and lost and self._tokenizer.ranks[token][:1] != b" ":
            score = _MORE_UNKNOWN
        return score, guide.behind(sentence, token), is_lost

    def _as_heard(self, text: _Text, start: int, margin: float, before: Sequence[int]) -> list[HeardToken]:
        """A text as part of a hypothesis; `margin`: by how much it was the best."""
        sure = float(1 / (1 + np.exp(-min(margin, 30.0))))
        guide = self._guide
        sentence = sentence_so_far(before, self._eot, guide.ends)
        found = []
        for token, row in zip(text.tokens, text.stops, strict=True):
            opens = self._tokenizer.ranks[token][:1] == b" "
            found.append(HeardToken(token, min(start, row), row, sure, guide.order(sentence, token), opens))
            start = row
            sentence = guide.behind(sentence, token)
        return found


def _keep(
    reached: dict[tuple[int, ...], _Text],
    text: _Text,
    score: float,
    sentence: tuple[int, ...],
    lost: bool,
    tokens: tuple[int, ...],
    stops: tuple[int, ...],
) -> None:
    """Keep `text` with some tokens more, unless a better one goes on alike; how much worse the other is stays known."""
    key = sentence[-_N_CONTEXT_IDS:]
    longer = (*text.tokens, *tokens)
    there = reached.get(key)
    gap = text.gap
    if there is not None and there.tokens != longer:
        if score <= there.score:
            if there.score - score < there.gap:
                reached[key] = there._replace(gap=there.score - score)
            return
        gap = min(gap, score - there.score)
    if there is None or score > there.score:
        reached[key] = _Text(score, sentence, lost, longer, (*text.stops, *stops), gap)


def sentence_marks(tokenizer: Tokenizer, guide: Guide) -> list[int]:
    """The known marks that end a sentence, each a byte."""
    return [id_ for id_ in guide.vocabulary.tolist() if guide.ends(id_) and len(tokenizer.ranks[id_]) == 1]


_MAX_WORDS = 8  # spelt again at once
_KNOWN_ORDER = 2  # ids of the n-gram that a token must end to be above suspicion
_EXPECTED = -6.0  # the least score of a mark that nobody heard
_N_CONTEXT = 2  # tokens behind a change whose n-grams reach it
_N_RIGHT = 2  # tokens behind a span that its words must go with
_SURE = 0.3  # a word heard so surely is not taken for the one that is wrong, of two that no n-gram has


class Search:
    """For one target's tokens and one guide."""

    def __init__(self, tokenizer: Tokenizer, guide: Guide) -> None:
        self._tokenizer, self._guide, self._eot = tokenizer, guide, tokenizer.special.eot
        self._respeller = Respeller(tokenizer, guide)
        self._marks = sentence_marks(tokenizer, guide)

    def guided(
        self, lattice: Lattice, spine: Sequence[HeardToken], before: Sequence[int], n_words: int | None = None
    ) -> list[HeardToken]:
        """Return the spine with its suspect words spelt again; `before`: text ids already decided in the window.

        With `n_words`, only that many words from the start are looked at.
        """
        limit = len(spine)
        if n_words is not None:
            opening = [i for i, token in enumerate(spine) if token.opens or not i]
            limit = opening[n_words] if n_words < len(opening) else limit
        found = self._judged(spine, before, limit + _N_CONTEXT)
        suspects = self._suspects(found[:limit])
        suspects = [(first, stop) for first, stop in suspects if self._row(found, stop, lattice) > found[first].start]
        if suspects:
            found = self._respelt(lattice, found, suspects, before)
        return found if n_words is not None else self._ended(lattice, found, before)

    def _respelt(
        self, lattice: Lattice, found: list[HeardToken], suspects: Sequence[tuple[int, int]], before: Sequence[int]
    ) -> list[HeardToken]:
        """The spine with some spans of it spelt again."""
        tokens = [*before, *[heard.token for heard in found]]
        spans = self._respeller.looked_at(
            lattice,
            [
                (found[first:stop], self._row(found, stop, lattice), tokens[: len(before) + first])
                for first, stop in suspects
            ],
        )
        result: list[HeardToken] = []
        at = 0
        for span, (first, stop) in zip(spans, suspects, strict=True):
            result += found[at:first]
            right = [heard.token for heard in found[stop : stop + _N_RIGHT]]
            result += self._respeller.respelt(span, [*before, *[heard.token for heard in result]], right)
            at = stop
        return [*result, *found[at:]]

    @staticmethod
    def _row(found: Sequence[HeardToken], at: int, lattice: Lattice) -> int:
        """The row at which a token begins; behind the last one that behind all."""
        return found[at].start if at < len(found) else len(lattice)

    def _ended(self, lattice: Lattice, found: list[HeardToken], before: Sequence[int]) -> list[HeardToken]:
        """With the mark that most often ends the sentence there, where none was heard: it is the least of sounds."""
        guide = self._guide
        if not found or guide.ends(found[-1].token) or not self._marks:
            return found
        sentence = sentence_so_far([*before, *[heard.token for heard in found]], self._eot, guide.ends)
        score, token = max((guide.score(sentence, mark), mark) for mark in self._marks)
        if score < _EXPECTED:
            return found
        row = found[-1].stop
        return [*found, HeardToken(token, row, row, 0.5, guide.order(sentence, token))]

    def _judged(self, spine: Sequence[HeardToken], before: Sequence[int], limit: int) -> list[HeardToken]:
        """The spine with the order of each token's n-gram, for the first `limit` of them."""
        guide = self._guide
        sentence = sentence_so_far(before, self._eot, guide.ends)
        found = []
        for heard in spine[:limit]:
            order = guide.order(sentence, heard.token)
            found.append(heard if heard.order == order else heard._replace(order=order))
            sentence = guide.behind(sentence, heard.token)
        return [*found, *spine[limit:]]

    def _suspects(self, spine: Sequence[HeardToken]) -> list[tuple[int, int]]:
        """Spans of whole words, as indices into the spine, that are to be spelt again."""
        if not spine:
            return []
        opening = [i for i, heard in enumerate(spine) if heard.opens or not i]
        words = list(zip(opening, [*opening[1:], len(spine)], strict=True))
        known = _KNOWN_ORDER
        doubtful = [False] * len(words)
        for at, (first, stop) in enumerate(words):
            if any(heard.order < known for heard in spine[first:stop]):
                doubtful[at] = True
                if at and any(heard.sure < _SURE for heard in spine[slice(*words[at - 1])]):
                    doubtful[at - 1] = True  # it may be the one that is wrong
        spans: list[tuple[int, int]] = []
        at = 0
        while at < len(words):
            if not doubtful[at]:
                at += 1
                continue
            end = at
            while end < len(words) and doubtful[end]:
                end += 1
            while at < end:
                stop = min(at + _MAX_WORDS, end)
                spans.append((words[at][0], words[stop - 1][1]))
                at = stop
        return spans
