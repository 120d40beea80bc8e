"""Map-guided search: the words of a window that its sounds and the n-grams of its domain agree on.

The likeliest spelling is the spine. Where the n-grams know every token of it behind the one before, and the head is
sure, nothing is searched. Elsewhere ("suspect" words, with the word before an unknown pair) the span of rows is spelt
again by a beam search over tokens: a string is extended by the tokens that the n-grams, and a quick look at the bytes
heard there, make likely, and by the spine's own, so that the vocabulary stays open. All strings of a beam are scored
against the lattice at once (`Lattice.extend`); what can neither beat the best complete string any more nor come near it
is dropped, for an open one is never worth more than its sounds.

Decoding words into a lattice with n-grams is old (Ney & Ortmanns 1999); n-grams that only follow what was heard
amiss, in milliseconds of NumPy, are this project's.
Does not know: drafts, timestamps, targets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.ctc.guide import Guide
from specedge.runtime.ctc.hypothesis import HeardToken, sentence_behind, with_other
from specedge.runtime.ctc.lattice import Lattice
from specedge.runtime.text.tokenizer import Tokenizer

__all__ = ["Search", "SearchOptions"]

_QUICK_BYTES = 8  # of a token, for the first look
_FIRST_BYTES = 3  # of those, looked for nearer
_MORE_UNKNOWN = -3.0  # of a word, each token behind its first unknown one
_USUAL = 1.5  # nats that the n-grams charge for a usual word
_EXPECTED = -6.0  # the least score of a mark that nobody heard
_CLOSE = 6.0  # nats by which a second string may be worse
_UNDECIDED = 2.0  # nats by which a second string may be worse and still be drafted beside the first
_N_RIGHT = 2  # tokens behind a span that its words must go with
_FADE = 0.8
_HOPE = 0.98  # of what a word is known to take, after each that was too dear: searching may have become quicker


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """weight: of the n-grams against the sounds; beam: strings kept; candidates: tokens tried behind each of them;
    min_sure: words heard less surely are suspect; max_words: spelt again at once; known_order: ids of the n-gram that a
    token must end to be above suspicion."""

    weight: float = 0.9
    beam: int = 3
    candidates: int = 5
    min_sure: float = 0.15
    max_words: int = 8
    known_order: int = 2


class _String(NamedTuple):
    """Tokens in work.

    stops: the row behind each; worth: the score of their n-grams, which go on from `sentence`; last: the last byte;
    row: how far they have come; lost: that the last is unknown; score: what they are worth if all behind that is
    what is likeliest.
    """

    tokens: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    worth: float = 0.0
    sentence: tuple[int, ...] = ()
    last: int = -1
    row: int = 0
    score: float = 0.0
    lost: bool = False


class Search:
    """For one target's tokens and one guide."""

    def __init__(self, tokenizer: Tokenizer, guide: Guide, options: SearchOptions | None = None) -> None:
        self._tokenizer, self._guide = tokenizer, guide
        self._options = options or SearchOptions()
        self._eot = tokenizer.special.eot
        beginnings = [tokenizer.ranks[id_][:_QUICK_BYTES] for id_ in guide.vocabulary.tolist()]
        padded = np.frombuffer(b"".join([b.ljust(_QUICK_BYTES, b"\0") for b in beginnings]), np.uint8)
        units = padded.reshape(len(beginnings), _QUICK_BYTES).astype(np.int64) + 1
        lengths = np.array([len(b) for b in beginnings], np.int64)
        units[np.arange(_QUICK_BYTES) >= lengths[:, None]] = 0
        self._first_units, self._more_units = units.T[:_FIRST_BYTES].copy(), units.T[_FIRST_BYTES:].copy()
        self._is_empty = lengths == 0
        ends = [guide.ends(id_) for id_ in guide.vocabulary.tolist()]
        self._marks = np.flatnonzero(np.array(ends, bool) & (lengths == 1))
        self._word_s = 0.0  # what it takes to spell a suspect word again

    def guided(
        self,
        lattice: Lattice,
        spine: Sequence[HeardToken],
        before: Sequence[int],
        n_words: int | None = None,
        *,
        worth_s: float = math.inf,
    ) -> list[HeardToken]:
        """The spine with its suspect words spelt again; `before`: the text ids already decided in the window.

        With `n_words`, only that many words from the start are looked at. A span stays as it was heard where spelling
        it again is known to take more than `worth_s` seconds a word.
        """
        found = self._judged(spine, before)
        limit = len(found)
        if n_words is not None:
            opening = [i for i, token in enumerate(found) if token.opens or not i]
            limit = opening[n_words] if n_words < len(opening) else limit
        result: list[HeardToken] = []
        at = 0
        for first, stop in self._suspects(found[:limit]):
            if self._word_s > worth_s:
                self._word_s *= _HOPE
                continue
            started = time.perf_counter()
            result += found[at:first]
            tokens = [*before, *[heard.token for heard in result]]
            right = [heard.token for heard in found[stop : stop + _N_RIGHT]]
            span_stop = found[stop].start if stop < len(found) else len(lattice)
            result += self._respelt(lattice, found[first:stop], span_stop, tokens, right)
            at = stop
            n_suspect = max(1, sum(heard.opens for heard in found[first:stop]))
            took_s = (time.perf_counter() - started) / n_suspect
            self._word_s += (took_s - self._word_s) * (1 - _FADE if self._word_s else 1)
        result += found[at:]
        return result if n_words is not None else self._ended(lattice, result, before)

    def _ended(self, lattice: Lattice, found: list[HeardToken], before: Sequence[int]) -> list[HeardToken]:
        """With the mark that most often ends the sentence there, where none was heard: it is the least of sounds."""
        guide = self._guide
        if not found or guide.ends(found[-1].token) or not len(self._marks):
            return found
        sentence = sentence_behind([*before, *[heard.token for heard in found]], self._eot, guide.ends)
        known = guide.scores(sentence)[0][self._marks]
        best = int(known.argmax())
        if float(known[best]) < _EXPECTED:
            return found
        token = int(guide.vocabulary[self._marks[best]])
        row = found[-1].stop
        return [*found, HeardToken(token, row, row, 0.5, guide.order(sentence, token), False, True)]

    def _judged(self, spine: Sequence[HeardToken], before: Sequence[int]) -> list[HeardToken]:
        """The spine with the order of each token's n-gram."""
        tokens = list(before)
        found = []
        for heard in spine:
            sentence = sentence_behind(tokens, self._eot, self._guide.ends)
            found.append(heard._replace(order=self._guide.order(sentence, heard.token)))
            tokens.append(heard.token)
        return found

    def _suspects(self, spine: Sequence[HeardToken]) -> list[tuple[int, int]]:
        """Spans of whole words, as indices into the spine, that are to be spelt again."""
        if not spine:
            return []
        opening = [i for i, heard in enumerate(spine) if heard.opens or not i]
        words = list(zip(opening, [*opening[1:], len(spine)], strict=True))
        known, sure = self._options.known_order, self._options.min_sure
        doubtful = [False] * len(words)
        for at, (first, stop) in enumerate(words):
            if any(heard.order < known for heard in spine[first:stop]):
                doubtful[at] = True
                if at:
                    doubtful[at - 1] = True  # it may be the one that is wrong
            elif any(heard.sure < sure and not heard.guided for heard in spine[first:stop]):
                doubtful[at] = True
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
                stop = min(at + self._options.max_words, end)
                spans.append((words[at][0], words[stop - 1][1]))
                at = stop
        return spans

    def _respelt(
        self, lattice: Lattice, span: Sequence[HeardToken], stop: int, before: Sequence[int], right: Sequence[int]
    ) -> list[HeardToken]:
        """The best tokens for the rows from the span's first to `stop`."""
        options = self._options
        start = span[0].start
        rest = lattice.best[stop] - lattice.best[start : stop + 1]
        sentence = sentence_behind(before, self._eot, self._guide.ends)
        best_worth = self._worth(sentence, [heard.token for heard in span]) + self._right_worth(
            [*before, *[heard.token for heard in span]], right
        )
        best_score = float(rest[0]) + best_worth
        second, other = -np.inf, tuple[int, ...]()
        best: _String | None = None
        best_tokens = tuple(heard.token for heard in span)
        strings = [_String(sentence=sentence, row=start, score=float(rest[0]))]
        reached = lattice.begin(start, stop)
        ranks = self._tokenizer.ranks
        # Strings that have come further have paid for more words already.
        n_words = sum(heard.opens for heard in span)
        ahead = np.float32(options.weight * _USUAL * n_words / max(1, stop - start))
        for _ in range(len(span) + 3):
            tried, which = self._candidates(lattice, start, span, strings, best_score)
            if not tried:
                break
            lasts, added = [strings[i].last for i in which], [ranks[string.tokens[-1]] for string in tried]
            reached = lattice.extend(start, stop, reached.rows(np.array(which)), lasts, added)
            worths = np.array([string.worth for string in tried], np.float32)
            ways = reached.either + rest
            peaks = ways.argmax(1)
            open_scores = ways[np.arange(len(tried)), peaks] + worths
            whole_scores = reached.either[:, -1] + worths
            for at in np.flatnonzero(whole_scores > max(second, best_score - _CLOSE)).tolist():
                score = float(whole_scores[at]) + self._right_worth([*before, *tried[at].tokens], right)
                tokens = tried[at].tokens
                if score > best_score:
                    if tokens != best_tokens:
                        second, other = best_score, best_tokens
                    best, best_score, best_tokens = tried[at], score, tokens
                elif score > second and tokens != best_tokens:
                    second, other = score, tokens
            kept = np.argsort(-(open_scores + ahead * peaks), kind="stable")[: options.beam]
            kept = kept[open_scores[kept] > best_score - _UNDECIDED]
            if not len(kept):
                break
            strings = [
                tried[at]._replace(stops=(*tried[at].stops, start + peak), row=start + peak, score=score)
                for at, peak, score in zip(kept.tolist(), peaks[kept].tolist(), open_scores[kept].tolist(), strict=True)
            ]
            reached = reached.rows(kept)
        found = list(span) if best is None else self._as_heard(best, start, stop, best_score - second, before)
        return with_other(found, other) if best_score - second < _UNDECIDED else found

    def _candidates(
        self, lattice: Lattice, start: int, span: Sequence[HeardToken], strings: Sequence[_String], best_score: float
    ) -> tuple[list[_String], list[int]]:
        """The strings longer by one token, and which of the strings each of them extends."""
        options, ranks, guide = self._options, self._tokenizer.ranks, self._guide
        rows = [min(string.row, len(lattice) - 1) for string in strings]
        scores = [guide.scores(string.sentence) for string in strings]
        tried: list[_String] = []
        which: list[int] = []
        if len(guide.vocabulary):
            known = np.stack([known for known, _ in scores])
            quick = self._quick(lattice, rows) + np.float32(options.weight) * known
            n = min(options.candidates, quick.shape[1])
            likely = np.argpartition(quick, -n, axis=1)[:, -n:]
            worth = np.take_along_axis(known, likely, 1).tolist()
            enough = np.take_along_axis(quick, likely, 1).tolist()
            tokens = guide.vocabulary[likely].tolist()
        for i, string in enumerate(strings):
            worths = dict(scores[i][1])
            if len(guide.vocabulary):
                needed = best_score - _UNDECIDED - string.score
                for token, said, reached in zip(tokens[i], worth[i], enough[i], strict=True):
                    if reached > needed:
                        worths.setdefault(token, said)
            lost = False
            for heard in span:
                if abs(heard.start - string.row) <= 1 and heard.token not in worths:
                    worths[heard.token], lost = self._said(string.sentence, heard.token, string.lost)
            for token, said in worths.items():
                if not ranks[token]:
                    continue
                tried.append(
                    _String(
                        (*string.tokens, token),
                        string.stops,
                        string.worth + options.weight * said,
                        () if guide.ends(token) else (*string.sentence, token)[-8:],
                        ranks[token][-1],
                        lost=lost and said <= max(guide.unknown, _MORE_UNKNOWN),
                    )
                )
                which.append(i)
        return tried, which

    def _quick(self, lattice: Lattice, rows: Sequence[int]) -> NDArray[np.float32]:
        """How well the beginning of each known token's bytes fits anywhere behind some rows, float32 [n, n_known]."""
        begins, goes_on = (near[rows] for near in lattice.near)
        begins[:, 0] = goes_on[:, 0] = 0.0
        found: NDArray[np.float32] = begins[:, self._first_units].sum(1) + goes_on[:, self._more_units].sum(1)
        found[:, self._is_empty] = -np.inf
        return found

    def _worth(self, sentence: Sequence[int], tokens: Sequence[int]) -> float:
        """The weighted score of tokens behind a sentence begun."""
        so_far = list(sentence)
        worth, lost = 0.0, False
        for token in tokens:
            said, lost = self._said(so_far, token, lost)
            worth += said
            so_far = [] if self._guide.ends(token) else [*so_far, token][-8:]
        return self._options.weight * worth

    def _said(self, sentence: Sequence[int], token: int, lost: bool) -> tuple[float, bool]:
        """The score of a token, and whether it is unknown; `lost`: that the one before is.

        A word that nobody knows is charged once, for its first token above all.
        """
        score = self._guide.score(sentence, token)
        if score > self._guide.unknown:
            return score, False
        return (_MORE_UNKNOWN if lost and self._tokenizer.ranks[token][:1] != b" " else score), True

    def _right_worth(self, tokens: Sequence[int], right: Sequence[int]) -> float:
        return self._worth(sentence_behind(tokens, self._eot, self._guide.ends), right)

    def _as_heard(
        self, string: _String, start: int, stop: int, margin: float, before: Sequence[int]
    ) -> list[HeardToken]:
        """A string as part of a hypothesis; `margin`: by how much it was the best."""
        sure = float(1 / (1 + np.exp(-min(margin, 30.0))))
        found = []
        tokens = list(before)
        stops = [*string.stops, stop]
        for token, row in zip(string.tokens, stops, strict=True):
            sentence = sentence_behind(tokens, self._eot, self._guide.ends)
            order = self._guide.order(sentence, token)
            opens = self._tokenizer.ranks[token][:1] == b" "
            found.append(HeardToken(token, min(start, row), row, sure, order, opens, True))
            start = row
            tokens.append(token)
        return found
