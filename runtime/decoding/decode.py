"""Decode one window: the only decode loop. Plain decoding is this loop with an empty drafter.

In each pass the loop asks the drafter for a draft, has it verified (`verify.py`) and tells the drafter the outcome,
until the text ends. Above temperature 0 the loop runs once for each of `best_of` samples. With beams (`beam.py`) drafts
save passes as well. Semantics are those of openai-whisper's `DecodingTask`; ties go to the lowest id.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..registered import find
from .beam import best_of, search
from .drafter import Drafter, Guard
from .passes import Decoding, alone, together
from .sampling import Noise
from .statistics import Speculation as Speculation
from .verify import Drafts, Verifier
from .window import DecodeOptions as DecodeOptions
from .window import Hypothesis, Window
from .window import WindowResult as WindowResult

if TYPE_CHECKING:
    from ..engine.engine import Engine, Features, State


def decode_window(
    engine: Engine,
    features: Features,
    prompt_ids: Sequence[int],
    options: DecodeOptions,
    drafter: Drafter | Guard | None = None,
) -> WindowResult:
    """Decode one window. `prompt_ids` holds SOT; `features` comes from the same engine's `encode`.

    The caller tells the drafter (`Guard.end`) whether the text is kept.
    Raises UsageError when the prompt leaves no room, ModelError on logits that are not numbers, Interrupted.
    """
    return alone(engine, decoding(engine, features, prompt_ids, options, drafter, n_paths=engine.n_paths))


def decoding(
    engine: Engine,
    features: Features,
    prompt_ids: Sequence[int],
    options: DecodeOptions,
    drafter: Drafter | Guard | None = None,
    *,
    n_paths: int = 1,
) -> Decoding[WindowResult]:
    """As `decode_window`, for passes that others run and may share.

    n_paths: how many paths of a draft to verify at once, 1 unless it has the passes to itself.
    """
    guard = drafter if isinstance(drafter, Guard) else Guard(drafter)
    window = Window(engine, features, tuple(prompt_ids), options, guard, n_paths)
    state = engine.start(features, keeps_hidden=guard.needs("reads_hidden"))
    try:
        if options.temperature == 0 and options.beam_size > 1:
            best = yield from _beams(window, state)
        elif options.temperature > 0 and options.best_of > 1:
            best = yield from _samples(window, state)
        else:
            best = yield from _loop(window, state, window.prompt, guard)
        return window.result(best)
    finally:
        engine.release(state)


def _loop(
    window: Window, state: State, pending: tuple[int, ...], guard: Guard, sample: int = 0
) -> Decoding[Hypothesis]:
    """Draft, verify, tell; until the text ends. `state` holds the prompt but for `pending`, its last part."""
    options, tally = window.options, window.tally
    noise = None
    if options.temperature > 0:
        noise = Noise(seed=options.seed, window_key=options.window_key, temperature=options.temperature, sample=sample)
    drafts = Drafts(window, guard)
    text = Verifier(window, state, pending, noise, keeps_rows=drafts.wants_rows)
    n_paths = 1 if options.best_of > 1 and noise is not None else window.n_paths
    sources: list[str] = []
    n_drafted: list[int] = []
    drafts.begin(n_paths, b"" if noise is None else noise.key)
    while not text.done:
        draft = drafts.propose(state, text.tokens, len(text.pending))
        started = time.perf_counter()
        verdict = yield from text.step(draft, n_paths)
        tally.decoder_s += time.perf_counter() - started
        if options.keeps_sources:
            sources += [*(draft.names[node] for node in verdict.nodes), ""]
            n_drafted += [len(verdict.evaluated)] * (verdict.n_accepted + 1)
        tally.passes += 1
        tally.tokens += 1 + verdict.n_accepted
        drafts.tell(draft, verdict)
    tokens = text.tokens[:-1] if text.finished else text.tokens
    return Hypothesis(
        tokens=tuple(tokens),
        token_logprobs=tuple(text.logprobs),
        sum_logprob=float(text.sum_logprob),
        finished=text.finished,
        hopeless=text.hopeless,
        sources=tuple(sources[: len(tokens)]),
        n_drafted=tuple(n_drafted[: len(tokens)]),
    )


def _samples(window: Window, state: State) -> Decoding[Hypothesis]:
    """The best of several samples, each with noise and a drafter of its own, after one pass of the prompt."""
    started = time.perf_counter()
    yield from window.prefill(state, len(window.prompt) - 1)
    window.tally.decoder_s += time.perf_counter() - started
    guards = [window.guard, *(window.guard.another() for _ in range(1, window.options.best_of))]
    found = yield from together([_sample(window, state, guard, sample) for sample, guard in enumerate(guards)])
    found = [one for one in found if not one.hopeless] or found
    return found[best_of(found, window.options.length_penalty)]


def _sample(window: Window, state: State, guard: Guard, sample: int) -> Decoding[Hypothesis]:
    copy = window.engine.fork(state)
    try:
        found = yield from _loop(window, copy, window.prompt[-1:], guard, sample)
        if sample:
            guard.end(())
        return found
    finally:
        window.engine.release(copy)
        if sample:
            guard.close()


def _beams(window: Window, state: State) -> Decoding[Hypothesis]:
    """The best of several beams."""
    options, tally, guard = window.options, window.tally, window.guard
    drafts = Drafts(window, guard)
    drafts.begin(1)
    started, drafted_s = time.perf_counter(), guard.seconds
    row = yield from window.prefill(state, len(window.prompt))
    tally.passes += 1
    if options.acceptance.tau is not None and (guard.needs("has_heads") or guard.error is None):
        best: Hypothesis = yield from find("beams", "heads")(window, state, row)
    else:
        found = yield from search(window, state, row, drafts)
        best = found[best_of(found, options.length_penalty)]
    tally.tokens = len(best.tokens) + best.finished
    tally.decoder_s += time.perf_counter() - started - (guard.seconds - drafted_s)
    return best
