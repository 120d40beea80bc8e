"""The check of kernels: it passes here, sees each wrong kernel and products that clip, and its graph is current."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from specedge.errors import BundleError, Interrupted
from specedge.export.kernel_graph import write_kernels
from specedge.export.layers import dequantize_blocks, dequantize_columns, quantize_blocks, quantize_columns
from specedge.runtime.engine import kernels
from specedge.runtime.engine.kernels import GRAPH, KERNELS, check_kernels, weight4, weight8
from specedge.runtime.engine.session import Canceller
from support.exported import bundle
from support.kernels import clipping, wrong


def test_every_kernel_is_right_here() -> None:
    check = check_kernels(Canceller())
    assert {kernel.name: kernel.difference for kernel in check.results if not kernel.right} == {}
    for precision in ("fp32", "int8", "int4"):
        assert check.wrong(precision) == ()


def test_the_shipped_graph_is_what_is_written_today(tmp_path: Path) -> None:
    written = onnx.load(str(write_kernels(tmp_path)))
    assert written == onnx.load(str(GRAPH)), "run `python -m specedge.export.kernel_graph`"
    assert not list(tmp_path.glob("*.data")), "the graph is one file"


def test_rounding_the_weights_loses_nothing() -> None:
    """Else a product could not be told from one that clips a little."""
    assert np.array_equal(dequantize_columns(quantize_columns(weight8())), weight8())
    assert np.array_equal(dequantize_blocks(quantize_blocks(weight4(), block_size=32)), weight4())
    assert np.abs(quantize_columns(weight8()).weight[:, :2]).min() == 63


@pytest.mark.parametrize("name", [kernel.name for kernel in KERNELS if not kernel.name.startswith("new_")])
@pytest.mark.parametrize("factor", [1.02, -1.0, float("nan")])
def test_a_wrong_kernel_is_seen(name: str, factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "GRAPH", wrong(tmp_path, name, factor))
    check = check_kernels(Canceller())
    (found,) = [kernel for kernel in check.results if not kernel.right]
    assert found.name == name and not check.clips
    assert found.to_json()["difference"] == (None if np.isnan(factor) else found.difference)


def test_products_that_clip_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "GRAPH", clipping(tmp_path))
    check = check_kernels(Canceller())
    assert check.clips and all(kernel.right for kernel in check.results)


def test_every_kernel_of_bundles_is_checked() -> None:
    """Products, norms, activations and attentions of all three graphs, in every precision."""
    checked = {node.op_type for node in onnx.load(str(GRAPH)).graph.node}
    for precision in ("fp32", "int8", "int4"):
        for graph in ("encoder", "cross_kv", "decoder"):
            model = onnx.load(str(bundle(precision).path / f"{graph}.onnx"), load_external_data=False)
            used = {node.op_type for node in model.graph.node}
            # Gather and the like move numbers; the two below cut the encoder's rows for its convolutions.
            assert used - checked <= {"Gather", "Shape", "Pad", "Slice", "Concat", "Cast", "Round", "Transpose"}


def test_a_kernel_that_onnxruntime_lacks_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load(str(GRAPH))
    next(node for node in model.graph.node if node.op_type == "QGemm").op_type = "QGemmOfTomorrow"
    monkeypatch.setattr(kernels, "GRAPH", tmp_path / "kernels.onnx")
    onnx.save(model, str(tmp_path / "kernels.onnx"))
    with pytest.raises(BundleError, match="lacks a kernel that bundles need: .*QGemmOfTomorrow.*another onnxruntime"):
        check_kernels(Canceller())


def test_a_cancelled_check_is_interrupted() -> None:
    canceller = Canceller()
    canceller.cancel()
    with pytest.raises(Interrupted):
        check_kernels(canceller)
