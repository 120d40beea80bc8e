"""The encoder in plain operators: what it computes, what it is made of, and bundles without it."""

from __future__ import annotations

import functools
from pathlib import Path

import onnx
import pytest

from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.export.selfcheck import relative_error
from specedge.runtime.bundle.bundle import Bundle, encoder_fingerprint
from specedge.runtime.bundle.manifest import PLAIN_ENCODER_GRAPH
from specedge.runtime.cli.main import main
from specedge.runtime.engine.engine import encoder_output
from specedge.runtime.engine.session import Canceller, load_graph
from support.exported import bundle, checkpoint, engine, made_folder, noise_mel

MOST_ERROR = {"fp32": 1e-5, "int8": 0.04}  # of weights alone: nothing else is rounded


def with_plain(precision: str, variant: str = "plain") -> Bundle:
    return _with_plain(precision, variant)


@functools.cache
def _with_plain(precision: str, variant: str) -> Bundle:
    with open_checkpoint(checkpoint(variant)) as source:
        out = made_folder("with-plain", f"{variant}-{precision}")
        return write_bundle(source, out, precision=precision, name="micro", version="0.1.0", encoder_plain=True)


@pytest.mark.parametrize(("precision", "variant"), [("fp32", "odd lengths"), ("int8", "plain"), ("int8", "odd heads")])
def test_it_computes_what_the_weights_say(precision: str, variant: str) -> None:
    made = with_plain(precision, variant)
    dims = made.manifest.dims
    session = load_graph(made, PLAIN_ENCODER_GRAPH, Canceller(), threads=1)
    for n_frames in (2 * dims.n_audio_ctx, 51):
        mel = noise_mel(dims.n_mels, n_frames)
        (hidden,) = encoder_output(session, mel[None], dims.n_audio_state)
        expected = engine("fp32", variant).encode(mel).hidden
        assert hidden.shape == expected.shape
        assert relative_error(hidden, expected) < MOST_ERROR[precision]
    assert made.manifest.selfcheck["plain_features_relative_error"] < MOST_ERROR[precision]


def test_its_operators_are_those_of_the_standard() -> None:
    model = onnx.load(str(with_plain("int8").file(f"{PLAIN_ENCODER_GRAPH}.onnx")), load_external_data=False)
    assert {node.domain for node in model.graph.node} == {""}
    stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
    assert len(products) == 4 * with_plain("int8").manifest.dims.n_audio_layer
    assert {stored[node.input[0]] for node in products} == {onnx.TensorProto.INT8}
    onnx.checker.check_model(str(with_plain("int8").file(f"{PLAIN_ENCODER_GRAPH}.onnx")), full_check=True)


def test_the_other_files_are_as_without_it() -> None:
    """So a bundle with it gives the same text."""
    plain, old = with_plain("int8").manifest, bundle("int8").manifest
    assert encoder_fingerprint(plain) == encoder_fingerprint(old)
    assert set(plain.graphs) - set(old.graphs) == {PLAIN_ENCODER_GRAPH}
    assert {name: plain.files[name] for name in old.files} == dict(old.files)


def test_a_graph_that_computes_something_else_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specedge.errors import ExactnessError
    from specedge.export import plain_encoder

    monkeypatch.setattr(plain_encoder, "residual_norm", lambda g, _, x, *__: (x, x))
    with open_checkpoint(checkpoint()) as source, pytest.raises(ExactnessError, match="plain_features are off"):
        write_bundle(source, tmp_path / "out", precision="int8", name="m", version="0.1.0", encoder_plain=True)
    assert not (tmp_path / "out").exists()


def test_a_bundle_does_not_get_it_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Its weights are rounded already."""
    assert main(["export", str(bundle("int8").path), "--learnable", "--encoder-plain"]) == 2
    assert "in place" in capsys.readouterr().err
