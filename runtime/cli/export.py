"""`specedge export`. What exports is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specedge.errors import UsageError
from specedge.models import store

from ..console import notify
from .next_step import model_argument, say_next

if TYPE_CHECKING:
    from ..bundle.bundle import Bundle

PRECISION = click.option(
    "--precision",
    type=click.Choice(["fp32", "int8", "int4"]),
    default="int8",
    show_default=True,
    help="Weights: int8 fastest, int4 smallest, fp32 reference.",
)
REVISION = click.option(
    "--revision", help="Branch, tag or commit on the hub.  [default: the catalogue's commit, else main]"
)
# What published tiny.en and base have, their encoder's output and their logits alike (export/selfcheck.py).
_USUAL = {"int8": (0.04, 0.14), "int4": (0.23, 0.44)}
_PATH = click.Path(path_type=Path)
_FILE = click.Path(path_type=Path, dir_okay=False)


def _grow(folder: Path, head: Path | None, short_audio: bool, force: bool) -> None:
    """Change the bundle `folder` in place. Raises UsageError where something would be lost by it."""
    from specedge.export.bundling import add_to_bundle

    from ..bundle.bundle import read_manifest
    from ..bundle.manifest import CTC_GRAPH

    if not force and head is not None and CTC_GRAPH in read_manifest(folder)[0].graphs:
        raise UsageError(
            f"{folder}: has a CTC head, so it is not changed in place; copy that folder and change the copy, or add "
            "--force to replace the head"
        )
    grown = add_to_bundle(folder, ctc=head, learnable=head is None and not short_audio, short_audio=short_audio)
    gained = (
        "has a CTC head" if head is not None else "encodes short audio alone" if short_audio else "can learn as a draft"
    )
    click.echo(f"{grown.path}: {grown.manifest.name} {gained} now")
    if head is not None:
        say_next("bench", "talk.wav", "-m", model_argument(grown.path))


@click.command(
    epilog="""\b
Examples:
  specedge export openai/whisper-small           into the store, as whisper-small
  specedge export whisper-tiny -o ./tiny         a catalogue name, into a folder
  specedge export ./my-finetune --precision fp32
  specedge export tiny.pt -o ./tiny              openai-whisper's own file (needs torch)
  specedge export ggml-base.bin                  whisper.cpp's, in f16, f32 or q8_0
  specedge export ./faster-whisper-base          CTranslate2's
  specedge export small --adapter ./my-lora      a LoRA, merged into its base model
  specedge export ./onnx-folder --from optimum -o ./bundle
  specedge export large-v2 --draft tiny          with a smaller model in it, for --drafter draft
  specedge export large-v3 --with-draft          with the best known draft, which is pulled into the store
  specedge export ./my-finetune --heads heads.safetensors   with heads, for --drafter medusa-block and others
  specedge export ./my-finetune --ctc head.onnx  with a head of `specedge train ctc`, for --drafter ctc
  specedge export tiny.en --learnable            a draft that can learn while it drafts, for --learn
  specedge export small --encoder-plain          for --encoder-provider: the encoder on other kernels
  specedge export ./bundle --add-ctc head.onnx   a CTC head for an existing bundle
"""
)
@click.argument("source")
@click.option("-o", "--output", "out", type=_PATH, help="Folder to make.  [default: the store]")
@PRECISION
@click.option("--name", help="Name of the bundle.  [default: the source's]")
@click.option("--from", "origin", type=click.Choice(["auto", "optimum"]), default="auto", help="Kind of SOURCE.")
@click.option("--adapter", type=_PATH, metavar="DIR", help="LoRA to merge into SOURCE.")
@REVISION
@click.option("--force", is_flag=True, help="Replace an existing bundle or CTC head.")
@click.option("--map", "maps", multiple=True, metavar="X.tmap", type=_PATH, help="Token map to include (repeatable).")
@click.option("--draft", metavar="MODEL", help="Smaller model, or file of `train draft --from`, as its draft.")
@click.option(
    "--with-draft", is_flag=True, help="Get the best known draft for SOURCE, a catalogue name, and include it."
)
@click.option("--ctc", metavar="HEAD", type=_FILE, help="Trained CTC head to include.")
@click.option("--add-ctc", metavar="HEAD", type=_FILE, help="Add a CTC head to the bundle SOURCE.")
@click.option(
    "--add-short-audio", is_flag=True, help="Add what --audio-context auto needs to the bundle SOURCE of before."
)
@click.option("--heads", multiple=True, metavar="FILE", type=_PATH, help="Trained heads to include (repeatable).")
@click.option("--learnable", is_flag=True, help="Let the bundle learn as a draft.")
@click.option(
    "--encoder-plain/--no-encoder-plain",
    default=None,
    help="Bring the encoder in plain operators too, for --encoder-provider.  [default: where openvino is installed]",
)
def export(
    source: str,
    out: Path | None,
    force: bool,
    add_ctc: Path | None,
    add_short_audio: bool,
    with_draft: bool,
    **given: Any,
) -> None:
    """Turn a Whisper checkpoint into a bundle that `specedge transcribe -m` runs.

    SOURCE is a folder in Hugging Face layout, a hub id such as openai/whisper-tiny or its short name, an
    openai-whisper .pt file, a whisper.cpp .bin file, a CTranslate2 folder, or with --from optimum a folder of ONNX
    files. --add-ctc, --add-short-audio and --learnable also change a bundle SOURCE in place.
    """
    from specedge.export.export import export_to, pull_draft

    from ..bundle.bundle import MANIFEST_NAME

    is_bundle = (Path(source) / MANIFEST_NAME).is_file()
    changes = {
        "--add-ctc": add_ctc is not None,
        "--add-short-audio": add_short_audio,
        "--learnable": given["learnable"] and is_bundle,
    }
    wanted = [option for option, is_wanted in changes.items() if is_wanted]
    if wanted:
        names = ("name", "adapter", "revision", "maps", "draft", "heads", "ctc", "encoder_plain")
        others = [out, *(given[name] for name in names), given["origin"] != "auto", with_draft, len(wanted) > 1]
        if any(value not in (None, (), False) for value in others):
            raise UsageError(f"{wanted[0]} changes the bundle SOURCE in place; give no option but --force")
        _grow(store.find(source), add_ctc, add_short_audio, force)
        return
    if given["precision"] == "int4":
        notify("warning: int4 is smaller, not faster, and costs accuracy; int8 is the default")
    if with_draft and given["draft"] is not None:
        raise UsageError("--with-draft and --draft both name a draft; give one of them")
    draft = given["draft"]
    if draft is not None:
        draft = Path(draft) if Path(draft).is_file() else store.find(draft)
    if with_draft:
        draft = pull_draft(source, precision=given["precision"])
    bundle = export_to(source, out, force=force, **given | {"draft": draft})
    click.echo(f"{bundle.path}: {bundle.manifest.name}, {given['precision']}, {_findings(bundle)}")
    if not bundle.manifest.selfcheck["row_invariance"]["exact"]:
        notify(
            f"{bundle.path}: drafts could change the text on this machine, so drafting with this bundle is off here; "
            "elsewhere it may work: `specedge doctor -m` shows"
        )
    say_next("transcribe", "talk.wav", "-m", model_argument(bundle.path))


def _findings(bundle: Bundle) -> str:
    """Size and self-check of a new bundle in words: how far rounding moves its numbers, and what is usual."""
    check, precision = bundle.manifest.selfcheck, bundle.manifest.precision
    drafting = "drafting is exact here" if check["row_invariance"]["exact"] else "drafting is off here"
    errors = check["features_relative_error"], check["logits_relative_error"]
    size = f"{bundle.size_bytes / 1e6:.1f} MB; {drafting}"
    if precision not in _USUAL:
        return f"{size}; checked: its numbers are the checkpoint's to within {max(*errors, 1e-5):.3%}"
    low, high = _USUAL[precision]
    advice = "" if max(errors) <= high else "; that is much: compare its text with that of --precision fp32"
    return (
        f"{size}; checked: rounding moves the encoder's output by {errors[0]:.1%} and the logits by {errors[1]:.1%}, "
        f"usual for {precision} is {low:.0%} to {high:.0%}{advice}"
    )
