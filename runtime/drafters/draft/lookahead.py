"""How many tokens a draft model drafts before it asks its target (algorithms 2.5).

    cost        K* that the prices of both models and the rate of accepted drafts make best; the default
    N           always so many, a number
    rule        one more after a pass in which over 0.8 of the drafts came true, one fewer after under 0.3 (Chheda 2025)
    confidence  until the draft is not sure of a token
    adaptive    until a head that learns what the target accepts (`head`) expects a refusal (OmniDraft, interleaved)
    joint       the same, where the head learns as often as a draft that learns, from what is new

Each of them is asked how many at most (`limit`), then after every token whether to go on (`goes_on`), and told what
came of it (`learn`). `cost`, `adaptive` and `joint` also see when no draft pays: they are then silent, and try again
when the tries so far have cost a small share of the passes since. Does not know: tokens, models.

A small classifier that predicts whether the target will accept a drafted token (OmniDraft; algorithms 1.2, 2.5).

Features of a token go through one hidden layer; what comes out corrects the draft's own log-odds, so an untrained head
believes the draft. It learns online: binary cross-entropy in which refused tokens weigh more, Adam, batches from a ring
of the latest tokens. The same seed and the same tokens give the same head. Does not know: tokens, models, prices.

What a drafted token's row tells of its chances: numbers for a head that predicts acceptance (algorithms 2.5).

The log-probability, the margin over the next token, the entropy, whether it is a time, and 16 random projections of the
draft's hidden row, scaled to a usual size. Does not know: what is made of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from ...decoding.payoff import Gate, Prices
from .adapter import Adam
from .distill import likeliest

__all__ = [
    "AcceptanceHead",
    "Adaptive",
    "Confidence",
    "CostOptimal",
    "Fixed",
    "INTERLEAVED",
    "JOINT",
    "LOOKAHEADS",
    "Lookahead",
    "N_SIGNS",
    "Rule",
    "Schedule",
    "make_lookahead",
    "signs_of",
]

Floats = NDArray[np.float32]
_N_HIDDEN = 32
_RATE = 1e-3
_BATCH = 64
_N_ENOUGH = 32  # tokens before the first update
_MOST_SURE = 6.0  # log-odds


class AcceptanceHead:
    """See the module. n_kept: tokens in the ring; refused_weight: of a refused token, in accepted ones."""

    def __init__(self, n_features: int, *, n_kept: int = 2048, refused_weight: float = 3.0, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        scale = 1 / np.sqrt(n_features)
        self.weights: dict[str, Floats] = {
            "w1": (scale * rng.standard_normal((n_features, _N_HIDDEN))).astype(np.float32),
            "b1": np.zeros(_N_HIDDEN, np.float32),
            "w2": np.zeros(_N_HIDDEN, np.float32),
            "b2": np.zeros(1, np.float32),
        }
        self._adam = Adam(self.weights, rate=_RATE)
        self._rng = rng
        self._refused_weight = refused_weight
        self._features = np.zeros((n_kept, n_features), np.float32)
        self._odds, self._came = np.zeros(n_kept, np.float32), np.zeros(n_kept, np.float32)
        self.n_seen = 0

    def predict(self, features: Floats, confidence: float) -> float:
        """P(accept) of one token: features f32 [n_features], and the draft's own probability."""
        weights = self.weights
        inner = np.maximum(features @ weights["w1"] + weights["b1"], 0)
        odds = float(inner @ weights["w2"]) + float(weights["b2"][0]) + log_odds(confidence)
        return float(1 / (1 + np.exp(-odds)))

    def learn(self, features: Floats, confidence: float, *, accepted: bool) -> None:
        """Remember what came of a token, in the place of the oldest."""
        at = self.n_seen % len(self._came)
        self._features[at], self._odds[at], self._came[at] = features, log_odds(confidence), accepted
        self.n_seen += 1

    def train(self, n_updates: int) -> None:
        """So many updates, none before there is enough to learn from."""
        if self.n_seen < _N_ENOUGH:
            return
        n_kept = min(self.n_seen, len(self._came))
        for _ in range(n_updates):
            chosen = self._rng.integers(0, n_kept, _BATCH)
            _, gradients = self.loss(self._features[chosen], self._odds[chosen], self._came[chosen])
            self._adam.step(gradients)

    def loss(self, features: Floats, odds: Floats, came: Floats) -> tuple[float, dict[str, Floats]]:
        """The weighted mean of -y log f - w (1 - y) log(1 - f) over tokens, and its gradients.

        features f32 [n, n_features]; odds f32 [n], the draft's own log-odds; came f32 [n], 1 for accepted.
        """
        weights = self.weights
        before = features @ weights["w1"] + weights["b1"]
        inner = np.maximum(before, 0)
        logits = inner @ weights["w2"] + weights["b2"] + odds
        share = np.where(came > 0, 1.0, self._refused_weight).astype(np.float32)
        share /= share.sum()
        loss = float((share * (np.logaddexp(0, logits) - came * logits)).sum())
        outer = share * (1 / (1 + np.exp(-logits)) - came)
        down = np.outer(outer, weights["w2"]) * (before > 0)
        return loss, {
            "w1": features.T @ down,
            "b1": down.sum(axis=0),
            "w2": inner.T @ outer,
            "b2": outer.sum(keepdims=True),
        }


def log_odds(confidence: float) -> float:
    """Of a probability, kept from certainty."""
    sure = min(max(confidence, 1e-9), 1 - 1e-9)
    return min(max(float(np.log(sure / (1 - sure))), -_MOST_SURE), _MOST_SURE)


_N_PROJECTIONS = 16
_N_OWN = 4
N_SIGNS = _N_PROJECTIONS + _N_OWN
_N_LIKELIEST = 16
_WIDEST = 10.0


def signs_of(row: Floats, probability: float, hidden: Floats, *, is_timestamp: bool) -> Floats:
    """f32 [N_SIGNS] of a token with this probability: its filtered row f32 [n_vocab], and the hidden row f32 [n]."""
    near = likeliest(row, _N_LIKELIEST)
    p = np.exp(near.logp)
    entropy = -float((p * near.logp).sum()) - math.exp(near.rest) * near.rest
    best = np.sort(near.logp)[::-1]
    margin = float(best[0] - best[1]) if len(best) > 1 else _WIDEST
    own = [math.log(max(probability, 1e-9)), margin / _WIDEST, entropy, float(is_timestamp)]
    scale = math.sqrt(float(hidden @ hidden)) or 1.0
    return np.concatenate([np.array(own, np.float32), (hidden @ _projection(len(hidden))) / np.float32(scale)])


@functools.cache
def _projection(n: int) -> Floats:
    return np.random.default_rng(n).standard_normal((n, _N_PROJECTIONS)).astype(np.float32)


LOOKAHEADS = ("cost", "rule", "confidence", "adaptive", "joint")
_LONGEST = 16
_RISES, _FALLS = 0.8, 0.3
_FIRST_RULE = 3
_THRESHOLD = 0.4
_FADE = 0.985
_PRIOR, _PRIOR_RATE = 4.0, 0.75
_MIN_SPEED = 1.03  # what a draft must promise: prices are not that exact
_FIRST_TOKENS = 40.0  # of a window, before any was seen
_N_PROBES, _PROBE = 4, 2  # drafts by which a window is judged where the last ones did not pay, and their tokens
_TRIES = 0.02  # of the passes without drafts: what tries may cost; half as much after each that failed
_FEWEST_TRIES = 0.002  # at least, and where no acceptance could pay, as far as prices are known
_NEARLY_ALL = 0.98
_SETTLED = 0.25  # of what is known of the length of windows: the share of the last one
_GAMMA = 0.7
_DEEPEST = 8.0
_N_UPDATES = 4  # of the head after a window, where the draft itself does not learn
Signs = NDArray[np.float32]
_NO_SIGNS: Sequence[Signs] = ()


class Lookahead(Protocol):
    """See the module. wants_signs: whether `signs` are asked for, what is known of each token's row (`signs`)."""

    wants_signs: bool

    def begin(self) -> bool:
        """A window starts; whether anything is drafted in it."""

    def limit(self, n_pending: int) -> int:
        """The most tokens to draft now, before a pass that has `n_pending` rows anyway; 0 for none."""

    def goes_on(self, confidences: Sequence[float], signs: Sequence[Signs] = _NO_SIGNS) -> bool:
        """Whether to draft another token behind those drafted with these probabilities, one at least."""

    def learn(
        self, confidences: Sequence[float], n_accepted: int, *, refused: bool, signs: Sequence[Signs] = _NO_SIGNS
    ) -> None:
        """The first `n_accepted` of a draft came true; `refused`: the one after them did not."""

    def end(self, n_tokens: int) -> None:
        """A window of so many tokens is over."""

    def train(self) -> None:
        """The draft has learned a little: what is known of it may learn too."""


class Fixed:
    """Always `n_draft` tokens. Raises UsageError for fewer than 1."""

    wants_signs = False

    def __init__(self, n_draft: int) -> None:
        if n_draft < 1:
            raise UsageError(f"lookahead: got {n_draft}, expected 1 or more")
        self._n_draft = n_draft

    def begin(self) -> bool:
        """Always."""
        return True

    def limit(self, n_pending: int) -> int:
        """As many as ever."""
        return self._n_draft

    def goes_on(self, confidences: Sequence[float], signs: Sequence[Signs] = _NO_SIGNS) -> bool:
        """Whatever the draft thinks of its tokens."""
        return True

    def learn(
        self, confidences: Sequence[float], n_accepted: int, *, refused: bool, signs: Sequence[Signs] = _NO_SIGNS
    ) -> None:
        """Nothing."""

    def end(self, n_tokens: int) -> None:
        """Nothing."""

    def train(self) -> None:
        """Nothing."""


class Rule(Fixed):
    """From 3 tokens on, between 1 and `longest`."""

    def __init__(self, longest: int = _LONGEST) -> None:
        super().__init__(_FIRST_RULE)
        self._longest = longest

    def learn(
        self, confidences: Sequence[float], n_accepted: int, *, refused: bool, signs: Sequence[Signs] = _NO_SIGNS
    ) -> None:
        """One more, one fewer, or as many as before."""
        if not confidences:
            return
        rate = n_accepted / len(confidences)
        step = 1 if rate > _RISES else -1 if rate < _FALLS else 0
        self._n_draft = min(max(self._n_draft + step, 1), self._longest)


class Confidence(Fixed):
    """Until a token of less than `threshold`, which is still offered, and `longest` at most."""

    def __init__(self, threshold: float = _THRESHOLD, longest: int = _LONGEST) -> None:
        super().__init__(longest)
        self._threshold = threshold

    def goes_on(self, confidences: Sequence[float], signs: Sequence[Signs] = _NO_SIGNS) -> bool:
        """Whether the draft is sure of its last token."""
        return confidences[-1] >= self._threshold


class CostOptimal:
    """K* of the rate so far bounds a draft; within it, the next token must promise more than it costs."""

    wants_signs = False

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._gate = Gate(prices.rows)
        self._came, self._tried = _PRIOR * _PRIOR_RATE, _PRIOR
        self._n_tokens = _FIRST_TOKENS
        self._n_windows = 1
        self._tries = _TRIES
        self._allowed = 0.0  # passes that a try may cost
        self._n_probes: int | None = None
        self._priced = prices.behind_drafts
        self._lengths: dict[tuple[float, float], int] = {}  # a hundred rates, and prices that settle

    @property
    def rate(self) -> float:
        """Accepted drafts among those that were decided, older ones counting less."""
        return self._came / self._tried

    def begin(self) -> bool:
        """Whether drafts are expected to pay for hearing the window, or it is time to try again."""
        self._n_probes = None
        if self._pays():
            self._tries = _TRIES
            return True
        if self._allowed < self._price_of_a_try:
            return False
        self._allowed, self._tries = 0.0, max(self._tries / 2, _FEWEST_TRIES)
        self._n_probes = _N_PROBES
        return True

    def limit(self, n_pending: int) -> int:
        """K*, or nothing where a pass without a draft is due; one token or two while drafts are only tried."""
        best = self._best()
        if best:
            return 0 if self._prices.wants_plain else best
        if self._n_probes:
            self._n_probes -= 1
            return _PROBE
        return 0

    def goes_on(self, confidences: Sequence[float], signs: Sequence[Signs] = _NO_SIGNS) -> bool:
        """Whether the next token is worth a pass of the draft and a row of the target, as far as can be said."""
        reached = 1.0
        for confidence in confidences:
            reached *= self._gate.believed(confidence, "draft")
        rows, n = self._prices.behind_drafts, len(confidences)
        more = rows.cost(n + 2) - rows.cost(n + 1)
        return reached * self.rate > self._prices.draft_cost + more

    def learn(
        self, confidences: Sequence[float], n_accepted: int, *, refused: bool, signs: Sequence[Signs] = _NO_SIGNS
    ) -> None:
        """Count what came true, and hold the draft's probabilities to it."""
        for depth, confidence in enumerate(confidences[: n_accepted + refused]):
            came = depth < n_accepted
            self._came = self._came * _FADE + came
            self._tried = self._tried * _FADE + 1.0
            self._gate.learn(confidence, "draft", accepted=came)

    def end(self, n_tokens: int) -> None:
        """Remember how long windows are: each token of one without drafts was a pass."""
        self._n_windows += 1
        self._n_tokens += max(_SETTLED, 1 / self._n_windows) * (n_tokens - self._n_tokens)
        share = self._tries if self._pays(_NEARLY_ALL) else _FEWEST_TRIES
        self._allowed = min(self._allowed + share * n_tokens, self._price_of_a_try)

    def train(self) -> None:
        """Nothing."""

    @property
    def _price_of_a_try(self) -> float:
        return self._prices.window_cost + _N_PROBES * _PROBE * self._prices.draft_cost

    def _best(self, rate: float | None = None) -> int:
        rows, cost = self._prices.behind_drafts, self._prices.draft_cost
        rate = self.rate if rate is None else rate
        if rows is not self._priced:
            self._priced, self._lengths = rows, {}
        key = (round(rate, 2), round(cost, 3))  # asked before every pass, and seldom another answer
        if key not in self._lengths:
            self._lengths[key] = min(rows.best_length(*key), _LONGEST)
        best = self._lengths[key]
        return best if best and rows.speed(best, rate, cost) >= _MIN_SPEED else 0

    def _pays(self, rate: float | None = None) -> bool:
        """Whether the passes saved in a window of usual length cost more than the draft's part in it."""
        best = self._best(rate)
        if not best:
            return False
        rate = self.rate if rate is None else rate
        speed = self._prices.behind_drafts.speed(best, rate, self._prices.draft_cost)
        return self._n_tokens * (1 - 1 / speed) > self._prices.window_cost


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When the head learns beside a draft that learns: so many updates for one of the draft, from so many tokens."""

    n_updates: int
    n_kept: int


JOINT = Schedule(n_updates=1, n_kept=256)
"""Both learn from what is new (OmniDraft, joint)."""
INTERLEAVED = Schedule(n_updates=4, n_kept=2048)
"""The head learns more often, and from more (OmniDraft, interleaved)."""


class Adaptive(CostOptimal):
    """Until 1 - P(all are accepted) is above `gamma`, or a token promises less than it costs, as before.

    Prices are no part of the head's rule, and it may take long to see that a draft boasts: drafts of which few tokens
    are accepted would be far longer than K*.
    """

    wants_signs = True

    def __init__(
        self, prices: Prices, *, gamma: float = _GAMMA, schedule: Schedule = INTERLEAVED, seed: int = 0
    ) -> None:
        super().__init__(prices)
        self._gamma, self._schedule = gamma, schedule
        self.head = AcceptanceHead(N_SIGNS + 2, n_kept=schedule.n_kept, seed=seed)
        self._reached: list[float] = []
        self._n_trained = 0

    def limit(self, n_pending: int) -> int:
        """As many as may be, where drafts pay; a token or two while they are only tried."""
        self._reached = []
        most = super().limit(n_pending)
        return _LONGEST if most and self._best() else most

    def goes_on(self, confidences: Sequence[float], signs: Sequence[Signs] = _NO_SIGNS) -> bool:
        """Whether all tokens so far are still expected to be accepted, and another one may pay."""
        for depth in range(len(self._reached), len(confidences)):
            before = self._reached[-1] if self._reached else 1.0
            features = _features(confidences[depth], depth, signs[depth])
            self._reached.append(before * self.head.predict(features, confidences[depth]))
        return self._reached[-1] > 1 - self._gamma and super().goes_on(confidences)

    def learn(
        self, confidences: Sequence[float], n_accepted: int, *, refused: bool, signs: Sequence[Signs] = _NO_SIGNS
    ) -> None:
        """Count what came true, and remember it for the head."""
        super().learn(confidences, n_accepted, refused=refused)
        for depth, confidence in enumerate(confidences[: n_accepted + refused]):
            features = _features(confidence, depth, signs[depth])
            self.head.learn(features, confidence, accepted=depth < n_accepted)

    def end(self, n_tokens: int) -> None:
        """Remember how long windows are; the head learns, unless it did with the draft."""
        super().end(n_tokens)
        if not self._n_trained:
            self.head.train(_N_UPDATES)
        self._n_trained = 0

    def train(self) -> None:
        """As the schedule has it."""
        self.head.train(self._schedule.n_updates)
        self._n_trained += 1


def _features(confidence: float, depth: int, signs: Signs) -> Signs:
    """What the head sees of a token: its row, how deep it stands, whether it follows from the one before alone."""
    return np.concatenate([signs, np.array([min(depth / _DEEPEST, 2.0), confidence == 1.0], np.float32)])


def make_lookahead(said: str, prices: Prices) -> Lookahead:
    """The rule called `said`: one of LOOKAHEADS, or a number. Raises UsageError."""
    if said == "cost":
        return CostOptimal(prices)
    if said == "rule":
        return Rule()
    if said == "confidence":
        return Confidence()
    if said in ("adaptive", "joint"):
        return Adaptive(prices, schedule=JOINT if said == "joint" else INTERLEAVED)
    if not (said.isascii() and said.isdecimal() and 1 <= int(said) <= 64):
        raise UsageError(f"lookahead: got {said!r}, expected {', '.join(LOOKAHEADS)} or a number from 1 to 64")
    return Fixed(int(said))
