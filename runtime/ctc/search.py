"""Map-guided search: the words of a window that its sounds and the n-grams of its domain agree on.

The likeliest spelling is the spine. Where the n-grams know every token of it behind the one before nothing is searched.
Elsewhere ("suspect" words, with the word before an unknown pair) the span of rows is spelt again (`respell`). N-grams
that only follow what was heard amiss, in milliseconds of NumPy, are this project's.
Does not know: drafts, timestamps, targets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from specedge.runtime.ctc.guide import Guide
from specedge.runtime.ctc.hypothesis import HeardToken, sentence_behind
from specedge.runtime.ctc.lattice import Lattice
from specedge.runtime.ctc.respell import Respeller
from specedge.runtime.text.tokenizer import Tokenizer

__all__ = ["Search", "SearchOptions"]

_EXPECTED = -6.0  # the least score of a mark that nobody heard
_N_CONTEXT = 2  # tokens behind a change whose n-grams reach it
_N_RIGHT = 2  # tokens behind a span that its words must go with
_SURE = 0.3  # a word heard so surely is not taken for the one that is wrong, of two that no n-gram has
_FADE = 0.8
# The share of a window's tokens, as heard, that n-grams know: those of its domain a third, those of another a tenth.
_KNOWN_FIRST, _FADE_KNOWN, _TOO_LITTLE = 0.3, 0.7, 0.2
_DEAR = 10.0  # times what a word takes to be spelt again: a saved pass worth less makes other speech not worth a search
_HOPE = 0.98  # of what a word is known to take, after each that was too dear: searching may have become quicker


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """weight: of the n-grams against the sounds; beam: strings kept; candidates: tokens tried behind each of them;
    min_sure: words heard less surely are suspect where a second spelling is wanted; max_words: spelt again at
    once; known_order: ids of the n-gram that a token must end to be above suspicion."""

    weight: float = 0.9
    beam: int = 2
    candidates: int = 8
    min_sure: float = 0.15
    max_words: int = 8
    known_order: int = 2


class Search:
    """For one target's tokens and one guide."""

    def __init__(self, tokenizer: Tokenizer, guide: Guide, options: SearchOptions | None = None) -> None:
        self._tokenizer, self._guide = tokenizer, guide
        self._options = options or SearchOptions()
        self._eot = tokenizer.special.eot
        chosen = self._options
        self._respeller = Respeller(
            tokenizer, guide, weight=chosen.weight, beam=chosen.beam, candidates=chosen.candidates
        )
        self._marks = [id_ for id_ in guide.vocabulary.tolist() if guide.ends(id_) and len(tokenizer.ranks[id_]) == 1]
        self._known = _KNOWN_FIRST
        self._word_s = 0.0  # what it takes to spell a suspect word again

    def guided(
        self,
        lattice: Lattice,
        spine: Sequence[HeardToken],
        before: Sequence[int],
        n_words: int | None = None,
        *,
        worth_s: float = math.inf,
        wants_others: bool = False,
    ) -> list[HeardToken]:
        """The spine with its suspect words spelt again; `before`: the text ids already decided in the window.

        With `n_words`, only that many words from the start are looked at. A span stays as it was heard where spelling
        it again is known to take more than `worth_s` seconds a word, or a tenth of that while n-grams know too little
        of what is heard, as those of other speech do. With `wants_others` words that n-grams know are spelt again too
        where they were heard unsurely, for what else they may have been.
        """
        limit = len(spine)
        if n_words is not None:
            opening = [i for i, token in enumerate(spine) if token.opens or not i]
            limit = opening[n_words] if n_words < len(opening) else limit
        is_dear = worth_s < _DEAR * self._word_s
        if n_words is not None and is_dear and self._known < _TOO_LITTLE:
            return list(spine)
        found = self._judged(spine, before, limit + _N_CONTEXT)
        if n_words is None and found:
            n_known = sum(heard.order >= self._options.known_order for heard in found)
            self._known += (n_known / len(found) - self._known) * (1 - _FADE_KNOWN)
            if is_dear and self._known < _TOO_LITTLE:
                return found
        suspects = self._suspects(found[:limit], self._options.min_sure if wants_others else 0.0)
        suspects = [(first, stop) for first, stop in suspects if self._row(found, stop, lattice) > found[first].start]
        if suspects and self._word_s > worth_s:
            self._word_s *= _HOPE
        elif suspects:
            started = time.perf_counter()
            n_suspect = sum(max(1, sum(heard.opens for heard in found[first:stop])) for first, stop in suspects)
            found = self._respelt(lattice, found, suspects, before)
            took_s = (time.perf_counter() - started) / n_suspect
            # What was held up by something else counts a little.
            self._word_s += (min(took_s, 2 * self._word_s) - self._word_s) * (1 - _FADE) if self._word_s else took_s
        return found if n_words is not None else self._ended(lattice, found, before)

    def _respelt(
        self,
        lattice: Lattice,
        found: list[HeardToken],
        suspects: Sequence[tuple[int, int]],
        before: Sequence[int],
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
        sentence = sentence_behind([*before, *[heard.token for heard in found]], self._eot, guide.ends)
        score, token = max((guide.score(sentence, mark), mark) for mark in self._marks)
        if score < _EXPECTED:
            return found
        row = found[-1].stop
        return [*found, HeardToken(token, row, row, 0.5, guide.order(sentence, token), False, True)]

    def _judged(self, spine: Sequence[HeardToken], before: Sequence[int], limit: int) -> list[HeardToken]:
        """The spine with the order of each token's n-gram, for the first `limit` of them."""
        guide = self._guide
        sentence = sentence_behind(before, self._eot, guide.ends)
        found = []
        for heard in spine[:limit]:
            order = guide.order(sentence, heard.token)
            found.append(heard if heard.order == order else heard._replace(order=order))
            sentence = guide.behind(sentence, heard.token)
        return [*found, *spine[limit:]]

    def _suspects(self, spine: Sequence[HeardToken], min_sure: float) -> list[tuple[int, int]]:
        """Spans of whole words, as indices into the spine, that are to be spelt again."""
        if not spine:
            return []
        opening = [i for i, heard in enumerate(spine) if heard.opens or not i]
        words = list(zip(opening, [*opening[1:], len(spine)], strict=True))
        known = self._options.known_order
        doubtful = [False] * len(words)
        for at, (first, stop) in enumerate(words):
            if any(heard.order < known for heard in spine[first:stop]):
                doubtful[at] = True
                if at and any(heard.sure < _SURE for heard in spine[slice(*words[at - 1])]):
                    doubtful[at - 1] = True  # it may be the one that is wrong
            elif any(heard.sure < min_sure and not heard.guided for heard in spine[first:stop]):
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
