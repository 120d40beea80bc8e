"""Drafts from a smaller model that hears the same window: a Whisper of any version or vocabulary, or a speech LLM of
the target's own layout.

The draft decodes greedily at every temperature, unless told to draw, under its own rules of Whisper and behind the
target's prompt and text in its own ids (`translate`). In the first window, and behind one without text, it waits until
a text has begun, so that silence is not heard. Its keys and values stay from draft to draft: rows of accepted
tokens are not run again, rows of refused ones are forgotten (`engine.draft_model`). Attempts at a window share one
hearing. `lookahead` says how long drafts are. A draft that learns has a student (`papers.distill`).

One draft model may serve several drafters, of other targets and in other threads. A drafter is used by one thread.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...bundle.manifest import SPEECH
from ...decoding.drafter import NO_GUESS, DraftContext, Drafter, DraftTree, Verdict, WindowContext
from ...decoding.rules import Logits, RuleSet
from ...decoding.statistics import Learning
from ...engine.draft_model import DraftModel, DraftText
from ...engine.session import Canceller
from ...registered import find
from .lookahead import DraftCost, Lookahead
from .translate import Reader, Translation

_FAR = np.float32(30)  # in nats: a vocabulary of tokens so far below adds nothing in float32
log = logging.getLogger(__name__)
_MORE_STEPS = 4  # draft tokens beyond the wanted ones, where several make one of the target's


class DraftModelDrafter(Drafter):
    """See the module.

    new_lookahead: makes the policy for greedy texts, and another for sampled ones, where drafts come true less often;
    cost: of drafting a token, which learns from the clock; waits: before the first window, too, for a text to begin;
    target_encoder: the fingerprint of the target's encoder; rules_for: the draft's rules with timestamps and without;
    canceller: the target's, which stops the draft too;
    warns: of windows that the draft cannot be asked for;
    draws: above temperature 0 tokens are drawn and say what from, for the acceptance rule `residual`;
    student: makes the draft learn between windows, None: it stays as it is.
    """

    name = "draft"
    wants_rows = False
    listens = False

    def __init__(
        self,
        model: DraftModel,
        translation: Translation,
        new_lookahead: Callable[[], Lookahead],
        cost: DraftCost,
        *,
        target_encoder: str,
        rules_for: Callable[[bool], RuleSet],
        canceller: Canceller | None = None,
        waits: bool = True,
        warns: bool = True,
        draws: bool = False,
        student: Any = None,
    ) -> None:
        self._model = model
        self.translation, self._cost = translation, cost
        self._lookaheads = (new_lookahead(), new_lookahead())
        self._lookahead = self._lookaheads[0]
        self._target_encoder, self._canceller, self._has_warned = target_encoder, canceller, not warns
        self._rules = {timestamps: rules_for(timestamps) for timestamps in (False, True)}
        self._draws, self.student = draws, student
        self.wants_rows = student is not None
        self.listens = model.encoder != target_encoder
        self._window: WindowContext | None = None
        self._prompt: list[int] = []
        self._text: DraftText | None = None
        self._heard: Any = None  # the target's features that `_text` is of
        self._confidences: list[float] = []
        self._signs: list[NDArray[np.float32]] = []
        self._n_sampled = 0
        self._was_empty = waits  # the last window; before the first one nobody knows

    @property
    def model(self) -> DraftModel:
        """The draft model. A reference to it keeps it loaded for the next drafter."""
        return self._model

    @property
    def rests(self) -> bool:
        """Whether nothing more is drafted in this window."""
        return self._window is None

    @property
    def learning(self) -> Learning | None:
        """Totals over all drafters of this draft and target; None for a draft that does not learn."""
        return None if self.student is None else self.student.course.counted

    def another(self) -> DraftModelDrafter:
        """One that shares the draft model and all that is learned; each text has passes of its own in it."""
        twin = copy.copy(self)
        twin._text, twin._heard = None, None
        twin._confidences, twin._signs = [], []
        twin.student = None if self.student is None else self.student.another()
        return twin

    def share(self, n_texts: int, n_rows: int) -> None:
        """Price rows as they are beside others."""
        for lookahead in self._lookaheads:
            lookahead.share(n_texts, n_rows)

    def begin(self, window: WindowContext) -> None:
        """Translate the prompt; another attempt at the same window keeps what was heard."""
        self._window = None
        if self._heard is not window.features:
            self._forget()
        if self.student is not None:
            self.student.begin(window)
        self._n_sampled = 0
        self._lookahead = self._lookaheads[window.temperature > 0]
        self._cost.plain_s = window.plain_s
        prompt = self._fitting(self.translation.prompt(window.prompt), window)
        if prompt is None:
            if not self._has_warned:
                log.warning(
                    "the draft %s does not know the language or task of every window; those are decoded without drafts",
                    self._model.bundle.manifest.name,
                )
            self._has_warned = True
            return
        self._window, self._prompt = window, prompt
        self._expect(prompt)

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """Return what the draft says next, as far as that is expected to pay."""
        window = self._window
        self._confidences, self._signs = [], []
        self._n_sampled = len(context.sampled)
        if window is None:
            return NO_GUESS
        is_silent = self._was_empty and self._text is None and not window.has_text(context.sampled)
        limit = 0 if is_silent else min(self._lookahead.limit(), budget)
        reader = self.translation.reader()
        if limit > 0:
            before, word = self.translation.before_word(context.sampled)
            if self.student is not None:
                self.student.draft(self.translation.text(context.sampled))
            with self._model.working_for(self._canceller):
                reader = self.translation.reader(word, is_start=not before)
                self._draft(window, before, reader, limit)
                if reader.differs:  # the target has another word: the draft goes on behind it
                    reader = self.translation.reader()
                    self._draft(window, self.translation.text(context.sampled), reader, limit)
        limit = self._lookahead.worth(reader.confidences[:limit])
        tokens, self._confidences = reader.tokens[:limit], reader.confidences[:limit]
        self._signs = self._of_tokens(reader)[:limit]
        return DraftTree(tokens, conf=self._confidences, drawn=reader.drawn[:limit] if self._draws else None)

    def observe(self, verdict: Verdict) -> None:
        """Learn from what came of the draft."""
        n_before = self._n_sampled
        self._n_sampled = n_before + verdict.n_accepted + 1
        if self._window is None:
            return
        if self.student is not None:
            self.student.observe(verdict, n_before)
        refused = verdict.rejected is not None
        self._lookahead.learn(self._confidences, len(verdict.nodes), refused=refused, signs=self._signs)
        self._confidences, self._signs = [], []

    def end(self, tokens: tuple[int, ...]) -> None:
        """Let the draft, its lookahead and its translation learn; only a kept text teaches the draft anything."""
        if self.student is not None:
            with self._model.working_for(self._canceller):
                for _ in range(self.student.end(tokens)):
                    self._lookahead.train()
        self._was_empty = self._window is None or not self._window.has_text(tokens)
        self._lookahead.end()
        if tokens:
            self.translation.end(tokens)
            self._expect(self.translation.text(tokens))

    def close(self) -> None:
        """Give back what was heard: nothing more is drafted in this window."""
        self._forget()
        self._window = None

    def _draft(self, window: WindowContext, sampled: Sequence[int], reader: Reader, limit: int) -> None:
        """Let the draft speak into `reader` until it has said `limit` tokens of the target's, or stops."""
        ids = [*self._prompt, *sampled]
        manifest = self._model.bundle.manifest
        rules = self._rules[manifest.tokens.asks_times(self._prompt)]
        n_room = manifest.dims.n_text_ctx
        while len(reader.tokens) < limit and len(ids) <= n_room and reader.n_read < limit + _MORE_STEPS:
            is_first = self._text is None
            text = self._hear(window)
            started = time.perf_counter()
            logits = text.follow(ids)
            rules.apply(logits, ids[len(self._prompt) :])
            if self._draws and window.temperature > 0:
                token, drawn = find("drawing", "draw")(logits, window.temperature, ids, window.key)
                probability = float(drawn[1][drawn[0] == token].sum())
                reader.push(token, probability, drawn)
            else:
                token = int(logits.argmax())
                probability = _probability(logits, token)
                reader.push(token, probability)
                if self.student is not None:
                    self.student.step(token, logits, text.hidden)
            if self._lookahead.wants_signs:
                is_timestamp = token >= manifest.tokens.timestamp_begin
                self._signs.append(self._lookahead.signs(logits, probability, text.hidden, is_timestamp=is_timestamp))
            ids.append(token)
            if not is_first:  # the first one reads the prompt too
                self._cost.saw(time.perf_counter() - started)
            goes_on = not reader.tokens or self._lookahead.goes_on(reader.confidences, self._of_tokens(reader))
            if reader.is_ended or not goes_on:
                break
        reader.finish()

    def _of_tokens(self, reader: Reader) -> list[NDArray[np.float32]]:
        """The signs of each of the target's tokens, where there are any."""
        return [self._signs[origin] for origin in reader.origins] if self._lookahead.wants_signs else []

    def _hear(self, window: WindowContext) -> DraftText:
        if self._text is None:
            features = self._model.hear(window.features, self._target_encoder, window.mel)
            student = self.student
            factors = None if student is None else student.course.factors
            gives_hidden = student is not None or self._lookahead.wants_signs
            self._text = DraftText(self._model, features, factors, gives_hidden=gives_hidden)
            self._heard = window.features
        return self._text

    def _expect(self, ids: Sequence[int]) -> None:
        with self._model.working_for(self._canceller):
            self._model.add_to_shortlist(ids)

    def _forget(self) -> None:
        if self._text is not None:
            with self._model.working_for(self._canceller):
                self._text.release()
        self._text, self._heard = None, None

    def _fitting(self, prompt: list[int] | None, window: WindowContext) -> list[int] | None:
        """`prompt` as the draft's context has room for it: the oldest text goes first."""
        if prompt is None:
            return None
        manifest = self._model.bundle.manifest
        if manifest.kind == SPEECH:  # no text so far is told
            return prompt
        start = prompt.index(manifest.whisper_tokens.sot)
        if not self._model.knows_prompts:
            return prompt[start:]
        n_room = manifest.dims.n_text_ctx // 2 - 1
        earlier = prompt[1:start][-n_room:] if start else []
        return [*(prompt[:1] if start else []), *earlier, *prompt[start:]]


def _probability(logits: Logits, token: int) -> float:
    """The probability of `token`, the likeliest, under the softmax of filtered logits f32[n_vocab].

    Far below it all tokens count alike, next to nothing: exp of minus infinity takes ten times as long.
    """
    peak = logits[token]
    return float(1.0 / np.exp(np.maximum(logits - peak, -_FAR)).sum()) if np.isfinite(peak) else 0.0
