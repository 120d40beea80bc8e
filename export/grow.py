"""Change a finished bundle in place: a graph for word times, a CTC head, graphs to learn with, a note on short windows.

Only the new graphs and the manifest are written, so the other files need not be distributed again. Does not know: what
the graphs compute, checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specedge.export.align_graph import default_heads, write_align_graph
from specedge.export.ctc_bundle import write_head_for
from specedge.export.graph_files import file_entry, signature, write_durably
from specedge.export.learn_graphs import write_learn_graphs
from specedge.runtime.bundles.bundle import MANIFEST_NAME, Bundle, Manifest
from specedge.runtime.bundles.manifest import ALIGN_GRAPH, CTC_GRAPH, LEARN_GRAPH, VECTORS_GRAPH
from specedge.runtime.errors import ResourceError, UsageError

__all__ = ["add_align_graph", "add_ctc_head", "add_learn_graphs", "mark_short_windows"]


def add_align_graph(folder: Path) -> Bundle:
    """Give the bundle `folder` the graph for word timestamps that bundles of earlier exports lack, and return it.

    Raises
    ------
    BundleError
        when it is no whole bundle of this format, or its decoder graph is none of ours.
    UsageError
        when it has the graph.
    ResourceError
        when the folder cannot be written.
    """
    bundle = Bundle.open(folder)
    manifest = bundle.manifest
    if ALIGN_GRAPH in manifest.graphs:
        raise UsageError(f"{folder}: this bundle has the graph for word timestamps already")
    heads = manifest.alignment_heads or default_heads(manifest.dims)

    def write(unfinished: Mapping[str, Path]) -> None:
        decoder = bundle.file(manifest.graphs["decoder"].file)
        write_align_graph(decoder, unfinished[ALIGN_GRAPH], manifest.dims, heads)

    return _add(folder, bundle, [ALIGN_GRAPH], write, replace(manifest, alignment_heads=heads))


def add_ctc_head(folder: Path, head: Path) -> Bundle:
    """Give the bundle `folder` the trained head in the file `head`, in place of one it may have, and return it.

    Raises
    ------
    BundleError
        when it is no whole bundle of this format, or the file is no head for its encoder.
    ResourceError
        when the folder cannot be written.
    """
    bundle = Bundle.open(folder)

    def write(unfinished: Mapping[str, Path]) -> None:
        write_head_for(bundle.manifest, bundle.path, head, unfinished[CTC_GRAPH])

    return _add(folder, bundle, [CTC_GRAPH], write, bundle.manifest)


def add_learn_graphs(folder: Path) -> Bundle:
    """Give the bundle `folder` the graphs that a draft needs to learn (`--learn`), and return it.

    Raises as `add_align_graph`.
    """
    bundle = Bundle.open(folder)
    if LEARN_GRAPH in bundle.manifest.graphs:
        raise UsageError(f"{folder}: this bundle has the graphs to learn with already")

    def write(unfinished: Mapping[str, Path]) -> None:
        write_learn_graphs(bundle.file(bundle.manifest.graphs["decoder"].file), unfinished)

    return _add(folder, bundle, [LEARN_GRAPH, VECTORS_GRAPH], write, bundle.manifest)


def mark_short_windows(folder: Path) -> Bundle:
    """Have the manifest of `folder` say that the model was trained with short windows too, and return the bundle.

    Raises as `add_align_graph`.
    """
    bundle = Bundle.open(folder)
    if bundle.manifest.short_windows:
        raise UsageError(f"{folder}: this bundle says already that it was trained with short windows")
    return _add(folder, bundle, [], lambda _: None, replace(bundle.manifest, short_windows=True))


def _add(
    given: Path,
    bundle: Bundle,
    graphs: Sequence[str],
    write: Callable[[Mapping[str, Path]], None],
    manifest: Manifest,
) -> Bundle:
    """Write the graphs, then `manifest` with them; whatever fails leaves the bundle as it was."""
    # Other names until all are whole; a bundle overlooks names that begin with a dot.
    unfinished = {graph: bundle.path / f".{graph}.unfinished" for graph in graphs}
    old = {graph: bundle.path / f".{graph}.old" for graph in graphs if graph in bundle.manifest.graphs}
    told = bundle.path / f".{MANIFEST_NAME}.unfinished"
    try:
        write(unfinished)
        grown = manifest
        for graph, path in unfinished.items():
            write_durably(path, path.read_bytes())
            made = bundle.path / f"{graph}.onnx"
            if graph in old:
                os.replace(made, old[graph])
            os.replace(path, made)
            grown = replace(
                grown,
                graphs={**grown.graphs, graph: signature(bundle.path, graph)},
                files={**grown.files, made.name: file_entry(made)},
            )
        write_durably(told, grown.to_bytes())
        os.replace(told, bundle.path / MANIFEST_NAME)
        for path in old.values():
            path.unlink(missing_ok=True)
    except BaseException as error:
        told.unlink(missing_ok=True)
        for graph, path in unfinished.items():
            path.unlink(missing_ok=True)
            made = bundle.path / f"{graph}.onnx"
            if graph not in old:
                made.unlink(missing_ok=True)
            elif old[graph].exists():
                os.replace(old[graph], made)
        if isinstance(error, OSError):
            raise ResourceError(f"{given}: cannot be changed: {error.strerror}; nothing was left behind") from error
        raise
    return Bundle.open(given)
