"""Load one graph of a bundle and hold its signature against the manifest's, before a pass relies on it.

Knows the names and sizes that the engine binds; nothing of passes.
"""

from __future__ import annotations

from pathlib import Path

from specedge.runtime.bundles.bundle import Bundle
from specedge.runtime.bundles.manifest import (
    ALIGN_GRAPH,
    CTC_GRAPH,
    DERIVED_GRAPHS,
    LEARN_GRAPH,
    TREE_GRAPH,
    VECTORS_GRAPH,
    Manifest,
    TensorSpec,
)
from specedge.runtime.errors import BundleError
from specedge.runtime.passes.head_graphs import BLOCK_KIND, BLOCK_KV_GRAPH, HEAD_KINDS
from specedge.runtime.passes.session import Canceller, Session, Tensor

KEPT_BYTES = 32 << 20  # of a bundle whose weights stay resident
MOST_PADDING = 15  # columns of logits behind those that count


def load_graph(
    bundle: Bundle, graph: str, canceller: Canceller, *, folder: Path, threads: int, save_to: Path | None = None
) -> Session:
    """Load one graph of `bundle` from `folder` and compare its signature with the manifest's. BundleError."""
    spec = bundle.manifest.graphs[graph]
    # Only the decoder runs hundreds of short passes a window; elsewhere busy waiting would steal its cores, and the
    # large buffers of the once-a-window graphs are given back after each run.
    often = graph in ("decoder", LEARN_GRAPH, TREE_GRAPH, VECTORS_GRAPH, *HEAD_KINDS)
    path = folder / spec.file
    borrows = (
        graph in (*DERIVED_GRAPHS, LEARN_GRAPH, VECTORS_GRAPH) and folder == bundle.path
    )  # the decoder's weights; packed ones are their own
    data = (folder / bundle.manifest.graphs["decoder"].file).with_suffix(".data") if borrows else None
    session = Session(
        path,
        canceller,
        threads=threads,
        spin=graph == "decoder",
        keep_buffers=often,
        data=data,
        # For one pass a window, or a few rows, a packed copy would double the weights.
        prepack=graph not in (ALIGN_GRAPH, VECTORS_GRAPH),
        keep_weights=bundle.size_bytes <= KEPT_BYTES,
        # In 4 bits it is the other way round: rows are exact with KleidiAI's blocks, and not with those it stands for.
        kleidiai=graph not in ("decoder", LEARN_GRAPH, TREE_GRAPH) or bundle.manifest.precision == "int4",
        save_to=save_to,
    )
    for side, found, listed in (
        ("inputs", session.inputs, spec.inputs),
        ("outputs", session.outputs, spec.outputs),
    ):
        expected = {tensor.name: tensor for tensor in listed}
        wrong = sorted(found.keys() ^ expected.keys()) or [n for n in found if not _agree(found[n], expected[n])]
        if wrong:
            raise BundleError(
                f"{path}: its {side} are not those the manifest lists for {graph} (see {wrong[0]}); "
                "export the model again"
            )
    for name, fixed in _fixed_axes(bundle.manifest, graph).items():
        tensor = session.inputs.get(name) or session.outputs.get(name)
        if tensor is None or len(tensor.shape) <= max(fixed) or any(tensor.shape[i] != n for i, n in fixed.items()):
            raise BundleError(f"{path}: {name} does not fit the manifest's dimensions; export the model again")
    return session


def _agree(found: Tensor, listed: TensorSpec) -> bool:
    """Whether type and fixed sizes are the same; names of free axes do not matter."""
    axes = [size if isinstance(size, int) else None for size in found.shape]
    return found.dtype == listed.dtype and axes == [size if isinstance(size, int) else None for size in listed.shape]


def _fixed_axes(manifest: Manifest, graph: str) -> dict[str, dict[int, int]]:
    """Sizes that passes rely on: tensor name to axis to size."""
    dims = manifest.dims
    if graph == "encoder":
        return {"mel": {1: dims.n_mels}, "features": {2: dims.n_audio_state}}
    if graph in ("cross_kv", CTC_GRAPH, BLOCK_KV_GRAPH):
        return {"features": {2: dims.n_audio_state}}
    if graph == ALIGN_GRAPH:
        return {"scores": {0: len(manifest.alignment_heads)}}
    head = {1: dims.n_text_head, 3: dims.n_text_state // dims.n_text_head}
    if graph == VECTORS_GRAPH:
        return {"vectors": {1: dims.n_text_state}}
    n_layers = dims.n_text_layer if graph not in HEAD_KINDS else int(graph == BLOCK_KIND)
    fixed = {f"self_{part}_{layer}": head for layer in range(n_layers) for part in "kv"}
    if graph == LEARN_GRAPH:
        fixed |= {"learn_a": {0: dims.n_text_state}, "learn_b": {1: dims.n_text_state}}
    return {"hidden": {2: dims.n_text_state}, **fixed} if graph in HEAD_KINDS else fixed


def logit_columns(session: Session, n_rows: int, where: Path) -> int:
    """Columns of the decoder's logits: the `n_rows` of its vocabulary, the rest is padding. BundleError."""
    shape = session.outputs["logits"].shape
    if len(shape) != 3 or not isinstance(shape[2], int) or not 0 <= shape[2] - n_rows <= MOST_PADDING:
        raise BundleError(f"{where}: logits do not fit the manifest's dimensions; export the model again")
    return shape[2]
