"""A draft in the ids of another Whisper version: the same weights, the rows of its vocabulary in another order.

v2 and v3 cut text alike and differ in special tokens. A draft in either layout says the same, so what it loses between
versions is what the translation of ids loses. It knows nothing of experiments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.export.bundling import without_graph, write_bundle
from specedge.export.checkpoint import Checkpoint
from specedge.export.openai_pt import derive_configs
from specedge.export.spec import Source, Spec, Stored, expected_shapes
from specedge.models.recipe.dequantised import BundleWeights
from specedge.models.recipe.labels import LAYOUTS, layout_of, same_tokens
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import MANIFEST_NAME, SHORTLIST_GRAPH
from specedge.version import __version__

__all__ = ["checkpoint_of", "relaid"]

Read = Callable[[str], NDArray[np.float32]]


class _Read:
    """Named tensors that are computed when they are read."""

    def __init__(self, spec: Spec, read: Read) -> None:
        where = Path(spec.source.id)
        self.entries: Mapping[str, Stored] = {
            name: Stored(shape, "F32", where) for name, shape in expected_shapes(spec)
        }
        self.read = read

    def close(self) -> None:
        """Nothing is held open."""


def checkpoint_of(bundle: Bundle, layout: str) -> Checkpoint:
    """The model of an int8 bundle in the ids of the layout "v2" or "v3", to be closed.

    A language that the model has no row for, such as v3's Cantonese, gets the row of English; no rule lets it be said.
    Raises UsageError for a bundle of another precision or vocabulary.
    """
    before, after = layout_of(bundle.manifest.dims.n_vocab, bundle.path), LAYOUTS[layout]
    weights, source = BundleWeights(bundle), same_tokens(after, before)
    source[source < 0] = before.special.languages["en"]

    def read(name: str) -> NDArray[np.float32]:
        value = weights.tensor(name)
        return np.ascontiguousarray(value[source]) if name.endswith("embed_tokens.weight") else value

    spec = _spec(bundle, layout)
    return Checkpoint(spec, _Read(spec, read), where=spec.source.id)


def relaid(bundle: Bundle, layout: str, out: Path) -> Bundle:
    """Write the model of an int8 bundle to `out`, in the ids of the layout "v2" or "v3".

    Raises what `checkpoint_of` and `write_bundle` raise.
    """
    name, short = _name(bundle, layout), bundle.manifest.short_windows
    with checkpoint_of(bundle, layout) as checkpoint:
        made = write_bundle(checkpoint, out, precision="int8", name=name, version=__version__, short_windows=short)
    if SHORTLIST_GRAPH in bundle.manifest.graphs or SHORTLIST_GRAPH not in made.manifest.graphs:
        return made
    # It is to say what the original can say, which has the logits of all tokens.
    (out / MANIFEST_NAME).write_bytes(without_graph(made.manifest, out, SHORTLIST_GRAPH).to_bytes())
    return Bundle.open(out)


def _name(bundle: Bundle, layout: str) -> str:
    return f"{bundle.manifest.name}-{layout}"


def _spec(bundle: Bundle, layout: str) -> Spec:
    manifest, name = bundle.manifest, _name(bundle, layout)
    width, dims = 4 * manifest.dims.n_text_state, asdict(manifest.dims)
    dims["n_vocab"] = LAYOUTS[layout].special.n_vocab
    config, generation = derive_configs(dims, n_audio_ffn=width, n_text_ffn=width, where=name)
    generation["max_initial_timestamp_index"] = manifest.max_initial_timestamp_index
    generation["alignment_heads"] = [list(pair) for pair in manifest.alignment_heads]
    return Spec.from_config(config, generation=generation, source=Source(kind="folder", id=name), where=name)
