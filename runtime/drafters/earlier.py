"""Drafts from earlier decodings of the same audio: at another temperature, another sample, or in an overlapping window.

Attempts at one window share what was decoded in all of them, whether it was kept or thrown away; a window is recognised
by its features. Where audio is decoded a second time in other windows, as in live transcription, the caller hands over
the former text (`WindowContext.earlier`). A text is followed from the place where the longest run of tokens before it
equals the latest tokens of this one. Timestamps of a window that begins elsewhere are moved by as much as the last ones
differed. Confidences are calibrated by what came of them (`Guesses`).
"""

from __future__ import annotations

import copy
import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ..decoding.drafter import NO_GUESS, DraftContext, DraftTree, Verdict, WindowContext
from ..decoding.payoff import Guess, GuessDrafter
from ..device import CostTable

_MAX_DRAFT = 48
_N_TEXTS = 3  # of one window
_N_WINDOWS = 32
_N_BACK = 4  # tokens that a place in a text is told by
_TAIL = 3  # the end of a live text was said of a word that was cut off
# Before anything was seen, by the number of tokens in a row that agreed.
_FIRST_BELIEFS = (0.4, 0.75, 0.85, 0.9, 0.95)
_N_PARTS = 16  # of the features by which a window is known again


class EarlierDrafter(GuessDrafter):
    """See the module. It keeps at most `_N_WINDOWS` windows of `_N_TEXTS` texts, four bytes a token."""

    name = "earlier"
    follows_text = True

    def __init__(self, costs: CostTable) -> None:
        super().__init__(costs)
        self._key: bytes | None = None
        self._known: OrderedDict[bytes, list[array[int]]] = OrderedDict()
        self._texts: list[_Text] = []
        self._said: list[int] = []
        self._n_followed = 0

    @property
    def has_drafts(self) -> bool:
        """Whether anything is known of this window."""
        return bool(self._texts)

    def another(self) -> Self:
        """One that shares the texts of all windows, and what they are worth."""
        twin = super().another()
        twin._said = list(self._said)
        twin._texts = [copy.copy(text) for text in self._texts]
        return twin

    def begin(self, window: WindowContext) -> None:
        """Look up what was said of this window."""
        super().begin(window)
        self._said, self._n_followed = [], 0
        self._key = _fingerprint(window.features)
        known = () if self._key is None else self._known.get(self._key, ())
        self._texts = [_Text("same", text.tolist(), window.timestamp_begin) for text in reversed(known)]
        if window.earlier:
            self._texts.append(_Text("overlap", window.earlier, window.timestamp_begin))

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """How earlier texts go on from here, as far as that is expected to pay."""
        window = self._window
        if window is None or not self._texts:
            return NO_GUESS
        for at in range(self._n_followed, len(context.sampled)):
            for text in self._texts:
                text.follow(context.sampled, at)
        self._n_followed = len(context.sampled)
        limit = min(budget, _MAX_DRAFT)
        found: list[tuple[int, Guess]] = []
        for text in self._texts:
            guess = text.rest(limit, window)
            if guess.tokens and all(guess.tokens != other.tokens for _, other in found):
                found.append((text.run, guess))
        found.sort(key=lambda one: -one[0])
        paths = self._guesses.worth_while([guess for _, guess in found], context.n_pending, window.n_paths)
        return self._guesses.draft(paths, limit)

    def observe(self, verdict: Verdict) -> None:
        """Hold the texts to what came of them, and write this one down."""
        super().observe(verdict)
        self._said += [*verdict.accepted, verdict.token]

    def end(self, tokens: tuple[int, ...]) -> None:
        """Keep the text, also one that was thrown away: what was wrong with it may be a few tokens."""
        window, key = self._window, self._key
        said = list(tokens) or self._said
        if window is None or key is None:
            return
        if said and said[-1] == window.eot:
            said = said[:-1]
        if not said:
            return
        texts = self._known.setdefault(key, [])
        self._known.move_to_end(key)
        kept = array("i", said)
        if kept in texts:
            texts.remove(kept)
        texts.append(kept)
        del texts[:-_N_TEXTS]
        if len(self._known) > _N_WINDOWS:
            self._known.popitem(last=False)


class _Text:
    """One earlier text, and where in it the present one stands. run: how many tokens in a row agreed."""

    def __init__(self, kind: str, tokens: Sequence[int], timestamp_begin: int) -> None:
        self.run = 0
        self._kind, self._tokens, self._begin = kind, list(tokens), timestamp_begin
        self._at = self._shift = 0
        self._places: dict[int, list[int]] = {}
        for at, token in enumerate(self._tokens):
            self._places.setdefault(token, []).append(at)

    def follow(self, said: Sequence[int], last: int) -> None:
        """The present text is `said` up to its token `last`, one more than before."""
        token, here = said[last], self._at
        expected = self._tokens[here] if here < len(self._tokens) else -1
        if token == expected or (token >= self._begin and expected >= self._begin):
            if token >= self._begin and self._kind == "overlap":
                self._shift = token - expected
            self._at, self.run = here + 1, self.run + 1
            return
        if token >= self._begin:  # one that the text does not have here
            return
        best, best_run = -1, 0
        for place in self._places.get(token, ()):
            run = self._agreeing(said, last, place)
            if run > best_run or (run == best_run and abs(place - here) < abs(best - here)):
                best, best_run = place, run
        self.run = best_run
        self._at = best + 1 if best_run else here + 1  # else said in place of the one that was expected

    def rest(self, limit: int, window: WindowContext) -> Guess:
        """How the text goes on."""
        rest = self._tokens[self._at : self._at + limit]
        n_left = len(self._tokens) - self._at
        guess = Guess([], [], [])
        for depth, token in enumerate(rest):
            is_time = token >= self._begin
            if is_time:
                token = min(max(token + self._shift, self._begin), window.n_vocab - 1)
            sure = min(self.run + depth, len(_FIRST_BELIEFS) - 1)
            belief = _FIRST_BELIEFS[sure or self._at == 0]  # a text is likely to begin like another
            guess.add(token, belief, (self._kind, sure, is_time, n_left - depth <= _TAIL))
        return guess

    def _agreeing(self, said: Sequence[int], last: int, place: int) -> int:
        """How many tokens up to `place` are those up to `last` of what was said, at most `_N_BACK`."""
        n = 0
        while n < _N_BACK and n <= last and n <= place and said[last - n] == self._tokens[place - n]:
            n += 1
        return n


def _fingerprint(features: Any) -> bytes | None:
    """What tells a window's features from others; None where they cannot be looked at."""
    hidden = getattr(features, "hidden", None)
    if not isinstance(hidden, np.ndarray) or hidden.ndim != 2 or not hidden.size:
        return None
    step = max(1, len(hidden) // _N_PARTS)
    return hashlib.blake2b(hidden[::step, :_N_PARTS].tobytes(), digest_size=16).digest()
