"""Fine-tune heads by minimum word error rate (Raj et al., Faster Speech-LLaMA, section III-B, eqs. 6 and 12).

For each window the N best hypotheses of the threshold beam (`grouped_beam`) are found once with the heads as they
are. The loss is the expected number of word errors over them: each hypothesis weighs what its log-probability makes of
it, renormalised over the list, where a token counts with the log-probability of who gave it (eq. 12); the model's own
part is frozen. Errors are counted against the target's own text, for there are no transcripts, less their mean; the
heads' cross-entropy on that text keeps them from forgetting. Every tenth window is held out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from specedge.errors import UsageError
from specedge.runtime.decoding.drafter import Guard
from specedge.runtime.decoding.passes import alone
from specedge.runtime.decoding.window import Window
from specedge.runtime.papers.grouped_beam import Emitted, Groups, Guess
from specedge.runtime.text.words import edit_distance

from ..checkpoint import open_checkpoint, open_heads
from ..training.early_stopping import EarlyStopping, Plan
from ..training.features import Course, HiddenText, RowRecorder, Target, bundle_of, whole_window
from ..training.nets import HeadNet
from .train_heads import (
    check_name,
    features_of,
    losses_of_heads,
    net_of,
    rows_and_labels,
    token_table,
    write_heads,
)

F32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class MwerPlan(Plan):
    """How to fine-tune: lists of `beam_size` hypotheses with heads believed from `tau` on; ce_weight: of the heads'
    cross-entropy beside the expected errors. The learning rate is the paper's."""

    beam_size: int = 4
    tau: float = 0.5
    ce_weight: float = 0.01
    steps: int = 200
    n_batch: int = 8
    learning_rate: float = 5e-5
    warm_up: int = 10
    every: int = 20
    patience: int = 3
    optimizer: str = "adamw"


@dataclass(frozen=True, kw_only=True)
class NBest(HiddenText):
    """A window's hypotheses with their word errors, beside the target's own text."""

    hypotheses: tuple[tuple[Emitted, int], ...]


def guesses_of(net: HeadNet, tokens: Sequence[int], features: F32) -> Guess:
    """What the heads of `net`, whose vocabulary is `tokens`, say in a window with this encoder output."""
    heard = torch.from_numpy(np.ascontiguousarray(features))[None] if net.block is not None else None
    known = np.array(tokens, np.int64)

    def guess(hidden: F32, n_choices: int) -> tuple[NDArray[np.int64], F32]:
        with torch.no_grad():
            rows = hidden if heard is not None else hidden[-1:]
            last = net.rows(torch.from_numpy(np.ascontiguousarray(rows))[None], heard)[0, -1:]
            shares = torch.cat([F.softmax(net.logits(last, head), -1) for head in range(net.n_heads)])
            probs, places = shares.topk(min(n_choices, len(known)))
        return known[places.numpy()], probs.numpy()

    return guess


def nbest_of(
    target: Target, samples: F32, source: int, net: HeadNet, tokens: Sequence[int], plan: MwerPlan
) -> NBest | None:
    """The list of a window, which is number `source`; None where the target is not sure of its own text."""
    engine = target.engine
    heard = target.encode(samples)
    recorder = RowRecorder()
    prompt, own = target.say(heard, target.language_of(heard), recorder=recorder)
    if recorder.rows is None or not target.is_sure(own):
        return None
    options = replace(target.options(), beam_size=plan.beam_size)
    window = Window(engine, heard, tuple(prompt), options, Guard(), 1)
    search = Groups(window, guesses_of(net, tokens, heard.hidden), plan.tau)
    state = engine.start(heard, keeps_hidden=True)
    try:
        row = engine.forward(state, prompt, [len(prompt) - 1])[0]
        engine.commit(state, len(prompt))
        found = alone(engine, search.run(state, row))
    finally:
        engine.release(state)
    words = _words(target, own.tokens)
    return NBest(
        hypotheses=tuple((one, edit_distance(words, _words(target, one.tokens))) for one in found),
        ids=(*prompt, *own.tokens, target.manifest.tokens.eot),
        n_prompt=len(prompt),
        hidden=recorder.rows.astype(np.float16),
        features=whole_window(heard).astype(np.float16),
        source=source,
    )


def _words(target: Target, ids: Sequence[int]) -> list[str]:
    return re.findall(r"\w+(?:'\w+)?", target.text(ids).decode("utf-8", "replace").lower())


class MwerTrainer(EarlyStopping[NBest, HeadNet]):
    """Fine-tuning in `folder`, which keeps `KIND-mwer.pt`, the resumable state.

    places: of each token in the heads' vocabulary (`token_table`). `figures`: expected word errors of a held-out
    hypothesis, and the cross-entropy.
    """

    def __init__(
        self, plan: MwerPlan, net: HeadNet, lists: Sequence[NBest], places: NDArray[np.int64], folder: Path
    ) -> None:
        self._plan, self._places = plan, places
        super().__init__(plan, net, lists, folder / f"{net.kind}-mwer.pt", optimizer=plan.optimizer)

    def loss(self, batch: Sequence[NBest]) -> Tensor:
        errors, entropy = self._terms(batch)
        return errors + self._plan.ce_weight * entropy

    def measure(self, batch: Sequence[NBest]) -> tuple[Tensor, Tensor]:
        return torch.stack(self._terms(batch, centred=False)), torch.tensor(len(batch))

    def judgement(self, means: Tensor) -> tuple[float, list[float]]:
        errors, entropy = means.tolist()
        return errors + self._plan.ce_weight * entropy, [errors, entropy]

    def _terms(self, batch: Sequence[NBest], *, centred: bool = True) -> tuple[Tensor, Tensor]:
        """Expected word errors and the heads' mean cross-entropy, means over the lists."""
        features = features_of(batch) if self.net.block is not None else None
        seen = [None] * len(batch) if features is None else features[:, None]
        errors = torch.stack([self._expected(*one, centred=centred) for one in zip(batch, seen, strict=True)]).mean()
        own, labels = rows_and_labels(batch, self._places, self.net.n_heads)
        heads = losses_of_heads(self.net, own, own, features, labels, kl_weight=0.0)
        return errors, torch.stack([head.loss for head in heads]).mean()

    def _expected(self, one: NBest, features: Tensor | None, *, centred: bool) -> Tensor:
        """Word errors that a hypothesis drawn from the list has, less the list's mean where `centred`."""
        scores = torch.stack([self._score(found, one.n_prompt, features) for found, _ in one.hypotheses])
        wrong = torch.tensor([float(n_errors) for _, n_errors in one.hypotheses])
        return (F.softmax(scores, 0) * (wrong - wrong.mean() if centred else wrong)).sum()

    def _score(self, found: Emitted, n_prompt: int, features: Tensor | None) -> Tensor:
        """The log-probability of a hypothesis: of each token that of whoever gave it (eq. 12)."""
        emitters = np.array(found.emitters)
        total = torch.tensor(float(np.array(found.token_logprobs)[emitters == 0].sum()))
        if not emitters.any():
            return total
        rows = self.net.rows(torch.as_tensor(found.hidden)[None], features)[0]
        for emitter in sorted(set(found.emitters) - {0}):
            at = np.flatnonzero(emitters == emitter)
            logits = self.net.logits(rows[torch.as_tensor(n_prompt + at - emitter - 1)], emitter - 1)
            places = torch.as_tensor(self._places[np.array(found.tokens)[at]])
            total = total + F.log_softmax(logits, -1).gather(1, places[:, None]).sum()
        return total


def fine_tune_heads(course: Course, out: Path, heads: Path, **plan_of: Any) -> str:
    """Fine-tune the heads in the file `heads` by minimum word error rate, and write them to `out`.

    plan_of: fields of `MwerPlan`.

    Raises as `train_heads`, and UsageError for heads of a layout that is not trained here.
    """
    plan = MwerPlan(**plan_of)
    check_name(out, heads)
    with open_checkpoint(course.source) as checkpoint:
        given = open_heads(heads, checkpoint.spec)
        if given.tokens is None or given.spec.n_layers > 1:
            raise UsageError(f"{heads}: expected heads that `specedge train heads` has written")
        tokens = given.tokens.tolist()
        net = net_of(checkpoint, given.spec.kind, given.spec.n_heads, tokens)
        net.load_named(given.weights)
        torch.set_num_threads(course.n_threads)
        bundle = bundle_of(course.source, course.work)
        target = course.target(bundle)
        windows = course.timed("search", course.windows(bundle, plan.seed))
        found = [nbest_of(target, samples, number, net.eval(), tokens, plan) for number, samples in windows]
        lists = [one for one in found if one is not None]
        trainer = MwerTrainer(plan, net, lists, token_table(tokens, checkpoint.spec.dims.n_vocab), course.work)
    trainer.run(f"fine-tune {given.spec.kind}", course.notify, course.device)
    write_heads(out, trainer.best, tokens)
    (before, entropy_before), (after, entropy_after) = trainer.first, trainer.figures
    return (
        f"{out}: {len(trainer.train)} windows, {trainer.step} steps; held out, expected word errors of a hypothesis "
        f"{before:.3f}, then {after:.3f}; cross-entropy {entropy_before:.3f}, then {entropy_after:.3f}"
    )
