"""The self-check notes decoders whose rows are coupled, and refuses graphs of other weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.errors import ExactnessError
from specedge.export import decoder_graph, layers
from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import Checkpoint, open_checkpoint
from specedge.export.layers import PRECISIONS, round_rows
from specedge.export.onnx_builder import CONTRIB, GraphBuilder
from specedge.export.selfcheck import TEST_TEXT, check_bundle, check_ids
from specedge.runtime.bundle.manifest import MANY_GRAPH
from specedge.runtime.decoding.drafter import TargetModel
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.engine.engine import Engine
from support.checkpoints import make_checkpoint
from support.exported import bundle, checkpoint


def export(out: Path, precision: str) -> Any:
    with open_checkpoint(checkpoint()) as source:
        return write_bundle(source, out, precision=precision, name="micro", version="0.1.0")


def coupled_linear(
    g: GraphBuilder, x: str, name: str, weight: NDArray[np.float32], bias: NDArray[np.float32] | None, _kind: str
) -> str:
    """Stock dynamic quantisation: one scale for all rows of a pass."""
    rounded, scales = round_rows(weight)
    inputs = [x, g.const(f"{name}.weight", rounded.T), g.const(f"{name}.scales", scales), ""]
    if bias is not None:
        inputs.append(g.const(f"{name}.bias", bias))
    return g.node("DynamicQuantizeMatMul", inputs, domain=CONTRIB)


@pytest.mark.parametrize("place", ["decoder", "feed-forward"])
def test_a_decoder_that_couples_its_rows_is_found_and_never_drafted_for(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "decoder":
        monkeypatch.setattr(decoder_graph, "linear", coupled_linear)
    else:  # only the two layers of each feed-forward part, deep inside
        monkeypatch.setattr(layers, "linear", coupled_linear)
    made = export(tmp_path / "out", "int8")
    assert made.manifest.selfcheck["row_invariance"]["exact"] is False
    assert MANY_GRAPH in made.manifest.graphs  # which a machine that keeps rows exact can use
    engine = Engine(made, threads=1)
    with pytest.raises(ExactnessError, match="drafts could change the text.*--allow-inexact") as raised:
        make_drafter("ngram", TargetModel(made, threads=1, engine=engine))
    assert raised.value.exit_code == 4 and "\n" not in str(raised.value)


def test_a_sum_that_depends_on_where_rows_lie_in_memory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ReduceSum over the positions of int8 attention: exact for 128 of them, not for the probe's 125."""
    node = GraphBuilder.node

    def by_hand(self: GraphBuilder, op: str, inputs: Any, **options: Any) -> str:
        if op != "Softmax":
            return node(self, op, inputs, **options)
        peak = node(self, "ReduceMax", [inputs[0], self.ints(-1)], keepdims=1)
        mass = node(self, "Exp", [node(self, "Sub", [inputs[0], peak])])
        return node(self, "Div", [mass, node(self, "ReduceSum", [mass, self.ints(-1)], keepdims=1)])

    monkeypatch.setattr(GraphBuilder, "node", by_hand)
    folder = make_checkpoint(tmp_path / "source", n_audio_ctx=128)
    with open_checkpoint(folder) as source:
        made = write_bundle(source, tmp_path / "out", precision="int8", name="micro", version="0.1.0")
    assert made.manifest.selfcheck["row_invariance"]["exact"] is False


class Changed:
    """The checkpoint's weights, one of them changed."""

    def __init__(self, source: Checkpoint, name: str, change: Callable[[NDArray[np.float32]], Any]) -> None:
        self._source, self._name, self._change = source, name, change

    def tensor(self, name: str) -> NDArray[np.float32]:
        value = self._source.tensor(name)
        return np.asarray(self._change(value), np.float32) if name == self._name else value

    def has(self, name: str) -> bool:
        return self._source.has(name)


WRONG = [
    ("model.encoder.conv2.weight", lambda w: w[:, :, ::-1], "features"),
    ("model.encoder.layers.1.fc1.weight", lambda w: -w, "features"),
    ("model.encoder.embed_positions.weight", lambda w: w[::-1], "features"),
    ("model.decoder.layers.0.self_attn.v_proj.weight", lambda w: w.T, "logits"),
    ("model.decoder.layers.1.encoder_attn.k_proj.weight", lambda w: -w, "logits"),
    ("model.decoder.embed_tokens.weight", lambda w: np.roll(w, 1, axis=0), "logits"),
    ("model.decoder.layer_norm.bias", lambda w: w + 1, "logits"),
    ("model.encoder.layer_norm.bias", lambda w: w * np.nan, "features"),
]
# Rounding to 8 bits hides what a wrong layer changes little; a wrong vocabulary or a layer turned round it does not.
WRONG_INT8 = [WRONG[1], WRONG[2], WRONG[3], WRONG[5]]


@pytest.mark.parametrize(
    ("precision", "name", "change", "part"),
    [*(("fp32", *case) for case in WRONG), *(("int8", *case) for case in WRONG_INT8)],
)
def test_graphs_of_other_weights_are_refused(
    precision: str, name: str, change: Callable[[Any], Any], part: str
) -> None:
    with open_checkpoint(checkpoint()) as source:
        with pytest.raises(ExactnessError, match=f"{part} are off by .* expected at most") as raised:
            check_bundle(bundle(precision), Changed(source, name, change), source.spec, PRECISIONS[precision])
    assert raised.value.exit_code == 4


def test_an_align_graph_of_other_heads_is_refused() -> None:
    """Logits cannot show it: they come from the decoder."""
    made = bundle("fp32")
    heads = made.manifest.alignment_heads[::-1]
    assert heads == ((1, 1), (1, 0))
    turned = replace(made, manifest=replace(made.manifest, alignment_heads=heads))
    with open_checkpoint(checkpoint()) as source, pytest.raises(ExactnessError, match="scores are off by"):
        check_bundle(turned, source, source.spec, PRECISIONS["fp32"])


def test_the_check_asks_as_a_transcription_does() -> None:
    made = bundle("fp32")
    ids = check_ids(made)
    assert ids[:4] == made.manifest.whisper_tokens.prompt("en", timestamps=False)
    assert made.tokenizer.decode(ids[4:]) == TEST_TEXT
    narrow = replace(made.manifest, dims=replace(made.manifest.dims, n_text_ctx=6))
    assert check_ids(replace(made, manifest=narrow)) == ids[:6]
