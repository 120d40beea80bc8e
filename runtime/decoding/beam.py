"""Beam search over one window, for temperature 0: exact (`search`), or in steps of several tokens (`grouped_search`).

`search` is openai-whisper's `BeamSearchDecoder`. Each beam is a text of its own in the engine; the best `beam_size`
continuations of all beams live on, those that end are set aside until `round(beam_size * patience)` have, and a ranking
chooses among them. Ties go to the beam that is listed first, then to the lowest id. Drafts change nothing: the pass
that runs the last token of each beam also runs a draft behind it, and the child that takes the drafted token finds its
row there already.

`grouped_search` advances hypotheses by several tokens (Raj et al., section III-A, threshold of eq. 10). It is lossy: a
hypothesis goes on by each of the model's likeliest tokens and, behind the likeliest, by as many heads as are sure by
`tau` or more, which nobody verifies. Hypotheses of one length are a group and run together; a token counts with the
log-probability of whoever gave it (eq. 12). The paper leaves open what this module decides: heads continue the
likeliest token alone, and hypotheses of different lengths are compared by the mean of their tokens. So a text is come
to in one way only. Where no head is ever sure, `grouped_search` is `search`.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .passes import Decoding, Ran, alone
from .rules import Logits, RuleSet
from .verify import unusable

if TYPE_CHECKING:
    from ..engine.engine import Engine, State

__all__ = [
    "BeamOptions",
    "Believed",
    "Drafts",
    "Emitted",
    "Hypothesis",
    "best_of",
    "grouped_search",
    "groups",
    "logprobs_behind",
    "search",
]


_BLOCK = 64  # ids, of which `likeliest` looks at the best first


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """Sampled ids without the end of text, their log-probabilities (the end's included when `finished`), the sum.

    sources: who drafted each id, "" for what was no draft; n_drafted: how many drafted tokens were rows of the pass
    that decided it. () where that is not kept, n_drafted also for beams.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    sum_logprob: float
    finished: bool
    sources: tuple[str, ...] = ()
    n_drafted: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BeamOptions:
    """How to search. patience: how many times `beam_size` texts must end; limit: the most tokens.

    Of `grouped_search` alone: tau: how sure a head must be; useless: ids that heads must not give.
    """

    beam_size: int = 4
    patience: float = 1.0
    limit: int = 224
    tau: float = 0.8
    useless: Container[int] = ()

    @property
    def n_wanted(self) -> int:
        """How many texts must end."""
        return max(1, round(self.beam_size * self.patience))


class Drafts(Protocol):
    """The drafts of one beam."""

    def path(self, state: State, tokens: tuple[int, ...], /) -> tuple[int, ...]:
        """Draft what follows `tokens`, whose last is not yet in `state`."""

    def saw(self, n_right: int, token: int, ran: Ran, /) -> None:
        """The pass over the last draft was run: the beam itself says the first `n_right` of it, and then `token`."""

    def another(self) -> Drafts | None:
        """Those of a beam that goes on from this one; None where the drafter can draft for one beam alone."""

    def close(self) -> None:
        """The beam of this one, which is `another`, is over."""


SawPass = Callable[[Ran, float, int], None]
"""Called with each pass, the seconds that it was waited for, and how many beams it was over."""


def best_of(hypotheses: Sequence[Hypothesis], length_penalty: float | None) -> int:
    """Return the index of the likeliest one for its length (`MaximumLikelihoodRanker`).

    `length_penalty` None divides by the length, a number a by ((5 + length) / 6) ** a (Wu et al. 2016). An empty text
    counts as one token.
    """

    def score(hypothesis: Hypothesis) -> float:
        length = len(hypothesis.tokens)
        return hypothesis.sum_logprob / (
            max(length, 1) if length_penalty is None else ((5 + length) / 6) ** length_penalty
        )

    return int(np.argmax([score(hypothesis) for hypothesis in hypotheses]))


def search(
    engine: Engine,
    state: State,
    first_row: Logits,
    rules: RuleSet,
    options: BeamOptions,
    drafts: Drafts,
    saw_pass: SawPass,
) -> Decoding[list[Hypothesis]]:
    """Return the finished beams in the order they ended, then unfinished ones, best first, up to `beam_size`.

    `state` holds the prompt and `first_row` f32[n_vocab] follows it; it stays the caller's, as do the `drafts` of the
    first beam. Raises ModelError on logits that are not numbers, Interrupted.
    """
    beams = _Beams(engine, rules, drafts, options, state, first_row)
    try:
        for n in itertools.count(1):
            beams.extend()
            if len(beams.finished) >= options.n_wanted or n == options.limit:
                break
            waiting = beams.waiting()
            if waiting:
                since = time.perf_counter()
                ran = yield [(beam.state, ids, None) for beam, ids in waiting]
                saw_pass(ran, time.perf_counter() - since, len(waiting))
                beams.ran(waiting, ran)
        return beams.ranked()
    finally:
        beams.release()


def likeliest(logprobs: Logits, n: int) -> list[int]:
    """Return the `n` best ids of f32[n_vocab], best first; ties go to the lowest id."""
    # The n-th largest of the maxima of blocks is reached by n ids at least, and few others: a quarter of the time of
    # ordering all ids in part. Behind a forced timestamp most blocks are forbidden, and it may say nothing.
    maxima = logprobs[: len(logprobs) // _BLOCK * _BLOCK].reshape(-1, _BLOCK).max(axis=1)
    least = np.partition(maxima, -n)[-n] if n <= len(maxima) else -np.inf
    if least == -np.inf:
        n_worse = max(len(logprobs) - n, 0)
        least = np.partition(logprobs, n_worse)[n_worse]
    found = np.flatnonzero(logprobs >= least)
    order = np.argsort(-logprobs[found], kind="stable")
    best: list[int] = found[order][:n].tolist()
    return best


def logprobs_behind(rules: RuleSet, logits: Logits, tokens: Sequence[int]) -> Logits:
    """Return the log-probabilities f32[n_vocab] of what follows a text, from its `logits` f32[n_vocab], used up.

    Raises ModelError on logits that are not numbers.
    """
    rules.apply(logits, tokens)
    peak = logits.max()
    if not np.isfinite(peak):
        raise unusable(peak, len(tokens))
    shifted = logits - peak
    normalised: Logits = shifted - np.log(np.exp(shifted).sum(dtype=np.float32))
    return normalised


@dataclass(kw_only=True)
class _Beam:
    """A text that is not over. `state` holds the prompt, the tokens run, and the drafts of `ahead`.

    row f32[n_vocab]: the logits that follow the text, once its last token has been run; was_ahead: that was a draft of
    its parent's, and so has been; ahead: drafts of what follows, each with its row; drafts: who drafts for it, if
    anybody.
    """

    state: Any
    row: Logits
    drafts: Drafts | None = None
    was_ahead: bool = False
    ahead: Sequence[tuple[int, Logits]] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    total: np.float32 = np.float32(0.0)


class _Beams:
    def __init__(
        self, engine: Engine, rules: RuleSet, drafts: Drafts, options: BeamOptions, state: State, row: Logits
    ) -> None:
        self._engine, self._rules, self._options = engine, rules, options
        self._eot, self._n_prompt = rules.layout.eot, int(state.length)
        self.finished: list[Hypothesis] = []
        # All beams begin alike, so one stands for all of them.
        self._live = [_Beam(state=engine.fork(state), row=np.array(row), drafts=drafts)]
        self._first = drafts

    def extend(self) -> None:
        """Choose the texts that live on, by their summed log-probability in float32."""
        found: list[tuple[float, _Beam, int, np.float32]] = []
        for beam in self._live:
            logprobs = logprobs_behind(self._rules, beam.row, beam.tokens)
            for token in likeliest(logprobs, self._options.beam_size + 1):
                found.append((float(np.float32(beam.total + logprobs[token])), beam, token, logprobs[token]))
        found.sort(key=lambda item: -item[0])
        chosen: list[_Beam] = []
        ended: list[Hypothesis] = []
        parents: list[_Beam] = []
        for total, beam, token, logprob in found:
            logprobs_so_far = (*beam.logprobs, float(logprob))
            if token == self._eot:
                ended.append(Hypothesis(tokens=beam.tokens, logprobs=logprobs_so_far, sum_logprob=total, finished=True))
                continue
            was_ahead = bool(beam.ahead) and beam.ahead[0][0] == token
            chosen.append(
                _Beam(
                    state=None,
                    row=beam.ahead[0][1] if was_ahead else beam.row,
                    was_ahead=was_ahead,
                    ahead=beam.ahead[1:] if was_ahead else (),
                    tokens=(*beam.tokens, token),
                    logprobs=logprobs_so_far,
                    total=np.float32(total),
                )
            )
            parents.append(beam)
            if len(chosen) == self._options.beam_size:
                break
        self.finished += ended[: self._options.n_wanted - len(self.finished)]
        self._move_states(parents, chosen)

    def waiting(self) -> list[tuple[_Beam, tuple[int, ...]]]:
        """The beams whose last token has no row yet, with that token and drafts of what follows it."""
        waiting = [beam for beam in self._live if not beam.was_ahead]
        if waiting and all(beam.drafts is not self._first for beam in self._live):
            undrafted = next((beam for beam in waiting if beam.drafts is None), None)
            if undrafted is not None:  # the beam that had the drafter is over
                undrafted.drafts = self._first
        return [
            (beam, (beam.tokens[-1], *(() if beam.drafts is None else beam.drafts.path(beam.state, beam.tokens))))
            for beam in waiting
        ]

    def ran(self, waiting: Sequence[tuple[_Beam, tuple[int, ...]]], ran: Ran) -> None:
        """Take over the rows of a pass over what was waiting."""
        for (beam, ids), logits in zip(waiting, ran.logits, strict=True):
            rows = np.array(logits)
            self._engine.commit(beam.state, len(rows))
            beam.row = rows[0]
            beam.ahead = list(zip(ids[1:], rows[1:], strict=True))
            if beam.drafts is not None:
                beam.drafts.saw(*self._agreed(beam), ran)

    def _agreed(self, beam: _Beam) -> tuple[int, int]:
        """How many drafts behind a beam are its own likeliest continuation, and the token that follows them."""
        row, tokens = beam.row, beam.tokens
        for n, (guess, behind) in enumerate(beam.ahead):
            token = self._likeliest(row, tokens)
            if token != guess:
                return n, token
            row, tokens = behind, (*tokens, guess)
        return len(beam.ahead), self._likeliest(row, tokens)

    def _likeliest(self, row: Logits, tokens: Sequence[int]) -> int:
        row = row.copy()  # the rules change it
        self._rules.apply(row, tokens)
        return int(row.argmax())

    def ranked(self) -> list[Hypothesis]:
        """The finished texts, and the best unfinished ones up to `beam_size`."""
        best = np.argsort([beam.total for beam in self._live], kind="stable")[::-1]  # of equals the last, as Whisper's
        unfinished = [
            Hypothesis(tokens=beam.tokens, logprobs=beam.logprobs, sum_logprob=float(beam.total), finished=False)
            for beam in (self._live[i] for i in best)
        ]
        return [*self.finished, *unfinished[: max(0, self._options.beam_size - len(self.finished))]]

    def release(self) -> None:
        """Give the engine all buffers back."""
        for beam in self._live:
            self._end(beam)
        self._live = []

    def _end(self, beam: _Beam) -> None:
        self._engine.release(beam.state)
        if beam.drafts is not None and beam.drafts is not self._first:
            beam.drafts.close()

    def _move_states(self, parents: Sequence[_Beam], chosen: list[_Beam]) -> None:
        """A parent's state and drafter go to the child that it was run ahead for, else to its first.

        Other children get copies. States without children are given up, rows that a child did not take are rewound.
        """
        heirs = {id(parent): child for parent, child in reversed(list(zip(parents, chosen, strict=True)))}
        heirs |= {id(parent): child for parent, child in zip(parents, chosen, strict=True) if child.was_ahead}
        for parent in self._live:  # first, so that copies take their places
            if id(parent) not in heirs:
                self._end(parent)
        for parent, child in zip(parents, chosen, strict=True):
            if heirs[id(parent)] is not child:
                child.state = self._engine.fork(parent.state)
                child.drafts = None if parent.drafts is None else parent.drafts.another()
        for parent in self._live:
            if id(parent) in heirs:
                heirs[id(parent)].state, heirs[id(parent)].drafts = parent.state, parent.drafts
        self._live = chosen
        for child in chosen:
            if not child.was_ahead:
                self._engine.rewind(child.state, self._n_prompt + len(child.tokens) - 1)


class Believed(Protocol):
    """Heads; see `engine.heads.HeadsPass.guess`."""

    def guess(
        self, hidden: NDArray[np.float32], n_choices: int, /
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...


@dataclass(frozen=True, kw_only=True)
class Emitted(Hypothesis):
    """A hypothesis of `grouped_search`.

    emitters: who gave each token: 0 the model, i its head i - 1; the end of text is the model's. hidden: the decoder's
    last hidden rows of the prompt and the tokens that were run, float32 [n_rows, n_text_state]; token j, given by i,
    was given from the row of token j - i - 1, or of the prompt's last where that is -1.
    """

    emitters: tuple[int, ...]
    hidden: NDArray[np.float32]


def grouped_search(
    engine: Engine,
    state: State,
    first_row: Logits,
    rules: RuleSet,
    heads: Believed,
    options: BeamOptions,
    on_call: Callable[[int], None] = lambda n_texts: None,
) -> list[Emitted]:
    """Run `groups` to its end; `on_call` gets how many texts a group had."""
    return alone(engine, groups(engine, state, first_row, rules, heads, options, lambda ran, waited_s, n: on_call(n)))


def groups(
    engine: Engine,
    state: State,
    first_row: Logits,
    rules: RuleSet,
    heads: Believed,
    options: BeamOptions,
    saw_pass: SawPass,
) -> Decoding[list[Emitted]]:
    """Return the finished hypotheses in the order they ended, then unfinished ones, best first, up to `beam_size`.

    `state` keeps hidden rows, holds the prompt, and stays the caller's; `first_row` f32[n_vocab] follows it. Raises
    ModelError on logits that are not numbers, Interrupted.
    """
    found = _Groups(engine, rules, heads, options, state, first_row)
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
        self, engine: Engine, rules: RuleSet, heads: Believed, options: BeamOptions, state: State, row: Logits
    ) -> None:
        self._engine, self._rules, self._heads, self._options = engine, rules, heads, options
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
