"""Change a finished bundle in place: the graph for word times, which old bundles lack, and a CTC head.

Only the new graph and the manifest are written, so the other files need not be distributed again. Does not know: what
the graphs compute, checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from specedge.export.align_graph import default_heads, write_align_graph
from specedge.export.ctc_bundle import write_head_for
from specedge.export.graph_files import file_entry, signature, write_durably
from specedge.runtime.bundle import MANIFEST_NAME, Bundle, Manifest
from specedge.runtime.errors import ResourceError, UsageError
from specedge.runtime.manifest import ALIGN_GRAPH, CTC_GRAPH

__all__ = ["add_align_graph", "add_ctc_head"]


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

    def write(unfinished: Path) -> None:
        write_align_graph(bundle.file(manifest.graphs["decoder"].file), unfinished, manifest.dims, heads)

    return _add(folder, bundle, ALIGN_GRAPH, write, replace(manifest, alignment_heads=heads))


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

    def write(unfinished: Path) -> None:
        write_head_for(bundle.manifest, bundle.path, head, unfinished)

    return _add(folder, bundle, CTC_GRAPH, write, bundle.manifest)


def _add(given: Path, bundle: Bundle, graph: str, write: Callable[[Path], None], manifest: Manifest) -> Bundle:
    """Write the graph, then `manifest` with it; whatever fails leaves the bundle as it was."""
    path = bundle.path / f"{graph}.onnx"
    # Other names until both are whole; a bundle overlooks names that begin with a dot.
    unfinished, old = (bundle.path / f".{graph}.{state}" for state in ("unfinished", "old"))
    is_new = graph not in bundle.manifest.graphs
    try:
        write(unfinished)
        write_durably(unfinished, unfinished.read_bytes())
        if not is_new:
            os.replace(path, old)
        os.replace(unfinished, path)
        grown = replace(
            manifest,
            graphs={**manifest.graphs, graph: signature(bundle.path, graph)},
            files={**manifest.files, path.name: file_entry(path)},
        )
        write_durably(unfinished, grown.to_bytes())
        os.replace(unfinished, bundle.path / MANIFEST_NAME)
        old.unlink(missing_ok=True)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if is_new:
            path.unlink(missing_ok=True)
        elif old.exists():
            os.replace(old, path)
        if isinstance(error, OSError):
            raise ResourceError(f"{given}: cannot be changed: {error.strerror}; nothing was left behind") from error
        raise
    return Bundle.open(given)
