"""From a checkpoint to a bundle: `specedge export` and `specedge models pull`, for programs too."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specedge.errors import UsageError
from specedge.models import catalogue, store
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import HOP_SAMPLES, SAMPLE_RATE_HZ
from specedge.runtime.console import Progress, notify
from specedge.version import __version__

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .spec import Spec

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
    from .bundling import check_target, write_bundle
    from .checkpoint import open_heads

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
    from .checkpoint import open_checkpoint

    if origin == "optimum":
        if revision is not None:
            raise UsageError("--revision goes with a hub id; --from optimum reads a local folder")
        from .optimum_onnx import open_optimum

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
    from .bundling import add_align_graph

    return add_align_graph(folder)


def add_learning_to(folder: Path) -> Bundle:
    """Add the graphs that a draft learns with to the bundle `folder`; see `grow.add_learn_graphs`."""
    _check_installed()
    from .bundling import add_learn_graphs

    return add_learn_graphs(folder)


def mark_short_windows_of(folder: Path) -> Bundle:
    """Have the bundle `folder` say that it was trained with short windows too; see `grow.mark_short_windows`."""
    _check_installed()
    from .bundling import mark_short_windows

    return mark_short_windows(folder)


def add_ctc_to(folder: Path, head: Path) -> Bundle:
    """Add the trained CTC head in the file `head` to the bundle `folder`; see `grow.add_ctc_head`."""
    _check_installed()
    from .bundling import add_ctc_head

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
        print(line, file=sys.stderr, flush=True)
