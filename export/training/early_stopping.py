"""A training that stops when a held-out loss stops falling, keeps its best weights, and goes on where it was cut off.

Steps come from the seed and their number alone: a run that is taken up again ends in the same weights.
"""

from __future__ import annotations

import copy
import math
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
}

T = TypeVar("T")
N = TypeVar("N", bound=nn.Module)
_HELD_OUT = 10  # every so many windows of audio
_SLOW = 0.1  # of the rate, for parameters that know much


def is_held_out(source: int) -> bool:
    """Whether the window of this number is one to judge by: every tenth."""
    return source % _HELD_OUT == _HELD_OUT - 1


class Plan(Protocol):
    """The course of a training: `steps` of `n_batch` samples, a judgement `every` so many, `patience` without gain."""

    @property
    def steps(self) -> int: ...
    @property
    def n_batch(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def warm_up(self) -> int: ...
    @property
    def every(self) -> int: ...
    @property
    def patience(self) -> int: ...
    @property
    def seed(self) -> int: ...


class EarlyStopping(ABC, Generic[T, N]):
    """Training of `net` on `train`, judged on `held`; `path` is the resumable state, `best` the weights to use.

    optimizer: a name of `OPTIMIZERS`; slow: parameters that learn at a tenth of the rate, because they know much.
    """

    def __init__(
        self,
        course: Plan,
        net: N,
        train: Sequence[T],
        held: Sequence[T],
        path: Path,
        *,
        optimizer: str = "adamw",
        slow: Sequence[nn.Parameter] = (),
    ) -> None:
        self._course, self.path = course, path
        self.train, self.held = train, held
        self.net = net
        self.best = copy.deepcopy(net).eval()
        known = {id(parameter) for parameter in slow}
        others = [parameter for parameter in net.parameters() if id(parameter) not in known]
        groups = [{"params": others}, *([{"params": list(slow)}] if slow else [])]
        self.optimizer = OPTIMIZERS[optimizer](groups, lr=course.learning_rate, weight_decay=0.01)
        self.step = self.n_worse = 0
        self.best_loss = math.inf
        self.figures: list[float] = []

    @abstractmethod
    def loss(self, batch: Sequence[T]) -> Tensor:
        """What a step lowers."""

    @abstractmethod
    def judge(self) -> None:
        """Measure the held-out loss and hand it to `keep`; `figures` may remember what is worth telling."""

    @property
    def is_done(self) -> bool:
        """Whether the steps are over, or the held-out loss has stopped falling."""
        return self.step >= self._course.steps or self.n_worse >= self._course.patience

    def run(self, report: Callable[[int], None]) -> None:
        """Train to the end, saving at every judgement; `report` gets the step."""
        while not self.is_done:
            self.advance()
            report(self.step)
            if self.step % self._course.every == 0 or self.step >= self._course.steps:
                self.judge()
                self.save()

    def advance(self) -> None:
        """One step."""
        course = self._course
        rng = random.Random(f"{course.seed} {self.step}")
        batch = rng.sample(self.train, min(course.n_batch, len(self.train)))
        torch.manual_seed(course.seed * 7_919 + self.step)
        rate = 0.5 * (1 + math.cos(math.pi * self.step / course.steps)) * 0.98 + 0.02
        for group, share in zip(self.optimizer.param_groups, (1.0, _SLOW), strict=False):
            group["lr"] = course.learning_rate * share * rate * min(1.0, (self.step + 1) / course.warm_up)
        self.net.train()
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1

    def keep(self, loss: float) -> bool:
        """Keep the weights if the held-out `loss` has fallen; whether it has."""
        if loss >= self.best_loss:
            self.n_worse += 1
            return False
        self.best_loss, self.n_worse = loss, 0
        self.best.load_state_dict(self.net.state_dict())
        return True

    def save(self) -> None:
        """Replace the state on disk. Raises OSError."""
        state = {
            "plan": vars(self._course),
            "net": self.net.state_dict(),
            "best": self.best.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counts": [self.step, self.n_worse, len(self.train), len(self.held)],
            "best_loss": self.best_loss,
            "figures": self.figures,
        }
        unfinished = self.path.with_suffix(".tmp")
        torch.save(state, unfinished)
        os.replace(unfinished, self.path)

    def load(self) -> bool:
        """Take up the saved state of the same plan and data, if there is one; another one is left alone."""
        if not self.path.is_file():
            return False
        state: dict[str, Any] = torch.load(self.path, weights_only=True)
        step, n_worse, *sizes = state["counts"]
        if state["plan"] != vars(self._course) or sizes != [len(self.train), len(self.held)]:
            return False
        self.net.load_state_dict(state["net"])
        self.best.load_state_dict(state["best"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.n_worse = step, n_worse
        self.best_loss, self.figures = state["best_loss"], state["figures"]
        return True
