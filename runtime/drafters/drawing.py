"""A token drawn from a draft model's own distribution, for an acceptance rule that asks what it was drawn from.

Drawn from the likeliest few, scaled to a sum of 1: the rule is right for any distribution, and a short one is cheap.
What is drawn depends on the text before it alone, so a run can be repeated. Does not know: models, acceptance rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from specedge.runtime.decoding.accept import Drawn
from specedge.runtime.decoding.rules import Logits

__all__ = ["draw"]

_N_LIKELIEST = 32


def draw(row: Logits, temperature: float, ids: Sequence[int]) -> tuple[int, Drawn]:
    """The token behind `ids`, and the distribution it was drawn from; `row` f32[n_vocab] is filtered."""
    n = min(_N_LIKELIEST, row.size)
    best = np.sort(np.argpartition(row, row.size - n)[row.size - n :]).astype(np.int64)
    scaled = row[best].astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    q = weights / weights.sum()
    digest = hashlib.blake2b(np.asarray(ids, np.int64).tobytes(), digest_size=8).digest()
    at = np.random.default_rng(int.from_bytes(digest, "little")).random()
    chosen = min(int(np.searchsorted(np.cumsum(q), at, side="right")), n - 1)
    return int(best[chosen]), (best, q)
