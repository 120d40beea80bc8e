"""Decode one window: the only decode loop. Plain decoding is this loop with an empty drafter.

In each pass the loop asks the drafter for a draft, has it verified (`verify.py`) and tells the drafter the outcome,
until the text ends. Above temperature 0 the loop runs once for each of `best_of` samples. With beams (`beam.py`) drafts
save passes as well. Semantics are those of openai-whisper's `DecodingTask`; ties go to the lowest id.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from ..registered import find
from .accept import AcceptanceRule, Exact
from .beam import BeamOptions, Hypothesis, best_of, search
from .drafter import NO_DRAFT, Draft, DraftContext, Drafter, Guard, SharedPass, Verdict, WindowContext
from .passes import Decoding, Ran, alone, together
from .rules import Logits, RuleSet
from .sampling import Noise
from .statistics import Speculation as Speculation
from .statistics import Tally
from .verify import Outcome, Verifier, softmax

if TYPE_CHECKING:
    from ..engine.engine import Engine, Features, State


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """How to decode a window. Raises UsageError for impossible values.

    n_sample: the most tokens, None for half of `n_text_ctx`, as in openai-whisper; max_draft: rows of a pass besides
    the pending one.
    temperature: 0 takes the likeliest token, above it tokens are sampled with noise keyed by `seed` and `window_key`,
    which tells the windows of an audio apart. best_of: samples to choose from, used above temperature 0 only;
    beam_size, patience: beams at temperature 0, 1 is greedy; length_penalty: how samples and beams of different lengths
    are ranked (`beam.best_of`).
    acceptance: which drafts are kept; all but the default can change the text. Beams verify drafts exactly, but for the
    rule `threshold`, with which they believe heads (`papers.grouped_beam`).
    history: text ids of the audio before this window; mel, content, earlier: as in `WindowContext`, for the drafter.
    keeps_sources: whether the result names the drafter of each token.
    is_hopeless: asked of the ids behind each token; a text for which it says yes ends there. Of samples such a one
    counts only if all are. Beams do not ask.
    """

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
    acceptance: AcceptanceRule = Exact()
    history: tuple[int, ...] = ()
    mel: Callable[[int], NDArray[np.float32]] | None = None
    content: float = 1.0
    earlier: tuple[int, ...] = ()
    keeps_sources: bool = False
    is_hopeless: Callable[[Sequence[int]], bool] | None = None

    def __post_init__(self) -> None:
        for name, is_right, expected in (
            ("temperature", math.isfinite(self.temperature) and self.temperature >= 0, "a number, 0 or more"),
            ("best_of", self.best_of >= 1, "1 or more"),
            ("beam_size", self.beam_size >= 1, "1 or more"),
            ("patience", math.isfinite(self.patience) and self.patience > 0, "a number above 0"),
        ):
            if not is_right:
                raise UsageError(f"{name}: got {getattr(self, name)!r}, expected {expected}")


@dataclass(frozen=True, kw_only=True)
class WindowResult:
    """One decoded window.

    tokens: sampled ids without the end of text; token_logprobs: one for each decided token, the end of text included,
    from the filtered logits, before the temperature divides them; sum_logprob: their float32 sum; avg_logprob:
    sum / (len(tokens) + 1); no_speech_prob: from the unfiltered logits of the SOT row; finished: False when the length
    limit ended the window; hopeless: as in `Hypothesis`; sources: the drafter's name for each token that was an
    accepted draft, "" for the others, () unless asked for; n_drafted as in `Hypothesis`. Both take no part in
    comparisons.
    """

    tokens: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    sum_logprob: float
    avg_logprob: float
    no_speech_prob: float
    temperature: float
    finished: bool
    speculation: Speculation
    hopeless: bool = False
    sources: tuple[str, ...] = field(default=(), compare=False)
    n_drafted: tuple[int, ...] = field(default=(), compare=False)


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
    window = _Window(engine, features, tuple(prompt_ids), options, guard, n_paths)
    state = engine.start(features, keeps_hidden=guard.needs("reads_hidden"))
    try:
        if options.temperature == 0 and options.beam_size > 1:
            best = yield from window.beams(state)
        elif options.temperature > 0 and options.best_of > 1:
            best = yield from window.samples(state)
        else:
            best = yield from window.loop(state, window.prompt, guard)
        return window.result(best)
    finally:
        engine.release(state)


def detect_language(engine: Engine, features: Features, sot: int, languages: dict[str, int]) -> dict[str, float]:
    """Return the probability of each language code, likeliest first (`whisper/decoding.py: detect_language`).

    `languages` maps codes to token ids and is not empty. Ties go to the lowest id.
    """
    state = engine.start(features)
    try:
        row = np.array(engine.forward(state, [sot])[0], dtype=np.float32)
    finally:
        engine.release(state)
    codes = sorted(languages, key=languages.__getitem__)
    probabilities = softmax(row[[languages[code] for code in codes]])
    order = np.argsort(-probabilities, kind="stable")
    return {codes[i]: float(probabilities[i]) for i in order}


class _Window:
    """One window: its prompt, its limits, and the statistics so far."""

    def __init__(
        self,
        engine: Engine,
        features: Features,
        prompt: tuple[int, ...],
        options: DecodeOptions,
        guard: Guard,
        n_paths: int,
    ) -> None:
        self.engine, self.features, self.options, self._guard, self.n_paths = engine, features, options, guard, n_paths
        self._rules, self.layout = options.rules, options.rules.layout
        self.prompt = prompt
        n_sample = options.n_text_ctx // 2 if options.n_sample is None else options.n_sample
        self.limit = min(n_sample, options.n_text_ctx + 1 - len(prompt))
        self._silence_row = self.layout.silence_row(prompt)
        if self.limit < 1:
            raise UsageError(
                f"a prompt of {len(prompt)} tokens cannot be decoded: expected one that leaves room within "
                f"{options.n_text_ctx} positions; shorten the prompt"
            )
        # The end of text needs no row of its own: the row before it decides it, and nothing follows it.
        self.useless = self._rules.forbidden | {self.layout.eot}
        self.tally = Tally()
        self._draft_s_before, self._loops_before = guard.seconds, guard.suspected_loops
        self._no_speech_prob = float("nan") if self.layout.silence_id is not None else 0.0

    def loop(
        self, state: State, pending: tuple[int, ...], guard: Guard | None, sample: int = 0
    ) -> Decoding[Hypothesis]:
        """Draft, verify, tell; until the text ends. `state` holds the prompt but for `pending`, its last part."""
        options, tally, prompt = self.options, self.tally, self.prompt
        noise = None
        if options.temperature > 0:
            noise = Noise(
                seed=options.seed, window_key=options.window_key, temperature=options.temperature, sample=sample
            )
        drafts = _Drafts(self, guard)
        text = Verifier(
            self.engine,
            state,
            prompt,
            pending,
            tally,
            rules=self._rules,
            acceptance=options.acceptance,
            temperature=options.temperature,
            noise=noise,
            limit=self.limit,
            keeps_rows=drafts.wants_rows,
            is_hopeless=options.is_hopeless,
        )
        n_paths = 1 if options.best_of > 1 and noise is not None else self.n_paths
        sot_index = self._silence_row if pending == prompt else None
        sources: list[str] = []
        n_drafted: list[int] = []
        drafts.begin(n_paths, b"" if noise is None else noise.key)
        while not text.done:
            draft = drafts.propose(state, text.tokens, len(text.pending))
            started = time.perf_counter()
            outcome = yield from text.step(draft, max_rows=options.max_draft, n_paths=n_paths, sot_index=sot_index)
            if sot_index is not None and text.sot_row is not None:
                self._read_silence(text.sot_row)
            sot_index = None
            tally.decoder_s += time.perf_counter() - started
            if options.keeps_sources:
                sources += [*(draft.names[node] for node in outcome.walked), ""]
                n_drafted += [len(outcome.evaluated)] * (len(outcome.walked) + 1)
            tally.passes += 1
            tally.tokens += 1 + len(outcome.walked)
            drafts.tell(draft, outcome, text.tokens[-1], finished=text.done, ran=text.ran)
        tokens = text.tokens[:-1] if text.finished else text.tokens
        return Hypothesis(
            tokens=tuple(tokens),
            logprobs=tuple(text.logprobs),
            sum_logprob=float(text.sum_logprob),
            finished=text.finished,
            hopeless=text.hopeless,
            sources=tuple(sources[: len(tokens)]),
            n_drafted=tuple(n_drafted[: len(tokens)]),
        )

    def samples(self, state: State) -> Decoding[Hypothesis]:
        """The best of several samples, each with noise and a drafter of its own, after one pass of the prompt."""
        started = time.perf_counter()
        yield from self._prefill(state, len(self.prompt) - 1)
        self.tally.decoder_s += time.perf_counter() - started
        guards = [self._guard, *(self._guard.another() for _ in range(1, self.options.best_of))]
        found = yield from together([self._sample(state, guard, sample) for sample, guard in enumerate(guards)])
        found = [one for one in found if not one.hopeless] or found
        return found[best_of(found, self.options.length_penalty)]

    def _sample(self, state: State, guard: Guard | None, sample: int) -> Decoding[Hypothesis]:
        copy = self.engine.fork(state)
        try:
            found = yield from self.loop(copy, self.prompt[-1:], guard, sample)
            if sample and guard is not None:
                guard.end(())
            return found
        finally:
            self.engine.release(copy)
            if sample and guard is not None:
                guard.close()

    def beams(self, state: State) -> Decoding[Hypothesis]:
        """The best of several beams."""
        options, tally, guard = self.options, self.tally, self._guard
        drafts = _Drafts(self, guard)
        drafts.begin(1)
        started, drafted_s = time.perf_counter(), guard.seconds
        row = yield from self._prefill(state, len(self.prompt))
        tally.passes += 1
        rule = options.acceptance
        wanted = BeamOptions(beam_size=options.beam_size, patience=options.patience, limit=self.limit)
        if rule.tau is not None and (guard.needs("has_heads") or guard.error is None):
            wanted = replace(wanted, tau=rule.tau, useless=self.useless)
            best: Hypothesis = yield from find("beams", "heads")(
                self.engine, state, row, self._rules, guard, wanted, self.saw_pass, tally, options.length_penalty
            )
            best = best if options.keeps_sources else replace(best, sources=())
        else:
            found = yield from search(self.engine, state, row, self._rules, wanted, drafts, self.saw_pass)
            best = found[best_of(found, options.length_penalty)]
        tally.tokens = len(best.tokens) + best.finished
        tally.decoder_s += time.perf_counter() - started - (guard.seconds - drafted_s)
        return best

    def saw_pass(self, ran: Ran, waited_s: float, n_texts: int) -> None:
        """A pass over some beams was run."""
        self.tally.passes += 1
        self.tally.count_run(ran, waited_s, n_texts=n_texts)

    def result(self, best: Hypothesis) -> WindowResult:
        """The window's result."""
        guard = self._guard
        return WindowResult(
            tokens=best.tokens,
            token_logprobs=best.logprobs,
            sum_logprob=best.sum_logprob,
            avg_logprob=best.sum_logprob / (len(best.tokens) + 1),
            no_speech_prob=self._no_speech_prob,
            temperature=self.options.temperature,
            finished=best.finished,
            hopeless=best.hopeless,
            sources=best.sources,
            n_drafted=best.n_drafted,
            speculation=self.tally.result(
                guard.name,
                lossless=self.options.acceptance.lossless
                and self._rules.bias is self._rules.only is None
                and self.engine.is_exact is not False,
                draft_s=guard.seconds - self._draft_s_before,
                suspected_loops=guard.suspected_loops - self._loops_before,
                choice=guard.choice,
            ),
        )

    def _prefill(self, state: State, n_kept: int) -> Decoding[Logits]:
        """Run the prompt and keep its first `n_kept` rows. Returns the logits behind its last row, f32[n_vocab]."""
        started = time.perf_counter()
        last_row = len(self.prompt) - 1
        ran = yield ((state, self.prompt, [last_row if self._silence_row is None else self._silence_row, last_row]),)
        self.tally.count_run(ran, time.perf_counter() - started)
        (rows,) = ran.logits
        self._read_silence(rows[0])
        if n_kept:
            self.engine.commit(state, n_kept)
        last: Logits = rows[1]
        return last

    def _read_silence(self, sot_row: Logits) -> None:
        if self.layout.silence_id is not None:
            self._no_speech_prob = float(softmax(sot_row)[self.layout.silence_id])


class _Drafts:
    """The drafts of one text of a window; see `beam.Drafts`. guard: of its drafter, None for a text without one."""

    def __init__(self, window: _Window, guard: Guard | None) -> None:
        self._window, self._guard = window, guard
        self._is_empty = guard is None or guard.is_empty
        self.wants_rows = guard is not None and guard.needs("wants_rows")
        self._reads_hidden = guard is not None and guard.needs("reads_hidden")
        self._draft, self._path = NO_DRAFT, tuple[int, ...]()  # of a beam

    def begin(self, n_paths: int, key: bytes = b"") -> None:
        """Tell the drafter that the text begins."""
        if self._guard is None:
            return
        window, options, layout = self._window, self._window.options, self._window.layout
        self._guard.begin(
            WindowContext(
                features=window.features,
                prompt=window.prompt,
                n_vocab=layout.n_vocab,
                n_sample=window.limit,
                eot=layout.eot,
                timestamp_begin=layout.timestamp_begin,
                n_paths=n_paths,
                temperature=options.temperature,
                history=options.history,
                mel=options.mel,
                content=options.content,
                earlier=options.earlier,
                key=key,
            )
        )

    def propose(self, state: State, tokens: Sequence[int], n_pending: int) -> Draft:
        """What the drafter says may follow `tokens`, the last `n_pending` of which are not yet in `state`."""
        guard, window, options = self._guard, self._window, self._window.options
        if self._is_empty or guard is None or guard.is_idle:
            return NO_DRAFT
        position = int(state.length)
        n_room = options.n_text_ctx - position - n_pending
        n_left = window.limit - len(tokens) - 1
        hidden = state.hidden[:position] if self._reads_hidden and state.hidden is not None else None
        draft = guard.propose(
            DraftContext(prompt=window.prompt, sampled=tuple(tokens), position=position, hidden=hidden),
            min(n_room, n_left, options.max_draft),
            n_vocab=window.layout.n_vocab,
            useless=window.useless,
        )
        window.tally.count_proposed(draft.n_proposed)
        return draft

    def tell(self, draft: Draft, outcome: Outcome, token: int, *, finished: bool, ran: Ran | None) -> None:
        """Count the draft and tell the drafter what became of it in the pass `ran`, None for one over its paths."""
        guard, tally = self._guard, self._window.tally
        tally.count_draft(draft.depths, draft.names, outcome.evaluated, outcome.walked)
        tally.bonus += outcome.whole
        if self._is_empty or guard is None or guard.is_idle:
            return
        guard.observe(
            Verdict(
                drafted=draft.tokens(outcome.followed),
                n_accepted=len(outcome.walked),
                token=token,
                finished=finished,
                evaluated=outcome.evaluated,
                nodes=outcome.walked,
                rejected=outcome.rejected,
                rows=outcome.rows,
                shared=None
                if ran is None or ran.n_texts == 1
                else SharedPass(n_texts=ran.n_texts, n_rows=ran.n_rows, seconds=ran.pass_s),
            )
        )

    def path(self, state: State, tokens: tuple[int, ...]) -> tuple[int, ...]:
        self._draft = draft = self.propose(state, tokens, 1)
        self._path = (draft.paths(1, self._window.options.max_draft) or [()])[0]
        return draft.tokens(self._path)

    def saw(self, n_right: int, token: int, ran: Ran) -> None:
        path = self._path
        rejected = path[n_right] if n_right < len(path) else None
        outcome = Outcome(path[:n_right], path, path, rejected, bool(path) and rejected is None)
        self.tell(self._draft, outcome, token, finished=token == self._window.layout.eot, ran=ran)

    def another(self) -> _Drafts | None:
        twin = None if self._guard is None else self._guard.another()
        return None if twin is None else _Drafts(self._window, twin)

    def close(self) -> None:
        if self._guard is not None:
            self._guard.close()
