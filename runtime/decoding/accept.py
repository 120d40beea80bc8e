"""Acceptance rules: which token a position gets, given the model's row and the drafts of that position.

exact      the model's own choice: the likeliest token, or above temperature 0 the keyed sample. Lossless, the default.
residual   above temperature 0: a draft is kept with probability p/q, else a token is drawn from what q left of p. The
           text has the distribution of plain sampling, but is another sample (Leviathan et al. 2023; Chen et al. 2023)
top-M      a draft among the model's M likeliest tokens is kept. Lossy (Raj et al., section III-A, eq. 9)
threshold  a draft is kept by its drafter's confidence. Lossy (Raj et al., section III-A, eq. 10)
typical    a draft is kept that is likely enough for the row's entropy. Lossy (Whisper-Medusa, section II, eq. 3)

A rule sees one filtered row and the drafts of its position, best first. A draft that Whisper's rules forbid is never
kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from .rules import Logits
from .sampling import Draw

__all__ = [
    "AcceptanceRule",
    "Candidate",
    "Classed",
    "Drawn",
    "Exact",
    "Residual",
    "Threshold",
    "TopM",
    "Typical",
    "rule_named",
]

Drawn = tuple[NDArray[np.int64], NDArray[np.float64]]
Classed = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A draft of one position: its id, and the drafter's confidence where it gave one.

    drawn: the distribution that the draft was drawn from, ids int[n] without repetition and probabilities float[n]; or,
    with the class of each id int[n], one of which only the sums over classes are known, and all of the draft's class.
    """

    token: int
    conf: float | None = None
    drawn: Drawn | Classed | None = None


class AcceptanceRule(Protocol):
    """`choose` returns the position's token; the candidate with that token is accepted."""

    @property
    def name(self) -> str: ...

    @property
    def lossless(self) -> bool: ...

    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Exact:
    """The model's own choice: `exact` at temperature 0, `keyed-sample` above it."""

    name: str = "exact"
    lossless: bool = True

    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int:
        """Return the token of plain decoding, whatever the candidates are."""
        return draw.own(logits)


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Speculative sampling (Leviathan et al. 2023): right in distribution above temperature 0; at 0 it is `Exact`.

    A draft without siblings may bring the distribution q that it was drawn from. Any other is taken as certain (q = 1),
    which is right for any draft. With classes the rule is kept twice, by the sums of p and q over classes and then
    within the draft's class: right in distribution too, and the rest of q need not be known.
    """

    name: str = "residual"
    lossless: bool = False

    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int:
        """Return the first candidate with probability p/q, else a draw from max(0, p - q)."""
        if draw.temperature == 0 or not candidates:
            return draw.own(logits)
        p = _softmax(logits, draw.temperature)
        first = candidates[0].token
        drawn = candidates[0].drawn if len(candidates) == 1 else None
        ids, q, *classes = drawn or (np.array([first]), np.ones(1))
        if classes:
            return _by_class(p, first, (ids, q, classes[0]), draw)
        if draw.uniform() * q[ids == first].sum() < p[first]:
            return first
        rest = p.copy()
        rest[ids] = np.maximum(0.0, rest[ids] - q)
        return draw.sample(rest if rest.any() else p)


@dataclass(frozen=True, kw_only=True)
class TopM:
    """A draft is kept when it is among the `m` likeliest tokens (Raj et al., eq. 9). Lossy for m above 1."""

    m: int = 3
    name: str = "top-m"
    lossless: bool = False

    def __post_init__(self) -> None:
        if self.m < 1:
            raise UsageError(f"top-m acceptance: got m = {self.m}, expected 1 or more")

    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int:
        """Return the model's own token if drafted, else the first candidate of the top m, else the model's own."""
        own = draw.own(logits)
        good = (c.token for c in candidates if int((logits > logits[c.token]).sum()) < self.m)
        return _own_or_first(own, candidates, [token for token in good if np.isfinite(logits[token])])


@dataclass(frozen=True, kw_only=True)
class Typical:
    """A draft is kept when p(draft) > min(epsilon, alpha * exp(-H)), H the row's entropy. Lossy.

    The rule of Medusa (Cai et al. 2024), with the constants of Whisper-Medusa (section II, eq. 3). p is taken at
    temperature 1 when decoding is greedy.
    """

    epsilon: float = 0.09
    alpha: float = 0.3
    name: str = "typical"
    lossless: bool = False

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
class Threshold:
    """A draft is kept when its drafter's confidence is `tau` or more; the model is not asked (Raj et al., eq. 10)."""

    tau: float = 0.8
    name: str = "threshold"
    lossless: bool = False

    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int:
        """Return the first candidate that is confident enough and allowed, else the model's own token."""
        for candidate in candidates:
            sure = candidate.conf is not None and candidate.conf >= self.tau
            if sure and np.isfinite(logits[candidate.token]):
                return candidate.token
        return draw.own(logits)


def rule_named(name: str) -> AcceptanceRule:
    """Return the rule exact, typical, residual, top-M for a number M, or a threshold: a number from 0 to 1.

    Raises UsageError.
    """
    with contextlib.suppress(ValueError):
        if name == "exact":
            return Exact()
        if name == "typical":
            return Typical()
        if name == "residual":
            return Residual()
        if name.startswith("top-"):
            return TopM(m=int(name.removeprefix("top-")))
        if 0 <= float(name) <= 1:
            return Threshold(tau=float(name))
    raise UsageError(
        f"accept: got {name!r}, expected exact, typical, residual, top-M such as top-3, or a number from 0 to 1"
    )


def _by_class(p: NDArray[np.float64], first: int, drawn: Classed, draw: Draw) -> int:
    """The draft `first`, else a token of its class, or of what is left of all classes, by one number of (0, 1)."""
    ids, q, classes = drawn
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


def _own_or_first(own: int, candidates: Sequence[Candidate], good: Sequence[int]) -> int:
    if any(candidate.token == own for candidate in candidates):
        return own
    return good[0] if good else own


def _softmax(logits: Logits, temperature: float) -> NDArray[np.float64]:
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    result: NDArray[np.float64] = weights / weights.sum()
    return result
