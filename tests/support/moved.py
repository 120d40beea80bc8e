"""A training that is moved to another device, as far as can be told without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def check_moves(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and judgements make no tensor that stays on the CPU on a device; the weights that learn move, the best do
    not."""

    def stays(array: Any) -> Any:
        raise AssertionError("`from_numpy` makes a tensor on the CPU whatever the device is: use `as_tensor`")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "from_numpy", stays)
        trainer.advance()
        trainer.judge()
    trainer.move("meta")
    learning = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    assert {id(parameter) for parameter in learning} == {id(parameter) for parameter in trainer.net.parameters()}
    assert all(value.is_meta for value in [*trainer.net.parameters(), *trainer.net.buffers()])
    assert not any(value.is_meta for value in [*trainer.best.parameters(), *trainer.best.buffers()])
