"""One step of training and the state between steps: stages, losses, learning rate, running mean of the weights.

First the encoder learns characters by CTC alone, with light acoustics. Then the decoder joins, mostly on short windows,
its cross-attention guided by the spelling (`attention_loss`). Then everything, with harder acoustics. A model that
starts from a checkpoint begins with the last stage; the CTC and clock heads, which are no part of a checkpoint, first
learn alone. With `Plan.decoder_only` only the decoder's layers change, and the checkpoint's own probabilities are kept
where they are right, so that drafts and heads made for it still fit. With `Plan.n_ahead` hidden rows also learn to
predict later tokens, for heads to read. The running mean of the weights is exported.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch import Tensor, nn

from specedge.errors import UsageError
from specedge.export.training.corpus import list_lines
from specedge.export.training.labels import IGNORE, SPELLING_NAME, read_spelling
from specedge.export.training.nets import spaced_layers

from . import augment
from .data import Batch, Mix, Pool, collate
from .german import german_lines
from .labels import Vocabulary, tokenizer_of
from .network import MODELS, LogMel, Net, Size, clock_loss, ctc_loss, export, take_weights, token_loss
from .speech import DIGITS

__all__ = [
    "Ahead",
    "Plan",
    "Progress",
    "Team",
    "Trainer",
    "attention_loss",
    "demo_vocabulary",
    "gather",
    "guided_layers",
    "token_frames",
    "viterbi",
    "watch_attention",
]


@dataclass(frozen=True)
class Team:
    """One of several processes that take a training step together, each on its own batch, and average their gradients.

    On two cores two processes of one thread train faster than one of two threads: a small model's operations are too
    short to share out. rank: 0 leads; slots: the gradients, float32 [n_processes, n_parameters] in shared memory;
    pipes: the leader's to every other process, another's to the leader. A process that dies ends the others by its
    pipe.
    """

    rank: int
    slots: torch.Tensor
    pipes: tuple[Connection, ...]

    def average(self, parameters: Sequence[torch.Tensor]) -> None:
        """Replace the gradients by their mean over the processes. Raises EOFError when another one is gone."""
        mine, at = self.slots[self.rank], 0
        for parameter in parameters:
            piece = mine[at : at + parameter.numel()].view_as(parameter)
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(parameter.grad)
            at += parameter.numel()
        if self.rank == 0:
            for pipe in self.pipes:
                pipe.recv()
            self.slots[0] = self.slots.mean(0)
            for pipe in self.pipes:
                pipe.send(None)
        else:
            self.pipes[0].send(None)
            self.pipes[0].recv()
        at = 0
        for parameter in parameters:
            piece = self.slots[0][at : at + parameter.numel()].view_as(parameter)
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(piece)
            at += parameter.numel()

    def agree(self, words: dict[str, Any]) -> dict[str, Any]:
        """What the leader says, in every process. Raises EOFError when the leader is gone."""
        if self.rank:
            return dict(self.pipes[0].recv())
        for pipe in self.pipes:
            pipe.send(words)
        return words


@contextmanager
def gather(n_processes: int, work: Callable[[Any, Team], None], task: Any, n_parameters: int) -> Iterator[Team | None]:
    """Start `n_processes` - 1 further processes that do `work(task, team)`; gives the leader's Team, None if alone."""
    if n_processes == 1:
        yield None
        return
    context = torch.multiprocessing.get_context("spawn")
    slots = torch.zeros(n_processes, n_parameters).share_memory_()
    pipes, others = [], []
    for rank in range(1, n_processes):
        here, there = context.Pipe()
        other = context.Process(target=work, args=(task, Team(rank, slots, (there,))), daemon=True)
        other.start()
        there.close()
        pipes.append(here)
        others.append(other)
    try:
        yield Team(0, slots, tuple(pipes))
    finally:
        for pipe in pipes:
            pipe.close()
        for other in others:
            other.join()


Frames = npt.NDArray[np.int64]
_MARGIN = 5  # frames of 20 ms on each side: a character is spelled late in its sound, or early
_LEAST_MASS = 1e-4


def viterbi(
    log_probs: npt.NDArray[np.float32], texts: Sequence[Sequence[int]], n_frames: Sequence[int]
) -> list[Frames]:
    """The frame at which each character of each text is first spelled, int64 [n_characters] for each sample.

    The likeliest CTC path over the text with blanks (Graves et al. 2006, section 4). log_probs: float32 [B, T,
    n_alphabet], blank first, of which the first `n_frames[i]` frames count. A text longer than its frames and an empty
    text give an empty array.
    """
    n_batch, n_all_frames, _ = log_probs.shape
    n_states = 2 * max((len(text) for text in texts), default=0) + 1
    symbols = np.zeros((n_batch, n_states), np.int64)
    skips = np.zeros((n_batch, n_states), bool)
    for i, text in enumerate(texts):
        symbols[i, 1 : 2 * len(text) : 2] = text
        skips[i, 3 : 2 * len(text) : 2] = np.asarray(text[1:]) != np.asarray(text[:-1])
    emit = np.take_along_axis(log_probs, np.repeat(symbols[:, None], n_all_frames, 1), 2)
    score = np.full((n_batch, n_states), -np.inf, np.float32)
    score[:, :2] = emit[:, 0, :2]
    came = np.zeros((n_all_frames, n_batch, n_states), np.int8)
    scores = [score]
    by_one, by_two = np.full_like(score, -np.inf), np.full_like(score, -np.inf)
    for at in range(1, n_all_frames):
        by_one[:, 1:] = score[:, :-1]
        by_two[:, 2:] = np.where(skips[:, 2:], score[:, :-2], -np.inf)
        best = np.maximum(score, by_one)
        came[at] = by_one > score
        came[at][by_two > best] = 2
        score = np.maximum(best, by_two) + emit[:, at]
        scores.append(score)
    return [_trace(scores, came, i, len(text), int(n_frames[i])) for i, text in enumerate(texts)]


def _trace(scores: list[Any], came: npt.NDArray[np.int8], sample: int, n_characters: int, n_frames: int) -> Frames:
    last = n_frames - 1
    state = 2 * n_characters
    if n_characters and scores[last][sample, state - 1] > scores[last][sample, state]:
        state -= 1
    if not n_characters or not np.isfinite(scores[last][sample, state]):
        return np.zeros(0, np.int64)
    reached = np.zeros(n_characters, np.int64)
    for at in range(last, -1, -1):
        if state % 2:
            reached[state // 2] = at
        state -= int(came[at, sample, state])
    return reached


def token_frames(reached: Sequence[Frames], spans: Frames, targets: Frames, first_stamp: int, n_stamps: int) -> Frames:
    """The frames [first, last + 1) where each target is heard, int64 [B, L, 2]; both 0 where that is not known.

    reached: from `viterbi`; spans: each target's first and last character, int64 [B, L, 2], -1 for none. A timestamp
    names its own frame.
    """
    frames = np.zeros((*targets.shape, 2), np.int64)
    for i, places in enumerate(reached):
        known = (targets[i] != IGNORE) & (spans[i, :, 0] >= 0)
        if places.size:
            frames[i, known, 0] = np.maximum(places[spans[i, known, 0]] - _MARGIN, 0)
            frames[i, known, 1] = places[spans[i, known, 1]] + _MARGIN + 1
    is_stamp = (targets >= first_stamp) & (targets < first_stamp + n_stamps)
    frames[is_stamp, 0] = np.maximum(targets[is_stamp] - first_stamp - 2 * _MARGIN, 0)
    frames[is_stamp, 1] = targets[is_stamp] - first_stamp + 2 * _MARGIN + 1
    return frames


def guided_layers(n_layers: int) -> range:
    """The decoder layers whose cross-attention is guided: all but the first third, which gathers the text."""
    return range(n_layers // 3, n_layers)


@contextmanager
def watch_attention(layers: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Collect the cross-attention weights [B, n_heads, L, T] of these decoder layers while the block runs."""
    found: list[Tensor] = []
    handles = [
        layer.encoder_attn.register_forward_hook(lambda _module, _given, out: found.append(out[1])) for layer in layers
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def attention_loss(attention: Sequence[Tensor], frames: Frames) -> Tensor:
    """Mean over the known targets of -log(share of a head's attention in their `frames`), for half of the heads.

    Without it a small decoder finds the first sentence of a window and guesses the others. Only for encoders that spell
    well already: a wrong spelling gives wrong frames.
    """
    bounds = torch.from_numpy(frames).to(attention[0].device)
    n_frames = attention[0].shape[-1]
    known = bounds[..., 1] > bounds[..., 0]
    if not bool(known.any()):
        return attention[0].sum() * 0.0
    at = torch.arange(n_frames)
    inside = ((at >= bounds[..., :1]) & (at < bounds[..., 1:]))[known]
    loss = torch.zeros(())
    for weights in attention:
        n_heads = max(1, weights.shape[1] // 2)
        share = (weights[:, :n_heads].transpose(1, 2)[known] * inside[:, None]).sum(-1)
        loss = loss - share.float().clamp(min=_LEAST_MASS).log().mean()
    return loss / len(attention)


_LATER_WEIGHT = 0.2


class Ahead(nn.Module):
    """`n_ahead` maps [d, d] of hidden rows, first the identity: map k predicts the token k + 1 places behind the next.

    A decoder trained on next tokens alone keeps little for heads to read (latent heads of Raj et al., Faster
    Speech-LLaMA, section III; their loss weights are equation 11's). The maps are no part of a checkpoint: `specedge
    train heads` makes those that are used.
    """

    def __init__(self, n_ahead: int, d: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(n_ahead))
        for one in self.maps:
            nn.init.eye_(one.weight)

    def loss(self, hidden: Tensor, vocabulary: Tensor, targets: Tensor) -> Tensor:
        """The weighted sum of the maps' mean cross-entropies.

        `hidden` [B, L, d]; `vocabulary` [n_rows, d], which learns nothing here; `targets` int64 [B, L], the next token
        at each row or IGNORE.
        """
        total = torch.zeros(())
        vocabulary = vocabulary.detach()
        for at, one in enumerate(self.maps):
            later = targets[:, at + 1 :]
            wanted = (later != IGNORE) & (targets[:, : later.shape[1]] != IGNORE)
            if not wanted.any():
                continue
            logits = one(hidden[:, : later.shape[1]][wanted]) @ vocabulary.T
            total = total + _LATER_WEIGHT * F.cross_entropy(logits.float(), later[wanted])
        return total


_HEADS_RATE = 3e-3
# Times and later sentences are found by position: an encoder that forgets it leads the decoder to beginnings only.
_CLOCK_WEIGHT = 3.0
_GUIDE_WEIGHT, _STAMP_WEIGHT = 1.0, 4.0  # of timestamps where all windows are full


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Options of one run.

    settle_steps: how long the training heads of a model from a checkpoint leave its encoder alone, and its warm-up;
    mean_decay: share of the running mean that a step keeps, less in the first steps; decoder_only: train the decoder's
    layers alone, with the checkpoint that they come from as the teacher; full_windows: with that, few short windows,
    and timestamps weigh more; n_ahead: later tokens that hidden rows learn to predict.
    """

    size: Size
    seed: int = 1
    learning_rate: float = 1.5e-3
    warm_up: int = 300
    align_steps: int = 2000
    align_until: float = 0.55
    ease_steps: int = 3000
    ease_until: float = 0.9
    ramp_steps: int = 3000
    settle_steps: int = 150
    strength: float = 0.7
    mean_decay: float = 0.995
    save_minutes: float = 4.0
    decoder_only: bool = False
    full_windows: bool = False
    n_ahead: int = 0


@dataclass
class Progress:
    """Steps done, fraction of the schedule, running losses, and the steps at which stages ended.

    aligned_at: the encoder spelled well enough; eased_at: the decoder listened; continued: the weights came from a
    checkpoint.
    """

    step: int = 0
    fraction: float = 0.0
    aligned_at: int | None = None
    eased_at: int | None = None
    ctc: float = 5.0
    token: float = 0.0
    clock: float = 1.0
    guide: float = 3.0
    continued: bool = False


def demo_vocabulary(size: Size) -> Vocabulary:
    """The restricted vocabulary of all the lists of a model's language, whatever speech was synthesised."""
    encode = tokenizer_of(size.layout).encode
    ids = {198}
    if size.language == "de":
        for line in itertools.chain(*german_lines()):
            ids.update(encode(" " + line))
        return Vocabulary(size.tokens, ids, size.window_s)
    for name in ("maintenance.train", "maintenance.dev", "notes.train", "notes.dev"):
        for line in list_lines(name):
            ids.update(encode(" " + line))
    for word in DIGITS:
        ids.update(encode(f" {word} {word.capitalize()} {word}. {word.capitalize()}."))
    return Vocabulary(size.tokens, ids, size.window_s)


class Trainer:
    """A run in one folder: state, batches, steps. Everything random comes from seed, step number and worker.

    device: where steps run; batches are made on the CPU.
    """

    def __init__(
        self,
        plan: Plan,
        pool: Pool,
        out: Path,
        teacher: Net | None = None,
        team: Team | None = None,
        device: str = "cpu",
    ) -> None:
        self.plan, self.pool, self.out, self.team = plan, pool, out, team
        self._device = torch.device(device)
        self.vocabulary = demo_vocabulary(plan.size)
        torch.manual_seed(plan.seed)
        self.net = Net(plan.size, self.vocabulary).to(self._device)
        self.teacher = None if teacher is None else teacher.to(self._device)
        self.progress = Progress()
        if teacher is not None and plan.size.shares:
            self._share(teacher)
        elif teacher is not None and plan.decoder_only:
            self._keep(teacher)
        self.ahead = Ahead(plan.n_ahead, plan.size.d_model).to(self._device)
        self.mean = copy.deepcopy(self.net).requires_grad_(False)
        self.mel = LogMel(augment.warped_filters(plan.size.tokens.n_mels)).to(self._device)
        groups = [
            [p for p in module.parameters() if p.requires_grad]
            for module in (self.net.whisper, self.net.ctc, self.net.clock, self.ahead)
        ]
        self.parameters = [p for group in groups for p in group]
        self.optimizer = torch.optim.AdamW(
            [{"params": group} for group in groups if group],
            lr=plan.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=0.01,
            fused=True,
        )

    def _share(self, teacher: Net) -> None:
        """Take the teacher's encoder, frozen, its tables, and evenly spaced decoder layers (first and last kept)."""
        mine, theirs = self.net.whisper.model, teacher.whisper.model
        mine.encoder.load_state_dict(theirs.encoder.state_dict())
        mine.encoder.requires_grad_(False)
        for name in ("ctc", "clock"):
            getattr(self.net, name).load_state_dict(getattr(teacher, name).state_dict())
            getattr(self.net, name).requires_grad_(False)
        for name in ("embed_tokens", "embed_positions", "layer_norm"):
            getattr(mine.decoder, name).load_state_dict(getattr(theirs.decoder, name).state_dict())
        chosen = spaced_layers(len(mine.decoder.layers), len(theirs.decoder.layers))
        for at, source in enumerate(chosen):
            mine.decoder.layers[at].load_state_dict(theirs.decoder.layers[source].state_dict())
        self.progress.aligned_at = self.progress.eased_at = 0

    def _keep(self, teacher: Net) -> None:
        """Begin as the teacher, its encoder, tables and training heads frozen."""
        self.net.load_state_dict(teacher.state_dict())
        decoder = self.net.whisper.model.decoder
        tables = (decoder.embed_tokens, decoder.embed_positions)
        for module in (self.net.whisper.model.encoder, self.net.ctc, self.net.clock, *tables):
            module.requires_grad_(False)
        self.progress.aligned_at = self.progress.eased_at = 0
        self.progress.continued = True

    def begin_from(self, folder: Path) -> None:
        """Start from a checkpoint in Hugging Face layout. Raises UsageError when it is not of this size."""
        take_weights(self.net, self.vocabulary, folder)
        self.mean.load_state_dict(self.net.state_dict())
        self.progress.aligned_at = self.progress.eased_at = 0
        self.progress.continued = True

    # -- one step ---------------------------------------------------------------------------------------------------

    def mix(self) -> Mix:
        """What the current step draws from, by stage."""
        done = self.progress
        if done.aligned_at is None:
            return Mix(timestamps=0.0, strength=0.0)
        if self.plan.full_windows:
            return Mix(short=0.1, packed=0.3, padded=0.1, prompted=0.5, timestamps=0.85, strength=0.4, n_short=32)
        if self.plan.decoder_only and done.fraction < 0.6:
            return Mix(short=0.6, packed=0.12, padded=0.12, prompted=0.16, timestamps=0.6, strength=0.6, n_short=32)
        if self.plan.decoder_only:  # without full windows behind a text at the end, long recordings get worse
            return Mix(short=0.2, packed=0.25, padded=0.15, prompted=0.4, timestamps=0.75, strength=0.4, n_short=32)
        if done.eased_at is None:
            return Mix(short=0.9, packed=0.05, padded=0.05, timestamps=0.25, strength=0.15)
        ramp = 1.0 if done.continued else min(1.0, (done.step - done.eased_at) / self.plan.ramp_steps)
        strength = 0.2 + (self.plan.strength - 0.2) * ramp
        if done.fraction < 0.6 and not done.continued:
            return Mix(short=0.6, packed=0.2, padded=0.15, prompted=0.05, strength=strength)
        if done.fraction < 0.7:
            return Mix(short=0.2, packed=0.22, padded=0.18, prompted=0.4, timestamps=0.65, strength=strength)
        # In a long recording nearly every window is full and comes behind a text.
        return Mix(short=0.1, packed=0.3, padded=0.1, prompted=0.5, timestamps=0.75, strength=strength)

    def settling(self) -> bool:
        """Whether the training heads beside weights from a checkpoint still learn alone."""
        is_new = self.progress.continued and not self.plan.decoder_only
        return is_new and self.progress.step < self.plan.settle_steps

    def rate(self) -> float:
        """Learning rate: linear warm-up by steps, then a cosine over the fraction down to 2 %."""
        plan = self.plan
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.progress.fraction)))
        warm_up = plan.settle_steps if self.progress.continued else plan.warm_up
        return plan.learning_rate * min(1.0, (self.progress.step + 1) / warm_up) * (0.98 * cosine + 0.02)

    def heads_rate(self) -> float:
        """Learning rate of the training heads; high beside weights from a checkpoint, so that they catch up."""
        if not self.progress.continued:
            return self.rate()
        return _HEADS_RATE if self.settling() else _HEADS_RATE * self.rate() / self.plan.learning_rate

    def _inputs(self, batch: Batch, strength: float) -> torch.Tensor:
        worker = 0 if self.team is None else self.team.rank
        generator = torch.Generator(self._device)
        generator.manual_seed(self.plan.seed * 1_000_003 + 64 * self.progress.step + worker)
        n = len(batch.samples)
        middle = len(augment.WARPS) // 2
        reach = round(middle * (0.35 + 0.65 * strength))
        which = torch.randint(middle - reach, middle + reach + 1, (n,), generator=generator)
        with torch.no_grad():
            samples, louder, ends = (self._put(part) for part in (batch.samples, batch.louder, batch.n_frames))
            mel = self.mel(samples, which, louder=louder, ends=ends)
            if strength > 0.3:
                augment.mask(mel, batch.n_content.tolist(), generator)
        return mel

    def _put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """An array of the batch, on the device."""
        return torch.from_numpy(array).to(self._device)

    def step(self) -> None:
        """One batch forward and back. The caller sets `progress.fraction`."""
        done, plan = self.progress, self.plan
        mix = self.mix()
        batch = collate(
            plan.seed,
            done.step,
            self.pool,
            mix,
            self.vocabulary,
            window_samples=round(plan.size.window_s * 16000),
            n_ctx=plan.size.n_text_ctx,
            worker=0 if self.team is None else self.team.rank,
        )
        torch.manual_seed(plan.seed * 7_919 + done.step)
        self.net.train()
        with self._device:
            mel = self._inputs(batch, mix.strength)
            with torch.autocast(self._device.type, torch.bfloat16):
                loss = self._loss(batch, mel)
        self.optimizer.zero_grad()
        loss.backward()
        if self.team is not None:
            self.team.average(self.parameters)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.param_groups[0]["lr"] = self.rate()
        for group in self.optimizer.param_groups[1:]:
            group["lr"] = self.heads_rate()
        self.optimizer.step()
        self._blend()
        done.step += 1
        if done.aligned_at is None and (done.ctc < plan.align_until or done.step >= plan.align_steps):
            done.aligned_at = done.step
        elif done.aligned_at is not None and done.eased_at is None:
            if 0 < done.token < plan.ease_until or done.step - done.aligned_at >= plan.ease_steps:
                done.eased_at = done.step

    def _loss(self, batch: Batch, mel: torch.Tensor) -> torch.Tensor:
        done = self.progress
        frozen = self.plan.size.shares is not None or self.plan.decoder_only
        with torch.set_grad_enabled(not frozen):
            features = self.net.encode(mel)
        heard = features.detach() if self.settling() else features
        loss = torch.zeros(())
        n_spelled = self._put(batch.n_spelled)
        spelling = self.net.ctc(heard).float()
        if not frozen:
            loss = ctc_loss(spelling, batch.characters, n_spelled)
            if batch.kind == "short":
                done.ctc += 0.03 * (float(loss.detach()) - done.ctc)
        if done.aligned_at is None:
            return loss
        rows, targets, position = (self._put(part) for part in (batch.tokens, batch.targets, batch.position))
        layers = self.net.whisper.model.decoder.layers
        with watch_attention([layers[at] for at in guided_layers(len(layers))]) as attention:
            hidden = self.net.hidden(rows, features, position)
        logits = self.net.logits(hidden)
        tokens = token_loss(self.net, logits, targets, stamp_weight=_STAMP_WEIGHT if self.plan.full_windows else 1.0)
        now = float(tokens.detach())
        done.token = done.token + 0.03 * (now - done.token) if done.token else now
        loss = loss + tokens + self.ahead.loss(hidden, self.net.whisper.model.decoder.embed_tokens.weight, targets)
        if not self.settling():
            guide = attention_loss(attention, self._places(batch, spelling))
            done.guide += 0.03 * (float(guide.detach()) - done.guide)
            loss = loss + _GUIDE_WEIGHT * guide
        if not frozen:
            clock = clock_loss(self.net, heard)
            done.clock += 0.03 * (float(clock.detach()) - done.clock)
            loss = loss + _CLOCK_WEIGHT * clock
        if self.teacher is not None and self.teacher.size.layout == self.plan.size.layout:
            with torch.no_grad():
                known = features if frozen else self.teacher.encode(mel)
                wanted = F.log_softmax(self.teacher.decode(rows, known, position).float(), -1)
            keep = targets >= 0
            if self.plan.decoder_only:  # times may move, and so may tokens that the teacher has wrong
                keep &= (targets < self.net.first_stamp) & (wanted.argmax(-1) == targets)
            far = F.kl_div(F.log_softmax(logits.float(), -1)[keep], wanted[keep], reduction="sum", log_target=True)
            loss = loss + far / keep.sum().clamp(min=1)
        return loss

    def _places(self, batch: Batch, spelling: torch.Tensor) -> npt.NDArray[np.int64]:
        """`token_frames` by what the encoder spells now: int64 [B, L, 2]."""
        log_probs = torch.log_softmax(spelling.detach(), -1).cpu().numpy()
        reached = viterbi(log_probs, batch.characters, batch.n_spelled.tolist())
        return token_frames(reached, batch.spans, batch.targets, self.net.first_stamp, self.net.n_stamps)

    def _blend(self) -> None:
        """Move the running mean towards the weights."""
        n = self.progress.step
        decay = min(self.plan.mean_decay, (1 + n) / (10 + n))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.mean.parameters()), list(self.net.parameters()), 1 - decay)

    # -- the folder -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Replace state.pt, then the Hugging Face folder, which gets the running mean."""
        self.out.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.plan.size.name,
            "decoder_only": self.plan.decoder_only,
            "net": self.net.state_dict(),
            "mean": self.mean.state_dict(),
            "ahead": self.ahead.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": vars(self.progress),
        }
        torch.save(state, self.out / "state.tmp")
        os.replace(self.out / "state.tmp", self.out / "state.pt")
        export(self.mean, self.vocabulary, self.out / "hf")

    def load(self) -> bool:
        """Go on from the state of an earlier call, if there is one. Raises UsageError if its options differ."""
        path = self.out / "state.pt"
        if not path.exists():
            return False
        state = torch.load(path, map_location=self._device, weights_only=True)
        if state["model"] != self.plan.size.name:
            raise UsageError(f"{path} holds {state['model']}, asked for {self.plan.size.name}; use another --out")
        if state.get("decoder_only", False) != self.plan.decoder_only:
            raise UsageError(f"{path}: only one of it and this run is with --decoder-only; use another --out")
        if len(state.get("ahead", ())) != self.plan.n_ahead:
            raise UsageError(
                f"{path}: guesses {len(state.get('ahead', ()))} tokens ahead, asked for {self.plan.n_ahead}"
            )
        self.net.load_state_dict(state["net"])
        self.mean.load_state_dict(state["mean"])
        self.ahead.load_state_dict(state.get("ahead", {}))
        self.optimizer.load_state_dict(state["optimizer"])
        known = {field.name for field in fields(Progress)}
        self.progress = Progress(**{name: value for name, value in state["progress"].items() if name in known})
        return True


def load_checkpoint(folder: Path, size: Size, *, needs_spelling: bool = True) -> Net:
    """A checkpoint in Hugging Face layout as a restricted, frozen Net, with the CTC head beside it.

    Raises UsageError when it is not of this size or lacks a needed head, CheckpointError for a head that is broken.
    """
    vocabulary = demo_vocabulary(size)
    net = Net(size, vocabulary)
    take_weights(net, vocabulary, folder)
    spelling = read_spelling(folder)
    if spelling is not None and spelling.weight.shape == net.ctc.weight.shape:
        net.ctc.load_state_dict({"weight": spelling.weight, "bias": spelling.bias})
    elif needs_spelling:
        raise UsageError(f"{folder}: no {SPELLING_NAME} of this size; only checkpoints of this recipe have one")
    net.eval().requires_grad_(False)
    return net


def load_teacher(folder: Path, draft: Size) -> Net:
    """The target as a restricted, frozen Net, from its run folder's state.pt. Raises UsageError if it is not there."""
    path = folder / "state.pt"
    if not path.is_file():
        raise UsageError(f"{path}: not found; --teacher names the --out folder of the target's training")
    state = torch.load(path, map_location="cpu", weights_only=True)
    size = MODELS[state["model"]]
    if size.layout != draft.layout:
        raise UsageError(f"{path}: layout {size.layout}; this draft needs a teacher of its own layout")
    net = Net(size, demo_vocabulary(size))
    net.load_state_dict(state["mean"])
    net.eval().requires_grad_(False)
    return net
