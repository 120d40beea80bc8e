"""A decoder that is run a layer at a time gives the bits of the whole graph, and holds one layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from specedge.export.layered_decoder import LayeredDecoder, cut
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.dims import SpeechDims
from specedge.runtime.engine.made_up import probe_ids, probe_mel
from specedge.runtime.engine.session import Canceller
from specedge.runtime.engine.speech import SpeechEngine
from support.qwen_checkpoints import qwen_bundle
from support.speech_checkpoints import speech_bundle

BUNDLES = pytest.mark.parametrize("made", [speech_bundle, qwen_bundle])


def texts(engine: Any, features: Any, n_vocab: int) -> list[NDArray[np.float32]]:
    """Two texts in turn: prompts with audio within, rows that are forgotten, passes of odd and of even sizes."""
    ids = [id_ % n_vocab for id_ in probe_ids(engine.dims, 24)]
    audio = range(n_vocab, n_vocab + features.n_audio)
    first, second = engine.start(features), engine.start(features)
    found = []
    for state, rows in (
        (first, [*ids[:3], *audio, *ids[3:6]]),
        (second, [*audio[:2], *ids[:1]]),
        (first, ids[6:9]),
        (second, ids[3:4]),
        (first, ids[9:17]),
    ):
        found.append(engine.forward(state, rows, range(len(rows) - 1, len(rows))).copy())
        found.append(engine.forward(state, rows).copy())
        engine.commit(state, max(1, len(rows) - 2))
    return found


@BUNDLES
def test_its_bits_are_those_of_the_whole_graph(made: Callable[[], Bundle]) -> None:
    bundle = made()
    dims = bundle.manifest.dims
    assert isinstance(dims, SpeechDims)
    engine = SpeechEngine(bundle, threads=1, cache=False)
    features = engine.encode(probe_mel(dims))
    layered = LayeredDecoder(bundle, dims, Canceller(), threads=1)
    asked = texts(layered, features, dims.n_vocab)
    layered.run()
    found, whole = texts(layered, features, dims.n_vocab), texts(engine, features, dims.n_vocab)
    assert [rows.shape for rows in asked] == [rows.shape for rows in found]
    for ours, theirs in zip(found, whole, strict=True):
        assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    assert not list(bundle.path.glob("layer*"))


@BUNDLES
def test_a_layer_has_its_own_weights_alone(made: Callable[[], Bundle]) -> None:
    bundle = made()
    path = bundle.path / bundle.manifest.graphs["decoder"].file
    whole = onnx.load(str(path), load_external_data=False).graph
    layers = [layer.graph for layer in cut(path)]
    assert len(layers) == bundle.manifest.dims.n_text_layer + 2
    assert [node.name for layer in layers for node in layer.node] == [node.name for node in whole.node]
    large = [
        tensor.name for layer in layers for tensor in layer.initializer if tensor.external_data and "." in tensor.name
    ]
    assert sorted(large) == sorted(set(large)), "a weight in two layers"
