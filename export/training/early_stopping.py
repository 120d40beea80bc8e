"""A training that stops when a held-out loss stops falling, keeps its best weights, and goes on where it was cut off.

Steps come from the seed and their number alone: a run that is taken up again ends in the same weights. Ctrl-C waits for
the end of a step and saves. Each judgement is a line, and a row of a CSV file beside the state.
With little audio a step is much of it, so judgements come more often. A step whose loss or gradient is not finite
changes nothing and is counted.
"""

from __future__ import annotations

import copy
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from specedge.errors import OutOfMemoryError, UsageError
from specedge.files import publishing
from specedge.runtime.console import Progress, clock
from specedge.runtime.interrupt import held_back, interruption

from .features import EVERY_S, LEFT_OUT, S

OPTIMIZERS: dict[str, Any] = {"adamw": torch.optim.AdamW, "adafactor": torch.optim.Adafactor}

N = TypeVar("N", bound=nn.Module)
_MOST_JUDGED = 160  # held-out samples of an evaluation
_HELD_OUT = 10  # every so many windows of audio
_EPOCHS, _FEWEST_STEPS = 4, 25  # between two judgements, where the plan's are more
_WARM_UPS = 3  # the shortest training: CTC's loss first stands still for a while
_PARTS, _COUNTS = (
    ("net", "best", "optimizer"),
    ("step", "n_worse", "best_loss", "best_step", "n_skipped", "first", "figures"),
)  # of the state on disk
_SLOW = 0.1  # of the rate, for parameters that know much


def split(samples: Sequence[S]) -> tuple[list[S], list[S]]:
    """Samples to train on and held-out ones, every tenth window; all samples of a window go together.

    Raises UsageError for too few windows.
    """
    train = [sample for sample in samples if sample.source % _HELD_OUT != _HELD_OUT - 1]
    held = [sample for sample in samples if sample.source % _HELD_OUT == _HELD_OUT - 1]
    if not train or not held:
        n_windows = len({sample.source for sample in samples})
        raise UsageError(f"{n_windows} windows to train on, expected at least {_HELD_OUT}; {LEFT_OUT}")
    return train, held


def check_device(name: str) -> str:
    """`name`, a device that torch has here: cpu, cuda, cuda:1, mps. Raises UsageError for another."""
    there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    there += ["mps"] if torch.backends.mps.is_available() else []
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in there:
        raise UsageError(f"--device {name}: torch has no such device here, expected {', '.join(there)}")
    return wanted


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The course of a training: `steps` of `n_batch` samples at most, after which the cosine of the learning rate ends;
    a judgement `every` so many steps, of which `patience` may pass without gain."""

    steps: int
    n_batch: int
    learning_rate: float
    warm_up: int
    every: int
    patience: int
    seed: int = 1


class EarlyStopping(ABC, Generic[S, N]):
    """Training of `net` on samples, of which `split` holds some out to be judged on; `path` is the resumable state.

    `best` is the weights to use, those at the beginning among them. optimizer: a name of `OPTIMIZERS`; slow: the part
    of `net` that learns at a tenth of the rate, because it knows much; beside: frozen nets that the loss needs, None
    for none. `figures` are what is worth telling of the weights kept, `first` the same of those at the beginning.

    Raises UsageError for too few windows.
    """

    def __init__(
        self,
        course: Plan,
        net: N,
        samples: Sequence[S],
        path: Path,
        *,
        optimizer: str = "adamw",
        slow: nn.Module | None = None,
        beside: nn.Module | None = None,
    ) -> None:
        self._course, self.path = course, path
        self.curve = path.with_suffix(".csv")  # the losses at each judgement
        self.train, held = split(samples)
        self.held = held[:: max(1, len(held) // _MOST_JUDGED)]
        self.net, self._slow, self._beside, self._optimizer = net, slow, beside, OPTIMIZERS[optimizer]
        self.best = copy.deepcopy(net).eval()
        self.step = self.n_worse = self.best_step = self.n_skipped = 0
        self.best_loss = self.held_loss = math.inf
        self._losses_since: list[float] = []  # of the steps since the last judgement
        self.first: list[float] = []
        self.figures: list[float] = []
        self.move("cpu")

    @property
    def every(self) -> int:
        """Steps between two judgements: the plan's, or fewer where they would be many rounds of all that there is."""
        epoch = -(-len(self.train) // self._course.n_batch)
        return min(self._course.every, max(_FEWEST_STEPS, _EPOCHS * epoch))

    @abstractmethod
    def loss(self, batch: Sequence[S]) -> Tensor:
        """What a step lowers. Tensors made here are on the device, but for those of `from_numpy`."""

    def measure(self, batch: Sequence[S]) -> tuple[Tensor, Tensor]:
        """Means over held-out samples [k], and the numbers that they are of, [k] or one for all. As `loss`."""
        return self.loss(batch)[None], torch.tensor(len(batch))

    def judgement(self, means: Tensor) -> tuple[float, list[float]]:
        """The held-out loss and `figures`, of the means [k] over all that is held out."""
        loss, *figures = means.tolist()
        return loss, figures

    def move(self, device: str) -> None:
        """Begin to train on this device. The weights to use, and the state on disk, are the CPU's."""
        self._device = torch.device(device)
        self.net.to(self._device)
        if self._beside is not None:
            self._beside.to(self._device)
        slow = [] if self._slow is None else list(self._slow.parameters())
        known = set(slow)
        others = [parameter for parameter in self.net.parameters() if parameter not in known]
        groups = [{"params": others}, *([{"params": slow}] if slow else [])]
        self.optimizer = self._optimizer(groups, lr=self._course.learning_rate, weight_decay=0.01)

    @property
    def is_done(self) -> bool:
        """Whether the steps are over, or the held-out loss has stopped falling."""
        course = self._course
        is_judged = self.step % self.every == 0 and self.step >= _WARM_UPS * course.warm_up
        return self.step >= course.steps or (is_judged and self.n_worse >= course.patience)

    def run(self, title: str, notify: Callable[[str], None], device: str = "cpu") -> None:
        """Train to the end on this device with a progress bar and a line for each judgement, from the saved state where
        there is one.

        Raises Interrupted after saving, OutOfMemoryError where the device has too little.
        """
        try:
            self.move(device)
            if self.load():
                notify(f"{self.path.parent}: going on from step {self.step}")
            elif self.path.is_file():
                notify(f"{self.path}: was saved with other options or other audio, so the training begins anew")
            with held_back() as stops, Progress(self._course.steps, "steps", title, every_s=EVERY_S) as progress:
                if self.best_loss == math.inf:
                    self.curve.unlink(missing_ok=True)
                    self.judge()
                started, first = time.monotonic(), self.step
                while not self.is_done and not stops:
                    self.advance()
                    progress.update_to(self.step)
                    if self.step % self.every == 0 or self.step >= self._course.steps:
                        self.judge()
                        self._note((time.monotonic() - started) / (self.step - first), notify)
                        self.save()
                if stops:
                    self.save()
        except torch.OutOfMemoryError:
            raise OutOfMemoryError(
                f"--device {device}: its memory ran out at step {self.step}; the same command with --device cpu goes on"
            ) from None
        if stops:
            where = f"at step {self.step} of {self._course.steps}; the same command goes on from there"
            raise interruption(stops[0], f"interrupted {where}")
        notify(f"{title}: {self.ending}")

    def _note(self, step_s: float, say: Callable[[str], None]) -> None:
        """Tell how the training goes, and write it down. Raises OSError."""
        loss = sum(self._losses_since) / max(len(self._losses_since), 1)
        self._losses_since.clear()
        with open(self.curve, "a", encoding="utf-8") as file:
            if not file.tell():
                file.write("step,loss,held_out_loss,best_held_out_loss\n")
            file.write(f"{self.step},{loss:.6g},{self.held_loss:.6g},{self.best_loss:.6g}\n")
        gain = "the best so far"
        if self.n_worse:
            gain = f"no better than step {self.best_step} for {self.n_worse} of {self._course.patience} evaluations"
        left = clock(step_s * (self._course.steps - self.step))
        say(
            f"step {self.step} of {self._course.steps}: loss {loss:.4g}, held out {self.held_loss:.4g}, {gain}; "
            f"{left} left at most{self._skipped}"
        )

    @property
    def _skipped(self) -> str:
        """The steps left out so far, in words; nothing where there were none."""
        return f"; {self.n_skipped} steps left out: loss or gradient not finite" if self.n_skipped else ""

    @property
    def lacks(self) -> str:
        """What would most likely make a better one."""
        return "more --steps" if self.best_step == self.step else "more audio and more voices"

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        found, steps = f"{self.step} steps", self._course.steps
        if self.step < steps:
            found = f"stopped at step {self.step} of {steps}, because the held-out recordings gained nothing more"
        if self.best_step != self.step:
            found += f"; the weights of step {self.best_step} are kept"
        elif self.step >= steps:
            found += ", still getting better: more --steps may help"
        return found + self._skipped

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
        with self._device:
            loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        if torch.isfinite(loss.detach() + nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)):
            self.optimizer.step()
            self._losses_since.append(float(loss.detach()))
        else:
            self.n_skipped += 1
        self.step += 1

    def judge(self) -> None:
        """Measure the held-out loss, and keep the weights if it has fallen."""
        self.net.eval()
        total = count = torch.zeros(())
        with torch.no_grad(), self._device:
            for at in range(0, len(self.held), self._course.n_batch):
                means, n = (value.cpu().double() for value in self.measure(self.held[at : at + self._course.n_batch]))
                total, count = total + means * n, count + n
        self.held_loss, figures = self.judgement(total / count.clamp(min=1))
        if not self.held_loss < self.best_loss:  # NaN too
            self.n_worse += 1
            return
        self.best_loss, self.n_worse, self.best_step = self.held_loss, 0, self.step
        self.figures, self.first = figures, self.first or figures
        self.best.load_state_dict(self.net.state_dict())

    def save(self) -> None:
        """Replace the state on disk. Raises ResourceError."""
        state = {
            "plan": vars(self._course),
            "sizes": [len(self.train), len(self.held)],
            **{name: getattr(self, name).state_dict() for name in _PARTS},
            **{name: getattr(self, name) for name in _COUNTS},
        }
        with publishing(self.path) as file:
            torch.save(state, file)

    def load(self) -> bool:
        """Take up the saved state of the same plan and data, if there is one; another one is left alone."""
        if not self.path.is_file():
            return False
        state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        if state["plan"] != vars(self._course) or state.get("sizes") != [len(self.train), len(self.held)]:
            return False
        for name in _PARTS:
            getattr(self, name).load_state_dict(state[name])
        for name in _COUNTS:
            setattr(self, name, state[name])
        return True
