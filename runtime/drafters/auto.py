"""The account of whether drafting pays, and `auto`, which has the drafter that takes least time for each window.

How windows are given to candidates is told in docs/drafters.md (auto). The account counts in plain passes, the time of
a pass of one row here and now (`PlainPass`); of a prompt's pass what is left when T(k) of the prompt is taken off, for
a speech LLM's prompt takes as long as many tokens, whoever drafts. A window whose drafts have lost too much is finished
without any. A single drafter is a candidate beside none, so no drafter is slower than none by more than a few percent.

Where an earlier text of the same audio is asked first (`EarlierDrafter`), the window tells nothing of the candidate.
"""

from __future__ import annotations

import copy
import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..decoding.drafter import (
    NO_GUESS,
    Draft,
    DraftContext,
    Drafter,
    DraftTree,
    Guard,
    SharedPass,
    Verdict,
    WindowContext,
)
from ..decoding.statistics import Learning
from ..device import CostTable
from .earlier import EarlierDrafter

PLAIN = "none"
_N_KEPT = 9  # passes that a median is of
_FIRST_EVERY, _SELDOM = 3, 64  # passes with drafts before a plain one is due: at first, and at most
_N_TOKENS = 20  # of a usual window, a short sentence or two
_HOPE = (0.65, 6)  # of plain decoding's time: what a candidate is taken for before it was tried, and as how many tokens
# They follow a voice or do not, so one bad sentence says little; n-grams follow what was said before.
_HOPES = {"ctc": (0.45, 26), "draft": (0.7, 40), "ngram": (0.85, 6)}
_PLAIN_RATE = 0.97  # what plain decoding is taken for: a drafter has to save more, less is not told from nothing
_SHARE = 0.02  # of the time may be lost in trials
_LATEST = 8  # windows of a candidate that count
_FEW = 3  # tokens: a window with fewer tells nothing, for nobody speaks in it
_MOST_LOST = 2.0  # plain passes, before a candidate drafts no more in this window
_MOST_LOST_A_PASS = 3.0  # that one pass counts for at most: whatever took longer was held up by another program
_HELD_UP = 2 * _MOST_LOST  # passes beyond plain decoding's: a window that took more was held up by another program
_MOST_PAID = 32.0  # plain passes that a trial counts as at most
log = logging.getLogger(__name__)


class PlainPass:
    """The time of a plain pass here and now: the median of what the latest passes say of it.

    A pass over a draft says what it took, divided by T(k) and corrected by what plain passes took beside such ones: a
    machine that slows down is seen at once, though plain passes are seldom due. `seconds` is infinite before any pass.
    """

    def __init__(self, costs: CostTable) -> None:
        self.costs = self._alone = costs
        self.seconds = math.inf
        self._latest = deque[tuple[float, bool]](maxlen=_N_KEPT)  # divided by T(k); whether over a draft
        self._beside = deque[float](maxlen=_N_KEPT)  # a plain pass over the drafted ones before it
        self._every, self._n_since = _FIRST_EVERY, 0

    def is_due(self, n_pending: int) -> bool:
        """Whether the next pass should be a plain one, to be measured; a prompt's pass tells nothing."""
        return n_pending == 1 and self._n_since >= self._every and self.costs is self._alone

    def share(self, n_texts: int, n_rows: int) -> None:
        """See `Drafter.share`. The time of a plain pass is measured anew: it is a share now, or no longer one."""
        costs = self._alone.beside(n_texts, n_rows)
        if (self.costs is self._alone) != (costs is self._alone):
            self._latest.clear()
            self._every = self._n_since = _FIRST_EVERY
        self.costs = costs

    def saw(self, seconds: float, n_pending: int, shape: tuple[int, int], shared: SharedPass | None) -> None:
        """A pass took this time; `shape`: its rows and paths, `n_pending` of the rows were no draft's."""
        if shared is not None:  # a plain pass of this text is its share of one without drafts
            row_s = shared.seconds / self._alone.price(shared.n_rows)
            self._latest.append((row_s * self._alone.price(shared.n_texts) / shared.n_texts, False))
        elif n_pending > 1:
            if not self._latest:
                self.seconds = max(seconds / self.costs.price(*shape), 1e-9)
            return
        elif shape == (1, 1):
            drafted = [took for took, is_drafted in self._latest if is_drafted]
            if self._n_since and drafted:
                self._every, self._n_since = min(2 * self._every, _SELDOM), 0
                self._beside.append(seconds / statistics.median(drafted))
            self._latest.append((seconds, False))
        else:
            self._n_since += 1
            self._latest.append((seconds / self.costs.price(*shape), True))
        beside = statistics.median(self._beside or [1.0])
        said = [took * beside if is_drafted else took for took, is_drafted in self._latest]
        self.seconds = max(statistics.median(said), 1e-9)


@dataclass
class _Record:
    """What a candidate took in its latest windows: plain passes, and tokens of the text.

    hoped: the same before it was tried; last_window: the number of the one that it had last.
    """

    hoped: tuple[float, int]
    seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_LATEST))
    last_window: int = 0

    @property
    def rate(self) -> float:
        """What it is taken for, passes for a token."""
        return _passes_a_token([self.hoped, *self.seen])


def _passes_a_token(windows: Collection[tuple[float, int]]) -> float:
    return sum(passes for passes, _ in windows) / sum(n_tokens for _, n_tokens in windows)


class Account:
    """What each candidate took so far, and who gets the next window. Several texts at a time may share it.

    candidates: in the order in which they are tried.
    """

    def __init__(self, candidates: Sequence[str]) -> None:
        hopes = {name: _HOPES.get(name, _HOPE) for name in candidates}
        self._records = {name: _Record((hope * n, n)) for name, (hope, n) in hopes.items()}
        self._purse = 0.0  # plain passes that trials may lose
        self._n_windows, self._n_tokens = 0, _N_TOKENS  # so far; in the last one

    def pick(self, able: Collection[str]) -> str:
        """The candidate for the next window, one of `able` or PLAIN."""
        records = {name: record for name, record in self._records.items() if name in able}
        rates = {**{name: record.rate for name, record in records.items()}, PLAIN: _PLAIN_RATE}
        leader = min(rates, key=rates.__getitem__)
        if leader != PLAIN and not records[leader].seen:
            return leader
        others = [name for name in records if name != leader]
        longest = min(others, key=lambda name: records[name].last_window, default=leader)  # not tried
        return longest if (rates[longest] - rates[leader]) * self._n_tokens <= self._purse else leader

    def book(self, name: str, passes: float, n_tokens: int) -> None:
        """A window of so many tokens took so long, in plain passes, with this candidate or PLAIN."""
        best = min([_PLAIN_RATE, *(record.rate for record in self._records.values() if record.seen)])
        lost = min(passes - best * n_tokens, _MOST_PAID)
        passes = min(passes, n_tokens + _HELD_UP)
        self._n_windows, self._n_tokens = self._n_windows + 1, n_tokens
        self._purse += _SHARE * passes
        record = self._records.get(name)
        if record is None:
            return
        if record.rate > best:  # a trial
            self._purse -= max(lost, 0.0)
        record.seen.append((passes, n_tokens))
        record.last_window = self._n_windows

    def sentences(self) -> list[str]:
        """One for each candidate that was tried, the quickest first; then the others."""
        tried = sorted((_passes_a_token(record.seen), name) for name, record in self._records.items() if record.seen)
        found = [f"{name} is {1 / rate:.2f} times plain decoding{_REST if rate > 1 else ''}" for rate, name in tried]
        untried = [name for name, record in self._records.items() if not record.seen]
        return [*found, *([f"not measured yet: {', '.join(untried)}"] if untried else [])]


_REST = ", so it drafts only now and then, as a trial"


class AutoDrafter(Drafter):
    """See the module.

    drafters: the candidates, of different names; earlier: what is asked before them; costs: the target's T(k); name: of
    the one drafter, where it is not `auto`. weighs: False takes no account of time and gives every candidate its turn,
    as beside a model whose passes are dear.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        costs: CostTable,
        *,
        earlier: Drafter | None = None,
        name: str = "auto",
        weighs: bool = True,
    ) -> None:
        self.name = name
        self._drafters = drafters if earlier is None else (earlier, *drafters)
        self._earlier = Guard(earlier)
        self._guards = {guard.name: guard for guard in map(Guard, drafters)}
        self.sources = (self._earlier.name, *self._guards)
        self._told: Sequence[Guard] = ()  # of this window
        self._account, self._plain, self._weighs = Account(tuple(self._guards)), PlainPass(costs), weighs
        self._n_turns = 0
        self._current: str | None = None  # the candidate of this window, or of the next one
        self._window: WindowContext | None = None
        self._drafted: Guard | None = None  # for this pass
        self._n_pending, self._shape = 1, (1, 1)
        self._proposed_at, self._is_again = 0.0, False  # again: a sample of a window whose text failed
        self._start()

    @property
    def choice(self) -> str:
        return "; ".join(self._account.sentences())

    @property
    def model(self) -> Any:
        """The draft model of the candidate that has one, else None. A reference to it keeps it loaded."""
        return next((drafter.model for drafter in self._drafters if drafter.model is not None), None)

    @property
    def listens(self) -> bool:
        return any(guard.needs("listens") for guard in self._guards.values())

    @property
    def reads_hidden(self) -> bool:
        guard = self._guards.get(self._candidate())
        return guard is not None and guard.needs("reads_hidden")

    @property
    def wants_rows(self) -> bool:
        return any(guard.needs("wants_rows") for guard in self._guards.values())

    @property
    def has_heads(self) -> bool:
        return len(self._guards) == 1 and all(guard.needs("has_heads") for guard in self._guards.values())

    @property
    def learning(self) -> Learning | None:
        found = (guard.learning for guard in self._guards.values())
        return next((learned for learned in found if learned is not None), None)

    def another(self) -> AutoDrafter | None:
        """One of the candidates that can draft for several texts at a time, with the same account."""
        twin = copy.copy(self)
        pairs = ((name, guard.another()) for name, guard in self._guards.items())
        twin._guards = {name: other for name, other in pairs if not other.is_empty}
        twin._earlier = self._earlier.another()
        twin._drafters = (twin._earlier.drafter, *(guard.drafter for guard in twin._guards.values()))
        twin._drafted, twin._told = None, twin._hearing()
        return twin if twin._guards else None

    def share(self, n_texts: int, n_rows: int) -> None:
        self._plain.share(n_texts, n_rows)
        for guard in (self._earlier, *self._guards.values()):
            guard.share(n_texts, n_rows)

    def begin(self, window: WindowContext) -> None:
        """Start a window with the candidate whose turn it is."""
        self._candidate()
        self._start()
        before, self._window = self._window, replace(window, plain_s=self._plain.seconds)
        if before is None or before.features is not window.features or window.temperature > before.temperature:
            self._is_again = before is not None and before.features is window.features
        self._told = self._hearing()
        for guard in self._told:
            guard.begin(self._window)
        earlier = self._earlier.drafter
        self._has_earlier = isinstance(earlier, EarlierDrafter) and earlier.has_drafts
        self._drop_failed()

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """Return the draft of an earlier text, else of the window's candidate."""
        started, window = time.perf_counter(), self._window
        tree, self._drafted, self._n_pending = NO_GUESS, None, context.n_pending
        self._shape = (self._n_pending, 1)
        if window is not None and not (self._weighs and self._plain.is_due(self._n_pending)):
            for guard in self._ready():
                draft = guard.propose(context, budget, n_vocab=window.n_vocab, useless=())
                if draft:
                    self._drafted = guard
                    parents = None if draft.is_chain else draft.parents
                    source = [self.sources.index(guard.name)] * len(draft)
                    tree = DraftTree(draft.ids, parents, draft.conf, source, draft.drawn)
                    n_paths = window.n_paths if self._n_pending == 1 else 1
                    self._shape = _shape_of(draft, self._n_pending, n_paths, budget)
                    break
        self._proposed_at = time.perf_counter()
        self._took(self._proposed_at - started)
        return tree

    def observe(self, verdict: Verdict) -> None:
        """Tell those who drafted what became of it, and keep the time."""
        seen_at = time.perf_counter()
        shared, shape, costs = verdict.shared, self._shape, self._plain.costs
        pass_s = seen_at - self._proposed_at if shared is None else shared.seconds * shape[0] / shared.n_rows
        self._plain.saw(pass_s, self._n_pending, shape, shared)
        plain, price = costs.price(self._n_pending), costs.price(*shape)
        if shape != (self._n_pending, 1):
            # A prompt's pass and a shared one are judged by T(k): there is no plain pass to compare them with.
            is_alone = self._n_pending == 1 and shared is None
            extra = pass_s / self._plain.seconds - 1 if is_alone else price - plain
            self._won += max(verdict.n_accepted - extra, -_MOST_LOST_A_PASS)
        self._n_tokens += verdict.n_accepted + 1
        for guard in self._told:
            if guard is self._drafted or guard.drafter.follows_text:
                guard.observe(verdict)
        if any([guard.error is not None for guard in self._told]):
            self._drop_failed()
        self._spent_s += pass_s * (price - plain + 1) / price  # a prompt is read anyway
        self._took(time.perf_counter() - seen_at)

    def end(self, tokens: tuple[int, ...]) -> None:
        """End the window, and book what it took."""
        for guard in self._told:
            guard.end(tokens)
        self._drop_failed()
        plain_s = self._plain.seconds
        tells = self._weighs and not (self._has_earlier or self._is_again) and self._n_tokens >= _FEW
        if tells and self._current is not None and math.isfinite(plain_s):
            self._account.book(self._current, self._spent_s / plain_s, self._n_tokens)
        self._current = None
        self._start()

    def guess(self, hidden: Any, n_choices: int) -> Any:
        """Return what the heads of the one candidate that has some see behind the last row of `hidden`."""
        (guard,) = self._guards.values()
        return guard.guess(hidden, n_choices)

    def close(self) -> None:
        self._guards = {}
        for drafter in self._drafters:
            drafter.close()

    def _start(self) -> None:
        """A window of which nothing is measured yet."""
        self._spent_s = self._won = 0.0
        self._n_tokens = 0
        self._has_earlier = self._has_begun = False

    def _candidate(self) -> str:
        """The candidate of this window, or of the next one; it is picked when somebody asks first."""
        if self._current is None:
            if self._weighs or not self._guards:
                self._current = self._account.pick(self._guards)
            else:
                self._current = list(self._guards)[self._n_turns % len(self._guards)]
                self._n_turns += 1
        return self._current

    def _hearing(self) -> list[Guard]:
        """The drafters that are told of this window: its candidate, and those that learn from any text."""
        found = [guard for name, guard in self._guards.items() if name == self._current or guard.drafter.follows_text]
        return found if self._earlier.is_empty else [self._earlier, *found]

    def _ready(self) -> list[Guard]:
        """Who is asked for the draft of this pass, the first first."""
        guards = [self._earlier] if self._has_earlier else []
        current = self._guards.get(self._candidate())
        # Samples of a window whose text failed are drafted from that text alone: each loses some passes of others.
        if current is not None and not (self._weighs and (self._is_again or self._won < -_MOST_LOST)):
            guards.append(current)
        return [guard for guard in guards if not guard.is_idle]

    def _took(self, seconds: float) -> None:
        """Drafting took this time. What the first draft takes to hear the window is spent, however it goes on."""
        self._spent_s += seconds
        if self._has_begun and math.isfinite(self._plain.seconds):
            self._won -= min(seconds / self._plain.seconds, _MOST_LOST_A_PASS)
        self._has_begun = True

    def _drop_failed(self) -> None:
        """Go on without candidates that failed."""
        for name, guard in list(self._guards.items()):
            if guard.error is not None:
                del self._guards[name]
                self._told = [other for other in self._told if other is not guard]
                log.warning("the drafter %s failed and is left out of %s: %s", name, self.name, guard.error)


def _shape_of(draft: Draft, n_pending: int, n_paths: int, budget: int) -> tuple[int, int]:
    """Rows and paths of the pass that verifies a draft of at most `budget` nodes behind `n_pending` rows."""
    if draft.is_chain:
        return n_pending + len(draft), 1
    paths = draft.paths(n_paths, budget)
    return len(paths) * (n_pending + max(map(len, paths))), len(paths)
