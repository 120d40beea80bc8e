"""Passes of one model played again on another: the same rows are drafted, the same number accepted.

What a drafter proposes and what the model makes of it depend on training; what a pass costs depends on shapes alone. So
the passes that a trained model needed are written down (`Watcher`) and played on a model of another shape with random
weights (`play`): the real decode loop and real passes, with tokens that a script decides.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.accept import Candidate
from specedge.runtime.decoding.decode import DecodeOptions, Speculation, decode_window
from specedge.runtime.decoding.drafter import DraftContext, Drafter, DraftTree, EmptyDrafter, Verdict, WindowContext
from specedge.runtime.decoding.rules import Logits, build_rules
from specedge.runtime.decoding.sampling import Draw
from specedge.runtime.engine.engine import Engine
from support.drafting import parents_of

_FIRST = 100  # ids of nodes; none of them is suppressed
_OTHER = 90  # said where no draft is right


@dataclass(frozen=True)
class Pass:
    """The nodes that were rows, by their parents (-1 below the root), and the accepted ones of them, in order."""

    parents: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


@dataclass
class Window:
    """One text: how long its prompt was, its passes, and the time spent in proposing."""

    n_prompt: int
    passes: list[Pass] = field(default_factory=list)
    draft_s: float = 0.0

    @property
    def n_tokens(self) -> int:
        return sum(1 + len(one.accepted) for one in self.passes)


class Watcher:
    """A drafter as it is; `windows` holds what came of it."""

    is_empty = False  # plain decoding is watched too

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name = drafter.name
        self.windows: list[Window] = []
        self._parents: list[int] = []

    def __getattr__(self, name: str) -> Any:
        """What a drafter may say of itself besides, such as `reads_hidden`."""
        return getattr(self._drafter, name)

    def begin(self, window: WindowContext) -> None:
        self.windows.append(Window(len(window.prompt)))
        self._drafter.begin(window)

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        started = time.perf_counter()
        tree = self._drafter.propose(context, budget)
        self.windows[-1].draft_s += time.perf_counter() - started
        self._parents = parents_of(tree)
        return tree

    def observe(self, verdict: Verdict) -> None:
        place = {node: i for i, node in enumerate(verdict.evaluated)}
        parents = tuple(place.get(self._parents[node], -1) for node in verdict.evaluated)
        self.windows[-1].passes.append(Pass(parents, tuple(place[node] for node in verdict.nodes)))
        self._parents = []
        self._drafter.observe(verdict)

    def end(self, tokens: tuple[int, ...]) -> None:
        self._drafter.end(tokens)


class _Player(EmptyDrafter):
    """A drafter and the rule that judges it, both following `passes`."""

    name, lossless = "played", False

    def __init__(self, passes: Sequence[Pass], eot: int) -> None:
        self._passes, self._eot = list(passes), eot
        self._at = 0
        self._n_accepted = 0

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        parents = np.array(self._passes[self._at].parents, np.int32)
        return DraftTree(tokens=_FIRST + np.arange(len(parents), dtype=np.int32), parents=parents)

    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int:
        draw.own(logits)  # takes its time as it does in earnest
        now = self._passes[self._at]
        if self._n_accepted < len(now.accepted):
            self._n_accepted += 1
            return _FIRST + now.accepted[self._n_accepted - 1]
        self._at, self._n_accepted = self._at + 1, 0
        return self._eot if self._at == len(self._passes) else _OTHER


def play(engine: Engine, bundle: Bundle, features: Any, window: Window, *, drafted: bool) -> Speculation:
    """Decode a window as it was recorded, or without drafts; its counters and times."""
    special = bundle.manifest.tokens
    start = list(special.prompt("en" if special.is_multilingual else None, "transcribe", False))
    n_more = window.n_prompt - len(start)
    prompt = [special.sot_prev, *[_OTHER] * (n_more - 1), *start] if n_more > 0 else start
    passes = window.passes if drafted else [Pass()] * window.n_tokens
    player = _Player(passes, special.eot)
    options = DecodeOptions(
        rules=build_rules(
            special, space_ids=[220], suppressed=[], timestamps=False, max_initial_timestamp_index=None,
            suppress_blank=False,
        ),
        n_text_ctx=bundle.manifest.dims.n_text_ctx,
        n_sample=bundle.manifest.dims.n_text_ctx,
        acceptance=player,
    )  # fmt: skip
    return decode_window(engine, features, prompt, options, player if drafted else None).speculation
