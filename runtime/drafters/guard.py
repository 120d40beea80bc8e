"""What the decode loop sees of a drafter: every call fenced, every proposal checked and cut to what can be verified.

A drafter that raises or returns something that is no tree is dropped from then on, and `Guard.error` says why; a
proposal with useless nodes (unknown ids, ids no rule allows, the end of the text, too many) is cut before the first.
Does not know: logits, engines, which tokens are right.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from specedge.runtime.drafters import DraftContext, Drafter, DraftTree, EmptyDrafter, Verdict, WindowContext
from specedge.runtime.errors import Interrupted

__all__ = ["Guard"]

_MAX_NODES = 1024  # a tree is looked at this far and no further

T = TypeVar("T")


class Guard:
    """A fence round one drafter, kept for as long as the drafter is (usually a file).

    `error` is None, or one line saying why the drafter was dropped; `seconds` is the time spent in its calls.
    """

    def __init__(self, drafter: Drafter | None = None) -> None:
        self._drafter: Drafter = EmptyDrafter() if drafter is None else drafter
        self.name: str = str(getattr(self._drafter, "name", type(self._drafter).__name__))
        self.error: str | None = None
        self.seconds = 0.0

    def begin(self, window: WindowContext) -> None:
        """Tell the drafter that a window starts."""
        self._call(lambda: self._drafter.begin(window), None)

    def propose(
        self, context: DraftContext, budget: int, *, n_vocab: int, usable: Callable[[int], bool]
    ) -> tuple[list[int], int]:
        """The chain to verify, at most `budget` ids long, and how many nodes the drafter had proposed.

        The chain holds ids of [0, n_vocab) for which `usable` is true, and ends before the first that is not.
        """
        if budget <= 0:
            return [], 0
        nothing: tuple[list[int], int] = ([], 0)
        return self._call(
            lambda: _first_chain(self._drafter.propose(context, budget), budget, n_vocab, usable), nothing
        )

    def observe(self, verdict: Verdict) -> None:
        """Tell the drafter what the verifier decided."""
        self._call(lambda: self._drafter.observe(verdict), None)

    def end(self, tokens: tuple[int, ...]) -> None:
        """Tell the drafter the window's final tokens, or () when they were thrown away."""
        self._call(lambda: self._drafter.end(tokens), None)

    def _call(self, call: Callable[[], T], otherwise: T) -> T:
        if self.error is not None:
            return otherwise
        started = time.perf_counter()
        try:
            return call()
        except Interrupted:
            raise
        except Exception as error:  # whatever it is, the text must not depend on it
            self.error = _one_line(error)
            return otherwise
        finally:
            self.seconds += time.perf_counter() - started


def _one_line(error: Exception) -> str:
    try:
        return " ".join(f"{type(error).__name__}: {error}".split())
    except Exception:  # an exception whose own text cannot be made
        return type(error).__name__


def _first_chain(tree: DraftTree, budget: int, n_vocab: int, usable: Callable[[int], bool]) -> tuple[list[int], int]:
    """The path that takes the first child at every node; other branches are not verified yet."""
    if not isinstance(tree, DraftTree):
        raise TypeError(f"a drafter returned {type(tree).__name__}, not a DraftTree")
    tokens, parents = np.asarray(tree.tokens), np.asarray(tree.parents)
    if tokens.ndim != 1 or tokens.shape != parents.shape:
        raise ValueError(f"a draft tree of shapes {tokens.shape} and {parents.shape}: expected two equal lengths")
    if tokens.size and (tokens.dtype.kind not in "iu" or parents.dtype.kind not in "iu"):
        raise TypeError(f"a draft tree of types {tokens.dtype} and {parents.dtype}: expected integers")
    ids, above = tokens[:_MAX_NODES].tolist(), parents[:_MAX_NODES].tolist()
    chain: list[int] = []
    here = -1
    for node in range(len(ids)):
        if len(chain) == budget:
            break
        if above[node] != here:
            continue
        if not 0 <= ids[node] < n_vocab or not usable(ids[node]):
            break
        chain.append(ids[node])
        here = node
    return chain, int(tokens.size)
