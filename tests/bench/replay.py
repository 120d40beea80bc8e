"""What a drafter would do for a text that is known: the decode loop with the text in the place of the model.

A drafter that needs no audio, or is given what the engine made of it, sees the same windows, contexts and verdicts as
in `decode_window` when the model says this text, so passes, drafts and acceptance are those of a real run
(test_experiments.py holds them together), at some thousand tokens a second. What passes cost is a `Price`, and nothing
but the drafter is timed. It does not know the encoder's share.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bench.rounds import BenchError
from numpy.typing import NDArray

from specedge.runtime.decoding.drafter import Draft, DraftContext, Drafter, Guard, Verdict, WindowContext
from specedge.runtime.device import CostTable
from specedge.runtime.text.special import SpecialTokens

__all__ = ["Counts", "Price", "Setting", "copied_rows", "path_rows", "replay", "trie_rows"]

Price = Callable[[int, Sequence[Sequence[int]]], float]
"""Of a pass, in passes of one row: by its pending rows and the ids of the paths that it verifies."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The windows of a replay: `useless` are the ids that no rule ever allows; sizes as in `DecodeOptions`."""

    special: SpecialTokens
    prompt: tuple[int, ...]
    n_text_ctx: int = 448
    n_sample: int | None = None
    n_paths: int = 1
    max_draft: int = 64
    useless: frozenset[int] = frozenset()


@dataclass(kw_only=True)
class Counts:
    """Sums over all texts, as `Speculation` has them; drafted: passes with a draft; whole: those accepted to the end of
    a path; cost and plain_cost: with the drafts and without them; draft_s: seconds in the drafter;
    windows: texts."""

    tokens: int = 0
    passes: int = 0
    proposed: int = 0
    evaluated: int = 0
    accepted: int = 0
    drafted: int = 0
    whole: int = 0
    cost: float = 0.0
    plain_cost: float = 0.0
    draft_s: float = 0.0
    windows: int = 0

    @property
    def acceptance(self) -> float:
        """Accepted of evaluated nodes."""
        return self.accepted / self.evaluated if self.evaluated else 0.0

    @property
    def accepted_per_draft(self) -> float:
        """Accepted tokens of a pass that had a draft."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes if self.passes else 1.0

    @property
    def speed_up(self) -> float:
        """Of the decoder, against one pass for each token."""
        return self.plain_cost / self.cost if self.cost else 1.0

    def figures(self) -> dict[str, float]:
        """For the JSON, rounded."""
        return {
            "speed_up": round(self.speed_up, 4),
            "tokens_per_pass": round(self.tokens_per_pass, 4),
            "acceptance": round(self.acceptance, 4),
            "accepted_per_draft": round(self.accepted_per_draft, 4),
            "tokens": self.tokens,
            "passes": self.passes,
        }


def path_rows(costs: CostTable) -> Price:
    """As the runtime does: a chain in one sequence, several paths as batch rows of one even length that share K/V."""

    def price(n_pending: int, paths: Sequence[Sequence[int]]) -> float:
        longest = max(map(len, paths), default=0)
        if len(paths) < 2:
            return _cost(costs, n_pending + longest)
        return _cost(costs, len(paths) * (1 + longest + (1 + longest) % 2)) + costs.several_paths

    return price


def trie_rows(costs: CostTable) -> Price:
    """As if shared beginnings were run once, in one sequence under a mask."""

    def price(n_pending: int, paths: Sequence[Sequence[int]]) -> float:
        nodes = {tuple(path[: depth + 1]) for path in paths for depth in range(len(path))}
        return _cost(costs, n_pending + len(nodes))

    return price


def copied_rows(costs: CostTable, fixed: float, per_row: float) -> Price:
    """As a batch that copies keys and values for each of several paths: `fixed` passes of one row, and `per_row`."""

    def price(n_pending: int, paths: Sequence[Sequence[int]]) -> float:
        longest = max(map(len, paths), default=0)
        if len(paths) < 2:
            return _cost(costs, n_pending + longest)
        return fixed + per_row * len(paths) * (1 + longest)

    return price


def replay(
    drafter: Drafter,
    texts: Iterable[Sequence[int]],
    price: Price,
    setting: Setting,
    features: Iterable[Any] | None = None,
    hidden: Iterable[NDArray[np.float32]] | None = None,
) -> Counts:
    """Decode each text; its ids end with the end of text, unless the length limit ended it.

    features: what the engine gave for the window of each text, for drafters that listen; hidden: the decoder's hidden
    rows of prompt and text, float32 [n_rows, n_text_state], for drafters that read them. Raises BenchError when the
    drafter fails.
    """
    guard = Guard(drafter)
    counts = Counts()
    heard = itertools.repeat(None) if features is None else features
    rows: Iterable[NDArray[np.float32] | None] = itertools.repeat(None) if hidden is None else hidden
    for text, window, of_text in zip(texts, heard, rows, strict=False):
        _window(guard, list(text), window, of_text, price, setting, counts)
        if guard.error is not None:
            raise BenchError(f"the drafter {guard.name} failed: {guard.error}")
        counts.windows += 1
    counts.draft_s = guard.seconds
    return counts


def _cost(costs: CostTable, n_rows: int) -> float:
    return costs.cost(1 if n_rows == 1 else n_rows + n_rows % 2)  # an odd row brings another along


def _window(
    guard: Guard,
    text: list[int],
    features: Any,
    hidden: NDArray[np.float32] | None,
    price: Price,
    setting: Setting,
    counts: Counts,
) -> None:
    special, prompt = setting.special, setting.prompt
    n_sample = setting.n_text_ctx // 2 if setting.n_sample is None else setting.n_sample
    limit = min(n_sample, setting.n_text_ctx + 1 - len(prompt))
    guard.begin(
        WindowContext(
            features=features,
            prompt=prompt,
            n_vocab=special.n_vocab,
            n_sample=limit,
            eot=special.eot,
            timestamp_begin=special.timestamp_begin,
            n_paths=setting.n_paths,
        )
    )
    at, n_pending = 0, len(prompt)
    while at < len(text):
        position = len(prompt) + at - n_pending
        draft = guard.propose(
            DraftContext(
                prompt=prompt,
                sampled=tuple(text[:at]),
                position=position,
                hidden=None if hidden is None else hidden[:position],
            ),
            min(setting.n_text_ctx - position - n_pending, limit - at - 1, setting.max_draft),
            n_vocab=special.n_vocab,
            useless=setting.useless | {special.eot},
        )
        paths = draft.paths(setting.n_paths if n_pending == 1 else 1, setting.max_draft)
        verdict = _walk(draft, paths, text, at)
        counts.proposed += sum(draft.n_proposed.values())
        counts.evaluated += len(verdict.evaluated)
        counts.accepted += verdict.n_accepted
        counts.drafted += bool(paths)
        counts.whole += bool(verdict.n_accepted) and verdict.n_accepted == len(verdict.drafted)
        counts.cost += price(n_pending, [draft.tokens(path) for path in paths])
        counts.plain_cost += price(n_pending, ()) + verdict.n_accepted * price(1, ())
        at += verdict.n_accepted + 1
        counts.passes += 1
        n_pending = 1
        guard.observe(verdict)
    counts.tokens += len(text)
    guard.end(tuple(token for token in text if token != special.eot))


def _walk(draft: Draft, paths: Sequence[tuple[int, ...]], text: Sequence[int], at: int) -> Verdict:
    """The verdict of a pass that verifies `paths` where the text stands at `at`."""
    nodes = sorted({node for path in paths for node in path})
    below: dict[int, list[int]] = {}
    for node in nodes:
        below.setdefault(draft.parents[node], []).append(node)
    here, walked = -1, list[int]()
    while True:
        children = below.get(here, [])
        here = next((node for node in children if draft.ids[node] == text[at + len(walked)]), -1)
        if here == -1 or at + len(walked) + 1 == len(text):
            break
        walked.append(here)
    followed = next((path for path in paths if list(path[: len(walked)]) == walked), ())
    return Verdict(
        drafted=draft.tokens(followed),
        n_accepted=len(walked),
        token=text[at + len(walked)],
        finished=at + len(walked) + 1 == len(text),
        evaluated=tuple(draft.nodes[node] for node in nodes),
        nodes=tuple(draft.nodes[node] for node in walked),
        rejected=draft.nodes[children[0]] if children and here == -1 else None,
    )
