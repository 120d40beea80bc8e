"""Token maps as their paper drafts from them (arXiv 2507.21522, section 3): the preset `paper`.

Keys of three tokens alone, also to go on with a guess, at least 9 tokens for two candidates and 16 for three,
candidates merged into their common beginning until they are long enough, no costs.
"""

from __future__ import annotations

import itertools
from typing import Any

from ..decoding.payoff import Guess, cut
from ..drafters.tokenmap import TokenMapDrafter

_MIN_LENGTHS = (9, 16)  # fewest tokens that two and three candidates must have


class PaperTokenMapDrafter(TokenMapDrafter):
    """See the module; arguments as of `TokenMapDrafter`."""

    _reads_on = False

    def __init__(self, *args: Any, orders: tuple[int, ...] = (3,), **options: Any) -> None:
        super().__init__(*args, orders=orders, **options)

    def _chosen(self, paths: list[Guess], n_pending: int, n_paths: int) -> list[Guess]:
        return paths[: n_paths if n_pending == 1 else 1]

    def _best_key(self, *args: Any) -> list[Guess]:
        """The candidates, merged while they are too short for their number: two become what both begin with.

        They are the two that begin alike for longest. The paper does not say what becomes of two that have nothing in
        common: here the more frequent one stays as it is.
        """
        found = super()._best_key(*args)
        while len(found) > 1 and min(len(one.tokens) for one in found) < _MIN_LENGTHS[min(len(found), 3) - 2]:
            pairs = itertools.combinations(range(len(found)), 2)
            i, j = max(pairs, key=lambda pair: _alike(found[pair[0]], found[pair[1]]))
            n_alike = _alike(found[i], found[j])
            found[i] = cut(found[i], n_alike or len(found[i].tokens))
            del found[j]
        return found


def _alike(a: Guess, b: Guess) -> int:
    """How many tokens two guesses begin with alike."""
    pairs = zip(a.tokens, b.tokens, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a.tokens), len(b.tokens)))
