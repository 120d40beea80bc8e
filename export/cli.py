"""`specedge export`: the command, and `export_to` for programs and for `specedge models pull`."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specedge import __version__
from specedge.models import catalogue, store
from specedge.runtime.bundles.bundle import MANIFEST_NAME, Bundle, read_manifest
from specedge.runtime.bundles.manifest import CTC_GRAPH, HOP_SAMPLES, SAMPLE_RATE_HZ
from specedge.runtime.commands.console import notify
from specedge.runtime.errors import UsageError
from specedge.runtime.progress import Progress

if TYPE_CHECKING:
    from specedge.export.checkpoint import Checkpoint
    from specedge.export.spec import Spec

NEEDED = ("onnx", "safetensors")


def export_to(
    source: str,
    out: Path | None = None,
    *,
    precision: str = "int8",
    name: str | None = None,
    origin: str = "auto",
    revision: str | None = None,
    force: bool = False,
    maps: Sequence[Path] = (),
    draft: Path | None = None,
    heads: Sequence[Path] = (),
    ctc: Path | None = None,
    learnable: bool = False,
    short_windows: bool = False,
    shortest_window_s: float | None = None,
) -> Bundle:
    """Export `source` into the folder `out`, by default into the store under its name; returns the opened bundle.

    Parameters
    ----------
    source
        a checkpoint folder, a `.pt` file, a hub id or a catalogue name.
    origin
        "auto", or "optimum" for a folder of ONNX files.
    maps, draft, heads, ctc, learnable, short_windows, shortest_window_s
        what the bundle shall bring: token maps, the folder of a smaller bundle to draft for it, files of trained heads
        of different kinds (`heads_files.open_heads`), that of a CTC head, the graphs that a draft learns with; and
        whether its manifest says that the model was trained with short windows too, and the shortest in seconds. A
        checkpoint of the hub whose entry in the catalogue says so needs neither.

    Raises SpecedgeError as `bundling.write_bundle` and `checkpoint.open_checkpoint` say.
    """
    _check_installed()
    from specedge.export.bundling import check_target, write_bundle
    from specedge.export.heads_files import open_heads

    name = store.check_name(name or _name_of(source, precision))
    target = out if out is not None else store.folder() / name
    check_target(target, replace_existing=force)  # before a download of gigabytes
    checkpoint = _open(source, origin, revision)
    least_positions = _least_positions(checkpoint.spec, shortest_window_s)
    with checkpoint, Progress(None, "weights", f"export {name}") as progress:
        made = write_bundle(
            checkpoint,
            target,
            precision=precision,
            name=name,
            version=__version__,
            replace_existing=force,
            maps=maps,
            draft=None if draft is None else Bundle.open(draft),
            heads=[open_heads(file, checkpoint.spec) for file in heads],
            ctc=ctc,
            short_windows=short_windows or least_positions > 0,
            least_positions=least_positions,
            report=partial(_report, progress),
        )
    return add_learning_to(made.path) if learnable else made


def _report(progress: Progress, n_read: int, n_total: int) -> None:
    progress.total = n_total
    progress.update_to(n_read)


def _open(source: str, origin: str, revision: str | None) -> Checkpoint:
    """The checkpoint that `export_to` is told of."""
    from specedge.export.checkpoint import open_checkpoint

    if origin == "optimum":
        if revision is not None:
            raise UsageError("--revision goes with a hub id; --from optimum reads a local folder")
        from specedge.export.optimum_onnx import open_optimum

        return open_optimum(Path(source))
    checkpoint = open_checkpoint(source, revision=revision, progress=_say)
    told = checkpoint.spec.source
    if told.kind == "hub" and not catalogue.is_commit(revision or catalogue.pinned(told.id)):
        notify(f"{told.id} is not pinned: this is commit {told.revision}, and --revision with it gives the same again")
    if checkpoint.spec.heads is not None and checkpoint.spec.heads.replaces_base:
        notify(
            f"{source}: its head 0 makes the next token in the place of the model's own (Medusa-Linear): drafts change "
            "none of its text, but that is not the text of the Whisper it was made from"
        )
    return checkpoint


def _least_positions(spec: Spec, shortest_window_s: float | None) -> int:
    """The encoder's positions of the shortest window of training: as told, else as the catalogue knows; 0: unknown."""
    n_ctx = spec.dims.n_audio_ctx
    if shortest_window_s is None:
        known = catalogue.find(spec.source.id) if spec.source.kind == "hub" else None
        return 0 if known is None else min(known.least_positions, n_ctx)
    n_positions = shortest_window_s * SAMPLE_RATE_HZ / (2 * HOP_SAMPLES)
    if not 1 <= n_positions <= n_ctx:  # NaN too
        window_s = 2 * n_ctx * HOP_SAMPLES / SAMPLE_RATE_HZ
        raise UsageError(f"--shortest-window {shortest_window_s:g}: expected seconds from 0.02 to {window_s:g}")
    return round(n_positions)


def add_align_to(folder: Path) -> Bundle:
    """Add the graph for word timestamps to the bundle `folder`; see `grow.add_align_graph`."""
    _check_installed()
    from specedge.export.grow import add_align_graph

    return add_align_graph(folder)


def add_learning_to(folder: Path) -> Bundle:
    """Add the graphs that a draft learns with to the bundle `folder`; see `grow.add_learn_graphs`."""
    _check_installed()
    from specedge.export.grow import add_learn_graphs

    return add_learn_graphs(folder)


def mark_short_windows_of(folder: Path) -> Bundle:
    """Have the bundle `folder` say that it was trained with short windows too; see `grow.mark_short_windows`."""
    _check_installed()
    from specedge.export.grow import mark_short_windows

    return mark_short_windows(folder)


def add_ctc_to(folder: Path, head: Path) -> Bundle:
    """Add the trained CTC head in the file `head` to the bundle `folder`; see `grow.add_ctc_head`."""
    _check_installed()
    from specedge.export.grow import add_ctc_head

    return add_ctc_head(folder, head)


def _check_installed() -> None:
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        raise UsageError(f"export needs {' and '.join(missing)}: install with pip install 'specedge[export]'")


def _name_of(source: str, precision: str) -> str:
    known = catalogue.find(source)
    name = known.name if known is not None else _as_name(Path(source).resolve().name.removesuffix(".pt"))
    return name if precision == "int8" else f"{name}-{precision}"  # int8 is the default and owns the plain name


def _as_name(text: str) -> str:
    """A folder's name as a bundle's, which must fit every file system."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text)[:80].strip("._+-") or "model"


def _say(line: str) -> None:
    if sys.stderr.isatty():
        click.echo(line, err=True)


def _grow(folder: Path, option: str, head: Path | None, force: bool) -> None:
    """Add what `option` is for to the bundle, and say so. Raises UsageError where something would be lost by it."""
    if not force:
        _check_changeable(folder, is_for_head=head is not None)
    if head is not None:
        grown, gained = add_ctc_to(folder, head), "brings a CTC head now"
    elif option == "--learnable":
        grown, gained = add_learning_to(folder), "can learn as a draft now"
    elif option == "--short-windows":
        grown, gained = mark_short_windows_of(folder), "says now that it was trained with short windows too"
    else:
        grown = add_align_to(folder)
        gained = f"can time words now, by {len(grown.manifest.alignment_heads)} alignment heads"
    click.echo(f"{grown.path}: {grown.manifest.name} {gained}")


def _check_changeable(folder: Path, *, is_for_head: bool) -> None:
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
