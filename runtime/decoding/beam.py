"""Beam search over one window, for temperature 0.

`search` is openai-whisper's `BeamSearchDecoder`. Each beam is a text of its own in the engine; the best `beam_size`
continuations of all beams live on, those that end are set aside until `round(beam_size * patience)` have, and a ranking
chooses among them. Ties go to the beam that is listed first, then to the lowest id. Drafts change nothing: the pass
that runs the last token of each beam also runs a draft behind it, and the child that takes the drafted token finds its
row there already.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .passes import Decoding, Ran
from .rules import Logits, RuleSet
from .verify import Drafts, unusable
from .window import Hypothesis, Window

if TYPE_CHECKING:
    from ..engine.engine import State

_BLOCK = 64  # ids, of which `likeliest` looks at the best first


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


def n_wanted(beam_size: int, patience: float) -> int:
    """How many texts must end."""
    return max(1, round(beam_size * patience))


def search(window: Window, state: State, first_row: Logits, drafts: Drafts) -> Decoding[list[Hypothesis]]:
    """Return the finished beams in the order they ended, then unfinished ones, best first, up to `beam_size`.

    `state` holds the prompt and `first_row` f32[n_vocab] follows it; it stays the caller's, as do the `drafts` of the
    first beam. Raises ModelError on logits that are not numbers, Interrupted.
    """
    beams = _Beams(window, state, first_row, drafts)
    try:
        for n in itertools.count(1):
            beams.extend()
            if len(beams.finished) >= beams.n_wanted or n == window.limit:
                break
            waiting = beams.waiting()
            if waiting:
                since = time.perf_counter()
                ran = yield [(beam.state, ids, None) for beam, ids in waiting]
                window.saw_pass(ran, time.perf_counter() - since, len(waiting))
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
    left = rules.apply(logits, tokens)
    peak = logits.max()
    if not np.isfinite(peak):
        raise unusable(peak, len(tokens))
    shifted = logits - peak
    normalised: Logits = shifted - np.log(np.exp(shifted).sum(dtype=np.float32))
    return normalised + np.float32(left) if left else normalised


@dataclass(kw_only=True)
class _Beam:
    """A text that is not over. `state` holds the prompt, the tokens run, and the drafts of `ahead`.

    row f32[n_vocab]: the logits that follow the text, once its last token has been run; was_ahead: that was a draft of
    its parent's, and so has been; ahead: drafts of what follows, each with its row; drafts: who drafts for it.
    """

    state: Any
    row: Logits
    drafts: Drafts
    was_ahead: bool = False
    ahead: Sequence[tuple[int, Logits]] = ()
    tokens: tuple[int, ...] = ()
    token_logprobs: tuple[float, ...] = ()
    total: np.float32 = np.float32(0.0)


class _Beams:
    def __init__(self, window: Window, state: State, row: Logits, drafts: Drafts) -> None:
        self._engine, self._rules, self._beam_size = window.engine, window.rules, window.options.beam_size
        self._eot, self._n_prompt = window.layout.eot, len(window.prompt)
        self.n_wanted = n_wanted(self._beam_size, window.options.patience)
        self.finished: list[Hypothesis] = []
        # All beams begin alike, so one stands for all of them.
        self._live = [_Beam(state=self._engine.fork(state), row=np.array(row), drafts=drafts)]
        self._first = drafts

    def extend(self) -> None:
        """Choose the texts that live on, by their summed log-probability in float32."""
        found: list[tuple[float, _Beam, int, np.float32]] = []
        for beam in self._live:
            logprobs = logprobs_behind(self._rules, beam.row, beam.tokens)
            for token in likeliest(logprobs, self._beam_size + 1):
                found.append((float(np.float32(beam.total + logprobs[token])), beam, token, logprobs[token]))
        found.sort(key=lambda item: -item[0])
        chosen: list[_Beam] = []
        ended: list[Hypothesis] = []
        parents: list[_Beam] = []
        for total, beam, token, logprob in found:
            if logprob == -np.inf and self._rules.only is not None:
                break  # a sentence may have one continuation alone
            logprobs_so_far = (*beam.token_logprobs, float(logprob))
            if token == self._eot:
                ended.append(
                    Hypothesis(tokens=beam.tokens, token_logprobs=logprobs_so_far, sum_logprob=total, finished=True)
                )
                continue
            was_ahead = bool(beam.ahead) and beam.ahead[0][0] == token
            chosen.append(
                _Beam(
                    state=None,
                    row=beam.ahead[0][1] if was_ahead else beam.row,
                    drafts=beam.drafts,
                    was_ahead=was_ahead,
                    ahead=beam.ahead[1:] if was_ahead else (),
                    tokens=(*beam.tokens, token),
                    token_logprobs=logprobs_so_far,
                    total=np.float32(total),
                )
            )
            parents.append(beam)
            if len(chosen) == self._beam_size:
                break
        self.finished += ended[: self.n_wanted - len(self.finished)]
        self._move_states(parents, chosen)

    def waiting(self) -> list[tuple[_Beam, tuple[int, ...]]]:
        """The beams whose last token has no row yet, with that token and drafts of what follows it."""
        waiting = [beam for beam in self._live if not beam.was_ahead]
        if waiting and all(beam.drafts is not self._first for beam in self._live):
            undrafted = next((beam for beam in waiting if beam.drafts.is_empty), None)
            if undrafted is not None:  # the beam that had the drafter is over
                undrafted.drafts = self._first
        return [(beam, (beam.tokens[-1], *beam.drafts.path(beam.state, beam.tokens))) for beam in waiting]

    def ran(self, waiting: Sequence[tuple[_Beam, tuple[int, ...]]], ran: Ran) -> None:
        """Take over the rows of a pass over what was waiting."""
        for (beam, ids), logits in zip(waiting, ran.logits, strict=True):
            rows = np.array(logits)
            self._engine.commit(beam.state, len(rows))
            beam.row = rows[0]
            beam.ahead = list(zip(ids[1:], rows[1:], strict=True))
            if not beam.drafts.is_empty:
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
            Hypothesis(
                tokens=beam.tokens, token_logprobs=beam.token_logprobs, sum_logprob=float(beam.total), finished=False
            )
            for beam in (self._live[i] for i in best)
        ]
        return [*self.finished, *unfinished[: max(0, self._beam_size - len(self.finished))]]

    def release(self) -> None:
        """Give the engine all buffers back."""
        for beam in self._live:
            self._end(beam)
        self._live = []

    def _end(self, beam: _Beam) -> None:
        self._engine.release(beam.state)
        if beam.drafts is not self._first:
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
            if heirs[id(parent)] is child:
                child.state = parent.state
            else:
                child.state, child.drafts = self._engine.fork(parent.state), parent.drafts.another()
        self._live = chosen
        for child in chosen:
            if not child.was_ahead:
                self._engine.rewind(child.state, self._n_prompt + len(child.tokens) - 1)
