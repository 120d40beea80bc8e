"""Whether drafts pay: by the clock for a drafter as a whole, by T(k) and past acceptance for each draft.

`Payoff` is the account of one drafter. It is kept in plain passes, that is in units of the time of a pass of one row
without a draft, which `PlainPass` measures while decoding runs:

    won by a pass = accepted drafts + 1 - (time of the pass + time of drafting) / time of a plain pass

The first draft of a window also reads the audio or the prompt, so its time is charged to the window, once. The sum over
windows fades; it begins with a little credit, for one refused draft is no verdict. While it is below 0, windows go by
without drafts: 1, then 2, 4 and so on after each try that lost, half as many after one that won, and until what the
tries lost is a small share of the passes since. Within a window drafting ends once the sum has fallen clearly below 0.

`Gate` decides how much of a draft to verify. Every node has a confidence; it is scaled by how often nodes of its class
came true, and the chain with the largest expected gain over its rows is taken (`CostTable.best_chain`). `Guesses` does
so for several paths and makes the tree (Leviathan et al. 2023 for the gain; Cai et al. 2024, Medusa, for trees).
"""

from __future__ import annotations

import copy
import math
import statistics
import time
import weakref
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..device import CostTable
from .drafter import DraftTree, SharedPass, Verdict

__all__ = ["Gate", "Guess", "Guesses", "Payoff", "PlainPass", "cut", "joined", "pass_shape"]

_N_KEPT = 9  # passes that a median is of
_FIRST_EVERY, _SELDOM = 3, 64  # passes with drafts before a plain one is due: at first, and at most
_FADE = 0.8
_MOST_WON = 8.0  # passes that the sum may reach, so that a change of audio is noticed
_MOST_LOST = 6.0  # that one window counts for at most, and
_MOST_LOST_A_PASS = 3.0  # one pass: whatever took longer was held up by another program
_CREDIT = 1.0  # passes that a new drafter begins with: one refused draft says nothing yet
_ALLOWED = 1.0  # passes below 0 before drafting ends within a window
_CLEARLY = 1.0  # passes that a window must win before the next silence is a shorter one
_LONGEST_SILENCE = 64  # windows
_PASSES_A_LOSS = 64  # plain passes that have to go by for each pass that tries lost: 1.6 %


class PlainPass:
    """The time of a plain pass here and now: the median of the latest passes without a draft.

    Until there was one, passes with a draft stand in, divided by T(k), and before those a prompt's pass. `seconds` is
    infinite before any pass.
    """

    def __init__(self, costs: CostTable) -> None:
        self.costs = self._alone = costs
        self.seconds = math.inf
        self._plain, self._drafted = deque[float](maxlen=_N_KEPT), deque[float](maxlen=_N_KEPT)
        self._every, self._n_since = _FIRST_EVERY, 0

    def is_due(self, n_pending: int) -> bool:
        """Whether the next pass should be a plain one, to be measured; a prompt's pass tells nothing."""
        return n_pending == 1 and self._n_since >= self._every and self.costs is self._alone

    def saw(self, seconds: float, *, price: float, is_drafted: bool) -> None:
        """A pass behind one decided token took this time; `price` is T(k) of its rows, in plain passes."""
        if is_drafted:
            self._n_since += 1
            self._drafted.append(seconds / price)
        else:
            if self._n_since:
                self._every, self._n_since = min(2 * self._every, _SELDOM), 0
            self._plain.append(seconds)
        self.seconds = max(statistics.median(self._plain or self._drafted), 1e-9)

    def saw_prompt(self, seconds: float, *, price: float) -> None:
        """A prompt's pass took this time; `price` as in `saw`."""
        if math.isinf(self.seconds):
            self.seconds = max(seconds / price, 1e-9)

    def share(self, n_texts: int, n_rows: int) -> None:
        """See `Drafter.share`. The time of a plain pass is measured anew: it is a share now, or no longer one."""
        costs = self._alone.beside(n_texts, n_rows)
        if (self.costs is self._alone) != (costs is self._alone):
            self.forget()
        self.costs = costs

    def saw_shared(self, shared: SharedPass) -> None:
        """A pass of several texts was run: a plain one of this text is its share of one without drafts."""
        row_s = shared.seconds / self._alone.price(shared.n_rows)
        self._plain.append(row_s * self._alone.price(shared.n_texts) / shared.n_texts)
        self.seconds = max(statistics.median(self._plain), 1e-9)

    def forget(self) -> None:
        """Measure anew, before the next draft: the last plain pass was long ago."""
        self._plain.clear()
        self._drafted.clear()
        self._every = self._n_since = _FIRST_EVERY


class _Account:
    """What is known of a drafter over windows: the faded sum, and the silence that it is in."""

    def __init__(self) -> None:
        self.sum = _CREDIT
        self.is_trial = False
        self.trying = weakref.WeakSet[_WindowAccount]()  # windows that are drafted in on trial now
        self.silence, self.n_left, self.owed, self.last_loss = 1, 0, 0.0, 0.0

    @property
    def is_due(self) -> bool:
        return self.n_left <= 0 and self.owed <= 0 and not (self.is_trial and self.trying)


class _WindowAccount:
    """What drafts won in one window; first_s: of its first draft."""

    def __init__(self, *, drafts: bool = True) -> None:
        self.drafts = drafts
        self.won = 0.0
        self.first_s: float | None = None


class Payoff:
    """The account of one drafter, kept for as long as the drafter; see the module.

    A drafter calls `begin`, then `ask`, `proposed` and `observed` in every pass, and `end`. To keep several accounts
    over the same passes, share one `plain` and call `took` and `won` instead. weighs: False drafts always.
    """

    def __init__(self, costs: CostTable, plain: PlainPass | None = None, *, weighs: bool = True) -> None:
        self.plain = PlainPass(costs) if plain is None else plain
        self.weighs = weighs
        self._shares_plain = plain is not None
        self._account, self._window = _Account(), _WindowAccount()
        self._asked_at = self._proposed_at = 0.0
        self._n_pending = 1
        self._shape = (1, 1)

    def another(self) -> Payoff:
        """One for another text at the same time, with the same account; in the same window until it begins another."""
        return copy.copy(self)

    def share(self, n_texts: int, n_rows: int) -> None:
        """See `Drafter.share`."""
        self.plain.share(n_texts, n_rows)

    @property
    def is_due(self) -> bool:
        """Whether drafts will be made in the next window."""
        return not self.weighs or self._account.is_due

    @property
    def is_lost(self) -> bool:
        """Whether nothing more is drafted in this window: not at all, or because its drafts lost too much."""
        return self.weighs and (not self._window.drafts or self._account.sum + self._window.won < -_ALLOWED)

    def begin(self) -> bool:
        """A window starts. Returns whether to draft in it."""
        account = self._account
        self._window = _WindowAccount(drafts=self.is_due)
        if self._window.drafts and account.is_trial:
            account.trying.add(self._window)
        self._proposed_at = 0.0
        return self._window.drafts

    def wants(self, n_pending: int) -> bool:
        """Whether a draft may be made for a pass that runs `n_pending` rows anyway.

        Windows in which nobody speaks end with the prompt's pass, so a drafter on trial waits for the second one.
        """
        return not self.weighs or not (self.is_lost or (self._account.is_trial and n_pending > 1))

    def ask(self, n_pending: int) -> bool:
        """A drafter is about to draft. Returns whether it should."""
        self._asked_at = self._proposed_at = time.perf_counter()
        self._n_pending, self._shape = n_pending, (n_pending, 1)
        return not self.weighs or (self.wants(n_pending) and not self.plain.is_due(n_pending))

    def proposed(self, shape: tuple[int, int]) -> None:
        """The draft is made; `shape` of the pass over it is as `pass_shape` gives it."""
        self._shape = shape
        self._proposed_at = time.perf_counter()
        self.took(self._proposed_at - self._asked_at)

    def observed(self, n_accepted: int, shared: SharedPass | None = None) -> None:
        """The pass is over, and so many of the drafter's nodes were right; `shared` as in `Verdict`."""
        if not self._proposed_at:
            return
        pass_s = time.perf_counter() - self._proposed_at
        self.won(pass_gain(self.plain, pass_s, self._n_pending, self._shape, n_accepted, shared))
        self._proposed_at = 0.0

    def took(self, seconds: float) -> None:
        """Drafting for one pass took this time."""
        if self._window.first_s is None:
            self._window.first_s = seconds
        else:
            self._window.won -= min(seconds / self.plain.seconds, _MOST_LOST_A_PASS)

    def won(self, passes: float) -> None:
        """A pass over the drafter's nodes won so much, the time of drafting aside."""
        self._window.won += max(passes, -_MOST_LOST_A_PASS)

    def end(self, n_tokens: int) -> None:
        """The window is over; without drafts it takes a pass for each of its `n_tokens` tokens, and one more."""
        account, window = self._account, self._window
        self._window = _WindowAccount()  # nothing is decided about the next window yet
        if not window.drafts:
            account.n_left -= 1
            account.owed -= n_tokens + 1
            if self.is_due and not self._shares_plain:
                self.plain.forget()
            return
        account.trying.discard(window)
        first = 0.0
        if window.first_s is not None:  # where a drafter was told of no pass yet, it counts as one
            first = window.first_s / self.plain.seconds if math.isfinite(self.plain.seconds) else 1.0
        won = window.won - first
        account.sum = min(_FADE * account.sum + max(won, -_MOST_LOST), _MOST_WON)
        if won > _CLEARLY:
            account.silence, account.last_loss, account.is_trial = max(1, account.silence // 2), 0.0, False
        if account.sum < 0:
            # Of two tries the lesser loss: one alone may have been held up, or have loaded a graph.
            account.owed = _PASSES_A_LOSS * min(-won, account.last_loss) if won < 0 else 0.0
            account.n_left, account.silence = account.silence, min(2 * account.silence, _LONGEST_SILENCE)
            account.sum, account.last_loss, account.is_trial = 0.0, max(-won, 0.0), True


def pass_gain(
    plain: PlainPass,
    seconds: float,
    n_pending: int,
    shape: tuple[int, int],
    n_accepted: int,
    shared: SharedPass | None = None,
) -> float:
    """What a pass won against plain ones, drafting aside; `plain` learns what it took.

    A prompt's pass is judged by T(k): no plain pass over as many rows is there to compare it with. So is a shared one,
    in which rows of all texts take their time together.
    """
    price = plain.costs.price(*shape)
    is_drafted = shape != (n_pending, 1)
    if shared is not None:
        plain.saw_shared(shared)
    elif n_pending > 1:
        plain.saw_prompt(seconds, price=price)
    if n_pending > 1 or shared is not None:
        return n_accepted + plain.costs.price(n_pending) - price
    plain.saw(seconds, price=price, is_drafted=is_drafted)
    return n_accepted + 1 - seconds / plain.seconds if is_drafted else 0.0


_HELD_FADE = 0.985  # half of what is known of a class is from its last 46 nodes
_PRIOR = 4.0  # nodes' worth of trust in a drafter's own word
_MAX_SCALE = 1.25
_SURE = 0.98
_TREE_MARGIN = 0.5  # tokens that a second path must add: the best of many trees looks better than it is
_TREE_DEPTH = 8  # nodes of each path of a tree at most


class Gate:
    """Calibrates the confidences of one drafter, and finds the draft that pays; keep it for as long as the drafter.

    margin: tokens that a draft must be worth beyond its rows, for the work round it; max_scale: by which a drafter's
    confidences are raised at most, however often it was too modest.
    """

    def __init__(self, costs: CostTable, *, margin: float = 0.02, max_scale: float = _MAX_SCALE) -> None:
        self.costs = self._alone = costs
        self._margin, self._max_scale = margin, max_scale
        self._hoped: dict[Hashable, float] = {}
        self._came: dict[Hashable, float] = {}
        self._scale: dict[Hashable, float] = {}

    def believed(self, confidence: float, class_: Hashable) -> float:
        """`confidence`, scaled by what came of this class of nodes; below 1."""
        return min(_SURE, confidence * self._scale.get(class_, 1.0))

    def all_believed(self, confidences: Iterable[float], classes: Iterable[Hashable]) -> list[float]:
        """`believed` of each node of a chain."""
        scale = self._scale.get
        believed = [sure * scale(class_, 1.0) for sure, class_ in zip(confidences, classes, strict=True)]
        return [belief if belief < _SURE else _SURE for belief in believed]

    def share(self, n_texts: int, n_rows: int) -> None:
        """See `Drafter.share`."""
        self.costs = self._alone.beside(n_texts, n_rows)

    def best_chain(self, believed: Iterable[float], n_pending: int) -> tuple[int, float]:
        """See `CostTable.best_chain`."""
        return self.costs.best_chain(believed, n_pending, margin=self._margin)

    def gain(self, worth: float, n_rows: int, n_pending: int, n_paths: int = 1) -> float:
        """The expected gain, in plain passes, of a pass of `n_rows` in all whose drafts give `worth` tokens."""
        return worth - self.costs.price(n_rows, n_paths) + self.costs.price(n_pending) - self._margin

    def learn(self, confidence: float, class_: Hashable, *, accepted: bool) -> None:
        """What came of a node whose predecessors were all accepted; `confidence` as the drafter gave it."""
        self._hoped[class_] = hoped = self._hoped.get(class_, 0.0) * _HELD_FADE + confidence
        self._came[class_] = came = self._came.get(class_, 0.0) * _HELD_FADE + accepted
        self._scale[class_] = min(self._max_scale, (came + _PRIOR) / (hoped + _PRIOR))


class Guess(NamedTuple):
    """A path: ids, the drafter's confidence in each, and the class of each for `Gate.learn`."""

    tokens: list[int]
    confidences: list[float]
    classes: list[Hashable]


class Guesses:
    """The candidate paths of one drafter, judged by `gate`; keep it for as long as the drafter."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._proposed: Sequence[tuple[float, Hashable]] = ()
        self._parents: Sequence[int] = ()

    def believed(self, guess: Guess) -> list[float]:
        """The calibrated probability of each token, given those before it."""
        return self._gate.all_believed(guess.confidences, guess.classes)

    def worth_while(self, paths: list[Guess], n_pending: int, n_paths: int) -> list[Guess]:
        """The paths, and as much of them as is expected to pay; [] when nothing is.

        One path, or several cut to one length, since a pass runs them as batch rows; up to `n_paths` of them.
        """
        if not paths:
            return []
        length, best_gain = self._gate.best_chain(self.believed(paths[0]), n_pending)
        best = [cut(paths[0], length)] if length else []
        if n_pending != 1 or len(paths) == 1:
            return best
        by_depth = [0.0] * _TREE_DEPTH  # expected accepted nodes; beginnings that paths share count once
        seen: set[tuple[int, ...]] = set()
        for n, path in enumerate(paths[:n_paths], 1):
            reached = 1.0
            for depth, belief in enumerate(self.believed(path)[:_TREE_DEPTH]):
                reached *= belief
                beginning = tuple(path.tokens[: depth + 1])
                if beginning not in seen:
                    seen.add(beginning)
                    by_depth[depth] += reached
            if n == 1:
                continue
            worth = 0.0
            for length in range(1, min(_TREE_DEPTH, max(len(path.tokens) for path in paths[:n])) + 1):
                worth += by_depth[length - 1]
                gain = self._gate.gain(worth, n * (1 + length), n_pending, n)
                if gain > best_gain + _TREE_MARGIN:
                    best, best_gain = [cut(path, length) for path in paths[:n]], gain - _TREE_MARGIN
        return best

    def draft(self, paths: Sequence[Guess], limit: int) -> DraftTree:
        """The paths as a tree of at most `limit` nodes, beginnings shared. `learn` then refers to it."""
        if len(paths) <= 1:
            tokens, confidences, classes = cut(paths[0], limit) if paths else ([], [], [])
            self._proposed = list(zip(confidences, classes, strict=True))
            self._parents = range(-1, len(tokens) - 1)
            return DraftTree(tokens, conf=confidences)
        proposed = list[tuple[float, Hashable]]()
        ids, parents = list[int](), list[int]()
        below: dict[tuple[int, int], int] = {}  # the node of a token under a parent
        for path in paths:
            node = -1
            for token, confidence, class_ in zip(path.tokens, path.confidences, path.classes, strict=True):
                place = (node, token)
                if place not in below:
                    if len(ids) == limit:
                        break
                    below[place] = len(ids)
                    parents.append(node)
                    ids.append(token)
                    proposed.append((confidence, class_))
                node = below[place]
        self._parents, self._proposed = parents, proposed
        return DraftTree(
            tokens=np.array(ids, np.int32),
            parents=np.array(parents, np.int32),
            conf=np.array([confidence for confidence, _ in proposed], np.float32),
        )

    def another(self) -> Guesses:
        """Those of another text at the same time; both calibrate the same gate."""
        return copy.copy(self)

    def learn(self, verdict: Verdict) -> list[tuple[Hashable, bool]]:
        """Calibrate by a verdict: nodes behind an accepted one are known, with their siblings.

        Returns the class of each of those, and whether it came true.
        """
        right = set(verdict.nodes)
        decided = {-1, *verdict.nodes}
        if verdict.rejected is None:  # the pass did not say what follows the last accepted node
            decided.discard(verdict.nodes[-1] if verdict.nodes else -1)
        known = [node for node in verdict.evaluated if self._parents[node] in decided]
        for node in known:
            self._gate.learn(*self._proposed[node], accepted=node in right)
        return [(self._proposed[node][1], node in right) for node in known]


def joined(a: Guess, b: Guess) -> Guess:
    """`b` behind `a`."""
    return Guess(a.tokens + b.tokens, a.confidences + b.confidences, a.classes + b.classes)


def cut(guess: Guess, n: int) -> Guess:
    """The first `n` tokens of a guess."""
    return Guess(guess.tokens[:n], guess.confidences[:n], guess.classes[:n])


def pass_shape(paths: Sequence[Guess], n_pending: int) -> tuple[int, int]:
    """Rows and paths of a pass that verifies these paths; several go as batch rows of one length."""
    if not paths:
        return n_pending, 1
    longest = max(len(path.tokens) for path in paths)
    return len(paths) * (n_pending + longest), len(paths)
