"""Drafts from the text so far: an online cache of n-grams over accepted tokens, bounded in bytes.

There are two caches over text ids: one of this drafter's own life, which is asked first, and where the user wants it
one that is kept in a file (`maps.ngram_cache.UserCache`), from stricter thresholds on. Both learn at the end of a
window, from text that was kept; never from drafts, nor from attempts that were thrown away. `Guesses` says how
long a draft is.
"""

from __future__ import annotations

from specedge.maps.ngram_cache import LAX, STRICT, NgramCache, Thresholds, UserCache, draft_by_counts

from ..decoding.drafter import NO_GUESS, DraftContext, DraftTree
from ..decoding.payoff import Guess, GuessDrafter
from ..device import CostTable

_MAX_DRAFT = 16
_CONTEXT = 4


class NgramDrafter(GuessDrafter):
    """See the module. `close` closes the user's cache."""

    name = "ngram"
    follows_text = True

    def __init__(
        self, costs: CostTable, *, cache: NgramCache | None = None, user_cache: UserCache | None = None
    ) -> None:
        super().__init__(costs)
        self._caches: list[tuple[str, NgramCache | UserCache, Thresholds]] = [("context", cache or NgramCache(), LAX)]
        if user_cache is not None:
            self._caches.append(("user", user_cache, STRICT))

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """What followed the last few text ids before, as far as it is expected to pay."""
        window = self._window
        self._guesses.draft((), 0)  # nothing is proposed
        if window is None or (context.sampled and context.sampled[-1] >= window.eot):
            return NO_GUESS  # behind a timestamp only the audio knows
        text = [token for token in context.sampled[-_CONTEXT:] if token < window.eot]
        if len(text) < _CONTEXT and len(context.sampled) < _CONTEXT:
            text = [*window.history[-_CONTEXT:], *text][-_CONTEXT:]
        for name, cache, thresholds in self._caches:
            ids, shares = draft_by_counts(cache.pairs, text, min(budget, _MAX_DRAFT), thresholds)
            guess = Guess(ids, shares, [(name, depth > 0) for depth in range(len(ids))])
            n_draft, _ = self._guesses.best_length(guess, context.n_pending)
            if n_draft:
                return self._guesses.draft([guess], n_draft)
        return NO_GUESS

    def end(self, tokens: tuple[int, ...]) -> None:
        """Learn from a window whose text was kept."""
        window = self._window
        if window is None or not tokens:
            return
        text = [token for token in tokens if token < window.eot]
        before = list(window.history[-_CONTEXT:])
        for _, cache, _ in self._caches:
            cache.learn([*before, *text], len(before))

    def close(self) -> None:
        """Close the user's cache, if there is one; from then on it knows and learns nothing."""
        for _, cache, _ in self._caches:
            if isinstance(cache, UserCache) and self._owns:
                cache.close()
