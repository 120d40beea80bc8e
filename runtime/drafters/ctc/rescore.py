"""Rescore what a CTC head heard with a language model of n-grams: the words on which sounds and n-grams agree.

The likeliest spelling is where it begins. Words of which the n-grams know every token behind the one before stay as
they are. Elsewhere ("suspect" words, with the word before an unknown pair) the span of rows is spelt again.

Words lie between the rows where one was heard to begin, or nearly so (nodes). A word may begin with the tokens that
n-grams have behind the word heard in front of its node, and with the commonest ones. All of them are scored against the
sounds at once (`Lattice.odds`), up to each of the next nodes, so that a word is scored once, whatever goes before it.
Those that come near what was heard are scored again with each token that goes on with them.

Then the best texts are put together from left to right with a beam, as in Ney and Ortmanns (1999). At each node a few
are kept, and of two that go on alike the better one. What was heard is always a word too, so the vocabulary stays open.
A text that can neither beat the one that was heard nor come near it is dropped, for no text is worth more than its
sounds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import groupby, islice
from typing import NamedTuple

from ...text.tokenizer import Tokenizer
from ...text.words import opens_word, sentence_so_far
from .lattice import HeardToken, Lattice
from .ngram_lm import UNKNOWN, Guide

_WEIGHT = 0.9  # of the n-grams against the sounds
_BEAM = 2  # texts kept at a node
_MORE_UNKNOWN = -3.0  # of a word, each token behind its first unknown one
_UNDECIDED = 2.0  # nats below the text as it was heard at which a beginning is still followed
_HOPELESS = 8.0  # nats by which a text is worse than another at the same node that is followed no further
_N_CONTEXT_IDS = 2  # ids by which texts differ for what follows
_MAX_WORDS = 8  # spelt again at once
_KNOWN_ORDER = 2  # ids of the n-gram that a token must end to be above suspicion
_N_CONTEXT = 2  # tokens behind a change whose n-grams reach it
_SURE = 0.3  # a word heard so surely is not taken for the one that is wrong, of two that no n-gram has
_CHOSEN = 0.95  # how sure a token is that was chosen
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

    tokens: as heard; nodes: rows at which words may begin, rising, and the stop; opens: indices of those nodes at which
    one was heard to begin, and of the stop; sentence: the text in front as it was heard; words: those that may begin at
    each node but the last, the one that was heard first.
    """

    tokens: Sequence[HeardToken]
    nodes: list[int]
    opens: list[int]
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


class _Text(NamedTuple):
    """A beginning of the span's text, up to a node.

    sentence: what its n-grams go on from; lost: that its last token is unknown; stops: the row behind each token.
    """

    score: float
    sentence: tuple[int, ...]
    lost: bool = False
    tokens: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()


class Search:
    """For one target's tokens and one guide."""

    def __init__(self, tokenizer: Tokenizer, guide: Guide) -> None:
        self._guide, self._eot = guide, tokenizer.special.eot
        self._ranks = tokenizer.ranks
        self._commonest = sorted(guide.alone, key=lambda id_: -guide.alone[id_])[:_N_COMMONEST]

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
        tokens = [*before, *[heard.token for heard in found]]
        stops = [*[heard.start for heard in found], len(lattice)]
        suspects = [(first, stop) for first, stop in self._suspects(found[:limit]) if stops[stop] > stops[first]]
        spans = [
            self._span(lattice, found[first:stop], stops[stop], tokens[: len(before) + first])
            for first, stop in suspects
        ]
        self._find(lattice, spans)
        result: list[HeardToken] = []
        at = 0
        for span, (first, stop) in zip(spans, suspects, strict=True):
            result += found[at:first]
            right = [heard.token for heard in found[stop : stop + _N_CONTEXT]]
            result += self._respelt(span, [*before, *[heard.token for heard in result]], right)
            at = stop
        return [*result, *found[at:]]

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
        doubtful = [False] * len(words)
        for at, (first, stop) in enumerate(words):
            if any(heard.order < _KNOWN_ORDER for heard in spine[first:stop]):
                doubtful[at] = True
                if at and any(heard.sure < _SURE for heard in spine[slice(*words[at - 1])]):
                    doubtful[at - 1] = True  # it may be the one that is wrong
        spans: list[tuple[int, int]] = []
        for is_doubtful, places in groupby(range(len(words)), doubtful.__getitem__):
            if is_doubtful:
                run = [words[at] for at in places]
                parts = [run[at : at + _MAX_WORDS] for at in range(0, len(run), _MAX_WORDS)]
                spans += [(part[0][0], part[-1][1]) for part in parts]
        return spans

    def _span(self, lattice: Lattice, tokens: Sequence[HeardToken], stop: int, before: Sequence[int]) -> Span:
        """Some tokens up to the row `stop`, and where words may begin in them; `before`: the text ids in front."""
        firsts = [0]
        for i, heard in enumerate(tokens):
            if opens_word(self._ranks[heard.token]) and tokens[firsts[-1]].start < heard.start < stop:
                firsts.append(i)
        rows = [*(tokens[first].start for first in firsts), stop]
        nodes = _nodes(lattice, rows)
        opens = [nodes.index(row) for row in rows]
        words: list[list[Word]] = [[] for _ in nodes[:-1]]
        for n, first in enumerate(firsts):
            here = tokens[first : firsts[n + 1] if n + 1 < len(firsts) else None]
            stops = tuple([min(heard.stop, rows[n + 1]) for heard in here])
            words[opens[n]].append(Word(tuple([heard.token for heard in here]), stops, [(opens[n + 1], 0.0)]))
        sentence = sentence_so_far(before, self._eot, self._guide.ends)
        return Span(tokens, nodes, opens, sentence, words)

    def _find(self, lattice: Lattice, spans: Sequence[Span]) -> None:
        """Fill in the words that begin with the likely tokens at each node, scored up to each of the next ones."""
        places: list[_Place] = []
        begun: list[_Begun] = []
        n_rows = 0
        for span in spans:
            nodes = span.nodes
            for at, tokens in enumerate(self._likely(span)):
                furthest = span.opens[: bisect_right(span.opens, at) + _N_ENDS][-1]
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
        for heard in span.words:
            for word in heard:
                before[word.ends[0][0]].append(word.tokens[-1:])
        return [[*dict.fromkeys([*self._commonest, *self._following(texts)])] for texts in before[:-1]]

    def _following(self, texts: Sequence[tuple[int, ...]]) -> list[int]:
        return [id_ for text in texts for id_ in islice(self._guide.followers(text).shares, _N_FOLLOWERS)]

    def _respelt(self, span: Span, before: Sequence[int], right: Sequence[int]) -> list[HeardToken]:
        """The best tokens for the rows of a span.

        before: the text ids in front of it; right: those behind it, which its words must go with.
        """
        nodes = span.nodes
        sentence = sentence_so_far(before, self._eot, self._guide.ends)
        as_heard = tuple([token.token for token in span.tokens])
        worth = self._worth(sentence, [*as_heard, *right])
        reached: list[dict[tuple[int, ...], _Text]] = [{} for _ in nodes]
        reached[0][sentence] = _Text(0.0, sentence)
        least = [worth - _UNDECIDED] * len(nodes)
        for at, words in enumerate(span.words):
            for text in sorted(reached[at].values(), key=lambda text: -text.score)[:_BEAM]:
                if text.score > least[at]:
                    self._follow(text, words, nodes, reached, least)
        ranked = [(text.score + self._worth(text.sentence, right), text) for text in reached[-1].values()]
        score, best = max(ranked, key=lambda item: item[0], default=(worth, None))
        if best is None or score <= worth or best.tokens == as_heard:
            return list(span.tokens)
        return self._as_heard(best, nodes[0], before)

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
            key = sentence[-_N_CONTEXT_IDS:]
            for end, loss in near:
                here = text.score + _WEIGHT * score + loss
                there = reached[end].get(key)
                if here <= least[end] or (there is not None and here <= there.score):
                    continue
                least[end] = max(least[end], here - _HOPELESS)
                rows = (*text.stops, *stops[:-1], min(stops[-1], nodes[end]))
                reached[end][key] = _Text(here, sentence, lost, (*text.tokens, *tokens), rows)

    def _worth(self, sentence: tuple[int, ...], tokens: Sequence[int]) -> float:
        """The weighted score of tokens behind a sentence begun."""
        worth, lost = 0.0, False
        for token in tokens:
            said, sentence, lost = self._said(sentence, token, lost)
            worth += said
        return _WEIGHT * worth

    def _said(self, sentence: tuple[int, ...], token: int, lost: bool) -> tuple[float, tuple[int, ...], bool]:
        """The score of a token, the sentence with it, and whether it is unknown; `lost`: that the one before is.

        A word that nobody knows is charged once, for its first token above all.
        """
        guide = self._guide
        score = guide.score(sentence, token)
        is_lost = score <= UNKNOWN
        if is_lost and lost and self._ranks[token][:1] != b" ":
            score = _MORE_UNKNOWN
        return score, guide.behind(sentence, token), is_lost

    def _as_heard(self, text: _Text, start: int, before: Sequence[int]) -> list[HeardToken]:
        """A text as part of a hypothesis."""
        guide = self._guide
        sentence = sentence_so_far(before, self._eot, guide.ends)
        found = []
        for token, row in zip(text.tokens, text.stops, strict=True):
            opens = self._ranks[token][:1] == b" "
            found.append(HeardToken(token, min(start, row), row, _CHOSEN, guide.order(sentence, token), opens))
            start = row
            sentence = guide.behind(sentence, token)
        return found


def _nodes(lattice: Lattice, rows: Sequence[int]) -> list[int]:
    """Rows at which words may begin, rising: where they were heard to, or a space was nearly heard."""
    spaces = lattice.spaces
    inside = spaces[bisect_left(spaces, rows[0]) : bisect_left(spaces, rows[-1])]
    taken = set(rows)
    more = [row for row in inside if not taken & {row - 2, row - 1, row, row + 1, row + 2}]
    return sorted({*rows, *more})
