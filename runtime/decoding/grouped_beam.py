"""Beam search in steps of several tokens: heads that are sure are believed (Raj et al.; algorithms 1.5, 2.8). Lossy.

A hypothesis goes on by each of the model's likeliest tokens, and behind the likeliest by as many heads as are sure by
`tau` or more, which nobody verifies. So hypotheses advance by different numbers of tokens: those of one length are a
group and run together, and the best `beam_size` of all lengths live on. A token counts with the log-probability of
whoever gave it (eq. 12). Where no head is ever that sure this is `beam.search`.

What the paper leaves open: heads continue the likeliest token alone, for they have not seen that another was taken;
hypotheses of different lengths are compared by the mean of their tokens, as they are ranked in the end; of those that
come to the same text the better one stays; ended ones are set aside as in `beam`. The engine runs one text a pass, so a
group takes as many of them as it has texts.
Does not know: audio, training, which heads they are.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.decoding.beam import Hypothesis, logprobs_behind
from specedge.runtime.decoding.rules import Filter, Logits
from specedge.runtime.decoding.verify import DecoderEngine

__all__ = ["Believed", "Emitted", "GroupedOptions", "grouped_search"]


class Believed(Protocol):
    """Heads, as `heads_pass.HeadsPass.guess` has them."""

    def guess(
        self, hidden: NDArray[np.float32], n_choices: int, /
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...


@dataclass(frozen=True, kw_only=True)
class Emitted(Hypothesis):
    """A hypothesis with who gave each token: 0 the model, i its head i - 1; the end of text is the model's.

    hidden: the decoder's last hidden rows of the prompt and the tokens that were run, float32 [n_rows, n_text_state].
    Token j, given by i, was given from the row of token j - i - 1, or of the prompt's last where that is -1.
    """

    emitters: tuple[int, ...]
    hidden: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class GroupedOptions:
    """tau: how sure a head must be; limit: the most tokens; useless: ids that heads must not give."""

    beam_size: int = 4
    patience: float = 1.0
    tau: float = 0.8
    limit: int = 224
    useless: Container[int] = ()


def grouped_search(
    engine: DecoderEngine,
    state: Any,
    first_row: Logits,
    rules: Filter,
    heads: Believed,
    options: GroupedOptions,
    on_call: Callable[[int], None] = lambda n_texts: None,
) -> list[Emitted]:
    """The finished hypotheses in the order they ended, then unfinished ones, best first, until there are `beam_size`.

    `state` keeps hidden rows, holds the prompt, and stays the caller's; `first_row` f32[n_rows] follows it; `on_call`
    gets how many texts a group had. Raises ModelError on logits that are not numbers, Interrupted.
    """
    groups = _Groups(engine, rules, heads, options, int(state.length))
    try:
        groups.begin(state, first_row)
        return groups.run(on_call)
    finally:
        groups.release()


@dataclass(eq=False, kw_only=True)
class _Text:
    """A hypothesis. `n_run` of its tokens are in `state`, and `row` f32[n_rows] follows them; parent: whose it was.

    `ended` ones hold the end's log-probability besides.
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
        """By what texts of all lengths are compared."""
        return float(self.total) / max(1, len(self.logprobs))


class _Groups:
    def __init__(
        self, engine: DecoderEngine, rules: Filter, heads: Believed, options: GroupedOptions, n_prompt: int
    ) -> None:
        self._engine, self._rules, self._heads, self._options = engine, rules, heads, options
        self._n_prompt, self._eot = n_prompt, rules.choices.layout.eot
        self._n_wanted = max(1, round(options.beam_size * options.patience))
        self._live: list[_Text] = []
        self._finished: dict[tuple[int, ...], Emitted] = {}

    def begin(self, state: Any, row: Logits) -> None:
        """All hypotheses begin alike."""
        self._live = [_Text(state=self._engine.fork(state), row=np.array(row))]

    def run(self, on_call: Callable[[int], None]) -> list[Emitted]:
        """Step by step, to the end."""
        while True:
            self._extend()
            waiting = [text for text in self._live if len(text.tokens) < self._options.limit]
            if len(self._finished) >= self._n_wanted or not waiting:
                break
            for _, alike in itertools.groupby(sorted(waiting, key=lambda text: text.n_run), lambda text: text.n_run):
                group = list(alike)
                for text in group:
                    ids = text.tokens[text.n_run :]
                    text.row = np.array(self._engine.forward(text.state, ids, [len(ids) - 1])[0])
                    self._engine.commit(text.state, len(ids))
                    text.n_run = len(text.tokens)
                on_call(len(group))
        found = list(self._finished.values())
        best = sorted(self._live, key=lambda text: -text.mean)[: max(0, self._options.beam_size - len(found))]
        return [*found, *(self._emitted(text, text.state) for text in best)]

    def release(self) -> None:
        """Give the engine all buffers back."""
        for text in self._live:
            self._engine.release(text.state)
        self._live = []

    def _extend(self) -> None:
        """Choose the texts that live on; ended ones that are better than the last of them are finished."""
        found = [child for text in self._live for child in self._children(text)]
        chosen: dict[tuple[int, ...], _Text] = {}
        ended: list[_Text] = []
        for text in sorted(found, key=lambda text: -text.mean):
            if text.ended:
                ended.append(text)
            elif text.tokens not in chosen:
                chosen[text.tokens] = text
                if len(chosen) == self._options.beam_size:
                    break
        for text in ended:
            if len(self._finished) >= self._n_wanted:
                break
            if text.parent is not None:
                self._finished[text.tokens] = self._emitted(text, text.parent.state)
        self._move_states(list(chosen.values()))

    def _children(self, text: _Text) -> Iterator[_Text]:
        """The continuations of a hypothesis; itself where the limit is reached."""
        if len(text.tokens) >= self._options.limit:
            yield replace(text, parent=text)
            return
        sure = self._sure(text)[: self._options.limit - len(text.tokens) - 1]
        logprobs = logprobs_behind(self._rules, text.row, text.tokens)
        for rank, token in enumerate(np.argsort(-logprobs, kind="stable")[: self._options.beam_size + 1].tolist()):
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
        ids, probs = self._heads.guess(text.state.hidden[: text.state.length], 1)
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
