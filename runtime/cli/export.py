"""`specedge export`: the command. What exports is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from specedge.errors import UsageError
from specedge.models import store

from ..console import notify


def _grow(folder: Path, option: str, head: Path | None, force: bool) -> None:
    """Add what `option` is for to the bundle, and say so. Raises UsageError where something would be lost by it."""
    from specedge.export.bundling import add_align_graph, add_ctc_head, add_learn_graphs, mark_short_windows

    if not force:
        _check_changeable(folder, is_for_head=head is not None)
    if head is not None:
        grown, gained = add_ctc_head(folder, head), "brings a CTC head now"
    elif option == "--learnable":
        grown, gained = add_learn_graphs(folder), "can learn as a draft now"
    elif option == "--short-windows":
        grown, gained = mark_short_windows(folder), "says now that it was trained with short windows too"
    else:
        grown = add_align_graph(folder)
        gained = f"can time words now, by {len(grown.manifest.alignment_heads)} alignment heads"
    click.echo(f"{grown.path}: {grown.manifest.name} {gained}")


def _check_changeable(folder: Path, *, is_for_head: bool) -> None:
    from ..bundle.bundle import read_manifest
    from ..bundle.manifest import CTC_GRAPH

    if folder.resolve().is_relative_to(store.bundled()):
        raise UsageError(
            f"{folder}: comes with the installed package, so it is not changed in place; copy that folder and change "
            "the copy, or add --force"
        )
    if is_for_head and CTC_GRAPH in read_manifest(folder)[0].graphs:
        raise UsageError(
            f"{folder}: has a CTC head, so it is not changed in place; copy that folder and change the copy, or add "
            "--force to replace the head"
        )


_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    epilog="""\b
Examples:
  specedge export openai/whisper-small           into the store, as whisper-small
  specedge export whisper-tiny -o ./tiny         a catalogue name, into a folder
  specedge export ./my-finetune --precision fp32
  specedge export tiny.pt -o ./tiny              openai-whisper's own file (needs torch)
  specedge export ./onnx-folder --from optimum -o ./bundle
  specedge export large-v2 --draft tiny          with a smaller model in it, for --drafter draft
  specedge export ./my-finetune --heads heads.safetensors   with heads, for --drafter medusa-block and the like
  specedge export ./my-finetune --ctc head.onnx  with a head of `specedge train ctc`, for --drafter ctc
  specedge export tiny.en --learnable            a draft that can learn while it drafts, for --learn
  specedge export ./old-bundle --add-align       word timestamps for a bundle made before they were there
  specedge export ./bundle --add-ctc head.onnx   the head for a bundle that is there
"""
)
@click.argument("source")
@click.option("-o", "--output", "out", type=click.Path(path_type=Path), help="Folder to make; default: the store.")
@click.option(
    "--precision",
    type=click.Choice(["fp32", "int8", "int4"]),
    default="int8",
    show_default=True,
    help="int4 is for size, not for speed, and costs accuracy.",
)
@click.option("--name", help="Name of the bundle; default: the source's.")
@click.option("--from", "origin", type=click.Choice(["auto", "optimum"]), default="auto", help="Kind of SOURCE.")
@click.option("--revision", help="Branch, tag or commit on the hub.  [default: the catalogue's commit, else main]")
@click.option("--force", is_flag=True, help="Replace a bundle, or its CTC head, that is there.")
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="X.tmap",
    type=click.Path(path_type=Path),
    help="Token map that the bundle brings along (repeatable).",
)
@click.option("--draft", metavar="MODEL", help="Smaller model that the bundle brings along to draft for it.")
@click.option("--ctc", metavar="HEAD", type=_FILE, help="Trained CTC head that the bundle brings along.")
@click.option("--add-ctc", metavar="HEAD", type=_FILE, help="SOURCE is a bundle: add the CTC head in place.")
@click.option(
    "--heads",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Trained heads that the bundle brings along to draft with (repeatable).",
)
@click.option(
    "--learnable",
    is_flag=True,
    help="The bundle can be a draft that learns; where SOURCE is a bundle, it is made so in place.",
)
@click.option(
    "--short-windows",
    is_flag=True,
    help="The model was trained with shorter windows, too: windows are encoded no further than there is audio. A "
    "Whisper that was not loops on such windows (tiny.en: 226 % word errors instead of 4.7). The catalogue's acft-* "
    "need no flag. Where SOURCE is a bundle, it is told so in place.",
)
@click.option(
    "--shortest-window",
    "shortest_window_s",
    type=float,
    metavar="SECONDS",
    help="The shortest window it was trained with, for --short-windows: none is cut below it (ACFT: 3.2).",
)
@click.option(
    "--add-align",
    is_flag=True,
    help="SOURCE is a bundle: add the graph for word timestamps in place.",
)
def export(
    source: str,
    out: Path | None,
    precision: str,
    name: str | None,
    origin: str,
    revision: str | None,
    force: bool,
    maps: tuple[Path, ...],
    draft: str | None,
    heads: tuple[Path, ...],
    ctc: Path | None,
    add_ctc: Path | None,
    add_align: bool,
    learnable: bool,
    short_windows: bool,
    shortest_window_s: float | None,
) -> None:
    """Turn a Whisper checkpoint into a bundle that `specedge transcribe -m` runs.

    SOURCE is a folder in Hugging Face layout, a hub id such as openai/whisper-tiny or its short name, an
    openai-whisper .pt file, or with --from optimum a folder of ONNX files.
    """
    from specedge.export.export import export_to

    from ..bundle.bundle import MANIFEST_NAME

    changes = {"--add-align": add_align, "--add-ctc": add_ctc is not None}
    is_bundle = (Path(source) / MANIFEST_NAME).is_file()
    changes |= {"--learnable": learnable and is_bundle, "--short-windows": short_windows and is_bundle}
    given = [option for option, is_given in changes.items() if is_given]
    if given:
        others = (out, name, revision, origin, maps, draft, heads, ctc, shortest_window_s)
        if others != (None, None, None, "auto", (), None, (), None, None) or len(given) > 1:
            raise UsageError(f"{given[0]} changes the bundle SOURCE in place and goes with no other option but --force")
        _grow(store.find(source), given[0], add_ctc, force)
        return
    if precision == "int4":
        click.echo("specedge: warning: int4 is smaller, not faster, and costs accuracy; int8 is the default", err=True)
    bundle = export_to(
        source,
        out,
        precision=precision,
        name=name,
        origin=origin,
        revision=revision,
        force=force,
        maps=maps,
        draft=None if draft is None else store.find(draft),
        heads=heads,
        ctc=ctc,
        learnable=learnable,
        short_windows=short_windows,
        shortest_window_s=shortest_window_s,
    )
    check = bundle.manifest.selfcheck
    rows = "rows exact" if check["row_invariance"]["exact"] else "rows not exact here"
    click.echo(
        f"{bundle.path}: {bundle.manifest.name}, {precision}, {bundle.size_bytes / 1e6:.1f} MB; {rows}; "
        f"against float32: features off by {check['features_relative_error']:.2g}, "
        f"logits by {check['logits_relative_error']:.2g}, same best token {check['argmax_agreement']:.0%}"
    )
    if not check["row_invariance"]["exact"]:
        notify(
            f"{bundle.path}: on this machine a row's bits depend on how many share a pass, so drafting with this "
            "bundle is off here; elsewhere it may be exact: `specedge doctor -m` tells"
        )
