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

from specedge.runtime.decoding.costs import CostTable
from specedge.runtime.decoding.statistics import Learning
from specedge.runtime.drafters import DraftChain, DraftContext, Drafter, DraftTree, Verdict, WindowContext
from specedge.runtime.drafters.gate import Gate
from specedge.runtime.drafters.guard import NO_DRAFT, Draft
from specedge.runtime.drafters.guesses import Guess, Guesses, joined
from specedge.runtime.drafters.own_verdict import own_verdict
from specedge.runtime.drafters.prices import Prices
from specedge.runtime.drafters.source import Source, settle
from specedge.runtime.drafters.tails import TailDrafter

__all__ = ["CascadeDrafter"]

_MAX_SCALE = 2.0  # what two drafters say is far likelier than what one of them says
_UNSAID = 0.6  # first belief in a node of a drafter that says nothing of how sure it is
_MOST_PATHS = 6  # of several drafters that are looked at
_ALL_SEEN, _SELDOM = 20, 4  # passes that are timed at first, and every so many later

log = logging.getLogger(__name__)


class CascadeDrafter:
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
        self.name, self._choice = name, choice
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
    def choice(self) -> str:
        """Why it is made of these sources, and which of them are silent now; "" where nothing was chosen."""
        silent = ", ".join(source.guard.name for source in self._sources if source.balance.is_silent)
        return self._choice + (f"; silent now: {silent}" if self._choice and silent else "")

    @property
    def _pass_s(self) -> float:
        """Seconds of a pass of one row; 0 until it is known."""
        return self._prices.pass_s if self._weighs else math.inf

    @property
    def model(self) -> Any:
        """The draft model of the source that has one, else None; whoever holds on to it keeps it loaded."""
        models = (getattr(source.drafter, "model", None) for source in self._all)
        return next((model for model in models if model is not None), None)

    @property
    def listens(self) -> bool:
        """Whether a source hears the audio itself."""
        return any(bool(getattr(source.drafter, "listens", False)) for source in self._sources)

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

    def close(self) -> None:
        """Close the sources; from then on there are no drafts."""
        self._sources = []
        for source in self._all:
            close = getattr(source.drafter, "close", None)
            if close is not None:
                close()

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
        if isinstance(tree, DraftChain):
            return DraftChain(tree.ids, tree.sure, origins)
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
