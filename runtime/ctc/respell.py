"""A span of rows spelt again: the words that its sounds and the n-grams agree on.

Words lie between the rows where one was heard to begin, or nearly so (nodes). First it is seen, from left to right,
which tokens may begin a word at each node: by a quick look at the bytes heard there, and by what the n-grams expect
behind the likeliest tokens of the nodes before. Then all of them are scored against the sounds at once
(`Lattice.extend`), up to each of the next nodes, so that a word is scored once, whatever goes before it. Last, the best
texts are put together from left to right; at each node a few are kept, and of two that go on alike the better one.
Tokens that only go on with a word are tried behind those that they follow in a map or in the cache, and what was heard
is always a word too, so that the vocabulary stays open. What can neither beat the text as it was heard any more nor
come near it is dropped, for no text is worth more than its sounds.

Decoding words into a lattice with n-grams is old (Ney & Ortmanns 1999). Does not know: which spans are in doubt.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.ctc.guide import Guide
from specedge.runtime.ctc.hypothesis import HeardToken, sentence_behind, with_other
from specedge.runtime.ctc.lattice import Lattice
from specedge.runtime.text.tokenizer import Tokenizer

__all__ = ["Respeller", "Span"]

_QUICK_BYTES = 8  # of a token, for the first look
_FIRST_BYTES = 3  # of those, looked for nearer
_MORE_UNKNOWN = -3.0  # of a word, each token behind its first unknown one
_UNDECIDED = 2.0  # nats by which a second text may be worse and still be drafted beside the first
_N_ENDS = 2  # words that were heard in place of one, at most
_MAX_BYTES = 4 << 20  # of scores that are kept
_N_BEFORE = 2  # tokens of a node that are thought of behind it
_REACH = 32  # rows that a word may take
_N_PIECES = 12  # tokens that may go on with a word
_MOST_PIECES = 8  # tried at once, or nearly
_MOSTLY = -0.7  # the logarithm of the share of a mark that belongs to a word, heard or not
_HOPELESS = 8.0  # nats by which a text is worse than another at the same node that is followed no further
_MOST_LOST = 12.0  # nats by which a word may be less likely than what was heard
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


class _Word(NamedTuple):
    """Tokens from a node on.

    stops: the row behind each; ends: indices of the nodes that they may end at, and what they lose there against what
    was heard.
    """

    tokens: tuple[int, ...]
    stops: tuple[int, ...]
    ends: list[tuple[int, float]]


class _Place(NamedTuple):
    """A node at which words may begin: its row, the nodes that they may end at with the rows up to them, the words."""

    row: int
    ends: list[tuple[int, int]]
    words: list[_Word]


class Span(NamedTuple):
    """Some rows, and what may have been said there.

    tokens: as heard; rows: where the words heard begin, and the stop; heard: those words by the row; nodes: rows at
    which words may begin, rising, and the stop; sentence: the text in front as it was heard; words: those that may
    begin at each node but the last.
    """

    tokens: Sequence[HeardToken]
    rows: list[int]
    heard: dict[int, _Word]
    nodes: list[int]
    sentence: tuple[int, ...]
    words: list[list[_Word]]


class Respeller:
    """For one target's tokens and one guide.

    weight: of the n-grams against the sounds; beam: texts kept at a node; candidates: tokens tried behind each of them.
    """

    def __init__(self, tokenizer: Tokenizer, guide: Guide, *, weight: float, beam: int, candidates: int) -> None:
        self._tokenizer, self._guide, self._eot = tokenizer, guide, tokenizer.special.eot
        self._weight, self._beam, self._n_candidates = weight, beam, candidates
        beginnings = [tokenizer.ranks[id_][:_QUICK_BYTES] for id_ in guide.vocabulary.tolist()]
        padded = np.frombuffer(b"".join([b.ljust(_QUICK_BYTES, b"\0") for b in beginnings]), np.uint8)
        units = padded.reshape(len(beginnings), _QUICK_BYTES).astype(np.int64) + 1
        lengths = np.array([len(b) for b in beginnings], np.int64)
        units[np.arange(_QUICK_BYTES) >= lengths[:, None]] = 0
        # A quick look needs the few bytes that the tokens have.
        self._units, places = np.unique(np.append(units, 0), return_inverse=True)
        places = places[:-1].reshape(len(beginnings), _QUICK_BYTES)
        self._first_units, self._more_units = places.T[:_FIRST_BYTES].copy(), places.T[_FIRST_BYTES:].copy()
        self._is_empty = lengths == 0
        self._ids: list[int] = guide.vocabulary.tolist()
        self._pieces: dict[int, list[int]] = {}
        self._followed: dict[int, NDArray[np.float32]] = {}

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
        self._find_words(lattice, found)
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

    def _heard(self, span: Sequence[HeardToken], stop: int) -> dict[int, _Word]:
        """The words that were heard, by the row that each begins at; `ends` has the row where the next one does."""
        firsts = [0]
        for i, heard in enumerate(span):
            if self._opens(heard.token) and span[firsts[-1]].start < heard.start < stop:
                firsts.append(i)
        found: dict[int, _Word] = {}
        for first, end in zip(firsts, [*firsts[1:], len(span)], strict=True):
            node = span[end].start if end < len(span) else stop
            here = span[first:end]
            stops = tuple([min(heard.stop, node) for heard in here])
            found[span[first].start] = _Word(tuple([heard.token for heard in here]), stops, [(node, 0.0)])
        return found

    def _opens(self, token: int) -> bool:
        """Whether words may begin with the token: anything but a letter or digit of Latin script inside a word."""
        first = self._tokenizer.ranks[token][:1]
        return not (first.isalnum() or first == b"'" or b"\x80" <= first < b"\xc0")

    def _nodes(self, lattice: Lattice, rows: Sequence[int]) -> list[int]:
        """Rows at which words may begin, rising: where they were heard to, or a space was nearly heard."""
        spaces = lattice.spaces
        inside = spaces[bisect_left(spaces, rows[0]) : bisect_left(spaces, rows[-1])]
        taken = set(rows)
        more = [row for row in inside if not taken & {row - 2, row - 1, row, row + 1, row + 2}]
        return sorted({*rows, *more})

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
                sums = quick[at] + (self._sentence_start(sentence) if not at else self._after(before))
                near = (sums > sums.max() - _HOPELESS).nonzero()[0]
                ranked = sorted(zip(sums[near].tolist(), near.tolist(), strict=True), reverse=True)
                here = [self._ids[i] for _, i in ranked[: self._n_candidates]]
            said = [id_ for token in (before if at else sentence[-1:]) for id_, _ in guide.said_behind(token)]
            found.append([*here, *[id_ for id_ in said if id_ not in here]])
        return found

    def _sentence_start(self, sentence: tuple[int, ...]) -> NDArray[np.float32]:
        """What the maps say behind the text in front of the span, weighted."""
        return np.float32(self._weight) * self._guide.scores(sentence)

    def _after(self, tokens: Iterable[int]) -> NDArray[np.float32]:
        """The best that the maps say of what follows any of some tokens, or a word that begins with it; weighted."""
        found: NDArray[np.float32] | None = None
        for token in tokens:
            known = self._followed.get(token)
            if known is None:
                guide = self._guide
                known = guide.scores(guide.behind((), token))
                for piece in self._going_on(token)[:_N_BEFORE]:
                    known = np.maximum(known, guide.scores(guide.behind((), piece)))
                if len(self._followed) * known.nbytes > _MAX_BYTES:
                    self._followed.clear()
                known = self._followed[token] = np.float32(self._weight) * known
            found = known.copy() if found is None else np.maximum(found, known, out=found)
        return self._sentence_start(()) if found is None else found

    def _find_words(self, lattice: Lattice, spans: Sequence[Span]) -> None:
        """Fill in the words that begin with the likely tokens at each node, scored up to each of the next ones."""
        ranks = self._tokenizer.ranks
        places: list[_Place] = []  # of each string
        strings: list[tuple[int, ...]] = []
        looks = self._quick(lattice, [node for span in spans for node in span.nodes[:-1]]) if self._ids else None
        n_rows = n_nodes = 0
        for span in spans:
            nodes, n_here = span.nodes, len(span.words)
            likely = self._likely(span, None if looks is None else looks[n_nodes : n_nodes + n_here])
            n_nodes += n_here
            for at, tokens in enumerate(likely):
                furthest = nodes.index(span.rows[: bisect_right(span.rows, nodes[at]) + _N_ENDS][-1])
                ends = [(i, nodes[i] - nodes[at]) for i in range(at + 1, furthest + 1)]
                place = _Place(nodes[at], [end for end in ends if end[1] <= _REACH], span.words[at])
                n_rows = max(n_rows, min(_REACH, ends[-1][1]))
                spellings = [(token,) for token in tokens if ranks[token]]
                strings += spellings
                places += [place] * len(spellings)
        reached = np.zeros((len(strings), n_rows + 1), np.float32)
        stops: list[tuple[int, ...]] = [()] * len(strings)
        lasts = [-1] * len(strings)
        columns = np.arange(n_rows + 1)
        for _ in range(1 + _N_PIECES):
            if not strings:
                break
            starts = np.array([place.row for place in places])
            reached = lattice.extend(starts, reached, lasts, [ranks[tokens[-1]] for tokens in strings])
            behind = reached - (lattice.lead[starts[:, None] + columns] - lattice.lead[starts, None])
            nearest = behind.max(1)
            near = (nearest > -_MOST_LOST).nonzero()[0]
            peaks = dict(zip(near.tolist(), (behind[near].argmax(1) + starts[near]).tolist(), strict=True))
            for (i, peak), losses in zip(peaks.items(), behind[near].tolist(), strict=True):
                here = [(end, losses[n]) for end, n in places[i].ends if losses[n] > -_MOST_LOST]
                if here:
                    places[i].words.append(_Word(strings[i], (*stops[i], peak), here))
            which: list[int] = []
            longer: list[tuple[int, ...]] = []
            for i in near[(-nearest[near]).argsort(kind="stable")].tolist():
                if len(longer) >= _MOST_PIECES * n_nodes:
                    break
                pieces = self._going_on(strings[i][-1])
                longer += [(*strings[i], piece) for piece in pieces]
                which += [i] * len(pieces)
            stops = [(*stops[i], peaks[i]) for i in which]
            lasts, places = [ranks[strings[i][-1]][-1] for i in which], [places[i] for i in which]
            reached, strings = reached[which], longer

    def _follow(
        self,
        text: _Text,
        words: Sequence[_Word],
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

    def _going_on(self, token: int) -> list[int]:
        """The tokens that go on with a word behind one."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self._inside(self._guide.followers(token))[:_MOST_PIECES]
        said = self._inside(self._guide.said_behind(token))
        return [*found, *[id_ for id_ in said if id_ not in found]] if said else found

    def _inside(self, likely: Iterable[tuple[int, float]]) -> list[int]:
        """Those of some tokens, with the logarithm of the share of each, that go on with a word."""
        ranks = self._tokenizer.ranks
        return [id_ for id_, share in likely if ranks[id_][:1] > b" " and (share > _MOSTLY or not self._opens(id_))]

    def _quick(self, lattice: Lattice, rows: Sequence[int]) -> NDArray[np.float32]:
        """How well the beginning of each known token's bytes fits anywhere behind some rows, float32 [n, n_known]."""
        begins, goes_on = lattice.near(self._units, rows)
        begins[:, 0] = goes_on[:, 0] = 0.0
        found: NDArray[np.float32] = begins[:, self._first_units].sum(1) + goes_on[:, self._more_units].sum(1)
        found[:, self._is_empty] = -np.inf
        return found

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
