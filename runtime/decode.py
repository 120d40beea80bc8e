"""Decode one window: the only decode loop. Plain decoding is this loop with the empty drafter.

Each pass feeds the pending rows (the prompt at first, then one decided token) and the draft's nodes. The rows are
walked in order: rules for the prefix reached, the likeliest token, stop at the first draft that differs. So every pass
decides the accepted drafts plus one more token, the bonus, which is pending for the next pass (algorithms 2.1).

Semantics are openai-whisper's `DecodingTask` and `GreedyDecoder` at temperature 0. Ties go to the lowest id.
Does not know: text, audio, where the window lies, how a drafter finds its guesses.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from specedge.runtime.drafters import DraftContext, Drafter, Verdict, WindowContext
from specedge.runtime.drafters.guard import Guard
from specedge.runtime.errors import ModelError, UsageError
from specedge.runtime.rules import Logits, RuleSet

__all__ = ["DecodeOptions", "DecoderEngine", "Speculation", "WindowResult", "decode_window", "detect_language"]


class DecoderEngine(Protocol):
    """The part of `engine.Engine` that decoding needs; a state has `length`, the rows committed."""

    def start(self, features: Any, /) -> Any: ...

    def forward(self, state: Any, ids: Sequence[int], logit_rows: Sequence[int] | None = None, /) -> Logits: ...

    def commit(self, state: Any, n_rows: int, /) -> None: ...

    def release(self, state: Any, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """How to decode a window. `n_sample` None means half of `n_text_ctx`, as in openai-whisper."""

    rules: RuleSet
    n_text_ctx: int
    n_sample: int | None = None
    max_draft: int = 64
    temperature: float = 0.0
    seed: int = 0
    window_key: int = 0
    best_of: int = 1
    beam_size: int = 1
    patience: float = 1.0
    length_penalty: float | None = None


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """What speculation did. In every window `tokens == accepted + passes`: a pass decides one token of its own.

    proposed: nodes the drafter gave; evaluated: those that were rows of a pass; accepted: those the model agreed with;
    bonus: passes whose drafts were all accepted (one draft or more); tokens: decided tokens, the end of text included.
    Times in seconds; they do not take part in comparisons.
    """

    drafter: str = "none"
    proposed: int = 0
    evaluated: int = 0
    accepted: int = 0
    bonus: int = 0
    passes: int = 0
    tokens: int = 0
    decoder_s: float = field(default=0.0, compare=False)
    draft_s: float = field(default=0.0, compare=False)

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / evaluated, or None when nothing was evaluated."""
        return self.accepted / self.evaluated if self.evaluated else None

    @property
    def tokens_per_pass(self) -> float | None:
        """tokens / passes, or None before the first pass."""
        return self.tokens / self.passes if self.passes else None

    def plus(self, other: Speculation) -> Speculation:
        """The sum over two windows; the drafter's name is the later one's."""
        return Speculation(
            drafter=other.drafter,
            proposed=self.proposed + other.proposed,
            evaluated=self.evaluated + other.evaluated,
            accepted=self.accepted + other.accepted,
            bonus=self.bonus + other.bonus,
            passes=self.passes + other.passes,
            tokens=self.tokens + other.tokens,
            decoder_s=self.decoder_s + other.decoder_s,
            draft_s=self.draft_s + other.draft_s,
        )


@dataclass(frozen=True, kw_only=True)
class WindowResult:
    """One decoded window.

    tokens: sampled ids without the end of text; token_logprobs: one for each decided token, the end of text included,
    from the filtered logits; sum_logprob: their float32 sum; avg_logprob: sum / (len(tokens) + 1);
    no_speech_prob: from the unfiltered logits of the SOT row; finished: False when the length limit ended the window.
    """

    tokens: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    sum_logprob: float
    avg_logprob: float
    no_speech_prob: float
    temperature: float
    finished: bool
    speculation: Speculation


def decode_window(
    engine: DecoderEngine,
    features: Any,
    prompt_ids: Sequence[int],
    options: DecodeOptions,
    drafter: Drafter | Guard | None = None,
) -> WindowResult:
    """Decode one window greedily. `prompt_ids` holds SOT; `features` comes from the same engine's `encode`.

    The caller tells the drafter the outcome (`Guard.end`) once it knows whether the text is kept.
    Raises UsageError when the prompt leaves no room, ModelError on logits that are not numbers, Interrupted.
    """
    window = _Window(engine, features, prompt_ids, options, drafter if isinstance(drafter, Guard) else Guard(drafter))
    try:
        while not window.done:
            window.step()
    finally:
        window.release()
    return window.result()


def detect_language(engine: DecoderEngine, features: Any, sot: int, languages: dict[str, int]) -> dict[str, float]:
    """Probability of each language code, likeliest first (`whisper/decoding.py: detect_language`).

    `languages` maps codes to token ids and is not empty. Ties go to the lowest id.
    """
    state = engine.start(features)
    try:
        row = np.array(engine.forward(state, [sot])[0], dtype=np.float32)
    finally:
        engine.release(state)
    codes = sorted(languages, key=languages.__getitem__)
    probabilities = _softmax(row[[languages[code] for code in codes]])
    order = np.argsort(-probabilities, kind="stable")
    return {codes[i]: float(probabilities[i]) for i in order}


class _Window:
    """The state of one window between passes."""

    def __init__(
        self, engine: DecoderEngine, features: Any, prompt_ids: Sequence[int], options: DecodeOptions, guard: Guard
    ) -> None:
        self._engine, self._options, self._guard = engine, options, guard
        self._layout = options.rules.layout
        self._prompt = tuple(prompt_ids)
        n_sample = options.n_text_ctx // 2 if options.n_sample is None else options.n_sample
        self._limit = min(n_sample, options.n_text_ctx + 1 - len(self._prompt))
        if self._layout.sot not in self._prompt or self._limit < 1:
            raise UsageError(
                f"a prompt of {len(self._prompt)} tokens cannot be decoded: expected one with the start token that "
                f"leaves room within {options.n_text_ctx} positions; shorten the prompt"
            )
        self._state = engine.start(features)
        self._pending: tuple[int, ...] = self._prompt
        self._sampled: list[int] = []
        self._logprobs: list[float] = []
        self._sum_logprob = np.float32(0.0)
        self._no_speech_prob = float("nan")
        self._proposed = self._evaluated = self._accepted = self._bonus = self._passes = 0
        self._decoder_s = 0.0
        self._draft_s_before = guard.seconds
        self._row = np.empty(self._layout.n_vocab, dtype=np.float32)
        self._scratch = np.empty_like(self._row)
        self.done = False
        guard.begin(
            WindowContext(
                features=features,
                prompt=self._prompt,
                n_vocab=self._layout.n_vocab,
                n_sample=self._limit,
                eot=self._layout.eot,
                timestamp_begin=self._layout.timestamp_begin,
            )
        )

    def step(self) -> None:
        """One pass: draft, verify, accept, commit."""
        position = int(self._state.length)
        draft = self._draft(position)
        started = time.perf_counter()
        n_pending = len(self._pending)
        n_accepted = self._walk(self._forward(draft), draft)
        self._engine.commit(self._state, n_pending + n_accepted)
        self._decoder_s += time.perf_counter() - started
        self._count(draft, n_accepted)

    def release(self) -> None:
        """Give the engine its buffers back."""
        self._engine.release(self._state)

    def result(self) -> WindowResult:
        """The window as it stands; call it when `done`."""
        finished = self._sampled[-1] == self._layout.eot
        tokens = tuple(self._sampled[:-1] if finished else self._sampled)
        return WindowResult(
            tokens=tokens,
            token_logprobs=tuple(self._logprobs),
            sum_logprob=float(self._sum_logprob),
            avg_logprob=float(self._sum_logprob) / (len(tokens) + 1),
            no_speech_prob=self._no_speech_prob,
            temperature=self._options.temperature,
            finished=finished,
            speculation=Speculation(
                drafter=self._guard.name,
                proposed=self._proposed,
                evaluated=self._evaluated,
                accepted=self._accepted,
                bonus=self._bonus,
                passes=self._passes,
                tokens=len(self._sampled),
                decoder_s=self._decoder_s,
                draft_s=self._guard.seconds - self._draft_s_before,
            ),
        )

    def _draft(self, position: int) -> list[int]:
        n_room = self._options.n_text_ctx - position - len(self._pending)
        n_left = self._limit - len(self._sampled) - 1
        draft, n_proposed = self._guard.propose(
            DraftContext(prompt=self._prompt, sampled=tuple(self._sampled), position=position),
            min(n_room, n_left, self._options.max_draft),
            n_vocab=self._layout.n_vocab,
            usable=self._usable,
        )
        self._proposed += n_proposed
        return draft

    def _forward(self, draft: list[int]) -> Logits:
        """Logits f32[1 + n_draft, n_vocab]: the last pending row, then the draft's; takes the SOT row on the way."""
        ids = [*self._pending, *draft]
        if self._passes:
            return self._engine.forward(self._state, ids)
        wanted = [self._prompt.index(self._layout.sot), *range(len(self._prompt) - 1, len(ids))]
        rows = self._engine.forward(self._state, ids, wanted)
        self._no_speech_prob = float(_softmax(rows[0])[self._layout.no_speech])
        return rows[1:]

    def _usable(self, token: int) -> bool:
        # The end of text needs no row of its own: the row before it decides it, and nothing follows it.
        return token != self._layout.eot and not self._options.rules.forbids(token)

    def _walk(self, rows: Logits, draft: list[int]) -> int:
        """Decide tokens row by row while the draft agrees; returns how many of its nodes were right."""
        depth = 0
        while True:
            token = self._decide(rows[depth])
            if token == self._layout.eot or len(self._sampled) == self._limit:
                self.done = True
                return depth
            if depth == len(draft) or draft[depth] != token:
                self._pending = (token,)
                return depth
            depth += 1

    def _decide(self, row: Logits) -> int:
        """Apply the rules for the prefix reached, take the likeliest token, score and append it."""
        logits = self._row
        np.copyto(logits, row)  # the engine may reuse its buffer
        self._options.rules.apply(logits, self._sampled)
        token = int(logits.argmax())
        if self._options.temperature > 0:
            token = self._sample(logits)
        peak = logits.max()
        if not np.isfinite(peak):
            raise ModelError(
                f"the decoder gave no usable logits for token {len(self._sampled) + 1} of a window (largest: {peak}); "
                "run `specedge doctor` on this bundle, or try --no-timestamps if it was trained without timestamps"
            )
        np.subtract(logits, peak, out=self._scratch)
        np.exp(self._scratch, out=self._scratch)
        logprob = logits[token] - peak - np.log(self._scratch.sum(dtype=np.float32))
        self._sum_logprob = np.float32(self._sum_logprob + logprob)
        self._logprobs.append(float(logprob))
        self._sampled.append(token)
        return token

    def _sample(self, logits: Logits) -> int:
        """A stand-in for keyed sampling, so that fallback runs end to end; replaced as a whole."""
        options = self._options
        key = (options.seed, options.window_key, round(options.temperature * 1000), len(self._sampled))
        noise = np.random.default_rng(key).gumbel(size=len(logits))
        return int((logits / np.float64(options.temperature) + noise).argmax())

    def _count(self, draft: list[int], n_accepted: int) -> None:
        self._passes += 1
        self._evaluated += len(draft)
        self._accepted += n_accepted
        self._bonus += bool(draft) and n_accepted == len(draft)
        self._guard.observe(
            Verdict(drafted=tuple(draft), n_accepted=n_accepted, token=self._sampled[-1], finished=self.done)
        )


def _softmax(row: Logits) -> Logits:
    """Softmax of one row f32[n]; not-a-number where the row holds one."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(row - row.max())
        result: Logits = weights / weights.sum(dtype=np.float32)
    return result
