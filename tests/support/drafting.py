"""Drafters that a test scripts, and plans for drafts that are right, wrong, or no drafts at all."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from specedge.runtime.decoding.decode import WindowResult
from specedge.runtime.decoding.drafter import DraftContext, Drafter, DraftTree, Verdict, WindowContext
from specedge.runtime.text.special import SpecialTokens

Plan = Callable[[list[int], DraftContext, int], Any]

KINDS = (
    "oracle",
    "one wrong",
    "random",
    "eot",
    "too long",
    "suppressed",
    "beyond the vocabulary",
    "empty",
    "branches",
    "right among wrong",
    "duplicate siblings",
    "cycle",
    "bad parents",
    "bad columns",
    "raises",
    "no tree",
    "floats",
    "plain chain",
    "bad chain",
)


class Scripted(Drafter):
    """A drafter whose proposals are computed by a function of the context; it keeps what it is told.

    Those that `another` makes write into the same lists.
    """

    def __init__(self, propose: Callable[[DraftContext, int], Any], name: str = "scripted") -> None:
        self._propose, self.name = propose, name
        self.windows: list[WindowContext] = []
        self.verdicts: list[Verdict] = []
        self.budgets: list[int] = []
        self.ended: list[tuple[int, ...]] = []

    def begin(self, window: WindowContext) -> None:
        self.windows.append(window)

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        self.budgets.append(budget)
        return self._propose(context, budget)

    def another(self) -> Drafter | None:
        return copy.copy(self)

    def observe(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def end(self, tokens: tuple[int, ...]) -> None:
        self.ended.append(tokens)


def tree(*paths: list[int]) -> DraftTree:
    """A tree of paths that begin at the root; what they begin with alike is shared."""
    nodes: dict[tuple[int, ...], int] = {}
    tokens, parents = [], []
    for path in paths:
        for n in range(1, len(path) + 1):
            if tuple(path[:n]) not in nodes:
                nodes[tuple(path[:n])] = len(tokens)
                tokens.append(path[n - 1])
                parents.append(nodes.get(tuple(path[: n - 1]), -1))
    return DraftTree(tokens=np.array(tokens, np.int32), parents=np.array(parents, np.int32))


def parents_of(tree: DraftTree) -> list[int]:
    """The parent of each node; those of a single path are not written out."""
    return list(range(-1, len(tree) - 1)) if tree.parents is None else list(tree.parents)


def plain_fields(result: WindowResult) -> dict[str, Any]:
    """All of a result but its statistics."""
    return {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name != "speculation"}


@st.composite
def draft_plans(draw: st.DrawFn, special: SpecialTokens, suppressed: int, kinds: tuple[str, ...] = KINDS) -> Plan:
    """A way to propose, given the true continuation: right, wrong somewhere, too long, malformed, or raising."""
    kind = draw(st.sampled_from(kinds))
    at, width = draw(st.integers(0, 6)), draw(st.integers(1, 9))
    noise = draw(st.lists(st.integers(0, special.n_vocab - 1), min_size=1, max_size=12))

    def plan(truth: list[int], context: DraftContext, budget: int) -> Any:
        return guess(kind, special, suppressed, truth[len(context.sampled) :], width=width, noise=noise, at=at)

    return plan


def guess(
    kind: str, special: SpecialTokens, suppressed: int, rest: list[int], *, width: int, noise: list[int], at: int
) -> Any:
    """What a drafter of this kind proposes where `rest` is what follows; `at` says where it goes wrong, or how."""
    return _propose(kind, special, suppressed, rest, rest[:width], noise, at)


def _propose(
    kind: str, special: SpecialTokens, suppressed: int, rest: list[int], right: list[int], noise: list[int], at: int
) -> Any:
    if kind in _CHAINS:
        return DraftTree(_CHAINS[kind](special, suppressed, rest, right, noise, at))
    if kind == "branches":
        return tree(noise, right, [*right[:1], *noise], [*right[:2], *noise[1:]], noise[2:])
    if kind == "right among wrong":
        others = [[(token + 1 + i) % special.n_vocab for token in right] for i in range(3)]
        others.insert(at % 4, right)
        return tree(*others)
    if kind == "duplicate siblings":  # each right token twice, with a chain below the second
        ids = [token for right_token in (right or [1]) for token in (right_token, right_token, 2)]
        parents = [3 * (i // 3) - 3 if i >= 3 else -1 for i in range(len(ids))]
        return DraftTree(tokens=np.array(ids, np.int32), parents=np.array(parents, np.int32))
    ids64 = np.array([*right, 5, 6], np.int64)
    if kind == "cycle":
        return DraftTree(tokens=ids64, parents=np.arange(1, len(ids64) + 1))
    if kind == "bad parents":
        return DraftTree(tokens=ids64, parents=np.full(len(ids64), at - 2, np.int64))
    if kind == "bad columns":
        return DraftTree(tokens=ids64, parents=np.arange(-1, len(ids64) - 1), conf=np.zeros(at, np.float32))
    if kind == "floats":
        return DraftTree(tokens=np.array([1.5, np.nan], np.float32), parents=np.array([-1, 0]))  # type: ignore[arg-type]
    if kind == "plain chain":
        return DraftTree([*right, *noise], conf=[0.5] * (len(right) + len(noise)))
    if kind == "bad chain":
        made = (None, (1, 2), [1, 2.0], [np.int64(3)], [True], np.arange(3), "12")[at % 7]
        return DraftTree(made) if at else DraftTree(right, conf=[0.1] * (len(right) + 1))  # type: ignore[arg-type]
    if kind == "no tree":
        return [None, "text", right, np.zeros((3, 3)), object()][at % 5]
    raise [ValueError("broken"), KeyError(3), RecursionError(), MemoryError(), ZeroDivisionError()][at % 5]


_CHAINS: dict[str, Callable[..., list[int]]] = {
    "oracle": lambda special, bad, rest, right, noise, at: right,
    "one wrong": lambda special, bad, rest, right, noise, at: [*right[:at], noise[0], *right[at + 1 :]],
    "random": lambda special, bad, rest, right, noise, at: noise,
    "eot": lambda special, bad, rest, right, noise, at: [*right[:at], special.eot, special.eot, *noise],
    "too long": lambda special, bad, rest, right, noise, at: [*rest, *noise * 100],
    "suppressed": lambda special, bad, rest, right, noise, at: [*right[:at], bad, *right[at:]],
    "beyond the vocabulary": lambda special, bad, rest, right, noise, at: [
        *right[:at],
        (special.n_vocab, special.n_vocab + 7, -1, 2**31 - 1)[at % 4],
        *right[at:],
    ],
    "empty": lambda special, bad, rest, right, noise, at: [],
}


def verdict_on(drafted: list[int], n: int) -> Verdict:
    """What a pass says of a chain where the text is 0, 1, 2 and so on, and `n` of its tokens are decided."""
    right = next((i for i, token in enumerate(drafted) if token != n + i), len(drafted))
    return Verdict(
        drafted=tuple(drafted), n_accepted=right, token=n + right, finished=False,
        evaluated=tuple(range(len(drafted))), nodes=tuple(range(right)),
        rejected=right if right < len(drafted) else None,
    )  # fmt: skip
