"""Acceptance rules of papers, which can change the text.

residual   above temperature 0: a draft is kept with probability p/q, else a token is drawn from what q left of p. The
           text has the distribution of plain sampling, but is another sample (Leviathan et al. 2023; Chen et al. 2023)
top-M      a draft among the model's M likeliest tokens is kept. Lossy (Raj et al., section III-A, eq. 9)
threshold  a draft is kept by its drafter's confidence. Lossy (Raj et al., section III-A, eq. 10)
typical    a draft is kept that is likely enough for the row's entropy. Lossy (Whisper-Medusa, section II, eq. 3)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..decoding.accept import AcceptanceRule, Candidate, Drawn
from ..decoding.rules import Logits
from ..decoding.sampling import Draw


@dataclass(frozen=True, kw_only=True)
class Residual(AcceptanceRule):
    """Speculative sampling (Leviathan et al. 2023): right in distribution above temperature 0; at 0 it is `Exact`.

    A draft without siblings may bring the distribution q that it was drawn from. Any other is taken as certain (q = 1),
    which is right for any draft. The rule is kept twice, by the sums of p and q over classes and then within the
    draft's class: right in distribution too, and the rest of q need not be known. Without classes each id is one.
    """

    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int:
        """Return the first candidate with probability p/q, else a draw from max(0, p - q), by one number of (0, 1)."""
        if draw.temperature == 0 or not candidates:
            return draw.own(logits)
        p = _softmax(logits, draw.temperature)
        first = candidates[0].token
        drawn = candidates[0].drawn if len(candidates) == 1 else None
        ids, q, *given = drawn or (np.array([first]), np.ones(1))
        classes = given[0] if given else np.arange(len(ids))
        p_of, q_of = (np.bincount(classes, one) for one in (p[ids], q))
        own = classes[ids == first][0]
        mine = classes == own
        within_p = p[ids[mine]] / (p_of[own] or 1.0)
        within_q = q[mine] / q_of[own]
        kept = min(1.0, p_of[own] / q_of[own])  # of the class, and then of the draft in it
        here = ids[mine] == first
        number = draw.uniform()
        if number < kept * min(1.0, float((within_p[here] / within_q[here])[0])):
            return first
        rest = p.copy()
        if number < kept:
            rest[:] = 0
            rest[ids[mine]] = np.maximum(0.0, within_p - within_q)
        else:
            rest[ids] *= (np.maximum(0.0, p_of - q_of) / np.where(p_of > 0, p_of, 1.0))[classes]
        return draw.sample(rest if rest.any() else p)


@dataclass(frozen=True, kw_only=True)
class TopM(AcceptanceRule):
    """A draft is kept when it is among the `m` likeliest tokens (Raj et al., eq. 9). Lossy for m above 1."""

    m: int = 3

    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int:
        """Return the model's own token if drafted, else the first candidate of the top m, else the model's own."""
        own = draw.own(logits)
        good = (c.token for c in candidates if int((logits > logits[c.token]).sum()) < self.m)
        return _own_or_first(own, candidates, [token for token in good if np.isfinite(logits[token])])


@dataclass(frozen=True, kw_only=True)
class Typical(AcceptanceRule):
    """A draft is kept when p(draft) > min(epsilon, alpha * exp(-H)), H the row's entropy. Lossy.

    The rule of Medusa (Cai et al. 2024), with the constants of Whisper-Medusa (section II, eq. 3). p is taken at
    temperature 1 when decoding is greedy.
    """

    epsilon: float = 0.09
    alpha: float = 0.3

    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int:
        """Return the model's own token if drafted, else the first candidate above the limit, else the model's own."""
        own = draw.own(logits)
        if not candidates:
            return own
        p = _softmax(logits, draw.temperature or 1.0)
        entropy = -float((p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum())
        limit = min(self.epsilon, self.alpha * float(np.exp(-entropy)))
        return _own_or_first(own, candidates, [c.token for c in candidates if p[c.token] > limit])


@dataclass(frozen=True, kw_only=True)
class Threshold(AcceptanceRule):
    """A draft is kept when its drafter's confidence is `tau` or more; the model is not asked (Raj et al., eq. 10)."""

    tau: float = 0.8

    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int:
        """Return the first candidate that is confident enough and allowed, else the model's own token."""
        for candidate in candidates:
            sure = candidate.conf is not None and candidate.conf >= self.tau
            if sure and np.isfinite(logits[candidate.token]):
                return candidate.token
        return draw.own(logits)


def _own_or_first(own: int, candidates: Sequence[Candidate], good: Sequence[int]) -> int:
    if any(candidate.token == own for candidate in candidates):
        return own
    return good[0] if good else own


def _softmax(logits: Logits, temperature: float) -> NDArray[np.float64]:
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    result: NDArray[np.float64] = weights / weights.sum()
    return result


_N_LIKELIEST = 32


def draw_draft(row: Logits, temperature: float, ids: Sequence[int], key: bytes = b"") -> tuple[int, Drawn]:
    """Draw the token behind `ids`, for a rule that asks what a draft was drawn from; `row` f32[n_vocab] is filtered.

    Returns it with its distribution: the likeliest few, scaled to a sum of 1, which is right for any draft
    distribution (Leviathan et al. 2023, section 2.3 and appendix A.1). `key` is that of the sample's noise, so each
    sample, window and seed has a draw of its own and a run can be repeated.
    """
    n = min(_N_LIKELIEST, row.size)
    best = np.sort(np.argpartition(row, row.size - n)[row.size - n :]).astype(np.int64)
    q = _softmax(row[best], temperature)
    digest = hashlib.blake2b(np.asarray(ids, np.int64).tobytes(), digest_size=8, key=key).digest()
    at = np.random.default_rng(int.from_bytes(digest, "little")).random()
    chosen = min(int(np.searchsorted(np.cumsum(q), at, side="right")), n - 1)
    return int(best[chosen]), (best, q)
