"""Beams that advance by several tokens, by heads that nobody verifies.

`groups` advances hypotheses by several tokens (Raj et al., section III-A, threshold of eq. 10). It is lossy: a
hypothesis goes on by each of the model's likeliest tokens and, behind the likeliest, by as many heads as are sure by
`tau` or more, which nobody verifies. Hypotheses of one length are a group and run together; a token counts with the
log-probability of whoever gave it (eq. 12). The paper leaves open what this module decides: heads continue the
likeliest token alone, and hypotheses of different lengths are compared by the mean of their tokens. So a text is come
to in one way only. Where no head is ever sure, `groups` is exact beam search.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from ..decoding.beam import BeamOptions, Hypothesis, SawPass, best_of, likeliest, logprobs_behind
from ..decoding.drafter import Guard
from ..decoding.passes import Decoding
from ..decoding.rules import Logits, RuleSet
from ..decoding.statistics import Tally

if TYPE_CHECKING:
    from ..engine.engine import Engine, State

Guess = Callable[[NDArray[np.float32], int], tuple[NDArray[np.int64], NDArray[np.float32]]]
"""What heads say behind hidden rows, as `engine.heads.HeadsPass.guess`."""


def beams_of_heads(
    engine: Engine,
    state: State,
    first_row: Logits,
    rules: RuleSet,
    guard: Guard,
    options: BeamOptions,
    saw_pass: SawPass,
    tally: Tally,
    length_penalty: float | None,
) -> Decoding[Hypothesis]:
    """The best beam where heads are believed from `options.tau` on: all that they gave of it counts as accepted.

    Arguments as of `groups`; `guard` is round the drafter with the heads. Raises UsageError for one without.
    """
    name = guard.name
    if not guard.needs("has_heads"):
        raise UsageError(
            f"--accept {options.tau:g} with beam search needs a heads drafter (such as mtp-latent), got {name}: "
            "choose one, or use --accept exact"
        )
    found = yield from groups(engine, state, first_row, rules, guard.guess, options, saw_pass)
    best = found[best_of(found, length_penalty)]
    depths = [emitter - 1 for emitter in best.emitters if emitter]
    nodes = range(len(depths))
    tally.count_proposed({name: len(depths)})
    tally.count_draft(depths, [name] * len(depths), nodes, nodes)
    return replace(best, sources=tuple([name if emitter else "" for emitter in best.emitters[: len(best.tokens)]]))


@dataclass(frozen=True, kw_only=True)
class Emitted(Hypothesis):
    """A hypothesis of `groups`.

    emitters: who gave each token: 0 the model, i its head i - 1; the end of text is the model's. hidden: the decoder's
    last hidden rows of the prompt and the tokens that were run, float32 [n_rows, n_text_state]; token j, given by i,
    was given from the row of token j - i - 1, or of the prompt's last where that is -1.
    """

    emitters: tuple[int, ...]
    hidden: NDArray[np.float32]


def groups(
    engine: Engine,
    state: State,
    first_row: Logits,
    rules: RuleSet,
    guess: Guess,
    options: BeamOptions,
    saw_pass: SawPass,
) -> Decoding[list[Emitted]]:
    """Return the finished hypotheses in the order they ended, then unfinished ones, best first, up to `beam_size`.

    `state` keeps hidden rows, holds the prompt, and stays the caller's; `first_row` f32[n_vocab] follows it. Raises
    ModelError on logits that are not numbers, Interrupted.
    """
    found = _Groups(engine, rules, guess, options, state, first_row)
    try:
        return (yield from found.run(saw_pass))
    finally:
        found.release()


@dataclass(eq=False, kw_only=True)
class _Text:
    """A hypothesis. `n_run` of its tokens are in `state`, and `row` f32[n_vocab] follows them.

    `parent` is the hypothesis that it continues. An `ended` one holds the end's log-probability besides.
    """

    state: Any
    row: Logits
    n_run: int = 0
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    emitters: tuple[int, ...] = ()
    total: np.float32 = np.float32(0.0)
    ended: bool = False
    parent: _Text | None = None

    @property
    def mean(self) -> float:
        """The mean log-probability, by which texts of all lengths are compared."""
        return float(self.total) / max(1, len(self.logprobs))


class _Groups:
    def __init__(
        self, engine: Engine, rules: RuleSet, guess: Guess, options: BeamOptions, state: State, row: Logits
    ) -> None:
        self._engine, self._rules, self._guess, self._options = engine, rules, guess, options
        self._eot = rules.layout.eot
        self._finished: list[Emitted] = []
        # All hypotheses begin alike.
        self._live = [_Text(state=engine.fork(state), row=np.array(row))]

    def run(self, saw_pass: SawPass) -> Decoding[list[Emitted]]:
        """Step by step, to the end."""
        while True:
            self._extend()
            waiting = [text for text in self._live if len(text.tokens) < self._options.limit]
            if len(self._finished) >= self._options.n_wanted or not waiting:
                break
            for _, alike in itertools.groupby(sorted(waiting, key=lambda text: text.n_run), lambda text: text.n_run):
                group = list(alike)
                texts = [(text.state, text.tokens[text.n_run :]) for text in group]
                since = time.perf_counter()
                ran = yield [(state, ids, [len(ids) - 1]) for state, ids in texts]
                saw_pass(ran, time.perf_counter() - since, len(group))
                for text, (row,) in zip(group, ran.logits, strict=True):
                    text.row = np.array(row)
                    self._engine.commit(text.state, len(text.tokens) - text.n_run)
                    text.n_run = len(text.tokens)
        best = self._live[: max(0, self._options.beam_size - len(self._finished))]
        return [*self._finished, *(self._emitted(text, text.state) for text in best)]

    def release(self) -> None:
        """Give the engine all buffers back."""
        for text in self._live:
            self._engine.release(text.state)
        self._live = []

    def _extend(self) -> None:
        """Choose the texts that live on; ended ones that are better than the last of them are finished."""
        found = [child for text in self._live for child in self._children(text)]
        chosen: list[_Text] = []
        for text in sorted(found, key=lambda text: -text.mean):
            if not text.ended:
                chosen.append(text)
                if len(chosen) == self._options.beam_size:
                    break
            elif text.parent is not None and len(self._finished) < self._options.n_wanted:
                self._finished.append(self._emitted(text, text.parent.state))
        self._move_states(chosen)

    def _children(self, text: _Text) -> Iterator[_Text]:
        """The continuations of a hypothesis; itself where the limit is reached."""
        if len(text.tokens) >= self._options.limit:
            yield replace(text, parent=text)
            return
        sure = self._sure(text)[: self._options.limit - len(text.tokens) - 1]
        logprobs = logprobs_behind(self._rules, text.row, text.tokens)
        for rank, token in enumerate(likeliest(logprobs, self._options.beam_size + 1)):
            ended = token == self._eot
            added = [(token, 0, logprobs[token]), *(sure if rank == 0 and not ended else ())]
            yield _Text(
                state=None,
                row=text.row,
                n_run=text.n_run,
                tokens=text.tokens if ended else (*text.tokens, *(one[0] for one in added)),
                emitters=(*text.emitters, *(one[1] for one in added)),
                logprobs=(*text.logprobs, *(float(one[2]) for one in added)),
                total=functools.reduce(lambda total, one: np.float32(total + one[2]), added, text.total),
                ended=ended,
                parent=text,
            )

    def _sure(self, text: _Text) -> list[tuple[int, int, np.float32]]:
        """Tokens that heads are sure of behind the likeliest one, the head's number from 1, log-probabilities."""
        ids, probs = self._guess(text.state.hidden[: text.state.length], 1)
        found: list[tuple[int, int, np.float32]] = []
        for head, (token, prob) in enumerate(zip(ids[:, 0].tolist(), probs[:, 0], strict=True), 1):
            # Behind a timestamp only the rules know what may follow, and a head has not seen them.
            if prob < self._options.tau or token >= self._eot or token in self._options.useless:
                break
            found.append((token, head, np.log(prob)))
        return found

    def _move_states(self, chosen: list[_Text]) -> None:
        """A parent's state goes to its first child, other children get copies; without children it is given up."""
        taken: set[int] = set()
        for child in chosen:
            if child.parent is None:
                continue
            if id(child.parent) in taken:
                child.state = self._engine.fork(child.parent.state)
            else:
                child.state = child.parent.state
                taken.add(id(child.parent))
        for text in self._live:
            if id(text) not in taken:
                self._engine.release(text.state)
        for child in chosen:
            child.parent = None
        self._live = chosen

    def _emitted(self, text: _Text, state: Any) -> Emitted:
        return Emitted(
            tokens=text.tokens,
            logprobs=text.logprobs,
            sum_logprob=float(text.total),
            finished=text.ended,
            emitters=text.emitters,
            hidden=np.array(state.hidden[: state.length]),
        )
