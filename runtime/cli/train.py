"""The command group `specedge train`: small models that draft for a target, trained on this machine.

What trains is imported when a command runs, so that `--help` needs no torch; without it the command ends with one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specedge.files import disk_errors

from ..console import notify
from ..options import HEAD_KINDS
from .next_step import say_next

if TYPE_CHECKING:
    from specedge.export.training.features import Course

GB = 1 << 30
_Decorator = Callable[[Any], Any]
_POSITIVE = click.FloatRange(min=0, min_open=True)
_FOLDER = click.Path(path_type=Path, file_okay=False)
_FROM_0 = click.FloatRange(min=0)


def _output(metavar: str, **kind: bool) -> _Decorator:
    path = click.Path(path_type=Path, **kind)
    return click.option("-o", "--output", "out", type=path, required=True, metavar=metavar, help="What to make.")


def _collection(hours: float) -> _Decorator:
    """TARGET, AUDIO and the options that all commands share."""
    options: tuple[_Decorator, ...] = (
        click.argument("target"),
        click.argument("audio", nargs=-1, required=True),
        click.option("--hours", type=_POSITIVE, default=hours, show_default=True, help="Audio to use, at most."),
        click.option("--language", help="Spoken language.  [default: detected in every window]"),
        click.option("--threads", type=click.IntRange(1, 256), help="CPU threads.  [default: all cores]"),
        click.option(
            "--device",
            default="cpu",
            show_default=True,
            metavar="NAME",
            help="Where training runs: cpu, cuda, cuda:1, mps. TARGET itself always runs on the CPU.",
        ),
        click.option("--work", type=_FOLDER, help="Folder to continue from.  [default: OUTPUT.work]"),
        click.option("--seed", type=int, default=1, show_default=True, help="Random seed."),
    )
    return lambda function: reduce(lambda made, decorate: decorate(made), reversed(options), function)


_STEPS: dict[str, Any] = {"type": click.IntRange(min=1), "help": "Training steps, at most.", "show_default": True}


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
@_collection(hours=4.0)
@_output("HEAD", dir_okay=False)
@click.option("--rough", type=click.IntRange(0, 8), default=1, show_default=True, help="Noisy copies of each window.")
@click.option("--steps", default=2400, **_STEPS)
@click.option("--hidden", type=click.IntRange(1, 4096), default=256, show_default=True, help="Width of the head.")
@click.option("--cache-gb", type=_POSITIVE, default=4.0, show_default=True, help="Disk space for encoder features.")
def ctc(target: str, audio: tuple[str, ...], out: Path, work: Path | None, **given: Any) -> None:
    """Train a CTC head on TARGET's own encoder, for `--drafter ctc`.

    TARGET is a bundle or a checkpoint. AUDIO is files and folders, without transcripts: the head learns what TARGET
    itself says. Run the same command again to continue where it was stopped.

    \b
    Examples:
      specedge train ctc small talks/ -o small-ctc.onnx
    """
    from specedge.export.training.ctc import CtcPlan, train_ctc
    from specedge.export.training.features import is_checkpoint

    course = _course(target, audio, out, work, given)
    plan = CtcPlan(steps=given["steps"], n_hidden=given["hidden"], seed=given["seed"])
    click.echo(train_ctc(course, out, plan, n_rough=given["rough"], max_bytes=int(given["cache_gb"] * GB)))
    say_next("export", target, "--ctc" if is_checkpoint(target) else "--add-ctc", out)


@train.command()
@_collection(hours=3.0)
@_output("X.safetensors")
@click.option(
    "--kind", type=click.Choice(HEAD_KINDS), default="medusa-block", show_default=True, help="Drafter to train."
)
@click.option("--heads", "n_heads", type=click.IntRange(1, 20), default=5, show_default=True, help="How many heads.")
@click.option("--later-weight", type=_FROM_0, default=1.0, show_default=True, help="Weight of all later heads.")
@click.option("--kl-weight", type=_FROM_0, default=0.01, show_default=True, help="Weight of TARGET's distributions.")
@click.option(
    "--optimizer", type=click.Choice(["adamw", "adafactor"]), default="adamw", show_default=True, help="Optimizer."
)
@click.option(
    "--mwer",
    "trained",
    type=click.Path(path_type=Path, exists=True),
    metavar="HEADS",
    help="Fine-tune these heads for minimum word error rate.",
)
@click.option(
    "--unfreeze-last-layer", "unfreezes_last", is_flag=True, help="Train the decoder's last layer too: a new model."
)
@click.option(
    "--beam-size",
    type=click.IntRange(1, 32),
    default=1,
    show_default=True,
    help="Learn the texts that TARGET finds by a beam search; 5 in Whisper-Medusa.",
)
@click.option("--steps", type=click.IntRange(min=1), help="Training steps, at most.  [default: 2000, 200 with --mwer]")
def heads(
    target: str, audio: tuple[str, ...], out: Path, work: Path | None, trained: Path | None, **given: Any
) -> None:
    """Train heads on TARGET's own hidden rows, to draft with.

    TARGET is a checkpoint, which stays as it is. AUDIO is files and folders, without transcripts: the heads learn what
    TARGET itself says. Run the same command again to continue where it was stopped; the --work folder of another kind
    saves the first step, the transcription of AUDIO.

    --mwer fine-tunes trained heads on their own N-best lists; kind and number are theirs. With --unfreeze-last-layer
    OUTPUT is a folder: the checkpoint of a new model with heads.safetensors in it, whose text may differ from TARGET's;
    --kl-weight keeps it close.

    \b
    Examples:
      specedge train heads ./checkpoint talks/ --kind medusa-block -o block.safetensors
    """
    from specedge.export.checkpoint import HEADS_FILE
    from specedge.export.registered import find

    steps, optimizer, seed = given["steps"], given["optimizer"], given["seed"]
    course = _course(target, audio, out, work, given)
    if trained is not None and (given["unfreezes_last"] or given["beam_size"] > 1):
        raise click.UsageError(
            "--mwer trains heads alone on lists of its own: no --unfreeze-last-layer, no --beam-size"
        )
    if trained is not None:
        asked = {} if steps is None else {"steps": steps}
        click.echo(find("mwer")(course, out, trained, optimizer=optimizer, seed=seed, **asked))
        say_next("export", target, "--heads", out)
        return
    names = ("kind", "n_heads", "later_weight", "kl_weight", "optimizer", "seed", "unfreezes_last")
    asked = {name: given[name] for name in names} | ({} if steps is None else {"steps": steps})
    click.echo(find("heads")(course, out, **asked))
    source, file = (out, out / HEADS_FILE) if given["unfreezes_last"] else (Path(target), out)
    say_next("export", source, "--heads", file)


@train.command(
    epilog="""\b
Examples:
  specedge train draft ./base talks/ --from ./tiny.en --layers 3 -o draft.safetensors
  specedge export ./base --draft draft.safetensors
  specedge train draft ./large-v2 talks/ --layers 2 -o ./draft              two of its layers over its own encoder
  specedge train draft ./large-v3 talks/ --from ./whisper-tiny -o ./draft   another version, its own encoder
  specedge train draft small talks/ --from ./whisper-tiny.en -o ./draft     a bundle; another vocabulary
  specedge export ./draft --learnable
  specedge transcribe a.wav -m large-v2 --draft-model draft
"""
)
@_collection(hours=3.0)
@_output("DRAFT")
@click.option("--from", "start", metavar="CHECKPOINT", help="Smaller Whisper to start from.")
@click.option("--layers", "n_layers", type=click.IntRange(min=1), help="How many decoder layers to start from.")
@click.option("--kl-weight", type=_FROM_0, default=0.8, show_default=True, help="Weight of TARGET's distributions.")
@click.option("--rate", type=_POSITIVE, default=3e-4, show_default=True, help="Highest learning rate.")
@click.option("--steps", default=2000, **_STEPS)
def draft(target: str, audio: tuple[str, ...], out: Path, work: Path | None, **given: Any) -> None:
    """Train a smaller Whisper to draft for TARGET, for `--drafter draft`.

    TARGET is a checkpoint or a bundle. AUDIO is files and folders, without transcripts: the draft learns what TARGET
    itself says, and its probabilities where TARGET is a checkpoint with the same vocabulary. With --layers it starts as
    layers of TARGET's decoder and uses TARGET's encoder; with --from as a smaller Whisper, which may have another
    version or vocabulary. Encoders are not trained. DRAFT is a checkpoint for `specedge export`. With --from and a name
    that ends in .safetensors it is a file of a few megabytes for its --draft: the smaller Whisper's decoder, or some
    layers of it with --layers, which learns to use TARGET's encoder in the place of its own.

    Run the same command again to continue where it was stopped; the --work folder of other layers or of heads saves the
    first step, the transcription of AUDIO.
    """
    from specedge.export.training.draft import DraftPlan, train_draft

    course = _course(target, audio, out, work, given)
    plan = DraftPlan(
        kl_weight=given["kl_weight"], learning_rate=given["rate"], steps=given["steps"], seed=given["seed"]
    )
    click.echo(train_draft(course, out, plan, start=given["start"], n_layers=given["n_layers"]))
    words = (target, "--draft", out) if out.is_file() else (out, "--learnable")
    say_next("export", *words)


def _course(target: str, audio: tuple[str, ...], out: Path, work: Path | None, given: Mapping[str, Any]) -> Course:
    """What all kinds of training share; the work folder lies beside the output unless one is given. The folder of the
    output is made. Raises ResourceError where it cannot be, before anything is trained."""
    from specedge.export.training.early_stopping import check_device
    from specedge.export.training.features import Course

    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    return Course(
        source=target,
        audio=audio,
        work=work or out.with_name(out.name + ".work"),
        hours=given["hours"],
        threads=given["threads"],
        language=given["language"],
        notify=notify,
        device=check_device(given["device"]),
        beam_size=given.get("beam_size", 1),
    )
