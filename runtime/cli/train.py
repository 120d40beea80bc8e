"""The command group `specedge train`: small models that draft for a target, trained on this machine.

What trains is imported when a command runs, so that `--help` needs no torch; without it the command ends with one line.
"""

from __future__ import annotations

from pathlib import Path

import click

from ..console import notify
from ..options import HEAD_KINDS

__all__ = ["train"]

GB = 1 << 30


@click.group()
def train() -> None:
    """Train small models that draft for a target (needs the extra [train]).

    \b
    Examples:
      specedge train ctc small talks/ -o small-ctc.onnx
      specedge export small --add-ctc small-ctc.onnx
      specedge train heads ./checkpoint talks/ --kind medusa-block -o block.safetensors
      specedge export ./checkpoint --heads block.safetensors
      specedge train draft ./checkpoint talks/ --layers 2 -o ./draft
      specedge train draft large-v2 talks/ --from ./whisper-tiny -o ./draft
      specedge export ./draft --learnable
    """


@train.command()
@click.argument("target")
@click.argument("audio", nargs=-1, required=True)
@click.option("-o", "--output", "out", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="HEAD")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), default=4.0, show_default=True, help="Audio.")
@click.option("--language", help="Of the audio; default: detected in every window.")
@click.option("--rough", type=click.IntRange(0, 8), default=1, show_default=True, help="Noisy copies of each window.")
@click.option("--steps", type=click.IntRange(min=1), default=2400, show_default=True, help="At most.")
@click.option("--hidden", type=click.IntRange(1, 4096), default=256, show_default=True, help="Width of the head.")
@click.option("--threads", type=click.IntRange(1, 256), help="Default: the cores of this process.")
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), help="Default: HEAD.work, to go on from.")
@click.option("--cache-gb", type=click.FloatRange(min=0, min_open=True), default=4.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def ctc(
    target: str,
    audio: tuple[str, ...],
    out: Path,
    hours: float,
    language: str | None,
    rough: int,
    steps: int,
    hidden: int,
    threads: int | None,
    work: Path | None,
    cache_gb: float,
    seed: int,
) -> None:
    """Train a CTC head on TARGET's own encoder, for `--drafter ctc`.

    TARGET is a bundle or a checkpoint, AUDIO files and folders without any transcripts: the head learns what TARGET
    itself says of them. The same command again goes on where it was stopped.
    """
    from specedge.export.training.ctc import CtcPlan, train_ctc
    from specedge.export.training.features import Course

    course = Course(
        source=target,
        audio=audio,
        work=work or out.with_name(out.name + ".work"),
        hours=hours,
        threads=threads,
        language=language,
        notify=notify,
    )
    plan = CtcPlan(steps=steps, n_hidden=hidden, seed=seed)
    made = train_ctc(course, out, plan, n_rough=rough, max_bytes=int(cache_gb * GB))
    click.echo(
        f"{made.path}: {made.n_windows} windows, {made.n_steps} steps; against the target's own text, held out: "
        f"{made.byte_errors:.1%} of the bytes wrong, {made.rough_byte_errors:.1%} in noise"
    )


@train.command()
@click.argument("target")
@click.argument("audio", nargs=-1, required=True)
@click.option("-o", "--output", "out", type=click.Path(path_type=Path), required=True, metavar="X.safetensors")
@click.option("--kind", type=click.Choice(HEAD_KINDS), default="medusa-block", show_default=True)
@click.option("--heads", "n_heads", type=click.IntRange(1, 20), default=5, show_default=True, help="How many.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True, help="Audio.")
@click.option("--language", help="Of the audio; default: detected in every window.")
@click.option(
    "--later-weight", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Of all heads but the first."
)
@click.option(
    "--kl-weight", type=click.FloatRange(min=0), default=0.01, show_default=True, help="Of TARGET's own distributions."
)
@click.option("--optimizer", type=click.Choice(["adamw", "adafactor"]), default="adamw", show_default=True)
@click.option(
    "--mwer",
    "given",
    type=click.Path(path_type=Path, exists=True),
    metavar="HEADS",
    help="Fine-tune these heads on their own N-best lists (minimum word error rate) instead of training new ones.",
)
@click.option(
    "--unfreeze-last-layer",
    "unfreezes_last",
    is_flag=True,
    help="Train the decoder's last layer too: OUTPUT is a folder with a new model, whose text may differ.",
)
@click.option("--steps", type=click.IntRange(min=1), help="At most.  [default: 2000, 200 with --mwer]")
@click.option("--threads", type=click.IntRange(1, 256), help="Default: the cores of this process.")
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), help="Default: OUTPUT.work, to go on from.")
@click.option("--seed", type=int, default=1, show_default=True)
def heads(
    target: str,
    audio: tuple[str, ...],
    out: Path,
    kind: str,
    n_heads: int,
    hours: float,
    language: str | None,
    later_weight: float,
    kl_weight: float,
    optimizer: str,
    given: Path | None,
    unfreezes_last: bool,
    steps: int | None,
    threads: int | None,
    work: Path | None,
    seed: int,
) -> None:
    """Train heads on TARGET's own hidden rows, for the drafter called as their kind.

    TARGET is a checkpoint, which stays as it is; AUDIO files and folders without any transcripts: the heads learn what
    TARGET itself says of them. The same command again goes on where it was stopped; with the --work of another kind it
    begins with what TARGET has said already. --mwer fine-tunes trained heads: the kind and number are theirs.
    With --unfreeze-last-layer OUTPUT is a checkpoint of a new model with heads.safetensors in it: drafts change no text
    of that model, but it is another one than TARGET, kept near by --kl-weight.
    """
    from specedge.export.training.features import Course
    from specedge.export.training.heads import HeadPlan, fine_tune_heads, train_heads
    from specedge.export.training.mwer import MwerPlan

    course = Course(
        source=target,
        audio=audio,
        work=work or out.with_name(out.name + ".work"),
        hours=hours,
        threads=threads,
        language=language,
        notify=notify,
    )
    if given is not None and unfreezes_last:
        raise click.UsageError("--mwer trains heads alone, without --unfreeze-last-layer")
    if given is not None:
        mwer = MwerPlan(steps=steps or MwerPlan.steps, optimizer=optimizer, seed=seed)
        click.echo(fine_tune_heads(course, out, mwer, given).line)
        return
    plan = HeadPlan(
        kind=kind,
        n_heads=n_heads,
        later_weight=later_weight,
        kl_weight=kl_weight,
        optimizer=optimizer,
        steps=steps or HeadPlan.steps,
        seed=seed,
        unfreezes_last=unfreezes_last,
    )
    click.echo(train_heads(course, out, plan).line)


@train.command(
    epilog="""\b
Examples:
  specedge train draft ./large-v2 talks/ --layers 2 -o ./draft       two of its layers over its own encoder
  specedge train draft ./large-v3 talks/ --from ./whisper-tiny -o ./draft   another version, its own encoder
  specedge train draft small talks/ --from ./whisper-tiny.en -o ./draft     a bundle; another vocabulary
  specedge export ./draft --learnable
  specedge transcribe a.wav -m large-v2 --draft-model draft
"""
)
@click.argument("target")
@click.argument("audio", nargs=-1, required=True)
@click.option("-o", "--output", "out", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DRAFT")
@click.option("--from", "start", metavar="CHECKPOINT", help="A smaller Whisper that the draft begins as.")
@click.option("--layers", "n_layers", type=click.IntRange(min=1), help="Of TARGET's decoder that the draft begins as.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True, help="Audio.")
@click.option("--language", help="Of the audio; default: detected in every window.")
@click.option(
    "--kl-weight", type=click.FloatRange(min=0), default=0.8, show_default=True, help="Of TARGET's own distributions."
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=3e-4,
    show_default=True,
    help="Highest learning rate.",
)
@click.option("--steps", type=click.IntRange(min=1), default=2000, show_default=True, help="At most.")
@click.option("--threads", type=click.IntRange(1, 256), help="Default: the cores of this process.")
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), help="Default: DRAFT.work, to go on from.")
@click.option("--seed", type=int, default=1, show_default=True)
def draft(
    target: str,
    audio: tuple[str, ...],
    out: Path,
    start: str | None,
    n_layers: int | None,
    hours: float,
    language: str | None,
    kl_weight: float,
    rate: float,
    steps: int,
    threads: int | None,
    work: Path | None,
    seed: int,
) -> None:
    """Train a smaller Whisper to draft for TARGET, for `--drafter draft`.

    TARGET is a checkpoint or a bundle, AUDIO files and folders without any transcripts: the draft learns what TARGET
    itself says of them, and how likely it finds each token where TARGET is a checkpoint that cuts text alike. With
    --layers it begins as layers of TARGET's decoder and hears with TARGET's encoder; with --from as a checkpoint in
    Hugging Face layout, of another version or vocabulary too. Its encoder stays as it is. DRAFT is a checkpoint for
    `specedge export`. The same command again goes on where it was stopped; with the --work of other layers or of heads
    it begins with what TARGET has said already.
    """
    from specedge.export.training.draft import DraftPlan, Student, train_draft
    from specedge.export.training.features import Course

    course = Course(
        source=target,
        audio=audio,
        work=work or out.with_name(out.name + ".work"),
        hours=hours,
        threads=threads,
        language=language,
        notify=notify,
    )
    plan = DraftPlan(kl_weight=kl_weight, learning_rate=rate, steps=steps, seed=seed)
    made = train_draft(course, out, plan, Student(start=start, n_layers=n_layers))
    shared = ", with the target's encoder" if made.shares_encoder else ""
    click.echo(
        f"{made.path}: {made.n_texts} texts, {made.n_steps} steps{shared}; its likeliest token is the target's, held "
        f"out: {made.agreement:.1%} ({made.agreement_before:.1%} before); "
        f"now: specedge export {made.path} --learnable"
    )
