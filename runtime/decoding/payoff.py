"""Whether windows are worth hearing: what drafts save against what it takes to make them, window by window.

A window costs the time of hearing and searching, seen as it runs; its drafts save a pass for each accepted token, less
what drafting and the longer pass took. `Balance` says which windows are let pass, and when a window has lost too much.
A pass without a draft, now and then, says what a pass takes where nobody has been at the caches before it (`prices`):
a machine that is slow for a second is no fault of a draft. Where passes alone do not tell what a window takes, some
windows go by without drafts (`pace`).
Does not know: tokens, heads.

How long a draft is worth verifying: expected tokens against what rows cost on this device (algorithms 2.3, 2.4).

A draft of n nodes costs T(p + n) - T(p), p being the rows that the pass runs anyway; it is worth the nodes that will be
accepted, each a pass of one row saved. A drafter says how sure it is of each node, and is held to it: predictions and
outcomes are summed for each class of guess, old ones fading, and later predictions are scaled by what came true. So a
drafter that boasts is believed less and less until it proposes nothing, and where rows are free it may always try.

Does not know: tokens, maps, where a confidence comes from.

Guesses of a drafter as paths of tokens: which of them are worth verifying, the tree that they make, what came of it.

Shared by drafters that have several candidates for what comes next. Does not know: where guesses come from.

What a draft model costs beside its target, as it runs: a draft has the cores that the target's workers leave it.

All is in units of T(1), the target's pass of one row. Until enough was seen a first guess holds, from what `specedge
calibrate` measured or from the share of the weights.
A pass behind a draft is slower than its rows say, by caches and sleeping workers. A pass without a draft, now and then,
says what one takes where nobody has been at the caches before it: it is held against the passes with drafts just before
it, and medians of that decide.
Does not know: tokens, how long drafts are.

What windows with drafts take beside windows without: an account of drafts and passes, held against the clock.

An account adds up what it is told of. What nobody tells it, such as caches that drafting leaves cold and passes that
change their size, made it believe in five passes a window that were never won on the bundled demo. So a window goes by
without drafts now and then, and its seconds a token say what those just before it should have taken: a machine that is
slow for a while is so for both.
Does not know: drafts, passes, which windows are worth drafting for.

Whether a drafter still pays: what it won and lost in its windows, and doubling pauses where that is too little.

While the last windows lost more than they won, windows are let pass, twice as many after each try that failed, and as
many as make its price a small share of their passes, so that a drafter that knows nothing of this audio costs next to
nothing, also where windows are short and hearing them is dear. A window that has lost too much already gets no more of
it: a text that goes round in a circle is long. All is in passes of one row.
Does not know: what is won, clocks.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from ..device import CostTable
from .drafter import DraftTree, Verdict

__all__ = [
    "Balance",
    "Gate",
    "Guess",
    "Guesses",
    "Pace",
    "Payoff",
    "Prices",
    "RowCosts",
    "TREE_DEPTH",
    "TREE_MARGIN",
    "cut",
    "joined",
]

_FADE = 0.985  # half of what is known is from the last 46 labelled nodes
_PRIOR = 4.0  # nodes' worth of trust in a drafter's own word
_MAX_SCALE = 1.25
_SURE = 0.98
_MAX_ROWS = 512  # a prompt and its drafts; longer passes are priced as this
_HOPELESS = 0.03  # a node reached less often than this ends a chain


class RowCosts(Protocol):
    """The part of `costs.CostTable` that is needed: `cost(k)` of a pass of k rows, in passes of one row; what a pass
    over several paths costs beyond that."""

    @property
    def several_paths(self) -> float: ...

    def cost(self, n_rows: int, /) -> float: ...


class Gate:
    """The judgement of one drafter's guesses; keep it for as long as the drafter.

    margin: tokens that a draft must be worth beyond its rows, for the time that drafting takes itself; max_scale: of a
    drafter's own word, however often it was too modest.
    """

    def __init__(self, costs: RowCosts, *, margin: float = 0.02, max_scale: float = _MAX_SCALE) -> None:
        self._margin, self._max_scale = margin, max_scale
        # Priced once: the loops below run before every pass.
        self._cost = [0.0, *(costs.cost(n_rows + n_rows % 2) for n_rows in range(1, _MAX_ROWS + 1))]
        self._several_paths = costs.several_paths
        self._cost[1] = costs.cost(1)  # a lone row is run as two, but its partner is not decided on
        self._hoped: dict[Hashable, float] = {}
        self._came: dict[Hashable, float] = {}
        self._scale: dict[Hashable, float] = {}

    def price(self, n_rows: int, n_paths: int = 1) -> float:
        """What a pass of `n_rows` rows in all costs, over so many paths, in passes of one row."""
        cost = self._cost[min(n_rows, _MAX_ROWS)]
        return cost if n_paths == 1 else cost + self._several_paths

    def believed(self, confidence: float, class_: Hashable) -> float:
        """`confidence` as experience with this class of guesses has it, below 1."""
        return min(_SURE, confidence * self._scale.get(class_, 1.0))

    def all_believed(self, confidences: Iterable[float], classes: Iterable[Hashable]) -> list[float]:
        """`believed` of each node of a chain."""
        scale = self._scale.get
        believed = [sure * scale(class_, 1.0) for sure, class_ in zip(confidences, classes, strict=True)]
        return [belief if belief < _SURE else _SURE for belief in believed]

    def best_chain(self, believed: Iterable[float], n_pending: int) -> tuple[int, float]:
        """How many nodes of a chain to verify, and the expected gain in passes of one row; (0, 0.0) for none.

        believed: each node's probability given the one before; n_pending: rows of the pass without drafts.
        """
        cost, last = self._cost, _MAX_ROWS
        free = cost[min(n_pending, last)] - self._margin
        best, best_gain = 0, 0.0
        reached, worth, n = 1.0, 0.0, 0
        for belief in believed:
            n += 1
            reached *= belief
            if reached < _HOPELESS:
                break
            worth += reached
            gain = worth - cost[min(n_pending + n, last)] + free
            if gain > best_gain:
                best, best_gain = n, gain
        return best, best_gain

    def gain(self, worth: float, n_rows: int, n_pending: int, n_paths: int = 1) -> float:
        """The expected gain of a pass of `n_rows` in all, over so many paths, whose drafts give `worth` tokens."""
        return worth - self.price(n_rows, n_paths) + self.price(n_pending) - self._margin

    def tree_price(self, depth: int, most_paths: int) -> float:
        """What a tree of two paths or more, cut to `depth` nodes, costs at least beyond a chain of the first."""
        chain = self._cost[min(1 + depth, _MAX_ROWS)]
        trees = [self._cost[min(n * (1 + depth), _MAX_ROWS)] for n in range(2, most_paths + 1)]
        return min(trees, default=math.inf) + self._several_paths - chain

    def learn(self, confidence: float, class_: Hashable, *, accepted: bool) -> None:
        """What came of a node whose predecessors were all accepted; `confidence` as the drafter gave it."""
        self._hoped[class_] = hoped = self._hoped.get(class_, 0.0) * _FADE + confidence
        self._came[class_] = came = self._came.get(class_, 0.0) * _FADE + accepted
        self._scale[class_] = min(self._max_scale, (came + _PRIOR) / (hoped + _PRIOR))


TREE_MARGIN = 0.5  # tokens that a second path must add: the best of many trees looks better than it is
TREE_DEPTH = 8  # nodes of each path of a tree at most


class Guess(NamedTuple):
    """A path: ids, how sure the drafter is of each, and the class of each for the gate's experience."""

    tokens: list[int]
    confidences: list[float]
    classes: list[Hashable]


class Guesses:
    """The guesses of one drafter, judged by `gate`; keep it for as long as the drafter."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._proposed: Sequence[tuple[float, Hashable]] = ()
        self._parents: Sequence[int] = ()

    @property
    def classes(self) -> list[Hashable]:
        """The class of each node of the last draft."""
        return [class_ for _, class_ in self._proposed]

    def believed(self, guess: Guess) -> list[float]:
        """How sure experience is of each token, given those before it."""
        return self._gate.all_believed(guess.confidences, guess.classes)

    def worth_while(self, paths: list[Guess], n_pending: int, n_paths: int) -> list[Guess]:
        """The paths, and as much of them as is expected to pay; [] when nothing is."""
        if not paths:
            return []
        length, best_gain = self._gate.best_chain(self.believed(paths[0]), n_pending)
        best = [cut(paths[0], length)] if length else []
        if n_pending != 1 or len(paths) == 1:
            return best
        by_depth = [0.0] * TREE_DEPTH  # expected accepted nodes; beginnings that paths share count once
        seen: set[tuple[int, ...]] = set()
        for n, path in enumerate(paths[:n_paths], 1):
            sure = 1.0
            for depth, belief in enumerate(self.believed(path)[:TREE_DEPTH]):
                sure *= belief
                beginning = tuple(path.tokens[: depth + 1])
                if beginning not in seen:
                    seen.add(beginning)
                    by_depth[depth] += sure
            if n == 1:
                continue
            worth = 0.0
            for length in range(1, min(TREE_DEPTH, max(len(path.tokens) for path in paths[:n])) + 1):
                worth += by_depth[length - 1]
                gain = self._gate.gain(worth, n * (1 + length), n_pending, n)
                if gain > best_gain + TREE_MARGIN:
                    best, best_gain = [cut(path, length) for path in paths[:n]], gain - TREE_MARGIN
        return best

    def draft(self, paths: Sequence[Guess], limit: int) -> DraftTree:
        """The paths, at most `limit` nodes of them, as what a drafter gives; remembers how sure each node was."""
        return self._tree(paths, limit) if len(paths) > 1 else self._chain(paths, limit)

    def learn(self, verdict: Verdict) -> list[tuple[Hashable, bool]]:
        """Hold the guesses to what came of them: nodes behind an accepted one are known, with their siblings.

        Returns the class of each of those, and whether it came true.
        """
        right = set(verdict.nodes)
        decided = {-1, *verdict.nodes}
        if verdict.rejected is None:  # what would follow the last accepted node was not asked
            decided.discard(verdict.nodes[-1] if verdict.nodes else -1)
        known = [node for node in verdict.evaluated if self._parents[node] in decided]
        for node in known:
            self._gate.learn(*self._proposed[node], accepted=node in right)
        return [(self._proposed[node][1], node in right) for node in known]

    def _chain(self, paths: Sequence[Guess], limit: int) -> DraftTree:
        """The only path, if there is one; remembers how sure each node was."""
        tokens, confidences, classes = cut(paths[0], limit) if paths else ([], [], [])
        self._proposed = list(zip(confidences, classes, strict=True))
        self._parents = range(-1, len(tokens) - 1)
        return DraftTree(tokens, conf=confidences)

    def _tree(self, paths: Sequence[Guess], limit: int) -> DraftTree:
        """The paths as a tree, beginnings shared; remembers how sure each node was."""
        proposed = list[tuple[float, Hashable]]()
        tokens, parents = list[int](), list[int]()
        below: dict[tuple[int, int], int] = {}  # the node of a token under a parent
        for path in paths:
            node = -1
            for token, confidence, class_ in zip(path.tokens, path.confidences, path.classes, strict=True):
                place = (node, token)
                if place not in below:
                    if len(tokens) == limit:
                        break
                    below[place] = len(tokens)
                    parents.append(node)
                    tokens.append(token)
                    proposed.append((confidence, class_))
                node = below[place]
        self._parents, self._proposed = parents, proposed
        return DraftTree(
            tokens=np.array(tokens, np.int32),
            parents=np.array(parents, np.int32),
            conf=np.array([confidence for confidence, _ in proposed], np.float32),
        )


def joined(a: Guess, b: Guess) -> Guess:
    """`b` behind `a`."""
    return Guess(a.tokens + b.tokens, a.confidences + b.confidences, a.classes + b.classes)


def cut(guess: Guess, n: int) -> Guess:
    """The first `n` tokens of a guess."""
    return Guess(guess.tokens[:n], guess.confidences[:n], guess.classes[:n])


_N_KEPT = 15
_N_ENOUGH = 5
_SELDOM = 4  # passes, between looks at what they took
_PLAIN_EVERY = 24  # passes with drafts
_PLAIN_EVERY_AT_FIRST = 4  # until it is known what a pass without takes
_N_BEFORE = 5  # passes with drafts that one without is held against
_HELD_UP = (0.8, 2.0)  # at least and at most
_NOTED = 0.02  # a smaller change of it is none


class Prices:
    """The prices of one drafter.

    rows: T(k) of the target; draft_cost: of drafting one token, window_cost: of hearing a window and reading its
    prompt, both a first guess; pass_s: seconds of a pass of one row without a draft, 0 until enough was seen; held_up:
    how many times as long as its rows say a pass behind a draft takes. is_fixed: the first guess holds for good.
    """

    def __init__(self, rows: CostTable, *, draft_cost: float, window_cost: float, is_fixed: bool = False) -> None:
        self.rows, self.draft_cost, self.window_cost = rows, draft_cost, window_cost
        self._is_fixed = is_fixed
        self.pass_s = 0.0
        self.held_up = 1.0
        self._behind_drafts = rows
        self._n_seen = self._n_drafted = 0  # passes with drafts, of them since the last without
        self._drafts, self._windows, self._passes, self._ratios = (deque[float](maxlen=_N_KEPT) for _ in range(4))

    @property
    def behind_drafts(self) -> CostTable:
        """T(k) of passes behind a draft, in passes of one row without any."""
        return self._behind_drafts

    @property
    def wants_plain(self) -> bool:
        """Whether a pass without a draft is due, by which the others are judged."""
        every = _PLAIN_EVERY if len(self._ratios) >= _N_ENOUGH else _PLAIN_EVERY_AT_FIRST
        return not self._is_fixed and self._n_drafted >= every

    def saw_draft(self, seconds: float) -> None:
        """One token was drafted in this time."""
        self._drafts.append(seconds)

    def saw_window(self, seconds: float) -> None:
        """A window was heard and its prompt read in this time."""
        self._windows.append(seconds)
        self._update()

    def saw_pass(self, seconds: float, n_rows: int) -> None:
        """The target took this time for a pass of `n_rows` rows behind a draft."""
        self._passes.append(seconds / self.rows.cost(n_rows + n_rows % 2))
        self._n_seen += 1
        self._n_drafted += 1
        if self._n_seen < _N_KEPT or self._n_seen % _SELDOM == 0:
            self._update()

    def saw_plain(self, seconds: float, n_rows: int = 1) -> None:
        """A pass of so many rows without a draft took this time."""
        is_behind, self._n_drafted = self._n_drafted > 0, 0
        if not is_behind or len(self._passes) < _PLAIN_EVERY_AT_FIRST or seconds <= 0:
            return
        plain_s = seconds / self.rows.cost(n_rows + n_rows % 2)
        self._ratios.append(statistics.median(list(self._passes)[-_N_BEFORE:]) / plain_s)
        if self._is_fixed or len(self._ratios) < _N_ENOUGH:
            return
        held_up = min(max(statistics.median(self._ratios), _HELD_UP[0]), _HELD_UP[1])
        if abs(held_up - self.held_up) > _NOTED:
            self.held_up = held_up
            relative = (1.0, *(held_up * cost for cost in self.rows.relative[1:]))
            self._behind_drafts = replace(self.rows, relative=relative)
        self._update()

    def _update(self) -> None:
        if self._is_fixed or len(self._passes) < _N_ENOUGH:
            return
        self.pass_s = one_s = max(statistics.median(self._passes), 1e-9) / self.held_up
        if len(self._drafts) >= _N_ENOUGH:
            self.draft_cost = statistics.median(self._drafts) / one_s
        if self._windows:
            self.window_cost = statistics.median(self._windows) / one_s


_N_WINDOWS_BEFORE, _N_ERRORS = 3, 15  # windows that one without drafts is held against, and what is remembered of that
_ENOUGH = 4  # errors, until which nothing is said
_EVERY, _EVERY_AT_FIRST = 10, 2  # windows with drafts behind which one goes by without
_PACE_FADE = 0.8
_CLEARLY = 0.35  # of a window's passes: so far accounts were not wrong, and who wins more need not look


class _Drafted(NamedTuple):
    """A window with drafts: what the account says was won, in passes; tokens, the end of the text among them."""

    account: float
    n_tokens: int
    seconds: float


class Pace:
    """See the module. Between `begin` and `plain` or `drafted` lies a window."""

    def __init__(self) -> None:
        self._before = deque[_Drafted](maxlen=_N_WINDOWS_BEFORE)
        self._errors = deque[float](maxlen=_N_ERRORS)
        self._share = 0.0  # of their passes, that windows won lately by the account
        self._n_since = 0  # windows with drafts since the last without
        self._started = 0.0

    def begin(self) -> None:
        """A window starts."""
        self._started = time.perf_counter()

    @property
    def is_due(self) -> bool:
        """Whether the next window should go by without drafts."""
        every = _EVERY if len(self._errors) >= _ENOUGH else _EVERY_AT_FIRST
        return self._n_since >= every and self._share < _CLEARLY

    @property
    def error(self) -> float:
        """What to add to the account of a window, in passes; 0 until enough was seen."""
        return statistics.median(self._errors) if len(self._errors) >= _ENOUGH else 0.0

    def plain(self, n_tokens: int) -> None:
        """The window is over, and had no drafts; its text is thrown away where it has no tokens."""
        seconds = self._seconds(n_tokens)
        if not seconds:
            return
        pass_s = seconds / (n_tokens + 1)
        self._errors.extend(one.n_tokens - one.seconds / pass_s - one.account for one in self._before)
        self._before.clear()
        self._n_since = 0

    def drafted(self, n_tokens: int, account: float) -> None:
        """The window is over, and had drafts that won so much, by the account."""
        seconds = self._seconds(n_tokens)
        if not seconds:
            return
        won = account / (n_tokens + 1)
        self._share = self._share * _PACE_FADE + won * (1 - _PACE_FADE) if self._n_since or self._errors else won
        self._before.append(_Drafted(account, n_tokens + 1, seconds))
        self._n_since += 1

    def _seconds(self, n_tokens: int) -> float:
        """What the window took; 0 where that says nothing: another attempt at it, or one whose text is thrown away."""
        started, self._started = self._started, 0.0
        return time.perf_counter() - started if started and n_tokens else 0.0


_BALANCE_FADE = 0.75
_FIRST = 4.0
_LONGEST_SILENCE = 64  # windows
_MOST_LOST = 4.0  # that a window may lose before it gets no more
_MOST_LOST_ON_TRIAL = 1.5  # behind a pause
_TRIES = 0.02  # of the passes that go by, what tries may lose


class Balance:
    """The balance of one drafter. saved: what this window has won so far; trust: before anything was seen; fade: what
    is left of the balance when the next window is over."""

    def __init__(self, trust: float = _FIRST, fade: float = _BALANCE_FADE) -> None:
        self._fade = fade
        self.saved = 0.0
        self._balance = trust
        self._silence, self._n_silent = 1, 0
        self._owed = 0.0  # of what the last window lost, what no passes stand against yet

    def begin(self) -> bool:
        """A window starts; whether to draft in it."""
        self.saved = 0.0
        if self._balance > 0:
            self._silence = 1
            return True
        self._n_silent += 1
        if self._n_silent <= self._silence or self._owed > 0:
            return False
        self._silence, self._n_silent = min(2 * self._silence, _LONGEST_SILENCE), 0
        return True

    @property
    def is_due(self) -> bool:
        """Whether `begin` will be for drafting."""
        return self._balance > 0 or (self._n_silent >= self._silence and self._owed <= 0)

    @property
    def is_silent(self) -> bool:
        """Whether windows are let pass now."""
        return self._balance <= 0

    @property
    def is_lost(self) -> bool:
        """Whether this window has lost so much that it should get no more."""
        return self.saved < -(_MOST_LOST_ON_TRIAL if self.is_silent else _MOST_LOST)

    def after(self, price: float = 0.0) -> float:
        """The balance with this window, were it over."""
        return self._balance * self._fade + self.saved - price

    def revive(self, trust: float) -> None:
        """Things have changed: as if nothing had been seen."""
        self._balance, self._silence, self._n_silent, self._owed = trust, 1, 0, 0.0

    def pass_by(self, n_passes: int) -> None:
        """A window of so many passes was let pass."""
        self._owed -= _TRIES * n_passes

    def end(self, price: float = 0.0) -> None:
        """A window in which something was tried is over; `price` is what it cost besides."""
        won = self.saved - price
        self._owed = max(0.0, -won)
        self._balance = max(self.after(price), -_FIRST)  # so that one good window makes up for it
        if won > 0:
            self._silence = max(1, self._silence // 2)


_FADE_BY_PACE = 0.9  # windows scatter by more than they win
_MOST_DRAFT = 1.6  # times what the longest of the others took: a draft that took longer was held up by something


class Payoff:
    """The balance of one drafter; times in seconds, all else in passes of one row. pace: holds it against the clock."""

    def __init__(self, prices: Prices, pace: Pace | None = None) -> None:
        self._prices, self._pace = prices, pace
        self._balance = Balance() if pace is None else Balance(fade=_FADE_BY_PACE)
        self._is_heard = False
        self._drafts = deque[float](maxlen=_N_KEPT)  # seconds that drafting took

    def begin(self) -> bool:
        """Whether to hear the next window."""
        self._is_heard = False
        looks = not self._balance.is_silent and self._pace is not None and self._pace.is_due
        if self._pace is not None:
            self._pace.begin()
        return self._balance.begin() and not looks

    @property
    def is_due(self) -> bool:
        """Whether the next window will be heard."""
        return self._balance.is_due

    @property
    def is_lost(self) -> bool:
        """Whether this window's drafts have lost so much that it should get no more."""
        return self._balance.is_lost

    @property
    def pass_s(self) -> float:
        """What a pass of one row takes, in seconds; infinite until enough passes were seen."""
        return self._prices.pass_s or math.inf

    def heard(self, seconds: float) -> None:
        """The window was heard, and its hypothesis made, in this time."""
        self._prices.saw_window(seconds)
        self._is_heard = True

    @property
    def wants_plain(self) -> bool:
        """Whether a pass without a draft is due, by which the others are judged."""
        return self._prices.wants_plain

    def plain(self, seconds: float, n_rows: int = 1) -> None:
        """A pass of so many rows without a draft of this drafter, behind another one, took this time."""
        self._prices.saw_plain(seconds, n_rows)

    def passed(
        self, seconds: float, *, draft_s: float, n_pending: int, n_drafted: int, n_accepted: int, n_run: int = 0
    ) -> None:
        """A pass over so many rows took this time, its drafts `draft_s`, and so many of them came true.

        n_run: the rows that it had in truth, where not this drafter's were run; its own are then charged in proportion.
        """
        rows = self._prices.rows
        n_rows = n_pending + n_drafted
        expected = rows.cost(n_rows + n_rows % 2)
        if n_run:
            seconds *= expected / rows.cost(n_run + n_run % 2)
        self._prices.saw_pass(seconds, n_rows)
        self._drafts.append(draft_s)
        draft_s = min(draft_s, _MOST_DRAFT * sorted(self._drafts)[-2:][0])
        more = self._prices.held_up * expected - rows.cost(n_pending + n_pending % 2)
        self._balance.saved += n_accepted - max(0.0, more) - draft_s / self.pass_s

    def end(self, n_tokens: int) -> None:
        """The window is over, of so many tokens: as many passes, where it was let pass."""
        if self._is_heard:
            price = self._prices.window_cost
            if self._pace is not None:
                self._pace.drafted(n_tokens, self._balance.saved - price)
                price -= self._pace.error
            self._balance.end(price)
        else:
            if self._pace is not None:
                self._pace.plain(n_tokens)
            self._balance.pass_by(n_tokens)
        self._is_heard = False
