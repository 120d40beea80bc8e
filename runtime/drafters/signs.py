"""What a drafted token's row tells of its chances: numbers for a head that predicts acceptance (algorithms 2.5).

The log-probability, the margin over the next token, the entropy, whether it is a time, and 16 random projections of the
draft's hidden row, scaled to a usual size. Does not know: what is made of them.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.drafters.lessons import likeliest

__all__ = ["N_SIGNS", "signs_of"]

Floats = NDArray[np.float32]

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
