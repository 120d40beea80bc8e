"""Trees of heads' choices: the shape that pays, held to what came true."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.runtime.decoding.drafter import Verdict
from specedge.runtime.decoding.payoff import Guesses
from specedge.runtime.device import DEFAULT_COSTS, CostTable
from specedge.runtime.papers import heads as heads_module
from specedge.runtime.papers.heads import HeadTrees
from support.drafting import parents_of

NEARLY_FREE = CostTable((1, 2, 64), (1.0, 1.0, 1.2))
IDS = np.array([[10 * head + choice for choice in range(4)] for head in range(5)])


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
    trees = HeadTrees(DEFAULT_COSTS, gated=False)
    ids, probs = guesses(0.5, 0.9, 0.9, rest=0.001)
    probs[0, 1], probs[2, 2] = 0.4, 0.09
    found = paths(trees.grow(ids, probs, 3, 64))
    assert found == [[0, 10, 20], [1, 10, 20], [0, 10, 22]]
    assert paths(trees.grow(ids, probs, 1, 64)) == [[0, 10, 20]]
    assert paths(trees.grow(ids, probs, 3, 2)) == [[0, 10]], "no more nodes than there is room for"
    assert len(trees.grow(ids, probs, 3, 0)) == 0


def test_gated_it_is_as_deep_and_wide_as_pays() -> None:
    unsure, probs = guesses(0.05, 0.05, 0.05)
    assert len(HeadTrees(CostTable((1, 2, 4), (1.0, 1.0, 1.4)), gated=True).grow(unsure, probs, 4, 64)) <= 1
    ids, probs = guesses(0.9, 0.9, 0.02, 0.9, 0.9)
    assert paths(HeadTrees(DEFAULT_COSTS, gated=True).grow(ids, probs, 4, 64)) == [[0, 10, 20]], "rows come in pairs"
    ids, probs = guesses(0.5, 0.9, 0.9)
    probs[0, 1] = 0.45
    assert [path[0] for path in paths(HeadTrees(NEARLY_FREE, gated=True).grow(ids, probs, 4, 64))][:2] == [0, 1]
    assert len(paths(HeadTrees(DEFAULT_COSTS, gated=True).grow(*guesses(0.99, 0.98), 4, 64))) == 1


def test_a_text_is_expected_to_begin_at_once_while_that_comes_true() -> None:
    trees = HeadTrees(DEFAULT_COSTS, gated=True)
    assert list(trees.opening(7, 3).tokens) == [7], "the fourth row is free"
    assert trees.opening(7, 3).conf is None, "a rule that believes sure heads would begin every text alike"
    for _ in range(20):
        tree = trees.opening(7, 4)
        nodes = tuple(range(len(tree)))
        trees.learn(
            Verdict(drafted=(7,), n_accepted=0, token=8, finished=False, evaluated=nodes, rejected=0 if nodes else None)
        )
    assert not len(trees.opening(7, 4)), "a row that costs something is not spent on it any more"


def test_heads_that_are_right_behind_right_ones_are_believed_more_than_they_say() -> None:
    costs = CostTable((1, 2, 4, 8), (1.0, 1.0, 1.3, 1.7))
    trees = HeadTrees(costs, gated=True)
    ids, probs = guesses(0.8, 0.3, 0.3, 0.3)
    before = len(trees.grow(ids, probs, 1, 64))
    for _ in range(30):
        tree = trees.grow(ids, probs, 1, 64)
        nodes = tuple(range(len(tree)))
        trees.learn(Verdict(drafted=(), n_accepted=len(nodes), token=7, finished=False, evaluated=nodes, nodes=nodes))
    assert before < len(trees.grow(ids, probs, 1, 64)) == 4


def test_second_choices_that_come_true_grow_paths_of_their_own() -> None:
    trees = HeadTrees(NEARLY_FREE, gated=True)
    ids, probs = guesses(0.4, 0.3)
    probs[0, 3] = 0.12
    for _ in range(40):
        tree = trees.grow(ids, probs, 4, 64)
        tokens, nodes = list(tree.tokens), tuple(range(len(tree)))
        right = (tokens.index(3),) if 3 in tokens else ()
        rejected = next((node for node in nodes if tree.parents[node] == (right[0] if right else -1)), None)
        trees.learn(
            Verdict(drafted=(3,), n_accepted=len(right), token=99, finished=False, evaluated=nodes, nodes=right,
                    rejected=rejected)
        )  # fmt: skip
    assert paths(trees.grow(ids, probs, 2, 64))[-1][0] == 3


class Weighed:
    """Trees by their definition, all of them looked at (Cai et al. 2024, Medusa, section 2.1.2).

    A node counts with the probability that it and all before it are right. A tree is the chain of all heads' best
    guesses, cut at one length, and beside it paths in which one head takes another of its choices, each worth its own
    nodes. The tree with the largest gain is taken: its nodes less its rows, which are even in number for each path.
    Probabilities are scaled by what came of their class: which choice, of the first head or a later one, how sure.
    """

    def __init__(self, costs: CostTable) -> None:
        self.guesses = Guesses(costs, max_scale=heads_module._MAX_SCALE)
        self.costs = costs

    def believed(self, probs: Any, head: int, choice: int, changed: int) -> float:
        return self.guesses.believed(*self.kind(probs, head, choice, changed))

    @staticmethod
    def kind(probs: Any, head: int, choice: int, changed: int) -> tuple[float, Hashable]:
        """A head's choice on a path on which the head `changed` takes another one."""
        named = choice if choice else "behind" if head > changed else "best"
        return probs[head][choice], (named, min(head, 1), bisect_right(heads_module._RANGES, probs[head][choice]))

    def nodes(self, probs: Any, length: int, head: int, choice: int) -> list[float]:
        """Of each node from `head` on, where that takes `choice`, the probability that all up to it are right; of all
        nodes where `head` is none of them."""
        taken = [choice if at == head else 0 for at in range(length)]
        reached = np.cumprod([self.believed(probs, at, one, head) for at, one in enumerate(taken)])
        return reached[head % length :].tolist()

    def others(self, probs: Any, length: int, least: float) -> list[tuple[float, int, int]]:
        """What each other choice adds, most first."""
        found = []
        for head in range(min(length, heads_module._DEEPEST_OTHER)):
            for choice in range(1, len(probs[head])):
                nodes = self.nodes(probs, length, head, choice)
                if nodes[0] > least:
                    found.append((sum(nodes), head, choice))
        return sorted(found, reverse=True)

    def gain(self, probs: Any, length: int, added: list[float]) -> float:
        n_paths = 1 + len(added)
        worth = sum(self.nodes(probs, length, length, 0)) + sum(added) - heads_module._MARGIN * len(added)
        return self.guesses.gain(worth, n_paths * (length + 1 + (length + 1) % 2), 1, n_paths)

    def best_gain(self, probs: Any, n_paths: int) -> float:
        return max(
            [0.0]
            + [
                self.gain(probs, length, [worth for worth, _, _ in others[:n]])
                for length in range(1, len(probs) + 1)
                for others in [self.others(probs, length, heads_module._HOPELESS)]
                for n in range(min(n_paths, 1 + len(others)))
            ]
        )


def places(tree: Any) -> list[tuple[int, int, int]]:
    """The length of each path, and its head and choice that differ, (length, 0) for none; ids are as in `IDS`."""
    found = []
    for path in paths(tree):
        differs = [(head, id_ - 10 * head) for head, id_ in enumerate(path) if id_ != 10 * head]
        assert len(differs) <= 1, "one head at most takes another choice"
        found.append((len(path), *(differs[0] if differs else (len(path), 0))))
    return found


def settled(tree: Any, truth: list[int], trees: HeadTrees, weighed: Weighed, probs: Any) -> None:
    """Both are told what came of a tree; `truth` are ids."""
    parents, tokens = parents_of(tree), list(tree.tokens)
    right: list[int] = []
    while len(right) < len(truth):
        below = [node for node, parent in enumerate(parents) if parent == (right[-1] if right else -1)]
        hit = [node for node in below if tokens[node] == truth[len(right)]]
        for node in below:
            depth, choice = divmod(tokens[node], 10)
            changed = next((at for at, one in enumerate(right) if tokens[one] % 10), depth)
            weighed.guesses.count(*weighed.kind(probs, depth, choice, changed), accepted=node in hit)
        if not hit:
            break
        right += hit
    rejected = next((node for node, parent in enumerate(parents) if parent == (right[-1] if right else -1)), None)
    nodes = tuple(range(len(tokens)))
    trees.learn(
        Verdict(drafted=(), n_accepted=len(right), token=99, finished=False, evaluated=nodes, nodes=tuple(right),
                rejected=rejected)
    )  # fmt: skip


TABLES = [
    CostTable((1, 2, 64), (1.0, 1.0, 1.6)),
    CostTable((1, 4, 8, 64), (1.0, 1.1, 1.9, 9.0)),
    CostTable((1, 2, 64), (1.0, 1.0, 2.0), several_paths=0.3),
]


@pytest.mark.parametrize("costs", TABLES)
@pytest.mark.parametrize(("n_heads", "n_paths"), [(1, 4), (4, 1), (5, 4), (10, 12)])
def test_a_tree_is_the_one_that_gains_most_by_what_came_true_before(
    costs: CostTable, n_heads: int, n_paths: int
) -> None:
    trees, weighed, rng = HeadTrees(costs, gated=True), Weighed(costs), np.random.default_rng(n_heads)
    ids = np.array([[10 * head + choice for choice in range(4)] for head in range(n_heads)])
    n_wide = n_deep = 0
    for _ in range(60):
        sure = np.sort(rng.dirichlet([0.5] * 5, n_heads), axis=1)[:, ::-1][:, :4].astype(np.float32)
        probs = sure.tolist()
        tree = trees.grow(ids, sure, n_paths, 200)
        found = places(tree)
        best = weighed.best_gain(probs, n_paths)
        if not found:
            assert best == pytest.approx(0.0, abs=1e-5)
        else:
            length = found[0][0]
            assert {place[0] for place in found} == {length} and found[0] == (length, length, 0)
            added = [sum(weighed.nodes(probs, *place)) for place in found[1:]]
            assert added == sorted(added, reverse=True)
            assert weighed.gain(probs, length, added) == pytest.approx(best, abs=1e-5)
            n_wide, n_deep = n_wide + (len(found) > 1), n_deep + (length > 1)
        truth = [10 * head + int(rng.choice(4, p=(0.6, 0.25, 0.1, 0.05))) for head in range(n_heads)]
        settled(tree, truth, trees, weighed, probs)
    assert n_heads == 1 or n_deep > 5
    assert n_paths == 1 or costs is not TABLES[0] or n_wide > 5


@pytest.mark.parametrize(("n_heads", "n_paths"), [(1, 3), (3, 1), (4, 4), (10, 9)])
def test_ungated_the_other_choices_are_those_worth_most_whatever_rows_cost(n_heads: int, n_paths: int) -> None:
    trees, weighed, rng = HeadTrees(TABLES[1], gated=False), Weighed(TABLES[1]), np.random.default_rng(n_heads)
    ids = np.array([[10 * head + choice for choice in range(4)] for head in range(n_heads)])
    for _ in range(20):
        sure = np.sort(rng.dirichlet([0.5] * 5, n_heads), axis=1)[:, ::-1][:, :4].astype(np.float32)
        tree = trees.grow(ids, sure, n_paths, 200)
        expected = weighed.others(sure.tolist(), n_heads, 0.0)[: n_paths - 1]
        assert places(tree) == [(n_heads, n_heads, 0), *((n_heads, head, choice) for _, head, choice in expected)]
        settled(tree, [10 * head + int(rng.integers(2)) for head in range(n_heads)], trees, weighed, sure.tolist())
