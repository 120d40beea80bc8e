"""Graphs that a written bundle is given in place: for word times, and for a draft that learns.

Only the new graphs and the manifest change, so the other files need not be distributed again; what fails leaves the
bundle as it was. Does not know: what the graphs compute.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from specedge.export.align_graph import default_heads, write_align_graph
from specedge.export.bundling import file_entry, signature, write_durably
from specedge.export.learn_graphs import write_learn_graphs
from specedge.runtime.bundle import MANIFEST_NAME, Bundle, Manifest
from specedge.runtime.errors import ResourceError, UsageError
from specedge.runtime.manifest import ALIGN_GRAPH, LEARN_GRAPH, VECTORS_GRAPH

__all__ = ["add_align_graph", "add_learn_graphs"]


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
    decoder = bundle.file(manifest.graphs["decoder"].file)
    with _growing(bundle, (ALIGN_GRAPH,), folder) as unfinished:
        write_align_graph(decoder, unfinished[ALIGN_GRAPH], manifest.dims, heads)
        _publish(bundle, unfinished, replace(manifest, alignment_heads=heads))
    return Bundle.open(folder)


def add_learn_graphs(folder: Path) -> Bundle:
    """Give the bundle `folder` the graphs that a draft needs to learn (`--learn`), and return it.

    Raises as `add_align_graph`.
    """
    bundle = Bundle.open(folder)
    graphs = (LEARN_GRAPH, VECTORS_GRAPH)
    if LEARN_GRAPH in bundle.manifest.graphs:
        raise UsageError(f"{folder}: this bundle has the graphs to learn with already")
    with _growing(bundle, graphs, folder) as unfinished:
        write_learn_graphs(bundle.file(bundle.manifest.graphs["decoder"].file), unfinished)
        _publish(bundle, unfinished, bundle.manifest)
    return Bundle.open(folder)


def _publish(bundle: Bundle, unfinished: dict[str, Path], manifest: Manifest) -> None:
    """Let the written graphs take their names, and `manifest` tell of them."""
    graphs, files = dict(manifest.graphs), dict(manifest.files)
    for name, path in unfinished.items():
        write_durably(path, path.read_bytes())
        made = bundle.path / f"{name}.onnx"
        os.replace(path, made)
        graphs[name], files[made.name] = signature(bundle.path, name), file_entry(made)
    path = bundle.path / f".{MANIFEST_NAME}.unfinished"
    try:
        write_durably(path, replace(manifest, graphs=graphs, files=files).to_bytes())
        os.replace(path, bundle.path / MANIFEST_NAME)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _growing(bundle: Bundle, graphs: Sequence[str], folder: Path) -> Iterator[dict[str, Path]]:
    """Names for the unfinished files of `graphs`; whatever fails inside leaves nothing of them."""
    # Names that begin with a dot until all is whole: a bundle overlooks them.
    unfinished = {name: bundle.path / f".{name}.unfinished" for name in graphs}
    try:
        yield unfinished
    except BaseException as error:
        for name, path in unfinished.items():
            path.unlink(missing_ok=True)
            (bundle.path / f"{name}.onnx").unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ResourceError(f"{folder}: cannot be changed: {error.strerror}; nothing was left behind") from error
        raise
