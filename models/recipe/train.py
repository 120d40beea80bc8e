"""Train the demo models: one command each, resumable by the same command.

    python -m specedge.models.recipe.train --model demo --speech SPEECH --out RUN --minutes 75
    python -m specedge.models.recipe.train --model demo --speech SPEECH --out RUN --minutes 90 --from CHECKPOINT
    python -m specedge.models.recipe.train --model demo --speech SPEECH --out RUN --steps 800 --from CHECKPOINT \\
        --decoder-only --rate 1e-4
    python -m specedge.models.recipe.train --model demo-draft-same --teacher RUN ...

SPEECH holds folders of shards (see speech.py): every folder but those named dev or digits-dev* is trained on, and
speech of the dev lists anywhere else is refused. OUT gets `state.pt` (the resumable state), `hf/` (the running mean of
the weights in Hugging Face layout), `log.jsonl` and `pid`. The schedule goes by steps (`--steps`, reproducible) or by
the clock (`--minutes`): then stopped time counts, and the learning rate still ends at the end. With `--workers` several
processes of one process group share a step (stop and continue the group, not one of them); on a GPU they keep it busy,
for each makes its own windows on the CPU.

`--from` starts with the weights of a checkpoint instead of random ones. A resumed run goes on from its own state, but
with `--decoder-only`, `--from` still names the teacher.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import click
import torch

from specedge.errors import UsageError
from specedge.export.training.corpus import training_shards
from specedge.export.training.early_stopping import check_device

from .command_line import run_command
from .data import Pool
from .network import MODELS
from .speech import usable
from .trainer import Plan, Progress, Team, Trainer, gather, load_checkpoint, load_teacher

__all__ = ["Task", "refresh", "run"]
_OF_RUNS = ("lock", "state.pt")  # the first file of a run, and the only one of a conversion


def check_run(out: Path) -> None:
    """Raises UsageError where the folder `out` of a run that can be taken up holds something else."""
    if out.is_dir() and any(out.iterdir()) and not any((out / name).is_file() for name in _OF_RUNS):
        raise UsageError(f"{out}: holds files and is no run's folder, so nothing is written there; give another --out")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What every process of a run needs: the plan, its folders, and the length in steps or as a deadline."""

    plan: Plan
    speech: Path
    out: Path
    teacher: Path | None = None
    start: Path | None = None
    back_to: float | None = None
    steps: int | None = None
    deadline: float | None = None
    threads: int = 1
    device: str = "cpu"

    def trainer(self, team: Team | None) -> Trainer:
        """A trainer with the state of the folder, of the checkpoint to start from, or of nothing."""
        torch.set_num_threads(self.threads)
        size = self.plan.size
        teacher = load_teacher(self.teacher, size) if self.teacher else None
        if self.plan.decoder_only and self.start is not None:
            teacher = load_checkpoint(self.start, size)
        trainer = Trainer(self.plan, Pool(), self.out, teacher, team, self.device)
        if trainer.load():
            done = trainer.progress
            done.fraction = done.fraction if self.back_to is None else self.back_to
            if team is None or team.rank == 0:
                click.echo(f"taking up step {done.step} at {done.fraction:.3f}", err=True)
        elif self.start is not None and not self.plan.decoder_only:
            trainer.begin_from(self.start)
        return trainer


def run(task: Task, trainer: Trainer) -> None:
    """Steps until the schedule's end or SIGTERM; the first process logs every 50 steps, saves every few minutes."""
    known: set[str] = set()
    team, done = trainer.team, trainer.progress
    leads = team is None or team.rank == 0
    last = saved = time.time()
    asked: list[int] = []  # never another list: a signal may come at any moment
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    stop = False
    while done.fraction < 1.0 and not stop:
        if done.step % 250 == 0 or not known:
            known |= refresh(trainer.pool, task.speech, known)
        trainer.step()
        now = time.time()
        if task.steps is not None:
            done.fraction = done.step / task.steps
        elif task.deadline is not None:
            left = task.deadline - last
            over = now >= task.deadline
            done.fraction = 1.0 if over else done.fraction + (1 - done.fraction) * (now - last) / left
        stop = bool(asked)
        if team is not None:
            agreed = team.agree({**vars(done), "stop": stop})
            stop = agreed["stop"]
            for field in fields(Progress):
                setattr(done, field.name, agreed[field.name])
        if leads and done.step % 50 == 0:
            _log(trainer, now)
        last = now
        if leads and now - saved > 60 * trainer.plan.save_minutes:
            trainer.save()
            saved = time.time()
    if leads:
        _log(trainer, last)
        trainer.save()


def _log(trainer: Trainer, now: float) -> None:
    row = {name: round(v, 4) if isinstance(v, float) else v for name, v in vars(trainer.progress).items()}
    row |= {"rate": trainer.rate(), "time": round(now, 1)}
    with open(trainer.out / "log.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    click.echo(f"{datetime.now():%H:%M:%S} {row}", err=True)


def refresh(pool: Pool, speech: Path, known: set[str]) -> set[str]:
    """Add the shards that have appeared in the training folders since the last look; gives their names.

    Raises UsageError when there is nothing to train on, or speech of the dev lists among it.
    """
    shards = list(training_shards(speech, frozenset(known)))
    pool.add([item for _, items in shards for item in items if usable(item.voice)])
    if not pool.items:
        raise UsageError(f"{speech}: no shards to train on; make them with `speech train` and `speech digits` first")
    return {name for name, _ in shards}


def _member(task: Task, team: Team) -> None:
    """A further process of a run: it steps as the first one says, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run(task, task.trainer(team))
    except EOFError:  # the first process is gone
        raise SystemExit(1) from None


def _claim(out: Path) -> BinaryIO:
    """Take the run's folder for this process, and say who has it. Raises UsageError if another process does, or if
    something else is in it."""
    check_run(out)
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
@click.option("--from", "start", type=click.Path(path_type=Path), help="start with this checkpoint's weights")
@click.option("--decoder-only", is_flag=True, help="with --from: encoder, tokens and what drafts rest on stay")
@click.option("--full-windows", is_flag=True, help="with --decoder-only: mostly windows as long recordings have them")
@click.option("--ahead", default=0, show_default=True, help="tokens behind the next that hidden rows learn to say")
@click.option("--rate", default=1.5e-3, show_default=True, help="highest learning rate (with --from: about 4e-4)")
@click.option("--back-to", type=float, help="put the schedule back to this fraction: another round of training")
@click.option("--seed", default=1, show_default=True)
@click.option("--workers", default=1, show_default=True, help="processes that share each step")
@click.option("--threads", type=int, help="threads of each process [default: the processors, shared out]")
@click.option("--device", default="cpu", show_default=True, help="where steps run: cpu, cuda, cuda:1, mps")
def main(
    model: str,
    speech: Path,
    out: Path,
    teacher: Path | None,
    steps: int | None,
    minutes: float | None,
    start: Path | None,
    decoder_only: bool,
    full_windows: bool,
    ahead: int,
    rate: float,
    back_to: float | None,
    seed: int,
    workers: int,
    threads: int | None,
    device: str,
) -> None:
    """Train one model of the demo family."""
    size = MODELS[model]
    if (steps is None) == (minutes is None):
        raise click.UsageError("give either --steps or --minutes")
    if size.shares and teacher is None:
        raise click.UsageError(f"{model} shares the encoder of {size.shares}: name its run folder by --teacher")
    if decoder_only and (start is None or size.shares):
        raise click.UsageError("--decoder-only goes on with a checkpoint's own decoder: name it by --from")
    if full_windows and not decoder_only:
        raise click.UsageError("--full-windows is for --decoder-only: all other training begins with short ones")
    task = Task(
        plan=Plan(
            size=size,
            seed=seed,
            learning_rate=rate,
            decoder_only=decoder_only,
            full_windows=full_windows,
            n_ahead=ahead,
        ),
        speech=speech,
        out=out,
        teacher=teacher,
        start=start,
        back_to=back_to,
        steps=steps,
        deadline=None if minutes is None else time.time() + 60 * minutes,
        threads=threads or max(1, (os.cpu_count() or 1) // workers),
        device=check_device(device),
    )
    claim = _claim(out)
    trainer = task.trainer(None)
    with gather(workers, _member, task, sum(p.numel() for p in trainer.parameters)) as team:
        trainer.team = team
        run(task, trainer)
    claim.close()


if __name__ == "__main__":
    run_command(main)
