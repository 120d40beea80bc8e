"""Drafts from token maps: what followed the last few tokens in transcripts of the same domain (arXiv 2507.21522).

The context of a guess is the sentence so far, so a draft exists before its first word; for keys that are longer, also
the text before it, which a map of paragraphs knows. Keys are tried from the longest to the shortest, in every map; the
guess that is expected to save most wins, the earlier map at a tie. Up to three of a key's candidates go as a tree where
a pass can verify several paths. `Guesses` says how long a draft is. With
timestamps on, the drafter also guesses that a window begins with speech at once and that a segment begins where the
last one ended; it stops where only the audio knows the time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

from specedge.maps.token_map import Candidate, TokenMap

from ..decoding.drafter import NO_GUESS, DraftContext, DraftTree, WindowContext
from ..decoding.payoff import Guess, GuessDrafter, cut, joined
from ..device import CostTable
from ..text.beginnings import Beginnings
from ..text.words import sentence_so_far

_MAX_NODES = 48
_MOST_PATHS, _MAX_LENGTH = 3, 32  # paths of a tree, and nodes of each
_CONTEXT = 8
_HOPELESS = 0.05  # a path this unlikely is followed no further
_ENOUGH_KEYS = 1  # hits a map that are looked at; shorter keys seldom know better
_AT_ONCE = 0.5  # first belief that a window, and a segment behind another, begins where the last one ended


class TokenMapDrafter(GuessDrafter):
    """See the module.

    ends: whether a sentence ends with a text id; beginnings: of texts that begin otherwise than the map's sentences,
    None where they do not; orders: lengths of keys to try, longest first. `close` closes the maps.
    """

    name = "tokenmap"
    _reads_on = True  # the text before the sentence, for keys that are longer

    def __init__(
        self,
        maps: Sequence[TokenMap],
        costs: CostTable,
        *,
        ends: Callable[[int], bool],
        orders: tuple[int, ...] = (5, 4, 3, 2, 1),
        beginnings: Beginnings | None = None,
    ) -> None:
        super().__init__(costs)
        self._maps = tuple(maps)
        self._beginnings = beginnings
        self._ends = functools.cache(ends)
        self._orders = orders

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """Return the guess that is expected to save most; nothing where none is expected to."""
        window = self._window
        if window is None:
            return NO_GUESS
        limit, n_pending = min(budget, _MAX_NODES), context.n_pending
        paths = self._paths(window, context, limit, n_pending)
        return self._guesses.draft(self._chosen(paths, n_pending, window.n_paths), limit)

    def close(self) -> None:
        maps, self._maps = self._maps, ()
        for map_ in maps if self._owns else ():
            map_.close()

    def _paths(self, window: WindowContext, context: DraftContext, limit: int, n_pending: int) -> list[Guess]:
        """Candidate paths, best first, all of one key; behind a timestamp where one has to come first."""
        opening = self._opening(window, context)
        sampled: Sequence[int] = context.sampled
        if self._beginnings is not None:
            sampled = self._beginnings.spaced([token for token in sampled if token < window.eot])
        text = text_so_far(window.history, sampled, window.eot) if self._reads_on else ()
        sentence = sentence_so_far(sampled, window.eot, self._ends) if opening is None else ()
        limit -= opening is not None
        paths = self._best_key(sentence, text, limit, n_pending, window.n_paths)
        if self._beginnings is not None and not sampled:
            paths = [_begun(guess, self._beginnings) for guess in paths]
        return paths if opening is None else [joined(opening, guess) for guess in paths] or [opening]

    def _opening(self, window: WindowContext, context: DraftContext) -> Guess | None:
        """The timestamp that opens a segment, where its time can be guessed: at once, or when the last one ended."""
        sampled, begin = context.sampled, window.timestamp_begin
        if not sampled:
            return Guess([begin], [_AT_ONCE], ["first"]) if window.has_times(context.prompt) else None
        if sampled[-1] >= begin and len(sampled) > 1 and begin > sampled[-2]:
            return Guess([sampled[-1]], [_AT_ONCE], ["pair"])
        return None

    def _best_key(
        self, sentence: tuple[int, ...], text: tuple[int, ...], limit: int, n_pending: int, n_paths: int
    ) -> list[Guess]:
        """The candidates of the key whose first one is expected to save most."""
        best: tuple[Guess, TokenMap, int, range, tuple[int, ...]] | None = None
        best_gain = 0.0
        n_looked = 0
        for map_, n, known in self._keys(sentence, text):
            numbers = map_.find(known, n)
            if not numbers:
                continue
            guess = self._followed(map_, n, map_.candidate(numbers[0]), known, limit)
            if not guess.tokens:
                continue
            gain = self._guesses.best_length(guess, n_pending)[1]
            if best is None or gain > best_gain:
                best, best_gain = (guess, map_, n, numbers, known), gain
            n_looked += 1
            if n_looked == _ENOUGH_KEYS * len(self._maps):
                break
        if best is None:
            return []
        guess, map_, n, numbers, known = best
        n_more = min(_MOST_PATHS, n_paths) if n_pending == 1 else 1
        others = [self._followed(map_, n, map_.candidate(number), known, limit) for number in numbers[1:n_more]]
        return [guess, *(other for other in others if other.tokens)]

    def _chosen(self, paths: list[Guess], n_pending: int, n_paths: int) -> list[Guess]:
        """Of candidate paths what is expected to pay."""
        return self._guesses.worth_while(paths, n_pending, n_paths)

    def _keys(
        self, sentence: tuple[int, ...], text: tuple[int, ...]
    ) -> Iterator[tuple[TokenMap, int, tuple[int, ...]]]:
        """Maps, lengths of keys and what they are the end of: the text where the sentence is too short for them."""
        n_sentence, n_text = len(sentence), len(text)
        for n in self._orders:
            for map_ in self._maps:
                if n > map_.n_orders:
                    continue
                if n_sentence < n <= n_text:
                    yield map_, n, text
                if n <= n_sentence + 1:
                    yield map_, n, sentence

    def _followed(self, map_: TokenMap, n: int, candidate: Candidate, known: tuple[int, ...], limit: int) -> Guess:
        """A candidate, and where it breaks off before the sentence ends, what most often followed it in the map."""
        limit = min(limit, _MAX_LENGTH)
        guess = Guess([], [], [])
        tokens = guess.tokens
        sure = 1.0
        while candidate.tokens:
            sure *= _add(guess, n, candidate)
            if candidate.ends or len(tokens) >= limit or sure < _HOPELESS:
                break
            context = [*known, *tokens][-_CONTEXT:]
            for n in self._orders:
                numbers = map_.find(context, n) if 1 < n <= min(map_.n_orders, len(context)) else range(0)
                if numbers:
                    break
            else:
                break
            candidate = map_.candidate(numbers[0])
        return cut(guess, limit)


def _begun(guess: Guess, beginnings: Beginnings) -> Guess:
    """A guess at a window's first words, the first of them in the tokens that it has there."""
    tokens, ids = beginnings.bare(guess.tokens), guess.tokens
    if tokens is ids:
        return guess
    n = beginnings.first_word(ids)
    n_there = len(tokens) - len(ids) + n
    confidences = [math.prod(guess.confidences[:n]), *[1.0] * (n_there - 1), *guess.confidences[n:]]
    return Guess(list(tokens), confidences, [*guess.classes[:1] * n_there, *guess.classes[n:]])


def text_so_far(history: Sequence[int], sampled: Sequence[int], eot: int) -> tuple[int, ...]:
    """The last text ids of the audio before and of this window, without timestamps, for keys longer than a sentence."""
    recent = sampled if len(sampled) >= 3 * _CONTEXT else (*history[-_CONTEXT:], *sampled)
    return tuple([token for token in recent[-3 * _CONTEXT :] if token < eot][-_CONTEXT:])


def _add(guess: Guess, n: int, candidate: Candidate) -> float:
    """Append a candidate of a key of `n` ids, which has tokens; how sure the map is of all of it."""
    known = candidate.confidences[: len(candidate.tokens)]
    n_seen = candidate.count / known[0] if known[0] else 0.0
    is_rare = n_seen < 4
    guess.classes.append((n, is_rare, bool(guess.tokens)))
    guess.classes.extend([(n, is_rare, True)] * (len(known) - 1))
    guess.confidences.append(known[0] * (n_seen / (n_seen + 1)))  # what was seen once is no law
    guess.confidences.extend(known[1:])
    guess.tokens.extend(candidate.tokens)
    return math.prod(known)
