"""A small classifier that predicts whether the target will accept a drafted token (OmniDraft; algorithms 1.2, 2.5).

Features of a token go through one hidden layer; what comes out corrects the draft's own log-odds, so an untrained head
believes the draft. It learns online: binary cross-entropy in which refused tokens weigh more, Adam, batches from a ring
of the latest tokens. The same seed and the same tokens give the same head. Does not know: tokens, models, prices.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.drafters.adam import Adam

__all__ = ["AcceptanceHead"]

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
