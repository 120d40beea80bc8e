"""Several processes that take one training step together, each on its own batch, with their gradients averaged.

On two cores two processes of one thread each train faster than one process of two threads: most operations of a small
model are too short to be worth sharing out. Gradients go through shared memory, words through pipes; a process that
dies ends the others by the end of its pipe. All processes hold the same weights, because all take the same average.

This module knows processes and flat tensors. It knows nothing of models or batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing

__all__ = ["Team", "gather"]


@dataclass(frozen=True)
class Team:
    """One process's end of the team: `rank` 0 leads. `slots` float32 [n_processes, n_parameters] is shared memory.

    The leader has one pipe to each other process, every other process one to the leader.
    """

    rank: int
    slots: torch.Tensor
    pipes: tuple[Connection, ...]

    def average(self, parameters: Sequence[torch.Tensor]) -> None:
        """Replace the gradients by their mean over the processes. Raises EOFError when another one is gone."""
        mine, at = self.slots[self.rank], 0
        for parameter in parameters:
            piece = mine[at : at + parameter.numel()].view_as(parameter)
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(parameter.grad)
            at += parameter.numel()
        if self.rank == 0:
            for pipe in self.pipes:
                pipe.recv()
            self.slots[0] = self.slots.mean(0)
            for pipe in self.pipes:
                pipe.send(None)
        else:
            self.pipes[0].send(None)
            self.pipes[0].recv()
        at = 0
        for parameter in parameters:
            piece = self.slots[0][at : at + parameter.numel()].view_as(parameter)
            if parameter.grad is None:
                parameter.grad = piece.clone()
            else:
                parameter.grad.copy_(piece)
            at += parameter.numel()

    def agree(self, words: dict[str, Any]) -> dict[str, Any]:
        """What the leader says, in every process. Raises EOFError when the leader is gone."""
        if self.rank:
            return dict(self.pipes[0].recv())
        for pipe in self.pipes:
            pipe.send(words)
        return words


@contextmanager
def gather(n_processes: int, work: Callable[[Any, Team], None], task: Any, n_parameters: int) -> Iterator[Team | None]:
    """Start `n_processes` - 1 further processes that do `work(task, team)`; gives the leader's Team, None if alone."""
    if n_processes == 1:
        yield None
        return
    context = torch.multiprocessing.get_context("spawn")
    slots = torch.zeros(n_processes, n_parameters).share_memory_()
    pipes, others = [], []
    for rank in range(1, n_processes):
        here, there = context.Pipe()
        other = context.Process(target=work, args=(task, Team(rank, slots, (there,))), daemon=True)
        other.start()
        there.close()
        pipes.append(here)
        others.append(other)
    try:
        yield Team(0, slots, tuple(pipes))
    finally:
        for pipe in pipes:
            pipe.close()
        for other in others:
            other.join()
