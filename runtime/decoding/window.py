"""A window to be decoded: how (`DecodeOptions`), what came of it (`WindowResult`), what its texts have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from .accept import AcceptanceRule, Exact
from .drafter import Guard
from .passes import Decoding, Ran
from .rules import Logits, RuleSet
from .sampling import softmax
from .statistics import Speculation, Tally

if TYPE_CHECKING:
    from ..engine.engine import Engine, Features, State


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """How to decode a window, by values that `TranscribeOptions` takes.

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


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A text of a window.

    tokens: sampled ids without the end of text; token_logprobs: one for each decided token, the end of text included,
    from the filtered logits, before the temperature divides them; sum_logprob: their float32 sum; finished: False when
    the length limit ended the text; hopeless: whether it was ended because nothing can come of it
    (`DecodeOptions.is_hopeless`).
    sources: the drafter's name for each token that was an accepted draft, "" for the others; n_drafted: how many
    drafted tokens were rows of the pass that decided it. () unless asked for, n_drafted also of beams. Both take no
    part in comparisons.
    """

    tokens: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    sum_logprob: float
    finished: bool
    hopeless: bool = False
    sources: tuple[str, ...] = field(default=(), compare=False)
    n_drafted: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, kw_only=True)
class WindowResult(Hypothesis):
    """One decoded window, by its best text.

    avg_logprob: sum / (len(tokens) + 1); no_speech_prob: from the unfiltered logits of the SOT row.
    """

    avg_logprob: float
    no_speech_prob: float
    temperature: float
    speculation: Speculation


class Window:
    """One window: its prompt, its limits, and the statistics so far.

    limit: the most tokens; useless: ids that are not worth a row; silence_row: the index of the prompt's row that tells
    of silence, None where none does.
    """

    def __init__(
        self,
        engine: Engine,
        features: Features,
        prompt: tuple[int, ...],
        options: DecodeOptions,
        guard: Guard,
        n_paths: int,
    ) -> None:
        self.engine, self.features, self.options, self.guard, self.n_paths = engine, features, options, guard, n_paths
        self.rules, self.layout = options.rules, options.rules.layout
        self.prompt = prompt
        n_sample = options.n_text_ctx // 2 if options.n_sample is None else options.n_sample
        self.limit = min(n_sample, options.n_text_ctx + 1 - len(prompt))
        self.silence_row = self.layout.silence_row(prompt)
        if self.limit < 1:
            raise UsageError(
                f"a prompt of {len(prompt)} tokens cannot be decoded: expected one that leaves room within "
                f"{options.n_text_ctx} positions; shorten the prompt"
            )
        # The end of text needs no row of its own: the row before it decides it, and nothing follows it.
        self.useless = self.rules.forbidden | {self.layout.eot}
        self.tally = Tally()
        self._draft_s_before = guard.seconds
        self._no_speech_prob = float("nan") if self.layout.no_speech is not None else 0.0

    def saw_pass(self, ran: Ran, waited_s: float, n_texts: int) -> None:
        """A pass over some beams was run."""
        self.tally.passes += 1
        self.tally.count_run(ran, waited_s, n_texts=n_texts)

    def prefill(self, state: State, n_kept: int) -> Decoding[Logits]:
        """Run the prompt and keep its first `n_kept` rows. Returns the logits behind its last row, f32[n_vocab]."""
        started = time.perf_counter()
        last_row = len(self.prompt) - 1
        ran = yield ((state, self.prompt, [last_row if self.silence_row is None else self.silence_row, last_row]),)
        self.tally.count_run(ran, time.perf_counter() - started)
        (rows,) = ran.logits
        self.read_silence(rows[0])
        if n_kept:
            self.engine.commit(state, n_kept)
        last: Logits = rows[1]
        return last

    def read_silence(self, sot_row: Logits) -> None:
        """Take the probability of silence from the unfiltered logits of the row that tells it, f32[n_vocab]."""
        if self.layout.no_speech is not None:
            self._no_speech_prob = float(softmax(sot_row)[self.layout.no_speech])

    def result(self, best: Hypothesis) -> WindowResult:
        """The window's result."""
        guard = self.guard
        return WindowResult(
            **{each.name: getattr(best, each.name) for each in fields(Hypothesis)},
            avg_logprob=best.sum_logprob / (len(best.tokens) + 1),
            no_speech_prob=self._no_speech_prob,
            temperature=self.options.temperature,
            speculation=self.tally.result(
                guard.name,
                lossless=self.options.acceptance.lossless
                and self.rules.bias is self.rules.only is None
                and self.engine.is_exact is not False,
                draft_s=guard.seconds - self._draft_s_before,
                choice=guard.choice,
            ),
        )
