"""A process for one task: `python -m specedge.fleet.alone`, the task on standard input, the outcome on output."""

from __future__ import annotations

import os
import pickle
import sys

from .worker import work

__all__ = ["main"]


def main() -> None:
    task = pickle.load(sys.stdin.buffer)
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not come between
    with os.fdopen(answers, "wb") as file:
        pickle.dump(work(task), file)


if __name__ == "__main__":
    main()
