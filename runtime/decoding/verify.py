"""Verify drafts: one pass decides the accepted drafts and one token more, the bonus (algorithms 2.1).

A pass feeds the pending rows (the prompt at first, then one decided token) and the draft's nodes: its best path, or
several paths as batch rows where the engine can. The tree is walked from the root: rules for the prefix reached, the
acceptance rule's token, on to the child that carries it, until none does. The rows of the path walked are committed, so
what was decided is never computed again, and what was refused leaves no trace.

Does not know: drafters, windows, why the text ends; `decode` does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specedge.errors import ModelError

from .accept import AcceptanceRule, Exact
from .drafter import Draft
from .rules import Logits, RuleSet
from .sampling import Draw, Noise, log_softmax_at
from .statistics import Tally

if TYPE_CHECKING:
    from ..engine.engine import Engine, State

__all__ = ["Chooser", "Outcome", "Text", "Verifier", "softmax", "unusable"]

_ROOT = -1


class Outcome(NamedTuple):
    """What a pass decided: the walked path, the nodes that had rows, the path that was followed, and the refused node.

    `whole` is true when the walk ended at a leaf with a node or more accepted. rows: what decided each node of the path
    and the token behind it, where they are kept.
    """

    walked: tuple[int, ...]
    evaluated: tuple[int, ...]
    followed: tuple[int, ...]
    rejected: int | None
    whole: bool
    rows: tuple[Logits, ...] = ()


class Text:
    """The tokens decided in one window, with their log-probabilities; `done` when nothing may follow."""

    def __init__(self, *, eot: int, limit: int) -> None:
        self._eot, self._limit = eot, limit
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.sum_logprob = np.float32(0.0)

    @property
    def done(self) -> bool:
        """Whether the last token is the end of text, or the limit of tokens is reached."""
        return self.finished or len(self.tokens) >= self._limit

    @property
    def finished(self) -> bool:
        """Whether the last token is the end of text."""
        return bool(self.tokens) and self.tokens[-1] == self._eot

    def append(self, token: int, logprob: np.float32) -> None:
        """One more token; the sum is kept in float32, as openai-whisper does."""
        self.tokens.append(token)
        self.logprobs.append(float(logprob))
        self.sum_logprob += logprob


class Chooser:
    """Decides one position from its row: Whisper's rules, the acceptance rule, the sampling. Times go to `tally`.

    keeps_rows: `row` has the filtered row of the last decision for a drafter that wants it.
    """

    def __init__(
        self,
        rules: RuleSet,
        acceptance: AcceptanceRule,
        temperature: float,
        noise: Noise | None,
        tally: Tally,
        *,
        keeps_rows: bool = False,
    ) -> None:
        self._rules, self._acceptance, self._tally = rules, acceptance, tally
        self._temperature, self._noise = temperature, noise
        self._is_greedy = temperature == 0 and isinstance(acceptance, Exact)
        self.keeps_rows = keeps_rows
        self.row: Logits | None = None

    def decide(self, logits: Logits, text: Text, draft: Draft, children: Sequence[int], position: int) -> int:
        """Append the token after `text`, at the absolute `position`; `logits` f32[n_vocab] is used up."""
        started = time.perf_counter()
        self._rules.apply(logits, text.tokens)
        token = int(logits.argmax())
        peak = float(logits[token])
        if not math.isfinite(peak):
            raise unusable(peak, len(text.tokens))
        if not self._is_greedy:
            draw = Draw(self._temperature, self._noise, position)
            token = self._acceptance.choose(logits, draft.siblings(children), draw)
        if self.keeps_rows:
            self.row = logits.copy()
        text.append(token, log_softmax_at(logits, token, peak, scratch=logits))
        self._tally.rules_s += time.perf_counter() - started
        return token


class Verifier:
    """One text in work over an engine's state.

    `pending` are the rows that the next pass must run first: the prompt or the end of it, then always one token.
    """

    def __init__(
        self,
        engine: Engine,
        state: State,
        prompt: Sequence[int],
        pending: tuple[int, ...],
        text: Text,
        chooser: Chooser,
        tally: Tally,
    ) -> None:
        self._engine, self._state = engine, state
        self._text, self._chooser, self._tally = text, chooser, tally
        self._n_prompt = len(prompt)
        self.pending = pending
        self.sot_row: Logits | None = None

    def step(self, draft: Draft, *, max_rows: int, sot_index: int | None = None) -> Outcome:
        """One pass over the pending rows and `draft`, up to `max_rows` of its rows when several paths are run.

        With `sot_index`, an index into the pending rows, the logits there are kept as `sot_row`.
        """
        n_pending = len(self.pending)
        # Several pending rows would be run again for each path; a prompt's pass has no time to lose by waiting one.
        n_paths = self._engine.n_paths if n_pending == 1 else 1
        paths = draft.paths(n_paths, max_rows) or [()]
        started = time.perf_counter()
        rows = self._forward(draft, paths, sot_index)
        self._tally.verify_s += time.perf_counter() - started
        outcome = self._walk(draft, paths, rows)
        started = time.perf_counter()
        n_rows = n_pending + len(outcome.walked)
        self._engine.commit(self._state, n_rows, paths.index(outcome.followed))
        self._tally.verify_s += time.perf_counter() - started
        return outcome

    def _forward(self, draft: Draft, paths: Sequence[tuple[int, ...]], sot_index: int | None) -> dict[int, Logits]:
        """The logits that follow the last pending row (`_ROOT`) and each node of the paths."""
        if len(paths) > 1:
            found = self._engine.forward_paths(self._state, self.pending[0], [draft.tokens(path) for path in paths])
            rows = {_ROOT: found[0][0]}
            if sot_index is not None:  # of a prompt that is the start token alone
                self.sot_row = found[0][0].copy()  # deciding uses rows up
            for path, path_rows in zip(paths, found, strict=True):
                rows.update(zip(path, path_rows[1:], strict=True))
            return rows
        ids = [*self.pending, *draft.tokens(paths[0])]
        if len(self.pending) == 1 and sot_index is None:
            logits = self._engine.forward(self._state, ids)
        else:
            wanted = list(range(len(self.pending) - 1, len(ids)))
            if sot_index is not None:
                wanted.insert(0, sot_index)
            logits = self._engine.forward(self._state, ids, wanted)
            if sot_index is not None:
                self.sot_row, logits = logits[0].copy(), logits[1:]
        return dict(zip((_ROOT, *paths[0]), logits, strict=True))

    def _walk(self, draft: Draft, paths: Sequence[tuple[int, ...]], rows: dict[int, Logits]) -> Outcome:
        evaluated = tuple(sorted(rows)[1:])  # the root comes first
        below: dict[int, list[int]] = {}
        for node in evaluated:
            below.setdefault(draft.parents[node], []).append(node)
        here, walked = _ROOT, list[int]()
        kept: list[Logits] = []
        rejected = None
        while True:
            children = below.get(here, [])
            position = self._n_prompt + len(self._text.tokens)
            token = self._chooser.decide(rows[here], self._text, draft, children, position)
            if self._chooser.row is not None:
                kept.append(self._chooser.row)
            right = next((node for node in children if draft.ids[node] == token), None) if children else None
            if self._text.done or right is None:
                # A draft that the limit leaves no room for is neither right nor wrong.
                rejected = children[0] if children and right is None else None
                break
            here = right
            walked.append(right)
        self.pending = (token,)
        taken = tuple(walked)
        return Outcome(
            walked=taken,
            evaluated=evaluated,
            followed=next(path for path in paths if path[: len(taken)] == taken),
            rejected=rejected,
            whole=bool(walked) and here not in below,
            rows=tuple(kept),
        )


def unusable(peak: float, n_tokens: int) -> ModelError:
    """The error for a row whose largest filtered logit is `peak`, after `n_tokens` of a window."""
    return ModelError(
        f"the decoder gave no usable logits for token {n_tokens + 1} of a window (largest: {peak}); "
        "run `specedge doctor` on this bundle, or try --no-timestamps if it was trained without timestamps"
    )


def softmax(row: Logits) -> Logits:
    """Softmax of one row f32[n]; not-a-number where the row holds one."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(row - row.max())
        result: Logits = weights / weights.sum(dtype=np.float32)
    return result
