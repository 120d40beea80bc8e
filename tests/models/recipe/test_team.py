"""Processes that share a step: the same mean gradient for all, the leader's word, and no waiting for the dead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing import Pipe

import pytest

torch = pytest.importorskip("torch", reason="the training extra is not installed")

from specedge.models.recipe.trainer import Team, gather  # noqa: E402


def _pair(n_parameters: int) -> tuple[Team, Team]:
    here, there = Pipe()
    slots = torch.zeros(2, n_parameters)
    return Team(0, slots, (here,)), Team(1, slots, (there,))


def _together(*work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)


def _parameters(value: float | None) -> list[torch.Tensor]:
    out = [torch.zeros(2, 3), torch.zeros(4)]
    for parameter in out if value is not None else out[:1]:
        parameter.grad = torch.full_like(parameter, value or 0.0)
    return out


def test_every_process_gets_the_mean_gradient() -> None:
    one, two = _pair(10)
    mine, theirs = _parameters(1.0), _parameters(5.0)
    for _ in range(3):  # again and again through the same memory: 1 and 5, then 3 and 3
        _together(lambda: one.average(mine), lambda: two.average(theirs))
        for parameter in (*mine, *theirs):
            assert parameter.grad is not None and torch.equal(parameter.grad, torch.full_like(parameter, 3.0))


def test_a_parameter_without_a_gradient_counts_as_zero() -> None:
    one, two = _pair(10)
    mine, theirs = _parameters(None), _parameters(4.0)
    _together(lambda: one.average(mine), lambda: two.average(theirs))
    assert mine[1].grad is not None and torch.equal(mine[1].grad, torch.full((4,), 2.0))


def test_the_leader_decides() -> None:
    one, two = _pair(1)
    heard: list[dict[str, object]] = []
    _together(
        lambda: heard.append(one.agree({"stop": True, "step": 3})),
        lambda: heard.append(two.agree({"stop": False, "step": 2})),
    )
    assert heard == [{"stop": True, "step": 3}] * 2


@pytest.mark.parametrize("dead", [0, 1])
def test_a_process_that_is_gone_is_noticed(dead: int) -> None:
    team = _pair(10)
    team[dead].pipes[0].close()
    alive = team[1 - dead]
    with pytest.raises((EOFError, BrokenPipeError)):
        alive.average(_parameters(1.0))


def test_one_process_is_no_team() -> None:
    def work(task: object, team: Team) -> None:
        raise AssertionError

    with gather(1, work, None, 10) as team:
        assert team is None
