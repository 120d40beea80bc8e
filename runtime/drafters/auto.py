"""`auto`: the drafter that takes least time, window by window.

A window is decoded with one candidate, a drafter or plain decoding. `Trials` keeps what each took: decoding and
drafting, over whole windows, for each token of the text, in plain passes; of a prompt's pass what is left when T(k) of
the prompt is taken off, for a speech LLM's prompt takes as long as many tokens, whoever drafts. The quickest gets the
next window. What a candidate is hoped to take counts a little beside it, so candidates are tried one after another
until one is quick; later one of the others is tried now and then, as often as a small share of the time pays for. Plain
decoding needs no trial: its passes are timed in every window. Where a window's drafts have lost too much, a candidate
that needs the text alone relieves the first one, and where its drafts lose, too, the window is finished without any.

What is measured stays with the drafter, and so with the model object that keeps it. Until then a verdict of `specedge
bench` for this model, device and number of threads says who begins.

Beside every candidate stands what the same audio gave when it was decoded before (`EarlierDrafter`): where there is
such a text, it is asked first, and the window tells nothing of the candidate.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..decoding.drafter import (
    NO_DRAFT,
    NO_GUESS,
    Draft,
    DraftContext,
    Drafter,
    DraftTree,
    Guard,
    Verdict,
    WindowContext,
)
from ..decoding.payoff import PlainPass, pass_gain
from ..decoding.statistics import Learning
from ..device import CostTable, Profile
from ..verdict import PLAIN, BenchVerdict
from .cascade import own_verdict, shape_of, tree_of

__all__ = ["AutoDrafter", "Choice", "Trials", "choose", "quickest_threads"]

_N_TOKENS = 20  # of a usual window, a short sentence or two
_HOPE = (0.65, 6)  # of plain decoding's time: what a candidate is taken for before it was tried, and as how many tokens
_HOPES = {"ctc": (0.45, 26)}  # it follows a voice or does not, so one bad sentence is no verdict
_BEHIND = 1.3  # times the time of the one that bench found best: the others, before they were tried
_PLAIN_RATE = 0.97  # what plain decoding is taken for: a drafter has to save more, less is not told from nothing
_SHARE = 0.02  # of the time may be lost in trials
_LATEST = 8  # windows of a candidate that count
_FEW = 3  # tokens: a window with fewer tells nothing, for nobody speaks in it
_MOST_LOST = 2.0  # plain passes, before a candidate drafts no more in this window
_RELIEF_LOST = 1.0  # by the one that relieves it
_HELD_UP = 2 * _MOST_LOST  # passes beyond plain decoding's: a window that took more was held up by another program
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The candidates in the order in which they are tried, PLAIN first where nothing was found quicker.

    speed_up: what `specedge bench` found of the first one, None without a verdict; reason: in a line.
    """

    candidates: tuple[str, ...]
    speed_up: float | None = None
    reason: str


def choose(
    able: Sequence[str],
    *,
    threads: int,
    profiles: Mapping[int, Profile],
    verdict: BenchVerdict | None = None,
    token_maps: Sequence[str] = (),
) -> Choice:
    """Return the candidates among `able`, which are in the order in which they are tried.

    profiles: what `specedge calibrate` measured here, by number of threads; verdict: for this number of threads;
    token_maps: absolute paths of the maps that are given, () for the model's own.
    """
    with_threads = _threads_said(threads, profiles)
    if verdict is not None and _is_about(verdict, able, token_maps):
        first = verdict.drafter
        candidates = (first, *(name for name in able if name != first))
        reason = f"{_verdict_said(verdict)}, to begin with; {with_threads}"
        return Choice(candidates=candidates, speed_up=verdict.decoder_speed_up, reason=reason)
    said = f"the quickest of {', '.join((*able, 'no drafter'))}, window by window"
    if threads not in profiles:
        said += " (not calibrated; run `specedge calibrate`)"
    return Choice(candidates=tuple(able), reason=f"{said}; {with_threads}")


def quickest_threads(profiles: Mapping[int, Profile]) -> int | None:
    """Return the number of threads with which a usual window took least; None where fewer than two were measured."""
    if len(profiles) < 2:
        return None
    return min(profiles, key=lambda threads: profiles[threads].encode_s + _N_TOKENS * profiles[threads].pass_s[1])


def _is_about(verdict: BenchVerdict, able: Sequence[str], token_maps: Sequence[str]) -> bool:
    """Whether a verdict is about what could be chosen now."""
    if verdict.drafter == PLAIN:
        return True
    return verdict.drafter in able and (not token_maps or verdict.token_maps == tuple(token_maps))


def _verdict_said(verdict: BenchVerdict) -> str:
    rounds = f"{verdict.rounds} rounds of {verdict.audio_s:.0f} s"
    if verdict.drafter == PLAIN:
        return f"no drafter, since `specedge bench` found none quicker than plain decoding here ({rounds})"
    speed = f"{verdict.decoder_speed_up:.2f} times plain decoding"
    return f"{verdict.drafter}, which `specedge bench` found {speed} here ({rounds})"


def _threads_said(threads: int, profiles: Mapping[int, Profile]) -> str:
    said = f"{threads} thread{'s' if threads != 1 else ''}"
    if quickest_threads(profiles) == threads:
        return f"{said}, the quickest of {', '.join(str(n) for n in sorted(profiles))}"
    return said


class _Record:
    """What a candidate took in its latest windows: plain passes, and tokens of the text.

    hope: passes for a token before it was tried, and how many tokens it counts for; last_window: the number of the one
    that it had last.
    """

    def __init__(self, hope: float, n_hoped: int) -> None:
        self.hope, self._n_hoped = hope, n_hoped
        self.seen: deque[tuple[float, int]] = deque(maxlen=_LATEST)
        self.last_window = 0

    @property
    def rate(self) -> float:
        """What it is taken for: passes for a token."""
        return self._passes_a_token(self.hope * self._n_hoped, self._n_hoped)

    @property
    def measured(self) -> float:
        """What it took, passes for a token; only where it was tried."""
        return self._passes_a_token(0.0, 0)

    def _passes_a_token(self, passes: float, n_tokens: int) -> float:
        for more, n_more in self.seen:
            passes, n_tokens = passes + more, n_tokens + n_more
        return passes / n_tokens


class Trials:
    """Who gets the next window, by what each candidate took so far. Several texts at a time may share it.

    candidates: in the order in which they are tried, PLAIN first or not among them; speed_up: of the first one over
    plain decoding, where it was measured before.
    """

    def __init__(self, candidates: Sequence[str], speed_up: float | None = None) -> None:
        hopes = {name: _HOPES.get(name, _HOPE) for name in candidates if name != PLAIN}
        if speed_up is not None:
            hopes = {name: ((_BEHIND if name != candidates[0] else 1) / speed_up, _HOPE[1]) for name in hopes}
        self._records = {name: _Record(*hope) for name, hope in hopes.items()}
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

    def best_of(self, names: Collection[str]) -> str | None:
        """The quickest of these candidates; None where none is hoped to be quicker than plain decoding."""
        name = min(names, key=lambda name: self._records[name].rate, default=None)
        return name if name is not None and self._records[name].rate < _PLAIN_RATE else None

    def book(self, name: str, passes: float, n_tokens: int) -> None:
        """A window of so many tokens took so long, in plain passes, with this candidate or PLAIN."""
        best = min([_PLAIN_RATE, *(record.rate for record in self._records.values() if record.seen)])
        passes = min(passes, n_tokens + _HELD_UP)
        self._n_windows, self._n_tokens = self._n_windows + 1, n_tokens
        self._purse += _SHARE * passes
        record = self._records.get(name)
        if record is None:
            return
        if record.rate > best:  # a trial
            self._purse -= max(passes - best * n_tokens, 0.0)
        record.seen.append((passes, n_tokens))
        record.last_window = self._n_windows

    def said(self) -> str:
        """The candidates that were tried, the quickest first, with their speed over plain decoding; "" for none."""
        known = sorted((record.measured, name) for name, record in self._records.items() if record.seen)
        return ", ".join(f"{name} {1 / rate:.2f}" for rate, name in known)


class AutoDrafter(Drafter):
    """See the module.

    drafters: the candidates, of different names; earlier: what is asked before them; costs: the target's T(k); trials:
    of the candidates; reason: why there are these, for the user. weighs: False takes no account of time and gives every
    candidate its turn, as beside a model whose passes are dear.
    """

    name = "auto"

    def __init__(
        self,
        drafters: Sequence[Drafter],
        costs: CostTable,
        *,
        earlier: Drafter,
        trials: Trials,
        reason: str = "",
        weighs: bool = True,
    ) -> None:
        self._drafters = (earlier, *drafters)
        self._earlier = Guard(earlier)
        self._guards = {guard.name: guard for guard in map(Guard, drafters)}
        self.sources = (self._earlier.name, *self._guards)
        self._trials, self._plain, self._weighs = trials, PlainPass(costs), weighs
        self._reason = self.choice = reason
        self._n_turns = 0
        self._current: str | None = None  # the candidate of this window, or of the next one
        self._drafting: Guard | None = None  # the candidate, or who relieved it; None where too much was lost
        self._relief: str | None = None
        self._window: WindowContext | None = None
        self._asked: list[tuple[Guard, Draft]] = []  # for this pass, the one whose draft is verified last
        self._n_pending, self._shape = 1, (1, 1)
        self._sampled: tuple[int, ...] = ()
        self._decided: tuple[int, ...] = ()
        self._proposed_at = 0.0
        self._start()

    @property
    def model(self) -> Any:
        """The draft model of the candidate that has one, else None. A reference to it keeps it loaded."""
        models = (drafter.model for drafter in self._drafters)
        return next((model for model in models if model is not None), None)

    @property
    def listens(self) -> bool:
        """Whether a candidate hears the audio itself."""
        return any(guard.listens for guard in self._guards.values())

    @property
    def reads_hidden(self) -> bool:
        """Whether the window's candidate reads the decoder's hidden rows."""
        guard = self._guards.get(self._candidate())
        return guard is not None and guard.reads_hidden

    @property
    def wants_rows(self) -> bool:
        """Whether a candidate learns from the model's own rows."""
        return any(guard.wants_rows for guard in self._guards.values())

    @property
    def suspected_loops(self) -> int:
        """Windows that a candidate took for a text that repeats itself without end."""
        return max((guard.suspected_loops for guard in self._guards.values()), default=0)

    @property
    def learning(self) -> Learning | None:
        """Totals of the candidate that learns."""
        found = [learned for guard in self._guards.values() if (learned := guard.learning) is not None]
        return found[0] if found else None

    def another(self) -> AutoDrafter:
        """One of the candidates that can draft for several texts at a time, with the same trials."""
        twin = copy.copy(self)
        pairs = ((name, guard.another()) for name, guard in self._guards.items())
        twin._guards = {name: other for name, other in pairs if other is not None}
        twin._earlier = self._earlier.another() or Guard()
        twin._drafters = (twin._earlier.drafter, *(guard.drafter for guard in twin._guards.values()))
        twin._asked = []
        twin._drafting = None if self._drafting is None else twin._guards.get(self._drafting.name)
        return twin

    def share(self, n_texts: int, n_rows: int) -> None:
        """Price rows as they are beside others."""
        self._plain.share(n_texts, n_rows)
        for guard in (self._earlier, *self._guards.values()):
            guard.share(n_texts, n_rows)

    def begin(self, window: WindowContext) -> None:
        """Start a window with the candidate whose turn it is."""
        self._candidate()
        self._window, self._asked, self._sampled, self._decided = window, [], (), ()
        self._start()
        self._drafting = self._guards.get(self._candidate())
        for guard in (self._earlier, *self._hearing()):
            guard.begin(window)
        self._has_earlier = self._earlier.drafter.has_drafts
        self._drop_failed()

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """Return the draft of an earlier text, else of the window's candidate."""
        started = time.perf_counter()
        self._sampled, self._asked = context.sampled, []
        self._n_pending = len(context.prompt) + len(context.sampled) - context.position
        draft = NO_DRAFT
        if self._window is not None and not (self._weighs and self._plain.is_due(self._n_pending)):
            draft = self._ask(self._window, context, budget)
        n_paths = 1 if self._window is None else self._window.n_paths
        self._shape = shape_of(draft, self._n_pending, n_paths, budget)
        tree = tree_of(draft, self.sources.index(self._asked[-1][0].name)) if draft else NO_GUESS
        self._proposed_at = time.perf_counter()
        self._took(self._proposed_at - started)
        return tree

    def observe(self, verdict: Verdict) -> None:
        """Tell those who drafted what became of it, and keep the time."""
        seen_at = time.perf_counter()
        pass_s, shared = seen_at - self._proposed_at, verdict.shared
        if shared is not None:
            pass_s = shared.seconds * self._shape[0] / shared.n_rows
        self._won += pass_gain(self._plain, pass_s, self._n_pending, self._shape, verdict.n_accepted, shared)
        self._decided = (*verdict.accepted, verdict.token)
        self._n_tokens += len(self._decided)
        drafts = {guard.name: draft for guard, draft in self._asked}
        for guard in (self._earlier, *self._hearing()):
            if guard.name in drafts or guard.drafter.follows_text:
                guard.observe(own_verdict(drafts.get(guard.name, NO_DRAFT), verdict))
        self._drop_failed()
        costs = self._plain.costs
        price = costs.price(*self._shape)
        self._spent_s += pass_s * (price - costs.price(self._n_pending) + 1) / price  # a prompt is read anyway
        self._took(time.perf_counter() - seen_at)

    def end(self, tokens: tuple[int, ...]) -> None:
        """End the window, and book what it took."""
        said = (*self._sampled, *self._decided)
        for guard in (self._earlier, *self._hearing()):
            guard.heard(said)
            guard.end(tokens)
        self._drop_failed()
        plain_s = self._plain.seconds
        is_told = self._weighs and not self._has_earlier and self._n_tokens >= _FEW
        if is_told and self._current is not None and math.isfinite(plain_s):
            self._trials.book(self._current, self._spent_s / plain_s, self._n_tokens)
            known = self._trials.said()
            self.choice = self._reason + (f"; measured: {known} times plain decoding" if self._reason and known else "")
        self._current = None
        self._start()

    def close(self) -> None:
        """Close the candidates; from then on there are no drafts."""
        self._guards, self._drafting = {}, None
        for drafter in self._drafters:
            drafter.close()

    def _start(self) -> None:
        """A window of which nothing is measured yet."""
        self._spent_s = self._won = 0.0
        self._n_tokens = 0
        self._has_earlier = self._has_begun = False
        self._drafting = self._relief = None
        self._least_won = -_MOST_LOST

    def _candidate(self) -> str:
        """The candidate of this window, or of the next one; it is picked when somebody asks first."""
        if self._current is None:
            if self._weighs or not self._guards:
                self._current = self._trials.pick(self._guards)
            else:
                self._current = list(self._guards)[self._n_turns % len(self._guards)]
                self._n_turns += 1
        return self._current

    def _hearing(self) -> list[Guard]:
        """The drafters that are told of this window: its candidate, its relief, and those that learn from any text."""
        told = (self._current, self._relief)
        return [guard for name, guard in self._guards.items() if name in told or guard.drafter.follows_text]

    def _relieve(self, window: WindowContext) -> None:
        """Let another draft in this window, or none, where too much was lost."""
        if self._drafting is None or not self._weighs or self._won >= self._least_won:
            return
        self._drafting = None
        if self._relief is not None:
            return
        others = [name for name, guard in self._guards.items() if name != self._current and guard.drafter.joins_late]
        self._relief = self._trials.best_of(others)
        if self._relief is not None:
            self._drafting = self._guards[self._relief]
            self._least_won = self._won - _RELIEF_LOST
            if not self._drafting.drafter.follows_text:
                self._drafting.begin(window)

    def _ask(self, window: WindowContext, context: DraftContext, budget: int) -> Draft:
        """The draft for this pass, of the first who has one."""
        asked = [self._earlier] if self._has_earlier else []
        self._relieve(window)
        if self._drafting is not None and not self._drafting.is_idle:
            asked.append(self._drafting)
        for guard in asked:
            draft = guard.propose(context, budget, n_vocab=window.n_vocab, useless=())
            self._asked.append((guard, draft))
            if draft:
                return draft
        return NO_DRAFT

    def _took(self, seconds: float) -> None:
        """Drafting took this time. What the first draft takes to hear the window is spent, however it goes on."""
        self._spent_s += seconds
        if self._has_begun and math.isfinite(self._plain.seconds):
            self._won -= seconds / self._plain.seconds
        self._has_begun = True

    def _drop_failed(self) -> None:
        """Go on without candidates that failed."""
        for name, guard in list(self._guards.items()):
            if guard.error is not None:
                del self._guards[name]
                log.warning("the drafter %s failed and is left out of %s: %s", name, self.name, guard.error)
