"""A span of rows spelt again: the words that its sounds and the n-grams agree on.

Words lie between the rows where one was heard to begin, or nearly so (nodes), and are scored against the sounds first
(`words`). Then the best texts are put together from left to right; at each node a few are kept, and of two that go on
alike the better one. What was heard is always a word too, so that the vocabulary stays open. What can neither beat the
text as it was heard any more nor come near it is dropped, for no text is worth more than its sounds.

Decoding words into a lattice with n-grams is old (Ney & Ortmanns 1999). Does not know: which spans are in doubt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specedge.runtime.ctc.guide import Guide
from specedge.runtime.ctc.hypothesis import HeardToken, sentence_behind, with_other
from specedge.runtime.ctc.lattice import Lattice
from specedge.runtime.ctc.words import Span, Word, WordFinder, opens_word
from specedge.runtime.text.tokenizer import Tokenizer

__all__ = ["Respeller"]

_MORE_UNKNOWN = -3.0  # of a word, each token behind its first unknown one
_UNDECIDED = 2.0  # nats by which a second text may be worse and still be drafted beside the first
_HOPELESS = 8.0  # nats by which a text is worse than another at the same node that is followed no further
_N_CONTEXT = 2  # ids by which texts differ for what follows


class _Text(NamedTuple):
    """A beginning of the span's text, up to a node.

    sentence: what its n-grams go on from; lost: that its last token is unknown; stops: the row behind each token;
    other: the next best text that goes on like this one, `gap` nats worse.
    """

    score: float
    sentence: tuple[int, ...]
    lost: bool = False
    tokens: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    gap: float = np.inf
    other: tuple[int, ...] = ()


class Respeller:
    """For one target's tokens and one guide.

    weight: of the n-grams against the sounds; beam: texts kept at a node; candidates: tokens tried behind each of them.
    """

    def __init__(self, tokenizer: Tokenizer, guide: Guide, *, weight: float, beam: int, candidates: int) -> None:
        self._tokenizer, self._guide, self._eot = tokenizer, guide, tokenizer.special.eot
        self._weight, self._beam = weight, beam
        self._words = WordFinder(tokenizer, guide, weight=weight, candidates=candidates)

    def looked_at(
        self, lattice: Lattice, spans: Sequence[tuple[Sequence[HeardToken], int, Sequence[int]]]
    ) -> list[Span]:
        """What spans of a window may be instead: of each its tokens, the row behind it, the text ids in front of it."""
        found = []
        for tokens, stop, before in spans:
            heard = self._heard(tokens, stop)
            rows = [*heard, stop]
            nodes = self._nodes(lattice, rows)
            sentence = sentence_behind(before, self._eot, self._guide.ends)
            found.append(Span(tokens, rows, heard, nodes, sentence, [[] for _ in nodes[:-1]]))
        self._words.find(lattice, found)
        return found

    def respelt(self, span: Span, before: Sequence[int], right: Sequence[int]) -> list[HeardToken]:
        """The best tokens for the rows of a span.

        before: the text ids in front of it; right: those behind it, which its words must go with.
        """
        nodes, heard, words = span.nodes, span.heard, span.words
        sentence = sentence_behind(before, self._eot, self._guide.ends)
        as_heard = tuple([heard.token for heard in span.tokens])
        worth = self._worth(sentence, as_heard) + self._right_worth(before, as_heard, right)
        ranked: list[tuple[float, _Text]] = [(worth, _Text(worth, sentence, tokens=as_heard))]
        reached: list[dict[tuple[int, ...], _Text]] = [{} for _ in nodes]
        reached[0][sentence] = _Text(0.0, sentence)
        least = [worth - _UNDECIDED] * len(nodes)
        for at, node in enumerate(nodes[:-1]):
            texts = sorted(reached[at].values(), key=lambda text: -text.score)[: self._beam]
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
        gap, other = best.gap, best.other
        for lower, text in ranked[1:]:
            if text.tokens != best.tokens:
                if score - lower < gap:
                    gap, other = score - lower, text.tokens
                break
        found = list(span.tokens) if best.tokens == as_heard else self._as_heard(best, nodes[0], gap, before)
        return with_other(found, other) if gap < _UNDECIDED else found

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
            score = text.score + self._weight * score
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
        return self._weight * worth

    def _right_worth(self, before: Sequence[int], tokens: Sequence[int], right: Sequence[int]) -> float:
        guide = self._guide
        return self._worth(sentence_behind([*before, *tokens], self._eot, guide.ends), right) if right else 0.0

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
        sentence = sentence_behind(before, self._eot, guide.ends)
        found = []
        for token, row in zip(text.tokens, text.stops, strict=True):
            opens = self._tokenizer.ranks[token][:1] == b" "
            found.append(
                HeardToken(token, min(start, row), row, sure, guide.order(sentence, token), opens, guided=True)
            )
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
    """Keep `text` with some tokens more, unless a better one goes on alike; of two the other is remembered."""
    key = sentence[-_N_CONTEXT:]
    longer = (*text.tokens, *tokens)
    there = reached.get(key)
    gap, other = text.gap, (*text.other, *tokens) if text.other else ()
    if there is None:
        reached[key] = _Text(score, sentence, lost, longer, (*text.stops, *stops), gap, other)
    elif there.tokens == longer:
        if score > there.score:
            reached[key] = _Text(score, sentence, lost, longer, (*text.stops, *stops), gap, other)
    elif score > there.score:
        if score - there.score < gap:
            gap, other = score - there.score, there.tokens
        reached[key] = _Text(score, sentence, lost, longer, (*text.stops, *stops), gap, other)
    elif there.score - score < there.gap:
        reached[key] = there._replace(gap=there.score - score, other=longer)
