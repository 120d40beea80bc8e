"""Low-rank factors that a draft learns: its last hidden row h becomes h + (h A) B.

The loss is OmniDraft's (arXiv 2507.02659, hybrid distillation loss): where draft and target can be compared token by
token, the reverse Kullback-Leibler divergence KL(draft || target); where a token of the target is spelt with several of
the draft's, the negative log-likelihood of those, weighted by 0.2 as in the paper. A distribution is known at a few
tokens; all others are one outcome, whose logit counts as fixed. The optimiser is Adam (Kingma and Ba 2015) with the
gradients' common norm bounded, within a bound on A B; served is a running mean of what is trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_FIRST, _SECOND, _TINY = 0.9, 0.99, 1e-8


class Adam:
    """The optimiser of `weights`, float32 arrays; `rate` is the step, `clip` the largest norm of all gradients."""

    def __init__(self, weights: Mapping[str, Floats], *, rate: float, clip: float = 1.0) -> None:
        self._weights, self._rate, self._clip = weights, rate, clip
        self.reset()

    def reset(self) -> None:
        """Forget the gradients so far."""
        self._n_steps = 0
        self._mean = {name: np.zeros_like(array) for name, array in self._weights.items()}
        self._square = {name: np.zeros_like(array) for name, array in self._weights.items()}

    def step(self, gradients: Mapping[str, Floats]) -> bool:
        """One step; False, and nothing is changed, where the gradients are not all numbers."""
        norm = math.sqrt(sum(float((gradient.astype(np.float64) ** 2).sum()) for gradient in gradients.values()))
        if not math.isfinite(norm):
            return False
        scale = np.float32(min(1.0, self._clip / norm) if norm else 1.0)
        self._n_steps += 1
        rate = self._rate * math.sqrt(1 - _SECOND**self._n_steps) / (1 - _FIRST**self._n_steps)
        for name, gradient in gradients.items():
            mean, square, change = self._mean[name], self._square[name], gradient * scale
            mean += np.float32(1 - _FIRST) * (change - mean)
            square += np.float32(1 - _SECOND) * (change * change - square)
            self._weights[name][...] -= np.float32(rate) * mean / (np.sqrt(square) + np.float32(_TINY))
        return True


_STRONGEST = 3.0


@dataclass(frozen=True, kw_only=True)
class AdapterOptions:
    """rank: of the factors; rate: Adam's step; ngram_weight: the paper's lambda; average: of the running mean."""

    rank: int = 32
    rate: float = 2e-3
    ngram_weight: float = 0.2
    average: float = 0.99
    seed: int = 0


Batch = Mapping[str, NDArray[Any]]
"""n places of a text, each with the same number of slots for tokens, the first of which is what the target said.

hidden f32 [n, n_state]: the draft's row, unchanged; vectors f32 [n, n_slots, n_state]: of the slots' tokens; used bool
[n, n_slots]: slots that hold a token; rest f32 [n]: log of the summed exponentials of the draft's other logits; logp
f32 [n, n_slots], logp_rest f32 [n]: the target's; direct bool [n]: where the target's distribution is known.
"""


class Adapter:
    """The factors of one draft. `factors` are the ones to serve; every step changes them in place."""

    def __init__(self, n_state: int, options: AdapterOptions | None = None) -> None:
        self.options = options or AdapterOptions()
        start = np.random.default_rng(self.options.seed).standard_normal((n_state, self.options.rank), np.float32)
        self._start: Floats = start / np.float32(np.sqrt(n_state))
        self.trained = {"a": self._start.copy(), "b": np.zeros((self.options.rank, n_state), np.float32)}
        self.factors: tuple[Floats, Floats] = (self.trained["a"].copy(), self.trained["b"].copy())
        self._adam = Adam(self.trained, rate=self.options.rate)

    @property
    def is_neutral(self) -> bool:
        """Whether the served factors change nothing."""
        return not self.factors[1].any()

    def reset(self) -> None:
        """Back to the unadapted draft."""
        firsts = (self._start, np.zeros_like(self.factors[1]))
        for mine, served, first in zip(self.trained.values(), self.factors, firsts, strict=True):
            mine[...] = served[...] = first
        self._adam.reset()

    def step(self, batch: Batch) -> None:
        """One update on a batch of one place or more."""
        _, gradients = self.loss(batch)
        if self._adam.step(gradients):
            self._bound()
            keep = np.float32(self.options.average)
            for mine, served in zip(self.trained.values(), self.factors, strict=True):
                served *= keep
                served += (1 - keep) * mine

    def loss(self, batch: Batch) -> tuple[float, dict[str, Floats]]:
        """The mean loss of the trained factors, and its gradients."""
        a, b = self.trained["a"], self.trained["b"]
        names = ("hidden", "vectors", "used", "rest", "direct")
        hidden, vectors, used, rest, direct = (batch[name] for name in names)
        narrow = hidden @ a
        rows = hidden + narrow @ b
        logits = np.where(used, np.matmul(vectors, rows[:, :, None])[:, :, 0], -np.inf)
        peak = np.maximum(logits.max(axis=1), rest)
        whole = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1) + np.exp(rest - peak))
        logq, logq_rest = logits - whole[:, None], rest - whole
        q = np.exp(logq)
        apart = np.where(used, logq - batch["logp"], 0)
        divergence = (q * apart).sum(axis=1) + np.exp(logq_rest) * (logq_rest - batch["logp_rest"])
        spelt = -logq[:, 0]
        weight = np.where(direct, 1, self.options.ngram_weight).astype(np.float32) / len(q)
        by_spelling = q.copy()
        by_spelling[:, 0] -= 1
        by_logit = np.where(direct[:, None], q * (apart - divergence[:, None]), by_spelling) * weight[:, None]
        by_row = np.matmul(by_logit[:, None, :].astype(np.float32), vectors)[:, 0, :]
        loss = float((np.where(direct, divergence, spelt) * weight).sum())
        return loss, {"a": hidden.T @ (by_row @ b.T), "b": narrow.T @ by_row}

    def _bound(self) -> None:
        """Keep A B, by its Frobenius norm, from outweighing the row that it changes many times over."""
        a, b = self.trained["a"], self.trained["b"]
        size = float(np.sqrt(max(np.trace((a.T @ a) @ (b @ b.T)), 0)))
        if size > _STRONGEST:
            b *= np.float32(_STRONGEST / size)
