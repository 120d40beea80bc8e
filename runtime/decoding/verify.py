"""Verify drafts: one pass of the decoder decides the accepted drafts and one token more, the bonus token.

A pass feeds the pending rows (the prompt at first, then one decided token) and rows of the draft: its best path, or
several paths as batch rows where the engine can (Miao et al., SpecInfer, verify a token tree likewise). The tree is
walked from its root: the rules filter the row of the prefix reached, the acceptance rule names the token, and the walk
goes on to the child that carries it until there is none (Whisper-Medusa, section II; Raj et al., section III-A).
Rows of the path walked are committed, so nothing decided is computed again and a rejected draft leaves no trace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specedge.errors import ModelError

from .accept import AcceptanceRule, Exact
from .drafter import Draft
from .passes import Decoding, Ran, n_rows_of
from .rules import Logits, RuleSet
from .sampling import Draw, Noise, log_softmax_at
from .statistics import Tally

if TYPE_CHECKING:
    from ..engine.engine import Engine, State

_ROOT = -1
_ROOT_ALONE: Sequence[tuple[int, ...]] = ((),)


class Outcome(NamedTuple):
    """What a pass decided, as nodes of the draft.

    walked: the accepted nodes; evaluated: the nodes that had rows; followed: the path that was kept; rejected: the best
    node where another token was decided; whole: whether one draft or more was accepted and none was left below them;
    rows: the filtered logits of each accepted node and of the bonus token, where they are kept.
    """

    walked: tuple[int, ...] = ()
    evaluated: tuple[int, ...] = ()
    followed: tuple[int, ...] = ()
    rejected: int | None = None
    whole: bool = False
    rows: tuple[Logits, ...] = ()


class Verifier:
    """One text in work over an engine's state: what is decided so far, and the passes that decide more.

    tokens, logprobs: the decided ids and their log-probabilities; sum_logprob: summed in float32 as openai-whisper
    does; finished: whether the last token is the end of text; hopeless: whether
    `is_hopeless` ended it there; done: whether nothing may follow; pending: the rows that
    the next pass must run first, the prompt or the end of it, then always one token; sot_row: see `step`; ran: the last
    pass, None where several paths were run.
    """

    def __init__(
        self,
        engine: Engine,
        state: State,
        prompt: Sequence[int],
        pending: tuple[int, ...],
        tally: Tally,
        *,
        rules: RuleSet,
        acceptance: AcceptanceRule,
        temperature: float,
        noise: Noise | None,
        limit: int,
        keeps_rows: bool = False,
        is_hopeless: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        self._engine, self._state, self._tally = engine, state, tally
        self._rules, self._acceptance, self._temperature, self._noise = rules, acceptance, temperature, noise
        self._is_greedy = temperature == 0 and isinstance(acceptance, Exact)
        self._eot, self._limit, self._n_prompt = rules.layout.eot, limit, len(prompt)
        self._is_hopeless = is_hopeless
        self._rows: list[Logits] | None = [] if keeps_rows else None
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.sum_logprob = np.float32(0.0)
        self.finished = self.done = self.hopeless = False
        self.pending = pending
        self.sot_row: Logits | None = None
        self.ran: Ran | None = None

    def step(self, draft: Draft, *, max_rows: int, n_paths: int = 1, sot_index: int | None = None) -> Decoding[Outcome]:
        """Decide by a pass over the pending rows and `draft`: one path of it, or up to `n_paths` of `max_rows` in all.

        Several paths are run at once, by a text that has the pass to itself. With `sot_index`, an index into the
        pending rows, the unfiltered logits there are kept as `sot_row`.
        """
        n_pending, tally = len(self.pending), self._tally
        # Several pending rows would be run again for each path; a prompt's pass has no time to lose by waiting one.
        paths = draft.paths(n_paths if n_pending == 1 else 1, max_rows) if draft.ids else _ROOT_ALONE
        if len(paths) > 1:
            rows = self._forward_paths(draft, paths, sot_index)
        else:
            rows = yield from self._forward(draft, paths[0], sot_index)
        started = time.perf_counter()
        evaluated = tuple(sorted(rows)[1:])  # the root comes first
        below: dict[int, list[int]] = {}
        for node in evaluated:
            below.setdefault(draft.parents[node], []).append(node)
        here = _ROOT
        walked: tuple[int, ...] = ()
        rejected: int | None = None
        while True:
            children: Sequence[int] = below.get(here, ())
            token = self._decide(rows[here], draft, children)
            right = None
            for node in children:
                if draft.ids[node] == token:
                    right = node
                    break
            if right is None or self.done:
                # A draft that the limit leaves no room for is neither right nor wrong.
                rejected = children[0] if children and right is None else None
                break
            here, walked = right, (*walked, right)
        decided = time.perf_counter()
        tally.rules_s += decided - started
        self.pending = (token,)
        path = 0
        while paths[path][: len(walked)] != walked:
            path += 1
        self._engine.commit(self._state, n_pending + len(walked), path)
        tally.verify_s += time.perf_counter() - decided
        kept: tuple[Logits, ...] = ()
        if self._rows is not None:
            kept, self._rows = tuple(self._rows), []
        return Outcome(walked, evaluated, paths[path], rejected, bool(walked) and here not in below, kept)

    def _forward(self, draft: Draft, path: tuple[int, ...], sot_index: int | None) -> Decoding[dict[int, Logits]]:
        """The logits that follow the last pending row (`_ROOT`) and each node of the path."""
        ids = (*self.pending, *draft.tokens(path)) if path else self.pending
        wanted: Sequence[int] = range(len(self.pending) - 1, len(ids))
        if sot_index is not None:
            wanted = [sot_index, *wanted]
        since = time.perf_counter()
        ran = yield ((self._state, ids, wanted),)
        self.ran = ran
        self._tally.count_run(ran, time.perf_counter() - since)
        (logits,) = ran.logits
        if sot_index is not None:
            self.sot_row, logits = logits[0].copy(), logits[1:]
        return dict(zip((_ROOT, *path), logits, strict=True))

    def _forward_paths(
        self, draft: Draft, paths: Sequence[tuple[int, ...]], sot_index: int | None
    ) -> dict[int, Logits]:
        """The same of several paths, in one pass."""
        since = time.perf_counter()
        texts = [(self.pending[0], *draft.tokens(path)) for path in paths]
        found = self._engine.forward_paths(self._state, self.pending[0], [ids[1:] for ids in texts])
        took_s, n_rows = time.perf_counter() - since, n_rows_of(texts)
        self._tally.count_run(Ran((), took_s, len(texts), n_rows, n_rows), took_s, n_texts=len(texts))
        self.ran = None
        rows = {_ROOT: found[0][0]}
        if sot_index is not None:  # of a prompt that is the start token alone
            self.sot_row = found[0][0].copy()  # deciding uses rows up
        for path, path_rows in zip(paths, found, strict=True):
            rows.update(zip(path, path_rows[1:], strict=True))
        return rows

    def _decide(self, logits: Logits, draft: Draft, children: Sequence[int]) -> int:
        """Append the token that follows the text; `logits` f32[n_vocab] is used up, `children` are drafts of it."""
        tokens = self.tokens
        left = self._rules.apply(logits, tokens)
        token = int(logits.argmax())
        peak = float(logits[token])
        if not math.isfinite(peak):
            raise unusable(peak, len(tokens))
        if not self._is_greedy:
            draw = Draw(self._temperature, self._noise, self._n_prompt + len(tokens))
            token = self._acceptance.choose(logits, draft.siblings(children), draw)
        if self._rows is not None:
            self._rows.append(logits.copy())
        logprob = log_softmax_at(logits, token, peak, scratch=logits)
        if left:
            logprob += np.float32(left)
        tokens.append(token)
        self.logprobs.append(float(logprob))
        self.sum_logprob += logprob
        self.finished = token == self._eot
        self.hopeless = self._is_hopeless is not None and self._is_hopeless(tokens)
        self.done = self.finished or self.hopeless or len(tokens) >= self._limit
        return token


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
