"""Trees of heads' choices: the shape that pays, held to what came true."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.decoding.drafter import Verdict
from specedge.runtime.device import DEFAULT_COSTS, CostTable
from specedge.runtime.papers.heads import HeadsDrafter
from support.drafting import parents_of

NEARLY_FREE = CostTable((1, 2, 64), (1.0, 1.0, 1.2))
IDS = np.array([[10 * head + choice for choice in range(4)] for head in range(5)])


def drafter(costs: CostTable, *, gated: bool = True) -> Any:
    return HeadsDrafter("mtp-latent", Any, costs, gated=gated)


def guesses(*first: float, rest: float = 0.05) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    probs = np.full((len(first), 4), rest, np.float32)
    probs[:, 0] = first
    return IDS[: len(first)], probs


def paths(tree: Any) -> list[list[int]]:
    parents, tokens = parents_of(tree), list(tree.tokens)
    found = []
    for leaf in sorted(set(range(len(tokens))) - set(parents)):
        path, node = list[int](), leaf
        while node != -1:
            path.insert(0, tokens[node])
            node = parents[node]
        found.append(path)
    return found


def test_ungated_it_is_all_heads_and_the_likeliest_other_choices() -> None:
    trees = drafter(DEFAULT_COSTS, gated=False)
    ids, probs = guesses(0.5, 0.9, 0.9, rest=0.001)
    probs[0, 1], probs[2, 2] = 0.4, 0.09
    found = paths(trees.grow(ids, probs, 3, 64))
    assert found == [[0, 10, 20], [1, 10, 20], [0, 10, 22]]
    assert paths(trees.grow(ids, probs, 1, 64)) == [[0, 10, 20]]
    assert paths(trees.grow(ids, probs, 3, 2)) == [[0, 10]], "no more nodes than there is room for"
    assert len(trees.grow(ids, probs, 3, 0)) == 0


def test_gated_it_is_as_deep_and_wide_as_pays() -> None:
    unsure, probs = guesses(0.05, 0.05, 0.05)
    assert len(drafter(CostTable((1, 2, 4), (1.0, 1.0, 1.4))).grow(unsure, probs, 4, 64)) <= 1
    ids, probs = guesses(0.9, 0.9, 0.02, 0.9, 0.9)
    assert paths(drafter(DEFAULT_COSTS).grow(ids, probs, 4, 64)) == [[0, 10, 20]], "rows come in pairs"
    ids, probs = guesses(0.5, 0.9, 0.9)
    probs[0, 1] = 0.45
    assert [path[0] for path in paths(drafter(NEARLY_FREE).grow(ids, probs, 4, 64))][:2] == [0, 1]
    assert len(paths(drafter(DEFAULT_COSTS).grow(*guesses(0.99, 0.98), 4, 64))) == 1


def test_heads_that_are_right_behind_right_ones_are_believed_more_than_they_say() -> None:
    costs = CostTable((1, 2, 4, 8), (1.0, 1.0, 1.3, 1.7))
    trees = drafter(costs)
    ids, probs = guesses(0.8, 0.3, 0.3, 0.3)
    before = len(trees.grow(ids, probs, 1, 64))
    for _ in range(30):
        tree = trees.grow(ids, probs, 1, 64)
        nodes = tuple(range(len(tree)))
        trees.observe(Verdict(drafted=(), n_accepted=len(nodes), token=7, finished=False, evaluated=nodes, nodes=nodes))
    assert before < len(trees.grow(ids, probs, 1, 64)) == 4
