"""What is left of a refused draft: aligned by what the model said instead, and given up when that goes on failing."""

from __future__ import annotations

import pytest

from specedge.runtime.decoding.drafter import DraftContext, Verdict, WindowContext
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.cascade import TailDrafter

FREE = CostTable((1, 64), (1.0, 1.0))
DRAFT = [1, 2, 3, 4, 5, 6]


def tails(n_paths: int = 1) -> TailDrafter:
    made = TailDrafter(FREE)
    made.begin(
        WindowContext(features=None, prompt=(1,), n_vocab=99, n_sample=9, eot=90, timestamp_begin=91, n_paths=n_paths)
    )
    return made


def offered(made: TailDrafter) -> list[int]:
    found = made.propose(DraftContext(prompt=(1,), sampled=(2, 3), position=2), 20)
    tokens: list[int] = list(found.tokens)
    return tokens


@pytest.mark.parametrize(
    ("said", "rest"),
    [
        ([1, 9], [3, 4, 5, 6]),  # in place of the 2
        ([9], [2, 3, 4, 5, 6]),
        ([1, 2, 3, 4, 5, 9], []),  # nothing is left
        ([1, 2, 3, 4, 5, 6, 7], []),  # nothing was wrong
        ([1, 9, 3], [4, 5, 6]),  # the text went on beyond the wrong token, by another's draft
        ([9, 1], [2, 3, 4, 5, 6]),  # said besides
    ],
)
def test_the_rest_follows_the_token_that_took_a_place(said: list[int], rest: list[int]) -> None:
    made = tails()
    made.refused(said, DRAFT)
    assert offered(made) == rest


def test_where_several_paths_are_verified_the_token_may_also_have_been_skipped_to() -> None:
    made = tails(n_paths=3)
    made.refused([1, 4], DRAFT)  # 4 in place of 2, or 2 and 3 left out
    found = made.propose(DraftContext(prompt=(1,), sampled=(2, 3), position=2), 20)
    firsts = [token for token, parent in zip(found.tokens, found.parents, strict=True) if parent < 0]
    assert {3, 5} <= set(firsts)


def test_what_comes_true_is_believed() -> None:
    """The 3 is always said in place of the 1, though it also comes up further on."""
    made = tails()
    firsts = []
    for _ in range(12):
        made.refused([3], DRAFT)
        found = offered(made)
        firsts.append(found[0])
        is_right = found[0] == 2
        made.observe(
            Verdict(drafted=tuple(found), n_accepted=int(is_right), token=80, finished=False, evaluated=(0, 1),
                    nodes=(0,) if is_right else (), rejected=int(is_right))
        )  # fmt: skip
    assert firsts[0] == 4 and firsts[-1] == 2


def test_a_rest_that_goes_on_being_wrong_is_given_up() -> None:
    made = tails()
    made.refused([9], DRAFT)
    for _ in range(4):
        made.refused([80], ())
    assert offered(made) == []
    made.refused([9], DRAFT)
    made.end(())
    assert offered(made) == [], "nothing outlives a window"
