"""Several drafters as one: the cheapest asked first, dearer ones only where they are expected to pay more than that.

Each source is a drafter of its own, with prices of its own, in a fence of its own: one that raises is dropped with a
warning, and the others go on. What they offer for a pass is weighed by T(k) and by what came of such offers (`gate`):
the best draft goes as it is, with the rest of any other that begins like it, and where a pass can verify several paths
those that are expected to add more than their rows, as one tree without twins (`guesses`). Each source then hears what
the text says of its own draft, whether that was verified or not (`own_verdict`).

A source that adds nothing falls silent, for twice as many windows after each try that failed. What counts is measured
time, in passes of one row: what a pass would have decided without the source, its rows, and the time of asking
(`source`). Where one source is left, that is what it wins against plain decoding. What the tries and the cascade's own
work cost is charged to nobody: where a pass takes a millisecond, it is slower than its best source.

Source: algorithms 2.3 (cascade), 3.4; arXiv 2507.21522, open question 3.
Does not know: which drafters there are (`by_name`), text, audio.

One of the drafters that draft together: its fence, what asking it is expected to bring, and whether it still pays.

Whether to ask is decided before every pass, from how often it had a draft lately, what those were expected to gain
beyond the best draft that is there already, and what asking takes. What it adds in the end is kept in a `Balance`: the
tokens that the pass would not have decided without it, less its rows and its time.
Does not know: the other drafters, how drafts are joined, text.

What a pass says of one drafter's own draft, whether that was verified, in part or not at all.

The text that was decided judges every draft: the tokens of a draft are right as long as the text says the same. With
an acceptance rule that may keep other tokens than the model's own, the text is what was kept.
Does not know: who the drafters are, how drafts are joined.

Drafts from what was refused: the rest of a draft behind its first wrong token, offered again (SpecASR).

A drafter that hears or remembers the right sentence is often wrong in one token only. The rest is aligned by the token
that the model said instead: it took the wrong one's place, or it comes up further on in the draft, which then had some
tokens too many, or it was said besides. How far each of these is believed is learned from what came of them. The rest
is kept, and aligned anew behind each correction, until several in a row were wrong or another draft is refused.

Source: "SpecASR", arXiv 2507.18181 (the recycling of rejected suffixes), with costs (algorithms 2.3).
Does not know: who drafted, text, audio.
"""

from __future__ import annotations

import itertools
import logging
import math
import operator
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..decoding.drafter import (
    NO_DRAFT,
    Draft,
    DraftContext,
    Drafter,
    DraftTree,
    Guard,
    Verdict,
    WindowContext,
)
from ..decoding.payoff import Balance, Gate, Guess, Guesses, Prices, RowCosts, joined
from ..decoding.statistics import Learning
from ..device import CostTable

__all__ = ["CascadeDrafter", "Source", "TailDrafter", "own_verdict", "settle"]

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
        if not self._is_on or self.balance.is_lost or not self.drafter.has_drafts:
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
        if self.is_asked or self.drafter.follows_text:
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
        self.guard.heard(said)
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


def own_verdict(draft: Draft, verdict: Verdict, *, n_rows: int, pass_s: float) -> Verdict:
    """`verdict` of the pass in terms of the tree that `draft` was checked from; n_rows, pass_s: what the pass took."""
    text = [*verdict.accepted, verdict.token]
    right, known, refused = _chain(draft, text) if draft.is_chain else _tree(draft, text)
    nodes = draft.nodes
    return Verdict(
        drafted=verdict.drafted,
        n_accepted=verdict.n_accepted,
        token=verdict.token,
        finished=verdict.finished,
        evaluated=tuple([nodes[node] for node in known]),
        nodes=tuple([nodes[node] for node in right]),
        rejected=None if refused is None else nodes[refused],
        rows=verdict.rows,
        n_rows=n_rows,
        pass_s=pass_s,
    )


def _chain(draft: Draft, text: Sequence[int]) -> tuple[Sequence[int], Sequence[int], int | None]:
    """Nodes that are right, nodes about which the text decided, and the first that is wrong."""
    n = 0
    for token, said in zip(draft.ids, text, strict=False):
        if token != said:
            return range(n), range(n + 1), n
        n += 1
    return range(n), range(n), None


def _tree(draft: Draft, text: Sequence[int]) -> tuple[Sequence[int], Sequence[int], int | None]:
    """The same; of several wrong siblings the best is the refused one."""
    right, known = list[int](), list[int]()
    here = -1
    for said in text:
        children = [node for node, parent in enumerate(draft.parents) if parent == here]
        known += children
        here = next((node for node in children if draft.ids[node] == said), -1)
        if here < 0:
            return right, known, children[0] if children else None
        right.append(here)
    return right, known, None


_N_AHEAD = 4  # tokens among which the corrected one is looked for
_MOST_WRONG = 3  # in a row, before the rest is given up
_FIRST_BELIEFS = {"said": 0.8, "ahead": 0.5, "instead": 0.4, "besides": 0.2}
_BEHIND = 0.8  # first belief in a token behind the first one of a rest


class TailDrafter(Drafter):
    """See the module. `refused` hands it what the last pass made of the best draft."""

    name = "recycled"

    def __init__(self, costs: RowCosts) -> None:
        self._guesses = Guesses(Gate(costs))
        self._n_paths = 1
        self._path: list[int] = []
        self._places: list[tuple[str, int]] = []  # where in it the model may stand, and why; the first is the usual one
        self._n_wrong = self._source = 0

    @property
    def has_drafts(self) -> bool:
        """Whether there is anything to offer."""
        return bool(self._places)

    def begin(self, window: WindowContext) -> None:
        """Another window: nothing was refused."""
        self._n_paths = window.n_paths
        self._places = []

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """The rest, as far as it is expected to pay."""
        paths = [self._guess(rest, kind) for kind, at in self._places if (rest := self._path[at : at + budget])]
        if len(paths) > 1:
            paths.sort(key=lambda path: -self._guesses.believed(path)[0])
        n_pending = len(context.prompt) + len(context.sampled) - context.position
        return self._guesses.draft(self._guesses.worth_while(paths, n_pending, self._n_paths), budget)

    def observe(self, verdict: Verdict) -> None:
        """Hold the alignments to what came of them."""
        self._guesses.learn(verdict)

    def end(self, tokens: tuple[int, ...]) -> None:
        """Nothing outlives a window."""
        self._places = []

    def refused(self, text: Sequence[int], path: Sequence[int], source: int = 0) -> None:
        """A pass decided `text`; `path` is the best draft of the others, () for none, `source` tells whose it is."""
        n = next((i for i, (token, said) in enumerate(zip(path, text, strict=False)) if token != said), -1)
        if n >= 0 and n + 1 < len(path):  # something was wrong, and something is left behind it
            self._path, self._places, self._n_wrong, self._source = list(path), [("said", n)], 0, source
            text = text[n:]
        for said in text:
            if self._places:
                self._follow(said)

    def _follow(self, said: int) -> None:
        """Move on by one token."""
        path = self._path
        agreeing = [at for _, at in self._places if at < len(path) and path[at] == said]
        if agreeing:
            self._places, self._n_wrong = [("said", agreeing[0] + 1)], 0
            return
        at = self._places[0][1]
        self._n_wrong += 1
        if self._n_wrong > _MOST_WRONG or at >= len(path):
            self._places = []
            return
        self._places = [("instead", at + 1), ("besides", at)]
        if said in path[at + 1 : at + 1 + _N_AHEAD]:
            self._places.append(("ahead", path.index(said, at + 1) + 1))

    def _guess(self, tokens: list[int], kind: str) -> Guess:
        """A path of a rest; what is left of one drafter's drafts is worth more than of another's."""
        n, source = len(tokens) - 1, self._source
        behind = (source, kind in ("said", "ahead"), "behind")
        return Guess(tokens, [_FIRST_BELIEFS[kind], *[_BEHIND] * n], [(source, kind), *[behind] * n])


_MAX_SCALE = 2.0  # what two drafters say is far likelier than what one of them says
_UNSAID = 0.6  # first belief in a node of a drafter that says nothing of how sure it is
_MOST_PATHS = 6  # of several drafters that are looked at
_ALL_SEEN, _SELDOM = 20, 4  # passes that are timed at first, and every so many later
log = logging.getLogger(__name__)


class CascadeDrafter(Drafter):
    """See the module.

    drafters: the cheapest first, of different names; costs: the target's T(k); name: in results; choice: why it is made
    of these, for who asks. Refused drafts are offered again (`tails`) before any other where `recycles`. weighs: False
    takes no account of time, as beside a model whose passes are dear.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        costs: CostTable,
        *,
        name: str = "cascade",
        choice: str = "",
        recycles: bool = True,
        weighs: bool = True,
    ) -> None:
        self.name = name
        self.choice = self._choice = choice
        self._tails = TailDrafter(costs) if recycles and drafters else None
        every: list[Drafter] = [*([] if self._tails is None else [self._tails]), *drafters]
        self._sources = [Source(drafter, index) for index, drafter in enumerate(every)]
        self.sources = tuple(source.guard.name for source in self._sources)
        self._all = tuple(self._sources)
        self._weighs, self._prices = weighs, Prices(costs, draft_cost=0.0, window_cost=0.0)
        self._gate = Gate(costs, max_scale=_MAX_SCALE)
        self._guesses = Guesses(self._gate)
        self._window: WindowContext | None = None
        self._sampled: tuple[int, ...] = ()
        self._decided: tuple[int, ...] = ()
        self._main: Sequence[int] = ()
        self._n_pending = self._n_rows = 1
        self._spent = 1.0  # passes of one row that the pass should cost
        self._n_passes = self._main_source = 0
        self._proposed_at = 0.0

    @property
    def _pass_s(self) -> float:
        """Seconds of a pass of one row; 0 until it is known."""
        return self._prices.pass_s if self._weighs else math.inf

    @property
    def model(self) -> Any:
        """The draft model of the source that has one, else None; whoever holds on to it keeps it loaded."""
        models = (source.drafter.model for source in self._all)
        return next((model for model in models if model is not None), None)

    @property
    def listens(self) -> bool:
        """Whether a source hears the audio itself."""
        return any(source.guard.listens for source in self._sources)

    @property
    def reads_hidden(self) -> bool:
        """Whether a source that will draft in the next window reads the decoder's hidden rows."""
        return any(source.balance.is_due and source.guard.reads_hidden for source in self._sources)

    @property
    def wants_rows(self) -> bool:
        """Whether a source learns from the model's own rows."""
        return any(source.guard.wants_rows for source in self._sources)

    @property
    def suspected_loops(self) -> int:
        """Windows that a source took for a text that goes round in a circle."""
        return max((source.guard.suspected_loops for source in self._all), default=0)

    @property
    def learning(self) -> Learning | None:
        """What the source that learns did."""
        found = [learned for source in self._all if (learned := source.guard.learning) is not None]
        return found[0] if found else None

    def begin(self, window: WindowContext) -> None:
        """A window starts for all of them."""
        self._window, self._sampled, self._decided = window, (), ()
        for source in self._sources:
            source.begin()
            source.guard.begin(window)
        self._drop_failed()

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """What the sources guess together."""
        self._sampled = context.sampled
        self._n_pending = len(context.prompt) + len(context.sampled) - context.position
        for source in self._sources:
            source.rest()
        window = self._window
        offers = [] if window is None else self._offers(window, context, budget)
        tree = self._joined(offers, budget, 1 if window is None else window.n_paths)
        self._proposed_at = time.perf_counter()
        return tree

    def observe(self, verdict: Verdict) -> None:
        """Tell each source what became of its own draft, and keep account of all."""
        pass_s, n_rows = time.perf_counter() - self._proposed_at, self._n_rows
        self._see(pass_s, n_rows)
        self._guesses.learn(verdict)
        self._decided = (*verdict.accepted, verdict.token)
        nothing = own_verdict(NO_DRAFT, verdict, n_rows=n_rows, pass_s=pass_s)
        offering = [source for source in self._sources if source.draft]
        for source in self._sources:
            own = own_verdict(source.draft, verdict, n_rows=n_rows, pass_s=pass_s) if source.draft else nothing
            source.tell(own)
        if self._tails is not None:
            self._tails.refused(self._decided, self._main, self._main_source)
        self._drop_failed()
        self._book(verdict.n_accepted, offering)

    def end(self, tokens: tuple[int, ...]) -> None:
        """The window is over for all of them."""
        settle(self._sources)
        said = (*self._sampled, *self._decided)
        for source in self._sources:
            source.end(tokens, said)
        self._drop_failed()
        silent = ", ".join(source.guard.name for source in self._sources if source.balance.is_silent)
        self.choice = self._choice + (f"; silent now: {silent}" if self._choice and silent else "")

    def close(self) -> None:
        """Close the sources; from then on there are no drafts."""
        self._sources = []
        for source in self._all:
            source.drafter.close()

    def _offers(self, window: WindowContext, context: DraftContext, budget: int) -> list[tuple[Source, list[Guess]]]:
        """The drafts of the sources that are worth asking, with their paths, the best first."""
        found: list[tuple[Source, list[Guess]]] = []
        best, pass_s, n_pending = 0.0, self._pass_s, self._n_pending
        n_paths = window.n_paths if n_pending == 1 else 1
        for source in self._sources:
            if not source.pays(best, pass_s):
                continue
            draft = source.ask(context, budget, window.n_vocab)
            if not draft:
                continue
            paths = [_guess(draft, path, source.index) for path in draft.paths(n_paths, budget)]
            gain = self._gate.best_chain(self._guesses.believed(paths[0]), n_pending)[1]
            source.offers(gain, self._price(paths, n_pending))
            found.append((source, paths))
            best = max(best, gain)
        found.sort(key=lambda offer: -offer[0].gain)
        return found

    def _joined(self, offers: list[tuple[Source, list[Guess]]], budget: int, n_paths: int) -> DraftTree:
        """One tree of all offers, as far as it is expected to pay."""
        self._main, self._n_rows = (), self._n_pending
        self._spent = self._gate.price(self._n_pending)
        if not offers:
            return self._guesses.draft((), 0)
        source, paths = offers[0]
        if source.drafter is not self._tails:
            self._main, self._main_source = paths[0].tokens, source.index
        if len(offers) > 1:
            merged = _merged(paths, [path for _, found in offers[1:] for path in found], self._guesses.believed)
            paths = self._guesses.worth_while(merged, self._n_pending, n_paths) or paths
        tree = self._guesses.draft(paths, budget)
        self._n_rows, self._spent = _n_rows(paths, self._n_pending), self._price(paths, self._n_pending)
        if len(offers) == 1:
            origins = [source.index] * len(tree)
        else:
            origins = [class_[0] for class_ in self._guesses.classes if isinstance(class_, tuple)]
        if tree.parents is None:
            return DraftTree(tree.tokens, conf=tree.conf, source=origins)
        return replace(tree, source=np.array(origins, np.uint8))

    def _price(self, paths: Sequence[Guess], n_pending: int) -> float:
        """What a pass over these paths costs, in passes of one row."""
        return self._gate.price(_n_rows(paths, n_pending), len(paths))

    def _see(self, pass_s: float, n_rows: int) -> None:
        """What a pass took; once that is known well, now and then."""
        self._n_passes += 1
        if self._n_passes < _ALL_SEEN or self._n_passes % _SELDOM == 0:
            self._prices.saw_pass(pass_s, n_rows)

    def _book(self, n_all: int, offering: list[Source]) -> None:
        """What each source has added to a pass that accepted `n_all` drafts, in passes of one row."""
        pass_s, plain = self._pass_s, self._gate.price(self._n_pending)
        for source in self._sources:
            if not source.is_asked:
                continue
            added = alone = 0.0
            if source.draft:
                alone = min(source.n_right, n_all) - (source.price - plain)
                added = n_all - (self._spent - plain)
                if len(offering) > 1:  # without it the best of the others would have gone
                    others = [other for other in offering if other is not source]
                    instead = max(others, key=lambda other: other.gain)
                    added -= min(instead.n_right, n_all) - (instead.price - plain)
            source.book(added, alone, pass_s)

    def _drop_failed(self) -> None:
        """Go on without sources that failed."""
        failed = [source for source in self._sources if source.guard.error is not None]
        for source in failed:
            self._sources.remove(source)
            log.warning(
                "the drafter %s failed and is left out of %s: %s", source.guard.name, self.name, source.guard.error
            )


def _guess(draft: Draft, path: Sequence[int], index: int) -> Guess:
    """A path of a source's draft, as the cascade judges it."""
    conf = draft.conf
    tokens = [draft.ids[node] for node in path]
    sure = [_UNSAID if conf is None or not 0 <= conf[node] <= 1 else conf[node] for node in path]
    classes: list[Hashable] = [(index, depth > 0, int(4 * belief)) for depth, belief in enumerate(sure)]
    return Guess(tokens, sure, classes)


def _merged(paths: list[Guess], others: list[Guess], believed: Callable[[Guess], list[float]]) -> list[Guess]:
    """The best draft's first path, with the rest of any that begins with all of it, then the others.

    Those come first that are expected to add most. What two drafters say alike, and what is beside the first path, are
    kept apart for the gate's experience.
    """
    first, n_agreed = paths[0], 0
    beside: list[tuple[float, Guess]] = []
    for at, path in enumerate([*paths[1:], *others]):
        is_other = at >= len(paths) - 1
        n = _n_alike(first, path)
        if is_other:
            n_agreed = max(n_agreed, n)
        if n < min(len(first.tokens), len(path.tokens)):
            if is_other:
                marked = [(*_known(class_), "beside") for class_ in path.classes[n:]]
                path = Guess(path.tokens, path.confidences, [*path.classes[:n], *marked])
            reached = list(itertools.accumulate(believed(path), operator.mul))
            beside.append((sum(reached[n:]), path))
        elif len(path.tokens) > n:
            first = joined(first, Guess(path.tokens[n:], path.confidences[n:], path.classes[n:]))
    beside.sort(key=lambda one: -one[0])
    agreed: list[Hashable] = [(*_known(class_), "agreed") for class_ in first.classes[:n_agreed]]
    first = Guess(first.tokens, first.confidences, agreed + first.classes[n_agreed:])
    return [first, *(path for _, path in beside[: _MOST_PATHS - 1])]


def _n_alike(a: Guess, b: Guess) -> int:
    """How many tokens two paths begin with alike."""
    n = 0
    for mine, theirs in zip(a.tokens, b.tokens, strict=False):
        if mine != theirs:
            break
        n += 1
    return n


def _known(class_: Hashable) -> tuple[Hashable, ...]:
    return class_ if isinstance(class_, tuple) else (class_,)


def _n_rows(paths: Sequence[Guess], n_pending: int) -> int:
    """Rows of a pass over paths: several go as batch rows of one length."""
    longest = max(len(path.tokens) for path in paths)
    return n_pending + longest if len(paths) == 1 else len(paths) * (n_pending + longest)
