"""Beams that advance by several tokens, by heads that nobody verifies.

`Groups` advances hypotheses by several tokens (Raj et al., section III-A, threshold of eq. 10). It is lossy: a
hypothesis goes on by each of the model's likeliest tokens and, behind the likeliest, by as many heads as are sure by
`tau` or more, which nobody verifies. Hypotheses of one length are a group and run together; a token counts with the
log-probability of whoever gave it (eq. 12). The paper leaves open what this module decides: heads continue the
likeliest token alone, and hypotheses of different lengths are compared by the mean of their tokens. So a text is come
to in one way only. Where no head is ever sure, `Groups` is exact beam search.
"""

from __future__ import annotations

import functools
import itertools
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from ..decoding.beam import best_of, likeliest, logprobs_behind, n_wanted
from ..decoding.passes import Decoding
from ..decoding.rules import Logits
from ..decoding.window import Hypothesis, Window

if TYPE_CHECKING:
    from ..engine.engine import State

Guess = Callable[[NDArray[np.float32], int], tuple[NDArray[np.int64], NDArray[np.float32]]]
"""What heads say behind hidden rows, as `engine.heads.HeadsPass.guess`."""


def beams_of_heads(window: Window, state: State, first_row: Logits) -> Decoding[Hypothesis]:
    """The best beam where heads are believed from `tau` of the window's rule on: all that they gave of it counts as
    accepted. Arguments as of `decoding.beam.search`. Raises UsageError for a drafter without heads.
    """
    guard, options = window.guard, window.options
    tau = options.acceptance.tau or 0.0
    if not guard.needs("has_heads"):
        raise UsageError(
            f"--accept {tau:g} with beam search needs a heads drafter (such as mtp-latent), got {guard.name}: "
            "choose one, or use --accept exact"
        )
    found = yield from Groups(window, guard.guess, tau).run(state, first_row)
    best = found[best_of(found, options.length_penalty)]
    depths = [emitter - 1 for emitter in best.emitters if emitter]
    nodes = range(len(depths))
    window.tally.count_proposed({guard.name: len(depths)})
    window.tally.count_draft(depths, [guard.name] * len(depths), nodes, nodes)
    if not options.keeps_sources:
        return best
    return replace(best, sources=tuple([guard.name if one else "" for one in best.emitters[: len(best.tokens)]]))


@dataclass(frozen=True, kw_only=True)
class Emitted(Hypothesis):
    """A hypothesis of `Groups`.

    emitters: who gave each token: 0 the model, i its head i - 1; the end of text is the model's. hidden: the decoder's
    last hidden rows of the prompt and the tokens that were run, float32 [n_rows, n_text_state]; token j, given by i,
    was given from the row of token j - i - 1, or of the prompt's last where that is -1.
    """

    emitters: tuple[int, ...]
    hidden: NDArray[np.float32]


@dataclass(eq=False, kw_only=True)
class _Text:
    """A hypothesis. `n_run` of its tokens are in `state`, and `row` f32[n_vocab] follows them.

    Until it is chosen, `state` is that of the one it continues. An `ended` one holds the end's log-probability besides.
    """

    state: Any
    row: Logits
    n_run: int = 0
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    emitters: tuple[int, ...] = ()
    total: np.float32 = np.float32(0.0)
    ended: bool = False

    @property
    def mean(self) -> float:
        """The mean log-probability, by which texts of all lengths are compared."""
        return float(self.total) / max(1, len(self.logprobs))


class Groups:
    """A search in a window. Heads say `guess` behind hidden rows, and are believed where they are sure by `tau`."""

    def __init__(self, window: Window, guess: Guess, tau: float) -> None:
        self._window, self._guess, self._tau = window, guess, tau
        self._engine, self._eot, self._beam_size = window.engine, window.layout.eot, window.options.beam_size
        self._n_wanted = n_wanted(self._beam_size, window.options.patience)
        self._finished: list[Emitted] = []
        self._live: list[_Text] = []

    def run(self, state: State, first_row: Logits) -> Decoding[list[Emitted]]:
        """Return the finished hypotheses in the order they ended, then unfinished ones, best first, up to `beam_size`.

        `state` keeps hidden rows, holds the prompt, and stays the caller's; `first_row` f32[n_vocab] follows it. Raises
        ModelError on logits that are not numbers, Interrupted.
        """
        n_run = operator.attrgetter("n_run")
        self._live = [_Text(state=self._engine.fork(state), row=np.array(first_row))]  # all hypotheses begin alike
        try:
            while True:
                self._extend()
                waiting = [text for text in self._live if len(text.tokens) < self._window.limit]
                if len(self._finished) >= self._n_wanted or not waiting:
                    break
                for _, group in itertools.groupby(sorted(waiting, key=n_run), n_run):
                    yield from self._step(list(group))
            best = self._live[: max(0, self._beam_size - len(self._finished))]
            return [*self._finished, *map(_emitted, best)]
        finally:
            for text in self._live:
                self._engine.release(text.state)

    def _step(self, group: Sequence[_Text]) -> Decoding[None]:
        """One pass over texts of which as many tokens were run."""
        texts = [(text.state, text.tokens[text.n_run :]) for text in group]
        since = time.perf_counter()
        ran = yield [(state, ids, [len(ids) - 1]) for state, ids in texts]
        self._window.saw_pass(ran, time.perf_counter() - since, len(group))
        for text, (row,) in zip(group, ran.logits, strict=True):
            text.row = np.array(row)
            self._engine.commit(text.state, len(text.tokens) - text.n_run)
            text.n_run = len(text.tokens)

    def _extend(self) -> None:
        """Choose the texts that live on; ended ones that are better than the last of them are finished."""
        found = [child for text in self._live for child in self._children(text)]
        chosen: list[_Text] = []
        for text in sorted(found, key=lambda text: -text.mean):
            if not text.ended:
                chosen.append(text)
                if len(chosen) == self._beam_size:
                    break
            elif len(self._finished) < self._n_wanted:
                self._finished.append(_emitted(text))
        self._move_states(chosen)

    def _children(self, text: _Text) -> Iterator[_Text]:
        """The continuations of a hypothesis; itself where the limit is reached."""
        if len(text.tokens) >= self._window.limit:
            yield text
            return
        sure = self._sure(text)[: self._window.limit - len(text.tokens) - 1]
        logprobs = logprobs_behind(self._window.rules, text.row, text.tokens)
        for rank, token in enumerate(likeliest(logprobs, self._beam_size + 1)):
            ended = token == self._eot
            added = [(token, 0, logprobs[token]), *(sure if rank == 0 and not ended else ())]
            yield _Text(
                state=text.state,
                row=text.row,
                n_run=text.n_run,
                tokens=text.tokens if ended else (*text.tokens, *(one[0] for one in added)),
                emitters=(*text.emitters, *(one[1] for one in added)),
                logprobs=(*text.logprobs, *(float(one[2]) for one in added)),
                total=functools.reduce(lambda total, one: np.float32(total + one[2]), added, text.total),
                ended=ended,
            )

    def _sure(self, text: _Text) -> list[tuple[int, int, np.float32]]:
        """Tokens that heads are sure of behind the likeliest one, the head's number from 1, log-probabilities."""
        ids, probs = self._guess(text.state.hidden[: text.state.length], 1)
        found: list[tuple[int, int, np.float32]] = []
        for head, (token, prob) in enumerate(zip(ids[:, 0].tolist(), probs[:, 0], strict=True), 1):
            # Behind a timestamp only the rules know what may follow, and a head has not seen them.
            if prob < self._tau or token >= self._eot or token in self._window.useless:
                break
            found.append((token, head, np.log(prob)))
        return found

    def _move_states(self, chosen: list[_Text]) -> None:
        """A state stays with its first text, others get copies; without any it is given up."""
        taken: set[int] = set()
        for text in chosen:
            if id(text.state) in taken:
                text.state = self._engine.fork(text.state)
            taken.add(id(text.state))
        for text in self._live:
            if id(text.state) not in taken:
                self._engine.release(text.state)
        self._live = chosen


def _emitted(text: _Text) -> Emitted:
    return Emitted(
        tokens=text.tokens,
        token_logprobs=text.logprobs,
        sum_logprob=float(text.total),
        finished=text.ended,
        emitters=text.emitters,
        hidden=np.array(text.state.hidden[: text.state.length]),
    )
