"""The threshold beam: without sure heads it is the beam, with them it takes fewer passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.errors import UsageError
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import Guard
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.papers.accept import Threshold
from specedge.runtime.papers.heads import HeadsDrafter
from support.drafts import FREE
from support.fake_engine import HashEngine, hidden_row, special_tokens

SPECIAL = special_tokens(n_timestamps=31)
PROMPT = [SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe]


class Window(bytes):
    """Features, with what `HeadsDrafter` asks of them."""

    hidden = np.zeros((4, 1), np.float32)


FEATURES = Window(b"window")
N_TEXT_CTX = 40


class Fine(HashEngine):
    """Logits that are not rounded, so that no two hypotheses are equally likely."""

    def logits(self, features: Any, prefix: tuple[int, ...]) -> NDArray[np.float32]:
        row = super().logits(features, prefix)
        return row + np.random.default_rng(sum(prefix)).random(len(row), np.float32) * np.float32(0.05)


class Greedy:
    """Two heads that know how the text goes on greedily behind each row, as sure of it as `sure`."""

    n_heads = 2

    def __init__(self, engine: HashEngine, rules: RuleSet, sure: float) -> None:
        self._engine, self._rules, self._sure = engine, rules, sure
        self._known: dict[tuple[float, ...], tuple[int, ...]] = {}

    def begin(self, features: Any, n_heard: int) -> None:
        pass

    def another(self) -> Any:
        return self

    def knows(self, prefix: tuple[int, ...]) -> None:
        """The heads may be asked behind this text."""
        self._known[tuple(hidden_row(prefix))] = prefix

    def guess(self, hidden: NDArray[np.float32], n_choices: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        prefix = list(self._known[tuple(hidden[-1].tolist())])
        said = []
        for _ in range(1 + self.n_heads):
            row = self._engine.logits(FEATURES, tuple(prefix))
            self._rules.apply(row, prefix[len(PROMPT) :])
            said.append(int(row.argmax()))
            prefix.append(said[-1])
        return np.array(said[1:])[:, None], np.full((self.n_heads, 1), self._sure, np.float32)


class Told(Fine):
    """Tells the heads of every text that is run."""

    heads: Greedy | None = None

    def forward(self, state: Any, ids: Any, logit_rows: Any = None) -> NDArray[np.float32]:
        if self.heads is not None:
            self.heads.knows((*state.ids, *ids))
        return super().forward(state, ids, logit_rows)


def rules_of(timestamps: bool) -> RuleSet:
    return RuleSet(SPECIAL, space_ids=[32], suppressed=[33], timestamps=timestamps, max_initial_timestamp_index=20)


def believed(engine: Told, rules: RuleSet, sure: float, tau: float, **options: Any) -> WindowResult:
    engine.heads = Greedy(engine, rules, sure)
    guard = Guard(HeadsDrafter("mtp-latent", engine.heads, FREE))
    chosen = DecodeOptions(
        rules=rules, n_text_ctx=N_TEXT_CTX, beam_size=4, acceptance=Threshold(tau=tau), keeps_sources=True, **options
    )
    found = decode_window(engine, FEATURES, PROMPT, chosen, guard)
    engine.heads = None
    assert engine.n_open == 0 and guard.error is None
    return found


def test_a_window_is_decoded_by_a_beam_that_believes_heads_and_says_that_its_text_may_differ() -> None:
    engine, rules = Told(SPECIAL, n_text_ctx=N_TEXT_CTX, eot_bias=-50.0), rules_of(False)
    plain = decode_window(engine, FEATURES, PROMPT, DecodeOptions(rules=rules, n_text_ctx=N_TEXT_CTX, beam_size=4))
    unsure = believed(engine, rules, 0.7, 0.71)
    assert (unsure.tokens, unsure.token_logprobs) == (plain.tokens, plain.token_logprobs)
    assert unsure.speculation.passes == plain.speculation.passes and unsure.speculation.accepted == 0
    assert not unsure.speculation.lossless and set(unsure.sources) == {""}
    engine.n_passes = 0
    sure = believed(engine, rules, 0.9, 0.71)
    assert sure.speculation.passes == engine.n_passes < 0.9 * plain.speculation.passes
    assert sure.speculation.accepted == sure.sources.count("mtp-latent") > 0
    assert sure.speculation.tokens == len(sure.tokens) + sure.finished and not sure.speculation.lossless


def test_a_beam_believes_nobody_but_heads() -> None:
    engine, rules = Told(SPECIAL, n_text_ctx=N_TEXT_CTX), rules_of(False)
    options = DecodeOptions(rules=rules, n_text_ctx=N_TEXT_CTX, beam_size=2, acceptance=Threshold(tau=0.8))
    with pytest.raises(
        UsageError, match="with beam search needs a heads drafter .*, got .*: choose one, or use --accept exact"
    ):
        decode_window(engine, FEATURES, PROMPT, options)
    assert engine.n_open == 0


@pytest.mark.parametrize("accept", ["typical", "top-3"])
def test_beams_refuse_the_others(accept: str) -> None:
    with pytest.raises(UsageError, match="beam_size: got 4, expected 1 where accept is typical or top-M"):
        TranscribeOptions(beam_size=4, accept=accept)


def test_heads_that_fail_leave_the_beam() -> None:
    engine, rules = Told(SPECIAL, n_text_ctx=N_TEXT_CTX, eot_bias=-50.0), rules_of(False)
    plain = decode_window(engine, FEATURES, PROMPT, DecodeOptions(rules=rules, n_text_ctx=N_TEXT_CTX, beam_size=4))
    options = DecodeOptions(rules=rules, n_text_ctx=N_TEXT_CTX, beam_size=4, acceptance=Threshold(tau=0.5))
    guard = Guard(HeadsDrafter("mtp-latent", Broken(), FREE))
    for _ in range(2):
        found = decode_window(engine, FEATURES, PROMPT, options, guard)
        assert guard.error is not None and "ValueError" in guard.error
        assert (found.tokens, found.token_logprobs) == (plain.tokens, plain.token_logprobs)


class Broken:
    """Heads whose guesses are none."""

    n_heads = 2

    def begin(self, features: Any, n_heard: int) -> None:
        pass

    def another(self) -> Any:
        return self

    def guess(self, hidden: NDArray[np.float32], n_choices: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return np.zeros((2, 1), np.int64), np.zeros((3, 1), np.float32)
