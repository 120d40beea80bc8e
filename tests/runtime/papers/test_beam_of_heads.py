"""The beam that believes heads, against a short one that is written from its definition and keeps no states.

`raj` is sections III-A and III-B of Faster Speech-LLaMA (arXiv 2409.08148): behind the likeliest token a hypothesis
goes on by the heads' tokens up to the first that is less sure than tau (eq. 10), a token counts with the
log-probability of whoever gave it (eq. 12), and hypotheses of one prefix length share a call of the decoder. That
hypotheses of different lengths are compared by the mean of their tokens is ours.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.runtime.decoding.beam import Hypothesis, likeliest
from specedge.runtime.decoding.drafter import Guard
from specedge.runtime.decoding.passes import Ran, alone
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.decoding.window import DecodeOptions, Window
from specedge.runtime.papers.grouped_beam import Groups
from support.fake_engine import FakeState, HashEngine, hidden_row, special_tokens

SPECIAL = special_tokens(n_timestamps=31)
PROMPT = (SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe)
EOT = SPECIAL.eot
FEATURES = b"window"
TEXT = 8  # ids that may be said
Tokens = tuple[int, ...]


def rules_of() -> RuleSet:
    suppressed = range(TEXT, EOT)
    return RuleSet(SPECIAL, space_ids=[], suppressed=suppressed, timestamps=False, max_initial_timestamp_index=None)


RULES = rules_of()


def rng_of(*seed: object) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(repr(seed).encode()).digest()[:8], "little"))


class Model(HashEngine):
    """Every prefix has a row of its own, in which no two are alike. known: texts by their last hidden row."""

    def __init__(self, seed: int = 0, eot_bias: float = 0.0) -> None:
        super().__init__(SPECIAL, seed=seed, eot_bias=eot_bias)
        self.known: dict[tuple[float, ...], Tokens] = {}
        self.n_copies = 0

    def fork(self, state: FakeState) -> FakeState:
        self.n_copies += 1
        return super().fork(state)

    def logits(self, features: Any, prefix: Tokens) -> NDArray[np.float32]:
        self.known[tuple(hidden_row(prefix))] = prefix[len(PROMPT) :]
        row = rng_of(self.seed, prefix).normal(0, 2, self.n_vocab)
        row[EOT] += self.eot_bias
        return row.astype(np.float32)

    def logprobs(self, tokens: Tokens) -> list[tuple[int, float]]:
        """What may follow, best first."""
        row = self.logits(FEATURES, (*PROMPT, *tokens))
        RULES.apply(row, tokens)
        p = np.exp(row.astype(np.float64))
        found = np.log(p[p > 0] / p.sum()).tolist()
        return sorted(zip(np.flatnonzero(p).tolist(), found, strict=True), key=lambda one: -one[1])

    def greedy(self, tokens: Tokens, n: int) -> Tokens:
        said: Tokens = ()
        for _ in range(n):
            said = (*said, self.logprobs((*tokens, *said))[0][0])
        return said


class Text(NamedTuple):
    """tokens: without the end; logprobs: with the end's where the text has ended; emitters: 0 for the model, else the
    number of the head."""

    tokens: Tokens = ()
    logprobs: tuple[float, ...] = ()
    emitters: Tokens = ()

    @property
    def total(self) -> float:
        return sum(self.logprobs)

    @property
    def mean(self) -> float:
        return self.total / max(1, len(self.logprobs))


class Found(NamedTuple):
    """What a search found; how many texts each of its passes was over; and how many copies of states it needs: one to
    begin with, and one for each child that lives on of a text but the first."""

    finished: list[Text]
    unfinished: list[Text]
    passes: list[int]
    n_copies: int = 0


def raj(model: Model, heads: Heads, n_beams: int, n_wanted: int, limit: int, tau: float) -> Found:
    """Until `n_wanted` texts have ended, or all that live on have `limit` tokens; see the module."""
    live, over, passes, n_copies = [Text()], list[Text](), list[int](), 1
    while True:
        found = [(*child, len(text.tokens)) for text in live for child in children(model, heads, text, limit, tau)]
        kept: list[tuple[Text, int]] = []  # with how many of its tokens were run
        for text, is_over, n_run in sorted(found, key=lambda one: -one[0].mean):
            if not is_over:
                kept.append((text, n_run))
                if len(kept) == n_beams:
                    break
            elif len(over) < n_wanted:
                over.append(text)
        live = [text for text, _ in kept]
        n_copies += len(kept) - len({text.tokens[:n_run] for text, n_run in kept})
        groups_of = Counter(n_run for text, n_run in kept if len(text.tokens) < limit)
        if len(over) == n_wanted or not groups_of:
            return Found(over, live[: max(0, n_beams - len(over))], passes, n_copies)
        passes += [n for _, n in sorted(groups_of.items())]


def children(model: Model, heads: Heads, text: Text, limit: int, tau: float) -> Iterator[tuple[Text, bool]]:
    """How a hypothesis may go on, and whether it is over then; itself where it has `limit` tokens."""
    room = limit - len(text.tokens)
    if not room:
        yield text, False
        return
    for rank, (token, logprob) in enumerate(model.logprobs(text.tokens)):
        if token == EOT:
            yield Text(text.tokens, (*text.logprobs, logprob), (*text.emitters, 0)), True
            continue
        given = [(token, logprob, 0), *(heads.sure(text.tokens, tau) if rank == 0 else ())][:room]
        tokens, logprobs, emitters = zip(*given, strict=True)
        yield Text(text.tokens + tokens, text.logprobs + logprobs, text.emitters + emitters), False


class Heads:
    """Three heads that often guess what the model says greedily, and now and then an id that is no text."""

    n_heads = 3

    def __init__(self, model: Model) -> None:
        self._model = model

    def guess(self, hidden: NDArray[np.float32], n_choices: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        assert n_choices == 1, "one token is believed of each head"
        ids, probs = self._of(self._model.known[tuple(hidden[-1].tolist())])
        return np.array(ids)[:, None], np.array(probs, np.float32)[:, None]

    def sure(self, tokens: Tokens, tau: float) -> Iterator[tuple[int, float, int]]:
        """Tokens up to the first that is less sure than `tau` or no text, log-probabilities, heads' numbers from 1."""
        for number, (token, prob) in enumerate(zip(*self._of(tokens), strict=True), 1):
            if prob < tau or token >= TEXT:
                return
            yield token, math.log(prob), number

    def _of(self, tokens: Tokens) -> tuple[list[int], list[float]]:
        rng = rng_of(self._model.seed, "heads", tokens)
        right = self._model.greedy(tokens, 1 + self.n_heads)[1:]
        others = rng.choice([*range(TEXT), TEXT + 1, EOT, SPECIAL.timestamp_begin], self.n_heads)
        ids = np.where(rng.random(self.n_heads) < 0.6, right, others)
        return ids.tolist(), rng.choice([0.25, 0.5, 0.75, 1.0], self.n_heads).tolist()


def begun(model: Model) -> tuple[Any, NDArray[np.float32]]:
    """A state behind the prompt, and the prompt's last row."""
    state = model.start(FEATURES, keeps_hidden=True)
    row = model.forward(state, PROMPT)[-1]
    model.commit(state, len(PROMPT))
    model.n_passes = 0
    return state, row


def same(found: Sequence[Hypothesis], expected: Sequence[Text]) -> None:
    assert [one.tokens for one in found] == [text.tokens for text in expected]
    for one, text in zip(found, expected, strict=True):
        assert one.token_logprobs == pytest.approx(text.logprobs, abs=1e-4)
        assert one.sum_logprob == pytest.approx(text.total, abs=1e-3)


@pytest.mark.parametrize(("n_beams", "patience", "limit"), [(1, 1.0, 7), (2, 2.0, 7), (3, 1.0, 9), (4, 0.5, 2)])
@pytest.mark.parametrize("bias", [-50.0, 0.0, 3.0])
@pytest.mark.parametrize("tau", [0.5, 0.75, 1.01])
def test_beams_that_believe_heads_are_as_published(
    n_beams: int, patience: float, limit: int, bias: float, tau: float
) -> None:
    options = DecodeOptions(rules=RULES, n_text_ctx=40, n_sample=limit, beam_size=n_beams, patience=patience)
    n_wanted = {(1, 1.0): 1, (2, 2.0): 4, (3, 1.0): 3, (4, 0.5): 2}[n_beams, patience]
    for seed in range(6):
        model = Model(seed, bias)
        heads = Heads(model)
        expected = raj(model, heads, n_beams, n_wanted, limit, tau)
        state, row = begun(model)
        passes, waits, since = list[int](), list[float](), time.perf_counter()

        def saw(ran: Ran, waited_s: float, n: int, passes: list[int] = passes, waits: list[float] = waits) -> None:
            assert [len(rows) for rows in ran.logits] == [1] * n, "the last row alone is wanted"
            passes.append(n)
            waits.append(waited_s)

        window = Window(model, FEATURES, PROMPT, options, Guard(), 1)
        window.saw_pass = saw
        found = alone(model, Groups(window, heads.guess, tau).run(state, row))
        assert all(wait >= 0 for wait in waits) and sum(waits) <= time.perf_counter() - since
        same(found, [*expected.finished, *expected.unfinished])
        assert [one.emitters for one in found] == [text.emitters for text in expected[0] + expected[1]]
        assert [one.finished for one in found].count(True) == len(expected.finished)
        assert (passes, model.n_copies) == (expected.passes, expected.n_copies) and model.n_open == 1


@pytest.mark.parametrize("n", [1, 2, 5, 40])
@pytest.mark.parametrize("n_vocab", [5, 63, 64, 129, 1000])
def test_the_likeliest_are_the_best_and_of_equals_the_first(n: int, n_vocab: int) -> None:
    for seed in range(6):
        rng = rng_of(n, n_vocab, seed)
        row = rng.integers(-6, 3, n_vocab).astype(np.float32)
        row[rng.random(n_vocab) < (0.0, 0.5, 0.97)[seed % 3]] = -np.inf
        expected = sorted(range(n_vocab), key=lambda id_: -row[id_])[:n]
        n_finite = int(np.isfinite(row).sum())
        assert likeliest(row, n)[:n_finite] == expected[:n_finite]
        assert len(likeliest(row, n)) == min(n, n_vocab)
