"""Train the demo models: one command each, resumable by the same command.

    python -m specedge.export.training.train --model demo --speech SPEECH --out RUN --minutes 75
    python -m specedge.export.training.train --model demo-draft-same --teacher RUN/hf ...

SPEECH holds folders of shards (see speech.py): every folder but those named dev or digits-dev* is trained on. OUT gets
`state.pt` (the resumable state, replaced as a whole every few minutes), `hf/` (the model in Hugging Face layout,
rewritten with it), `log.jsonl` and `pid`. The schedule is a fraction of the way: by steps (`--steps`, reproducible) or
by the clock (`--minutes` or `--until`): then a time in which the process is stopped counts, and the learning rate still
ends at the end.

Stages: characters by CTC alone on the encoder with light acoustics, until the loss says it has aligned; then half CTC
and the decoder, mostly on short windows, until its loss says that it listens; then everything, with the acoustics
growing harder. This module knows the loop; batches and losses are others' business.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import time
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import click
import torch
import torch.nn.functional as F

from specedge.export.training import augment
from specedge.export.training.corpus import list_lines, load_shards
from specedge.export.training.data import Batch, Mix, Pool, collate
from specedge.export.training.layout import Vocabulary, tokenizer_of
from specedge.export.training.network import MODELS, LogMel, Net, Size, clock_loss, ctc_loss, export, token_loss
from specedge.export.training.speech import DIGITS
from specedge.export.training.voices import usable
from specedge.runtime.errors import SpecedgeError, UsageError

__all__ = ["Plan", "Progress", "Trainer", "demo_vocabulary"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Options of one run. Exactly one of `steps` and `minutes` gives its length."""

    size: Size
    steps: int | None = None
    minutes: float | None = None
    seed: int = 1
    learning_rate: float = 1.5e-3
    warm_up: int = 300
    align_steps: int = 2000
    align_until: float = 0.55
    ease_steps: int = 3000
    ease_until: float = 0.9
    ramp_steps: int = 3000
    strength: float = 0.7
    save_minutes: float = 4.0


@dataclass
class Progress:
    """Where a run is: steps done, fraction of the schedule, running losses, and when its stages ended.

    `aligned_at` is the step at which the encoder spelled well enough, `eased_at` the one at which the decoder listened.
    """

    step: int = 0
    fraction: float = 0.0
    aligned_at: int | None = None
    eased_at: int | None = None
    ctc: float = 5.0
    token: float = 0.0
    clock: float = 1.0


def demo_vocabulary(size: Size) -> Vocabulary:
    """The restricted vocabulary of all the demo lists: a fixed thing, whatever speech was synthesised."""
    encode = tokenizer_of(size.layout).encode
    ids = {198}
    for name in ("maintenance.train", "maintenance.dev", "notes.train", "notes.dev"):
        for line in list_lines(name):
            ids.update(encode(" " + line))
    for word in DIGITS:
        ids.update(encode(f" {word} {word.capitalize()} {word}. {word.capitalize()}."))
    return Vocabulary(size.tokens, ids, size.window_s)


class Trainer:
    """A run in one folder: state, batches, steps. Everything random comes from the seed and the step number."""

    def __init__(self, plan: Plan, pool: Pool, out: Path, teacher: Net | None = None) -> None:
        self.plan, self.pool, self.out = plan, pool, out
        self.vocabulary = demo_vocabulary(plan.size)
        torch.manual_seed(plan.seed)
        self.net = Net(plan.size, self.vocabulary)
        self.teacher = teacher
        self.progress = Progress()
        if teacher is not None and plan.size.shares:
            self._share(teacher)
        self.mel = LogMel(augment.warped_filters(plan.size.tokens.n_mels))
        self.parameters = [p for p in self.net.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )

    def _share(self, teacher: Net) -> None:
        """Take the teacher's encoder, frozen, its tables, and evenly spaced decoder layers (first and last kept)."""
        mine, theirs = self.net.whisper.model, teacher.whisper.model
        mine.encoder.load_state_dict(theirs.encoder.state_dict())
        mine.encoder.requires_grad_(False)
        self.net.ctc.requires_grad_(False)
        self.net.clock.requires_grad_(False)
        for name in ("embed_tokens", "embed_positions", "layer_norm"):
            getattr(mine.decoder, name).load_state_dict(getattr(theirs.decoder, name).state_dict())
        n_mine, n_theirs = len(mine.decoder.layers), len(theirs.decoder.layers)
        for at in range(n_mine):
            source = n_theirs - 1 if n_mine == 1 else round(at * (n_theirs - 1) / (n_mine - 1))
            mine.decoder.layers[at].load_state_dict(theirs.decoder.layers[source].state_dict())
        self.progress.aligned_at = self.progress.eased_at = 0

    # -- one step ---------------------------------------------------------------------------------------------------

    def mix(self) -> Mix:
        """What the current step draws from, by stage."""
        done = self.progress
        if done.aligned_at is None:
            return Mix(timestamps=0.0, strength=0.0)
        if done.eased_at is None:
            return Mix(short=0.9, packed=0.05, padded=0.05, timestamps=0.25, strength=0.15)
        ramp = min(1.0, (done.step - done.eased_at) / self.plan.ramp_steps)
        strength = 0.2 + (self.plan.strength - 0.2) * ramp
        if done.fraction < 0.6:
            return Mix(short=0.6, packed=0.2, padded=0.15, prompted=0.05, strength=strength)
        return Mix(short=0.3, packed=0.33, padded=0.32, prompted=0.05, strength=strength)

    def rate(self) -> float:
        """Learning rate: linear warm-up by steps, then a cosine over the fraction down to 2 %."""
        plan = self.plan
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.progress.fraction)))
        return plan.learning_rate * min(1.0, (self.progress.step + 1) / plan.warm_up) * (0.98 * cosine + 0.02)

    def _inputs(self, batch: Batch, strength: float) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + self.progress.step)
        n = len(batch.samples)
        middle = len(augment.WARPS) // 2
        reach = round(middle * (0.35 + 0.65 * strength))
        which = torch.randint(middle - reach, middle + reach + 1, (n,), generator=generator)
        with torch.no_grad():
            mel = self.mel(torch.from_numpy(batch.samples), which)
            if strength > 0.3 and batch.kind != "padded":
                _mask(mel, generator)
        return mel

    def step(self) -> None:
        """One batch forward and back. The caller moves the schedule's fraction."""
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
        )
        torch.manual_seed(plan.seed * 7_919 + done.step)
        mel = self._inputs(batch, mix.strength)
        self.net.train()
        with torch.autocast("cpu", torch.bfloat16):
            loss = self._loss(batch, mel)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.optimizer.step()
        done.step += 1
        if done.aligned_at is None and (done.ctc < plan.align_until or done.step >= plan.align_steps):
            done.aligned_at = done.step
        elif done.aligned_at is not None and done.eased_at is None:
            if 0 < done.token < plan.ease_until or done.step - done.aligned_at >= plan.ease_steps:
                done.eased_at = done.step

    def _loss(self, batch: Batch, mel: torch.Tensor) -> torch.Tensor:
        done = self.progress
        frozen = self.plan.size.shares is not None
        with torch.set_grad_enabled(not frozen):
            features = self.net.encode(mel)
        loss = torch.zeros(())
        if not frozen:
            loss = ctc_loss(self.net, features, batch.characters)
            if batch.kind == "short":
                done.ctc += 0.03 * (float(loss.detach()) - done.ctc)
        if done.aligned_at is None:
            return loss
        rows, targets = torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)
        position = torch.from_numpy(batch.position)
        logits = self.net.decode(rows, features, position)
        tokens = token_loss(self.net, logits, targets)
        now = float(tokens.detach())
        done.token = done.token + 0.03 * (now - done.token) if done.token else now
        loss = 0.5 * loss + tokens
        if not frozen:
            clock = clock_loss(self.net, features)
            done.clock += 0.03 * (float(clock.detach()) - done.clock)
            loss = loss + clock
        if self.teacher is not None and self.teacher.size.layout == self.plan.size.layout:
            with torch.no_grad():
                known = features if frozen else self.teacher.encode(mel)
                wanted = F.log_softmax(self.teacher.decode(rows, known, position).float(), -1)
            keep = targets >= 0
            loss = loss + F.kl_div(
                F.log_softmax(logits.float(), -1)[keep], wanted[keep], reduction="batchmean", log_target=True
            )
        return loss

    # -- the folder -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Replace state.pt, then the Hugging Face folder."""
        self.out.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.plan.size.name,
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": vars(self.progress),
        }
        torch.save(state, self.out / "state.tmp")
        os.replace(self.out / "state.tmp", self.out / "state.pt")
        export(self.net, self.vocabulary, self.out / "hf")

    def load(self) -> bool:
        """Take up the state of an earlier call, if there is one."""
        path = self.out / "state.pt"
        if not path.exists():
            return False
        state = torch.load(path, weights_only=True)
        if state["model"] != self.plan.size.name:
            raise UsageError(f"{path} holds {state['model']}, asked for {self.plan.size.name}; use another --out")
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        known = {field.name for field in fields(Progress)}
        self.progress = Progress(**{name: value for name, value in state["progress"].items() if name in known})
        return True


def _mask(mel: torch.Tensor, generator: torch.Generator) -> None:
    """SpecAugment, light: one band of mels and one stretch of frames of every sample set to the sample's mean."""
    n_mels, n_frames = mel.shape[1:]
    for sample in mel:
        draw = torch.rand(4, generator=generator)
        width, span = int(draw[0] * n_mels * 0.12), int(draw[1] * min(20, n_frames // 8))
        low, first = int(draw[2] * (n_mels - width)), int(draw[3] * (n_frames - span))
        mean = sample.mean()
        sample[low : low + width] = mean
        sample[:, first : first + span] = mean


def run(trainer: Trainer, speech: Path, deadline: float | None, steps: int | None) -> None:
    """Steps until the schedule's end or SIGTERM, with a log line every 50 steps and a save every few minutes."""
    known: set[str] = set()
    done, plan = trainer.progress, trainer.plan
    last = saved = time.time()
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    while done.fraction < 1.0 and not stop:
        if done.step % 250 == 0 or not known:
            known |= refresh(trainer.pool, speech, known)
        trainer.step()
        now = time.time()
        if steps is not None:
            done.fraction = done.step / steps
        elif deadline is not None:
            left = deadline - last
            done.fraction = 1.0 if now >= deadline else done.fraction + (1 - done.fraction) * (now - last) / left
        if done.step % 50 == 0:
            row = {name: round(v, 4) if isinstance(v, float) else v for name, v in vars(done).items()}
            row |= {"rate": trainer.rate(), "time": round(now, 1)}
            with open(trainer.out / "log.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            click.echo(f"{datetime.now():%H:%M:%S} {row}", err=True)
        last = now
        if now - saved > 60 * plan.save_minutes:
            trainer.save()
            saved = time.time()
    trainer.save()


def refresh(pool: Pool, speech: Path, known: set[str]) -> set[str]:
    """Add the shards that have appeared in the training folders since the last look."""
    found: set[str] = set()
    for folder in sorted({index.parent for index in speech.rglob("*.json")}):
        if folder.name == "dev" or folder.name.startswith("digits-dev"):
            continue
        for name, items in load_shards(folder, known=frozenset(known)):
            pool.add([item for item in items if usable(item.voice)])
            found.add(name)
    return found


def load_teacher(folder: Path, draft: Size) -> Net:
    """The target as a restricted, frozen Net, from its run folder's state.pt. Raises UsageError if it is not there."""
    path = folder / "state.pt"
    if not path.is_file():
        raise UsageError(f"{path}: not found; --teacher names the --out folder of the target's training")
    state = torch.load(path, weights_only=True)
    size = MODELS[state["model"]]
    if size.layout != draft.layout:
        raise UsageError(f"{path}: layout {size.layout}; this draft needs a teacher of its own layout")
    net = Net(size, demo_vocabulary(size))
    net.load_state_dict(state["net"])
    net.eval().requires_grad_(False)
    return net


def _claim(out: Path) -> BinaryIO:
    """Take the run's folder for this process, and say who has it. Raises UsageError if another process does."""
    out.mkdir(parents=True, exist_ok=True)
    file = open(out / "lock", "wb")  # noqa: SIM115 - held until the process ends
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"{out}: another process trains here; wait for it, or use another --out") from None
    (out / "pid").write_text(f"{os.getpid()}\n")
    return file


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="demo", show_default=True)
@click.option("--speech", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="the run's folder")
@click.option("--teacher", type=click.Path(path_type=Path), help="run folder of the target (demo-draft-same)")
@click.option("--steps", type=int, help="length in steps (reproducible)")
@click.option("--minutes", type=float, help="length in minutes from now")
@click.option("--until", help="end at this local time, HH:MM")
@click.option("--back-to", type=float, help="put the schedule back to this fraction: another round of training")
@click.option("--seed", default=1, show_default=True)
@click.option("--threads", default=os.cpu_count() or 1, show_default=True)
def main(
    model: str,
    speech: Path,
    out: Path,
    teacher: Path | None,
    steps: int | None,
    minutes: float | None,
    until: str | None,
    back_to: float | None,
    seed: int,
    threads: int,
) -> None:
    """Train one model of the demo family."""
    size = MODELS[model]
    if sum(x is not None for x in (steps, minutes, until)) != 1:
        raise click.UsageError("give exactly one of --steps, --minutes and --until")
    if size.shares and teacher is None:
        raise click.UsageError(f"{model} shares the encoder of {size.shares}: name its run folder by --teacher")
    torch.set_num_threads(threads)
    claim = _claim(out)
    plan = Plan(size=size, steps=steps, minutes=minutes, seed=seed)
    teaching = load_teacher(teacher, size) if teacher else None
    trainer = Trainer(plan, Pool(), out, teaching)
    if trainer.load():
        trainer.progress.fraction = trainer.progress.fraction if back_to is None else back_to
        click.echo(f"taking up step {trainer.progress.step} at {trainer.progress.fraction:.3f}", err=True)
    deadline = None
    if minutes is not None:
        deadline = time.time() + 60 * minutes
    elif until is not None:
        clock = datetime.strptime(until, "%H:%M")
        deadline = datetime.now().replace(hour=clock.hour, minute=clock.minute, second=0).timestamp()
    run(trainer, speech, deadline, steps)
    claim.close()


if __name__ == "__main__":
    try:
        main()
    except SpecedgeError as error:
        click.echo(f"specedge: {error}", err=True)
        raise SystemExit(error.exit_code) from None
