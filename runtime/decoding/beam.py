"""Beam search over one window: openai-whisper's `BeamSearchDecoder`, for temperature 0.

Each beam is a text of its own in the engine; the best `beam_size` continuations of all beams live on, those that end
are set aside until `round(beam_size * patience)` have, and the ranking chooses among them. Ties go to the beam that is
listed first, then to the lowest id.

Drafts save passes and change nothing (exact beam, algorithms 2.8): the pass that runs a beam's last token also runs a
guess of what follows, and the child that takes the guessed token finds its row there already. A row depends on its own
prefix alone, so the search sees the same logits as without drafts; a guess that no child takes is rewound.
Does not know: drafters, statistics, windows.

Beam search in steps of several tokens: heads that are sure are believed (Raj et al.; algorithms 1.5, 2.8). Lossy.

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
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .rules import Logits, RuleSet
from .verify import unusable

if TYPE_CHECKING:
    from ..engine.engine import Engine, State

__all__ = [
    "Believed",
    "Drafts",
    "Emitted",
    "GroupedOptions",
    "Hypothesis",
    "best_of",
    "grouped_search",
    "logprobs_behind",
    "search",
]


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """Sampled ids without the end of text, their log-probabilities (the end's included when `finished`), the sum.

    sources: who drafted each id, "" for what was no draft; () where that is not kept.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    sum_logprob: float
    finished: bool
    sources: tuple[str, ...] = ()


class Drafts(Protocol):
    """Who guesses how a beam goes on, and counts the passes."""

    def guess(self, state: State, tokens: tuple[int, ...], /) -> tuple[int, ...] | None:
        """What may follow `tokens`, whose last is not yet in `state`; None where nobody guesses."""

    def saw_pass(self, n_right: int, token: int, /) -> None:
        """A pass was run: the first `n_right` guesses are what the beam says of itself, then it says `token`."""


def best_of(hypotheses: Sequence[Hypothesis], length_penalty: float | None) -> int:
    """The index of the likeliest one for its length: `MaximumLikelihoodRanker`. An empty text counts as one token.

    `length_penalty` None divides by the length, a number a by ((5 + length) / 6) ** a (Wu et al. 2016).
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
    *,
    beam_size: int,
    patience: float,
    limit: int,
    drafts: Drafts,
) -> list[Hypothesis]:
    """The finished beams in the order they ended, then unfinished ones, best first, until there are `beam_size`.

    `state` holds the prompt and `first_row` f32[n_vocab] follows it; it stays the caller's. Raises ModelError on logits
    that are not numbers, Interrupted.
    """
    beams = _Beams(engine, rules, drafts, beam_size, max(1, round(beam_size * patience)))
    try:
        beams.begin(state, first_row)
        for n in range(1, limit + 1):
            beams.extend()
            if len(beams.finished) >= beams.n_wanted or n == limit:
                break
            beams.run()
        return beams.ranked()
    finally:
        beams.release()


def logprobs_behind(rules: RuleSet, logits: Logits, tokens: Sequence[int]) -> Logits:
    """Log-probabilities of all tokens behind a text, f32[n_vocab], from its `logits` f32[n_vocab], which are used up.

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
    """A text that is not over.

    row f32[n_vocab]: the logits that follow it, once its last token has been run (`is_run`); ahead: guesses of what
    follows, each with its row, which `state` holds besides. Without them the state holds the prompt and the tokens run.
    """

    state: Any
    row: Logits
    is_run: bool = True
    ahead: Sequence[tuple[int, Logits]] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    total: np.float32 = np.float32(0.0)


class _Beams:
    def __init__(self, engine: Engine, rules: RuleSet, drafts: Drafts, beam_size: int, n_wanted: int) -> None:
        self._engine, self._rules, self._drafts, self._size = engine, rules, drafts, beam_size
        self._eot = rules.layout.eot
        self._n_prompt = 0
        self.n_wanted = n_wanted
        self._live: list[_Beam] = []
        self.finished: dict[tuple[int, ...], Hypothesis] = {}

    def begin(self, state: State, row: Logits) -> None:
        """All beams begin alike, so one stands for all of them."""
        self._n_prompt = int(state.length)
        self._live = [_Beam(state=self._engine.fork(state), row=np.array(row))]

    def extend(self) -> None:
        """Choose the texts that live on, by their summed log-probability in float32."""
        found: list[tuple[float, _Beam, int, np.float32]] = []
        for beam in self._live:
            logprobs = logprobs_behind(self._rules, beam.row, beam.tokens)
            for token in np.argsort(-logprobs, kind="stable")[: self._size + 1].tolist():
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
            is_run = bool(beam.ahead) and beam.ahead[0][0] == token
            chosen.append(
                _Beam(
                    state=None,
                    row=beam.ahead[0][1] if is_run else beam.row,
                    is_run=is_run,
                    ahead=beam.ahead[1:] if is_run else (),
                    tokens=(*beam.tokens, token),
                    logprobs=logprobs_so_far,
                    total=np.float32(total),
                )
            )
            parents.append(beam)
            if len(chosen) == self._size:
                break
        for hypothesis in ended:
            if len(self.finished) >= self.n_wanted:
                break
            self.finished[hypothesis.tokens] = hypothesis
        self._move_states(parents, chosen)

    def run(self) -> None:
        """One pass for each beam whose last token has not been run, over it and what may follow."""
        for beam in self._live:
            if beam.is_run:
                continue
            guessed = self._drafts.guess(beam.state, beam.tokens)
            ids = [beam.tokens[-1], *(guessed or ())]
            rows = np.array(self._engine.forward(beam.state, ids))
            self._engine.commit(beam.state, len(ids))
            beam.row, beam.is_run = rows[0], True
            beam.ahead = list(zip(guessed or (), rows[1:], strict=True))
            self._drafts.saw_pass(*((0, self._eot) if guessed is None else self._agreed(beam)))

    def _agreed(self, beam: _Beam) -> tuple[int, int]:
        """How many of the guesses behind a beam are its own likeliest continuation, and the token that is then."""
        row, tokens = beam.row, beam.tokens
        for n, (guess, behind) in enumerate(beam.ahead):
            token = int(logprobs_behind(self._rules, row.copy(), tokens).argmax())  # deciding uses rows up
            if token != guess:
                return n, token
            row, tokens = behind, (*tokens, guess)
        return len(beam.ahead), int(logprobs_behind(self._rules, row.copy(), tokens).argmax())

    def ranked(self) -> list[Hypothesis]:
        """What was found, filled up with the best unfinished texts."""
        found = list(self.finished.values())
        order = np.argsort([beam.total for beam in self._live], kind="stable")[::-1]
        for beam in [self._live[i] for i in order][: max(0, self._size - len(found))]:
            found.append(
                Hypothesis(tokens=beam.tokens, logprobs=beam.logprobs, sum_logprob=float(beam.total), finished=False)
            )
        return found

    def release(self) -> None:
        """Give the engine all buffers back."""
        for beam in self._live:
            self._engine.release(beam.state)
        self._live = []

    def _move_states(self, parents: Sequence[_Beam], chosen: list[_Beam]) -> None:
        """A parent's state goes to the child that it was run ahead for, else to its first; other children get copies.

        States without children are given up, rows that a child did not take are rewound.
        """
        heirs = {id(parent): child for parent, child in reversed(list(zip(parents, chosen, strict=True)))}
        heirs |= {id(parent): child for parent, child in zip(parents, chosen, strict=True) if child.is_run}
        for parent, child in zip(parents, chosen, strict=True):
            if heirs[id(parent)] is not child:
                child.state = self._engine.fork(parent.state)
        for parent in self._live:
            if id(parent) in heirs:
                heirs[id(parent)].state = parent.state
            else:
                self._engine.release(parent.state)
        self._live = chosen
        for child in chosen:
            n_run = self._n_prompt + len(child.tokens) - 1
            if not child.is_run and child.state.length > n_run:
                self._engine.rewind(child.state, n_run)


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
    engine: Engine,
    state: State,
    first_row: Logits,
    rules: RuleSet,
    heads: Believed,
    options: GroupedOptions,
    on_call: Callable[[int], None] = lambda n_texts: None,
) -> list[Emitted]:
    """The finished hypotheses in the order they ended, then unfinished ones, best first, until there are `beam_size`.

    `state` keeps hidden rows, holds the prompt, and stays the caller's; `first_row` f32[n_vocab] follows it; `on_call`
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
    """A hypothesis. `n_run` of its tokens are in `state`, and `row` f32[n_vocab] follows them; parent: whose it was.

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
    def __init__(self, engine: Engine, rules: RuleSet, heads: Believed, options: GroupedOptions, n_prompt: int) -> None:
        self._engine, self._rules, self._heads, self._options = engine, rules, heads, options
        self._n_prompt, self._eot = n_prompt, rules.layout.eot
        self._n_wanted = max(1, round(options.beam_size * options.patience))
        self._live: list[_Text] = []
        self._finished: dict[tuple[int, ...], Emitted] = {}

    def begin(self, state: State, row: Logits) -> None:
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
