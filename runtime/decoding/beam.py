"""Beam search over one window: openai-whisper's `BeamSearchDecoder`, for temperature 0.

Each beam is a text of its own in the engine; the best `beam_size` continuations of all beams live on, those that end
are set aside until `round(beam_size * patience)` have, and the ranking chooses among them. Plain decoding: no draft is
asked for. Ties go to the beam that is listed first, then to the lowest id.
Does not know: drafters, statistics, windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specedge.runtime.decoding.rules import Filter, Logits
from specedge.runtime.decoding.verify import DecoderEngine, unusable

__all__ = ["Hypothesis", "best_of", "search"]


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
    on_pass: Callable[[], None],
) -> list[Hypothesis]:
    """The finished beams in the order they ended, then unfinished ones, best first, until there are `beam_size`.

    `state` holds the prompt and `first_row` f32[n_rows] follows it; `on_pass` is called after each pass. The state
    stays the caller's. Raises ModelError on logits that are not numbers, Interrupted.
    """
    beams = _Beams(engine, rules, beam_size, max(1, round(beam_size * patience)))
    try:
        beams.begin(state, first_row)
        for n in range(1, limit + 1):
            beams.extend()
            if len(beams.finished) >= beams.n_wanted or n == limit:
                break
            beams.run(on_pass)
        return beams.ranked()
    finally:
        beams.release()


@dataclass(kw_only=True)
class _Beam:
    """A text that is not over. `row` f32[n_rows]: the logits that follow it, once its last token has been run."""

    state: Any
    row: Logits
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    total: np.float32 = np.float32(0.0)


class _Beams:
    def __init__(self, engine: DecoderEngine, rules: Filter, beam_size: int, n_wanted: int) -> None:
        self._engine, self._rules, self._size = engine, rules, beam_size
        self._eot = rules.choices.layout.eot
        self.n_wanted = n_wanted
        self._live: list[_Beam] = []
        self.finished: dict[tuple[int, ...], Hypothesis] = {}

    def begin(self, state: Any, row: Logits) -> None:
        """All beams begin alike, so one stands for all of them."""
        self._live = [_Beam(state=self._engine.fork(state), row=np.array(row))]

    def extend(self) -> None:
        """Choose the texts that live on, by their summed log-probability in float32."""
        found: list[tuple[float, _Beam, int, np.float32]] = []
        for beam in self._live:
            logprobs = self._logprobs(beam)
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
            chosen.append(
                _Beam(
                    state=None,
                    row=beam.row,
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

    def run(self, on_pass: Callable[[], None]) -> None:
        """One pass for each beam, over its last token."""
        for beam in self._live:
            beam.row = np.array(self._engine.forward(beam.state, [beam.tokens[-1]])[0])
            self._engine.commit(beam.state, 1)
            on_pass()

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

    def _logprobs(self, beam: _Beam) -> Logits:
        """Of all tokens behind a beam, f32[n_vocab]."""
        choices = self._rules.choices
        logits = self._rules.filtered(beam.row, beam.tokens)
        peak = logits.max()
        if not np.isfinite(peak):
            raise unusable(peak, len(beam.tokens))
        shifted = logits - peak
        weights = np.exp(shifted) if choices.counts is None else np.exp(shifted) * choices.counts
        return choices.of_tokens(shifted - np.log(weights.sum(dtype=np.float32)))

    def _move_states(self, parents: Sequence[_Beam], chosen: list[_Beam]) -> None:
        """A parent's state goes to its first child, other children get copies; without children it is given up."""
        taken: set[int] = set()
        for parent, child in zip(parents, chosen, strict=True):
            if id(parent) in taken:
                child.state = self._engine.fork(parent.state)
            else:
                child.state = parent.state
                taken.add(id(parent))
        for beam in self._live:
            if id(beam) not in taken:
                self._engine.release(beam.state)
        self._live = chosen
