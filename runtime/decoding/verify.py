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
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from specedge.errors import ModelError

from .accept import Exact
from .drafter import NO_DRAFT, Draft, DraftContext, Guard, SharedPass, Verdict, WindowContext
from .passes import Decoding, Ran, n_rows_of
from .rules import Logits
from .sampling import Draw, Noise, log_softmax_at
from .window import Window

if TYPE_CHECKING:
    from ..engine.engine import State

_ROOT = -1
_ROOT_ALONE: Sequence[tuple[int, ...]] = ((),)


class Drafts:
    """The drafts of one text of a window; `guard` is round its drafter."""

    def __init__(self, window: Window, guard: Guard) -> None:
        self._window, self._guard = window, guard
        self.is_empty = guard.is_empty
        self.wants_rows = guard.needs("wants_rows")
        self._reads_hidden = guard.needs("reads_hidden")
        self._draft, self._path = NO_DRAFT, tuple[int, ...]()  # of a beam

    def begin(self, n_paths: int, key: bytes = b"") -> None:
        """Tell the drafter that the text begins."""
        window, options, layout = self._window, self._window.options, self._window.layout
        self._guard.begin(
            WindowContext(
                features=window.features,
                prompt=window.prompt,
                n_vocab=layout.n_vocab,
                n_sample=window.limit,
                eot=layout.eot,
                timestamp_begin=layout.timestamp_begin,
                n_paths=n_paths,
                temperature=options.temperature,
                history=options.history,
                mel=options.mel,
                content=options.content,
                earlier=options.earlier,
                key=key,
            )
        )

    def propose(self, state: State, tokens: Sequence[int], n_pending: int) -> Draft:
        """What the drafter says may follow `tokens`, the last `n_pending` of which are not yet in `state`."""
        guard, window, options = self._guard, self._window, self._window.options
        if self.is_empty or guard.is_idle:
            return NO_DRAFT
        position = int(state.length)
        n_room = options.n_text_ctx - position - n_pending
        n_left = window.limit - len(tokens) - 1
        hidden = state.hidden[:position] if self._reads_hidden and state.hidden is not None else None
        draft = guard.propose(
            DraftContext(prompt=window.prompt, sampled=tuple(tokens), position=position, hidden=hidden),
            min(n_room, n_left, options.max_draft),
            n_vocab=window.layout.n_vocab,
            useless=window.useless,
        )
        window.tally.count_proposed(draft.n_proposed)
        return draft

    def tell(self, draft: Draft, verdict: Verdict) -> None:
        """Count what became of the draft, and tell the drafter."""
        tally = self._window.tally
        tally.count_draft(draft.depths, draft.names, verdict.evaluated, verdict.nodes)
        tally.bonus += 0 < verdict.n_accepted == len(verdict.drafted)
        if not (self.is_empty or self._guard.is_idle):
            self._guard.observe(verdict)

    def path(self, state: State, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The drafted ids behind `tokens` of a beam, whose last is not yet in `state`."""
        self._draft = draft = self.propose(state, tokens, 1)
        self._path = (draft.paths(1, self._window.options.max_draft) or [()])[0]
        return draft.tokens(self._path)

    def saw(self, n_right: int, token: int, ran: Ran) -> None:
        """The pass over the last `path` was run: the beam itself says the first `n_right` of it, and then `token`."""
        path = self._path
        self.tell(
            self._draft,
            Verdict(
                drafted=self._draft.tokens(path),
                n_accepted=n_right,
                token=token,
                finished=token == self._window.layout.eot,
                evaluated=path,
                nodes=path[:n_right],
                rejected=path[n_right] if n_right < len(path) else None,
                shared=_shared(ran),
            ),
        )

    def another(self) -> Drafts:
        """Those of a beam that goes on from this one; empty where the drafter can draft for one beam alone."""
        return self if self.is_empty else Drafts(self._window, self._guard.another())

    def close(self) -> None:
        """The beam of this one, which is `another`, is over."""
        self._guard.close()


def _shared(ran: Ran) -> SharedPass | None:
    return None if ran.n_texts == 1 else SharedPass(n_texts=ran.n_texts, n_rows=ran.n_rows, seconds=ran.pass_s)


class Verifier:
    """One text of a window in work: what is decided so far, and the passes that decide more.

    tokens, logprobs: the decided ids and their log-probabilities; sum_logprob: summed in float32 as openai-whisper
    does; finished: whether the last token is the end of text; hopeless: whether `DecodeOptions.is_hopeless` ended it
    there; done: whether nothing may follow; pending: the rows that the next pass must run first, the prompt or the end
    of it, then always one token.
    """

    def __init__(
        self, window: Window, state: State, pending: tuple[int, ...], noise: Noise | None, *, keeps_rows: bool
    ) -> None:
        options = window.options
        self._window, self._state, self._noise = window, state, noise
        self._rules, self._temperature = options.rules, options.temperature
        self._is_greedy = noise is None and isinstance(options.acceptance, Exact)
        self._silence_row = window.silence_row if pending == window.prompt else None  # of the next pass
        self._rows: list[Logits] | None = [] if keeps_rows else None
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.sum_logprob = np.float32(0.0)
        self.finished = self.done = self.hopeless = False
        self.pending = pending

    def step(self, draft: Draft, n_paths: int = 1) -> Decoding[Verdict]:
        """Decide by a pass over the pending rows and `draft`: one path of it, or up to `n_paths`.

        Several paths are run at once, by a text that has the pass to itself.
        """
        n_pending, window = len(self.pending), self._window
        # Several pending rows would be run again for each path; a prompt's pass has no time to lose by waiting one.
        n_paths = n_paths if n_pending == 1 else 1
        paths = draft.paths(n_paths, window.options.max_draft) if draft.ids else _ROOT_ALONE
        shared: SharedPass | None = None
        if len(paths) > 1:
            rows = self._forward_paths(draft, paths)
        else:
            rows, shared = yield from self._forward(draft, paths[0])
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
        window.tally.rules_s += decided - started
        self.pending = (token,)
        path = 0
        while paths[path][: len(walked)] != walked:
            path += 1
        window.engine.commit(self._state, n_pending + len(walked), path)
        window.tally.verify_s += time.perf_counter() - decided
        kept: tuple[Logits, ...] = ()
        if self._rows is not None:
            kept, self._rows = tuple(self._rows), []
        return Verdict(
            drafted=draft.tokens(paths[path]),
            n_accepted=len(walked),
            token=token,
            finished=self.done,
            evaluated=evaluated,
            nodes=walked,
            rejected=rejected,
            rows=kept,
            shared=shared,
        )

    def _forward(self, draft: Draft, path: tuple[int, ...]) -> Decoding[tuple[dict[int, Logits], SharedPass | None]]:
        """The logits that follow the last pending row (`_ROOT`) and each node of the path; who shared the pass."""
        ids = (*self.pending, *draft.tokens(path)) if path else self.pending
        wanted: Sequence[int] = range(len(self.pending) - 1, len(ids))
        silence_row, self._silence_row = self._silence_row, None
        if silence_row is not None:
            wanted = [silence_row, *wanted]
        since = time.perf_counter()
        ran = yield ((self._state, ids, wanted),)
        self._window.tally.count_run(ran, time.perf_counter() - since)
        (logits,) = ran.logits
        if silence_row is not None:
            self._window.read_silence(logits[0])
            logits = logits[1:]
        return dict(zip((_ROOT, *path), logits, strict=True)), _shared(ran)

    def _forward_paths(self, draft: Draft, paths: Sequence[tuple[int, ...]]) -> dict[int, Logits]:
        """The same of several paths, in one pass."""
        since = time.perf_counter()
        texts = [(self.pending[0], *draft.tokens(path)) for path in paths]
        found = self._window.engine.forward_paths(self._state, self.pending[0], [ids[1:] for ids in texts])
        took_s, n_rows = time.perf_counter() - since, n_rows_of(texts)
        self._window.tally.count_run(Ran((), took_s, len(texts), n_rows, n_rows), took_s, n_texts=len(texts))
        rows = {_ROOT: found[0][0]}
        if self._silence_row is not None:  # of a prompt that is the start token alone
            self._window.read_silence(rows[_ROOT])
            self._silence_row = None
        for path, path_rows in zip(paths, found, strict=True):
            rows.update(zip(path, path_rows[1:], strict=True))
        return rows

    def _decide(self, logits: Logits, draft: Draft, children: Sequence[int]) -> int:
        """Append the token that follows the text; `logits` f32[n_vocab] is used up, `children` are drafts of it."""
        tokens, window = self.tokens, self._window
        left = self._rules.apply(logits, tokens)
        token = int(logits.argmax())
        peak = float(logits[token])
        if not math.isfinite(peak):
            raise unusable(peak, len(tokens))
        if not self._is_greedy:
            draw = Draw(self._temperature, self._noise, len(window.prompt) + len(tokens))
            token = window.options.acceptance.choose(logits, draft.siblings(children), draw)
        if self._rows is not None:
            self._rows.append(logits.copy())
        logprob = log_softmax_at(logits, token, peak)
        if left:
            logprob += np.float32(left)
        tokens.append(token)
        self.logprobs.append(float(logprob))
        self.sum_logprob += logprob
        self.finished = token == window.layout.eot
        is_hopeless = window.options.is_hopeless
        self.hopeless = is_hopeless is not None and is_hopeless(tokens)
        self.done = self.finished or self.hopeless or len(tokens) >= window.limit
        return token


def unusable(peak: float, n_tokens: int) -> ModelError:
    """The error for a row whose largest filtered logit is `peak`, after `n_tokens` of a window."""
    return ModelError(
        f"the decoder gave no usable logits for token {n_tokens + 1} of a window (largest: {peak}); "
        "run `specedge doctor` on this bundle, or try --no-timestamps if it was trained without timestamps"
    )
