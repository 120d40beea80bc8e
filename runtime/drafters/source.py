"""One of the drafters that draft together: its fence, what asking it is expected to bring, and whether it still pays.

Whether to ask is decided before every pass, from how often it had a draft lately, what those were expected to gain
beyond the best draft that is there already, and what asking takes. What it adds in the end is kept in a `Balance`: the
tokens that the pass would not have decided without it, less its rows and its time.
Does not know: the other drafters, how drafts are joined, text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from specedge.runtime.drafters import DraftContext, Drafter, Verdict
from specedge.runtime.drafters.balance import Balance
from specedge.runtime.drafters.guard import NO_DRAFT, Draft, Guard

__all__ = ["Source", "settle"]

_FADE, _PRICE_FADE = 0.1, 0.3
_FIRST_SHARE, _FIRST_GAIN = 0.5, 4.0  # before anything was seen: so much that all are asked at first
_OUTLIER = 3.0  # hearing a window is no price of a draft: `Balance` weighs it
_FIRST_S = 1e-5
_TRUST = 2.0
_WORTH_FADE = 0.3
_UNCOUNTED = 0.005  # of a pass: less, for a drafter that had nothing to say, is no loss


class Source:
    """A drafter in its fence.

    draft: what it offered for this pass; gain: what that is expected to save, and price: what a pass over it costs,
    both in passes of one row; n_right: nodes of it that the text says too; alone: what this window has won by it, were
    there no others, and worth: what windows did lately.
    """

    def __init__(self, drafter: Drafter, index: int) -> None:
        self.drafter, self.guard, self.index = drafter, Guard(drafter), index
        self.balance = Balance(_TRUST)
        self.draft: Draft = NO_DRAFT
        self.gain, self.price, self.n_right, self.alone = 0.0, 0.0, 0, 0.0
        self.worth = 0.0
        self.is_asked = False
        self._took_s = 0.0
        self._is_on = self._was_asked = False
        self._share, self._gain, self._price_s = _FIRST_SHARE, _FIRST_GAIN, _FIRST_S
        self._follows = hasattr(drafter, "suspected_loops")  # it watches the text

    def begin(self) -> None:
        """A window starts."""
        self._is_on = self.balance.begin()
        self._was_asked = False
        self.alone = 0.0
        self.rest()

    def rest(self) -> None:
        """Another pass: nothing was asked."""
        self.draft, self.is_asked = NO_DRAFT, False

    def pays(self, best: float, pass_s: float) -> bool:
        """Whether to ask where a draft of an expected gain of `best` is there; pass_s: of a pass of one row."""
        if not self._is_on or self.balance.is_lost or not getattr(self.drafter, "has_drafts", True):
            return False
        if not best or not pass_s:
            return True
        # Gains scatter about as much as they are large: of an exponential distribution this is what lies beyond `best`.
        more = self._share * self._gain * math.exp(-best / self._gain) if self._gain > 0 else 0.0
        return more * pass_s > self._price_s

    def ask(self, context: DraftContext, budget: int, n_vocab: int) -> Draft:
        """Its draft, checked."""
        before = self.guard.seconds
        self.draft = draft = self.guard.propose(context, budget, n_vocab=n_vocab, useless=())
        self._took_s = took_s = self.guard.seconds - before
        self._price_s += _PRICE_FADE * (min(took_s, _OUTLIER * self._price_s) - self._price_s)
        self.is_asked = self._was_asked = True
        self._share += _FADE * (bool(draft) - self._share)
        return draft

    def offers(self, gain: float, price: float) -> None:
        """What its draft is worth, and what the pass would cost that verifies it, both in passes of one row."""
        self.gain, self.price = gain, price
        self._gain += _FADE * (gain - self._gain)

    def tell(self, verdict: Verdict) -> None:
        """What a pass said of its draft, or of the text where it had none; the time counts as its own."""
        self.n_right = len(verdict.nodes)
        if self.is_asked or self._follows:
            before = self.guard.seconds
            self.guard.observe(verdict)
            self._took_s += self.guard.seconds - before

    def book(self, added: float, alone: float, pass_s: float) -> None:
        """A pass for which it was asked: what it added, and would have won alone, in passes of one row."""
        took = self._took_s / pass_s if pass_s else 0.0
        if self.draft or took > _UNCOUNTED:
            self.balance.saved += added - took
            self.alone += alone - took

    def end(self, tokens: tuple[int, ...], said: Sequence[int]) -> None:
        """The window is over; `said` is all that was decided, kept or not."""
        heard = getattr(self.drafter, "heard", None)
        if heard is not None:
            heard(said)
        self.guard.end(tokens)
        if self._was_asked:
            self.worth += _WORTH_FADE * (self.alone - self.worth)
            self.balance.end()
        else:
            self.balance.pass_by(len(said))


def settle(sources: Sequence[Source]) -> None:
    """Before the end of a window: who has lost it.

    Of several that add nothing to each other only the one with the least left has: two that say the same would both
    seem of no use. Without it the others count for what they win alone, and where it falls silent those that were
    silent beside it, though they won alone, are tried again.
    """
    losing = sorted((one for one in sources if one.balance.saved < 0), key=lambda one: one.balance.after())
    for source in losing[1:]:
        source.balance.saved = max(source.balance.saved, min(source.alone, 0.0))
    if losing and not losing[0].balance.is_silent and losing[0].balance.after() <= 0:
        for source in sources:
            if source.balance.is_silent and source.worth > 0:
                source.balance.revive(_TRUST)
