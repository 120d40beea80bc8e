"""Beam search over one window: openai-whisper's `BeamSearchDecoder`, for temperature 0.

Each beam is a text of its own in the engine; the best `beam_size` continuations of all beams live on, those that end
are set aside until `round(beam_size * patience)` have, and the ranking chooses among them. Ties go to the beam that is
listed first, then to the lowest id.

Drafts save passes and change nothing (exact beam, algorithms 2.8): the pass that runs a beam's last token also runs a
guess of what follows, and the child that takes the guessed token finds its row there already. A row depends on its own
prefix alone, so the search sees the same logits as without drafts; a guess that no child takes is rewound.
Does not know: drafters, statistics, windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from specedge.runtime.decoding.rules import Filter, Logits
from specedge.runtime.decoding.verify import DecoderEngine, unusable

__all__ = ["Drafts", "Hypothesis", "best_of", "logprobs_behind", "search"]


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

    def guess(self, state: Any, tokens: tuple[int, ...], /) -> tuple[int, ...] | None:
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
    engine: DecoderEngine,
    state: Any,
    first_row: Logits,
    rules: Filter,
    *,
    beam_size: int,
    patience: float,
    limit: int,
    drafts: Drafts,
) -> list[Hypothesis]:
    """The finished beams in the order they ended, then unfinished ones, best first, until there are `beam_size`.

    `state` holds the prompt and `first_row` f32[n_rows] follows it; it stays the caller's. Raises ModelError on logits
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


def logprobs_behind(rules: Filter, row: Logits, tokens: Sequence[int]) -> Logits:
    """Log-probabilities of all tokens behind a text, f32[n_vocab], by its row f32[n_rows], which is used up.

    Raises ModelError on logits that are not numbers.
    """
    choices = rules.choices
    logits = rules.filtered(row, tokens)
    peak = logits.max()
    if not np.isfinite(peak):
        raise unusable(peak, len(tokens))
    shifted = logits - peak
    weights = np.exp(shifted) if choices.counts is None else np.exp(shifted) * choices.counts
    return choices.of_tokens(shifted - np.log(weights.sum(dtype=np.float32)))


@dataclass(kw_only=True)
class _Beam:
    """A text that is not over.

    row f32[n_rows]: the logits that follow it, once its last token has been run (`is_run`); ahead: guesses of what
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
    def __init__(self, engine: DecoderEngine, rules: Filter, drafts: Drafts, beam_size: int, n_wanted: int) -> None:
        self._engine, self._rules, self._drafts, self._size = engine, rules, drafts, beam_size
        self._eot = rules.choices.layout.eot
        self._n_prompt = 0
        self.n_wanted = n_wanted
        self._live: list[_Beam] = []
        self.finished: dict[tuple[int, ...], Hypothesis] = {}

    def begin(self, state: Any, row: Logits) -> None:
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
