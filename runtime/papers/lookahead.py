"""Lookahead rules of papers: how many tokens a draft model drafts before its target is asked.

`AcceptanceHead` is the classifier of OmniDraft (arXiv 2507.02659, online adaptive drafting): features of a drafted
token (`Adaptive.signs`) go through one hidden layer, and what comes out corrects the draft's own log-odds, so an
untrained head believes the draft. It learns online. The same seed and the same tokens give the same head.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..device import CostTable
from ..drafters.draft.lookahead import CostOptimal, DraftCost, Lookahead
from .adapter import Adam
from .distill import likeliest

_LONGEST = 16
Floats = NDArray[np.float32]
_NO_SIGNS: Sequence[Floats] = ()
_N_HIDDEN = 32
_RATE = 1e-3
_BATCH = 64
_N_ENOUGH = 32  # tokens before the first update
_MOST_SURE = 0.9975  # log-odds of 5.99


class AcceptanceHead:
    """Predicts whether the target accepts a drafted token.

    Adam on binary cross-entropy in which a refused token weighs as much as `refused_weight` accepted ones, with batches
    from a ring of the latest `n_kept` tokens (OmniDraft, online adaptive drafting).
    """

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
    """Of a probability, kept from certainty on both sides."""
    sure = min(max(confidence, 1 - _MOST_SURE), _MOST_SURE)
    return math.log(sure / (1 - sure))


_N_PROJECTIONS = 16
_N_OWN = 4
N_SIGNS = _N_PROJECTIONS + _N_OWN
_N_LIKELIEST = 16
_WIDEST = 10.0


@functools.cache
def _projection(n: int) -> Floats:
    return np.random.default_rng(n).standard_normal((n, _N_PROJECTIONS)).astype(np.float32)


_RISES, _FALLS = 0.8, 0.3
_FIRST_RULE = 3
_GAMMA = 0.7
_DEEPEST = 8.0
_N_UPDATES = 4  # of the head after a window, where the draft itself does not learn


class Rule(Lookahead):
    """From 3 tokens on, between 1 and `longest` (Chheda, equation 6)."""

    def __init__(self, *_costs: object, longest: int = _LONGEST) -> None:
        super().__init__(_FIRST_RULE)
        self._longest = longest

    def learn(
        self, confidences: Sequence[float], n_accepted: int, *, refused: bool, signs: Sequence[Floats] = _NO_SIGNS
    ) -> None:
        """One more, one fewer, or as many as before."""
        if not confidences:
            return
        rate = n_accepted / len(confidences)
        step = 1 if rate > _RISES else -1 if rate < _FALLS else 0
        self._n_draft = min(max(self._n_draft + step, 1), self._longest)


class Adaptive(CostOptimal):
    """Until 1 - P(all are accepted) is above 0.7, or a token is not expected to save what it costs.

    The second condition is not OmniDraft's: it may take a head long to see that a draft boasts, and drafts of which few
    tokens are accepted would be far longer than K* meanwhile.

    Beside a draft that learns, the head has `n_updates` for one of the draft, from the latest `n_kept` tokens: by
    default it learns more often, and from more (OmniDraft, interleaved).
    """

    wants_signs = True

    def __init__(self, rows: CostTable, cost: DraftCost, *, n_updates: int = 4, n_kept: int = 2048) -> None:
        super().__init__(rows, cost)
        self._n_updates = n_updates
        self.head = AcceptanceHead(N_SIGNS + 2, n_kept=n_kept)
        self._reached: list[float] = []
        self._has_trained = False

    def signs(self, row: Floats, probability: float, hidden: Floats, *, is_timestamp: bool) -> Floats:
        """f32 [N_SIGNS] of a token: how sure the draft is, and its hidden row in few dimensions."""
        near = likeliest(row, _N_LIKELIEST)
        p = np.exp(near.logp)
        entropy = -float((p * near.logp).sum()) - math.exp(near.rest) * near.rest
        best = np.sort(near.logp)[::-1]
        margin = float(best[0] - best[1]) if len(best) > 1 else _WIDEST
        own = [math.log(max(probability, 1e-9)), margin / _WIDEST, entropy, float(is_timestamp)]
        scale = math.sqrt(float(hidden @ hidden)) or 1.0
        return np.concatenate([np.array(own, np.float32), (hidden @ _projection(len(hidden))) / np.float32(scale)])

    def limit(self) -> int:
        """As many as may be."""
        self._reached = []
        return super().limit()

    def goes_on(self, confidences: Sequence[float], signs: Sequence[Floats] = _NO_SIGNS) -> bool:
        """Whether all tokens so far are still expected to be accepted, and another one may pay."""
        for depth in range(len(self._reached), len(confidences)):
            before = self._reached[-1] if self._reached else 1.0
            features = _features(confidences[depth], depth, signs[depth])
            self._reached.append(before * self.head.predict(features, confidences[depth]))
        return self._reached[-1] > 1 - _GAMMA and super().goes_on(confidences)

    def learn(
        self, confidences: Sequence[float], n_accepted: int, *, refused: bool, signs: Sequence[Floats] = _NO_SIGNS
    ) -> None:
        """Count what came true, and remember it for the head."""
        super().learn(confidences, n_accepted, refused=refused)
        for depth, confidence in enumerate(confidences[: n_accepted + refused]):
            features = _features(confidence, depth, signs[depth])
            self.head.learn(features, confidence, accepted=depth < n_accepted)

    def end(self) -> None:
        """The head learns, unless it did with the draft."""
        if not self._has_trained:
            self.head.train(_N_UPDATES)
        self._has_trained = False

    def train(self) -> None:
        """As the schedule has it."""
        self.head.train(self._n_updates)
        self._has_trained = True


def _features(confidence: float, depth: int, signs: Floats) -> Floats:
    """What the head sees of a token: its row, how deep it stands, whether it follows from the one before alone."""
    return np.concatenate([signs, np.array([min(depth / _DEEPEST, 2.0), confidence == 1.0], np.float32)])


joint = functools.partial(Adaptive, n_updates=1, n_kept=256)
"""Head and draft learn from what is new (OmniDraft, joint)."""
