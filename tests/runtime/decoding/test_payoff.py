"""Calibrated confidences: a drafter is held to what came of its guesses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime.decoding.drafter import Verdict
from specedge.runtime.decoding.payoff import Guess, Guesses, cut, joined
from specedge.runtime.device import CostTable

FREE = CostTable((1, 64), (1.0, 1.0))


def test_a_boaster_is_believed_less_and_a_modest_drafter_more() -> None:
    guesses = Guesses(FREE)
    for _ in range(60):
        guesses.count(0.9, "boast", accepted=False)
        guesses.count(0.5, "modest", accepted=True)
    assert guesses.believed(0.9, "boast") < 0.15
    assert 0.5 < guesses.believed(0.5, "modest") <= 0.98
    assert guesses.believed(0.4, "unknown") == 0.4


def test_calibration_is_what_came_over_what_was_hoped_for() -> None:
    """Older nodes count less; a prior of four nodes trusts the drafter's own word."""
    guesses = Guesses(FREE, max_scale=5.0)
    hoped = came = 0.0
    for accepted in (True, False, True, True):
        guesses.count(0.5, "a", accepted=accepted)
        hoped, came = hoped * 0.985 + 0.5, came * 0.985 + accepted
    assert guesses.believed(0.3, "a") == pytest.approx(0.3 * (came + 4) / (hoped + 4))
    assert guesses.all_believed(Guess([1, 2], [0.3, 0.4], ["a", "b"])) == pytest.approx(
        [guesses.believed(0.3, "a"), 0.4]
    )
    assert guesses.believed(0.9, "a") == guesses.all_believed(Guess([1], [0.9], ["a"]))[0] == 0.98
    for _ in range(200):
        guesses.count(0.1, "modest", accepted=True)
    assert guesses.believed(0.1, "modest") == pytest.approx(0.5), "at most five times"


def worth_of(paths: list[Guess], length: int) -> float:
    """Tokens expected to be accepted of paths cut to `length`, by their beginnings: once where they are the same."""
    chances = {}
    for path in paths:
        for depth in range(min(length, len(path.tokens))):
            chances[tuple(path.tokens[: depth + 1])] = math.prod(path.confidences[: depth + 1])
    return sum(chances.values())


PATHS = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.75, 0.85, 0.97])), min_size=1, max_size=10).map(
        lambda nodes: Guess([token for token, _ in nodes], [sure for _, sure in nodes], ["x"] * len(nodes))
    ),
    min_size=1,
    max_size=4,
)
TABLES = st.sampled_from([(1.0, 1.05, 1.1, 1.2), (1.0, 1.3, 1.8, 3.0), (1.0, 1.0, 1.0, 1.0)])


@given(paths=PATHS, table=TABLES, n_paths=st.integers(1, 4), n_pending=st.sampled_from([1, 1, 1, 3]))
def test_the_tree_with_the_largest_gain_is_taken(
    paths: list[Guess], table: tuple[float, ...], n_paths: int, n_pending: int
) -> None:
    """A second path must add half a token; only a pass of one pending row may have several."""
    costs = CostTable((1, 4, 8, 40), table)
    guesses = Guesses(costs)
    found = guesses.worth_while(paths, n_pending, n_paths)

    def gain(taken: list[Guess], length: int) -> float:
        rows = length + n_pending if len(taken) == 1 else len(taken) * (1 + length)
        price = costs.price(rows, len(taken)) - costs.price(n_pending)
        return worth_of(taken, length) - price - 0.02 - (0.5 if len(taken) > 1 else 0.0)

    chain = max((gain(paths[:1], n) for n in range(1, len(paths[0].tokens) + 1)), default=0.0)
    trees = [
        gain(paths[:n], length)
        for n in range(2, min(n_paths, len(paths)) + 1)
        for length in range(1, min(8, max(len(path.tokens) for path in paths[:n])) + 1)
    ]
    best = max([chain, *(trees if n_pending == 1 else ())])
    if not found:
        assert best <= 1e-6
    else:
        assert gain(found, max(len(path.tokens) for path in found)) == pytest.approx(best, abs=1e-6)
    assert len(found) <= n_paths and guesses.worth_while([], 1, n_paths) == []


@given(paths=PATHS, limit=st.integers(1, 12))
def test_a_tree_has_each_beginning_once_and_its_nodes_are_calibrated_where_they_are_known(
    paths: list[Guess], limit: int
) -> None:
    paths = [Guess(path.tokens, path.confidences, list(range(len(path.tokens)))) for path in paths]  # depth as class
    guesses, alike = Guesses(FREE), Guesses(FREE)
    tree = guesses.draft(paths, limit)
    tokens = [int(token) for token in tree.tokens]
    parents = list(range(-1, len(tokens) - 1)) if tree.parents is None else [int(parent) for parent in tree.parents]

    def spelled(node: int) -> tuple[int, ...]:
        return () if node < 0 else (*spelled(parents[node]), tokens[node])

    found = [spelled(node) for node in range(len(tokens))]
    every = {tuple(path.tokens[: n + 1]) for path in paths for n in range(len(path.tokens))}
    assert len(set(found)) == len(found) == min(limit, len(every)) or (len(paths) > 1 and len(found) <= limit)
    assert set(found) <= every and (limit < len(every) or set(found) == every)
    # The first path comes true up to its second node; what follows that one was not asked.
    walked = tuple(node for node, text in enumerate(found) if text == tuple(paths[0].tokens[: len(text)]))[:2]
    for rejected in (None, len(tokens)):
        verdict = Verdict(
            drafted=tuple(tokens[node] for node in walked), n_accepted=len(walked), token=99, finished=False,
            evaluated=tuple(range(len(tokens))), nodes=walked, rejected=rejected,
        )  # fmt: skip
        known = {-1, *walked} - (set() if rejected is not None or not walked else {walked[-1]})
        expected = [n for n in range(len(tokens)) if parents[n] in known]
        assert guesses.learn(verdict) == [(len(found[n]) - 1, n in walked) for n in expected]
        for n in expected:
            alike.count(float(tree.conf[n]), len(found[n]) - 1, accepted=n in walked)
        assert guesses.believed(0.5, 0) == pytest.approx(alike.believed(0.5, 0), abs=1e-6)


def test_guesses_are_joined_and_cut() -> None:
    a, b = Guess([1, 2], [0.1, 0.2], ["a", "b"]), Guess([3], [0.3], ["c"])
    assert joined(a, b) == Guess([1, 2, 3], [0.1, 0.2, 0.3], ["a", "b", "c"]) and cut(joined(a, b), 2) == a
