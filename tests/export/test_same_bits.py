"""Bits that must not depend on where a graph runs: on the number of threads, on rows that share a pass, on switches."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from specedge.export.decoder_graph import self_attention
from specedge.export.onnx_builder import GraphBuilder
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import Dims
from specedge.runtime.engine.engine import Engine
from support.exported import PRECISIONS, bundle, noise_mel
from support.paths import DEMO

FLASH = "ORT_GQA_DISABLE_FLASH_ATTENTION"
FLOAT = TensorProto.FLOAT


def _encoded(opened: Bundle, threads: int, n_frames: int) -> list[bytes]:
    features = Engine(opened, threads=threads).encode(noise_mel(opened.manifest.dims.n_mels, n_frames, seed=1))
    return [features.hidden.tobytes(), *(features.cross[name].tobytes() for name in sorted(features.cross))]


@functools.cache
def _demo() -> Bundle:
    return Bundle.open(DEMO)


@pytest.mark.parametrize("n_frames", [577, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_encoder_has_the_same_bits_with_every_number_of_threads(n_frames: int) -> None:
    """As convolutions its first layers gave others with 5, 6 and 8 threads, and now and then another text."""
    one = _encoded(_demo(), 1, n_frames)
    for threads in (2, 5, 6, 8):
        assert _encoded(_demo(), threads, n_frames) == one, threads


@pytest.mark.parametrize("precision", PRECISIONS)
def test_so_it_is_in_every_precision(precision: str) -> None:
    made = bundle(precision)
    assert _encoded(made, 8, 199) == _encoded(made, 1, 199)


class _RandomWeights:
    def __init__(self, d: int) -> None:
        self._d = d

    def tensor(self, name: str) -> NDArray[np.float32]:
        shape = (self._d, self._d) if name.endswith("weight") else (self._d,)
        seed = int.from_bytes(name.encode()[-8:], "little") % 2**32
        return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

    def has(self, name: str) -> bool:
        return name.endswith(("weight", "bias")) and not name.endswith("k_proj.bias")


@pytest.mark.parametrize("n_rows", [2, 16, 446])
def test_attention_leaves_flash_out_whatever_the_environment_says(
    n_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flash attention sums a row over those behind it too, which on Arm and old x86 changes its bits."""
    dims = Dims(
        n_mels=80, n_audio_ctx=10, n_audio_state=64, n_audio_head=2, n_audio_layer=1,
        n_text_ctx=448, n_text_state=64, n_text_head=2, n_text_layer=1, n_vocab=100,
    )  # fmt: skip
    with GraphBuilder(tmp_path, "attention") as g:
        x = g.input("x", FLOAT, [1, "n_rows", dims.n_text_state])
        g.input("past_len", TensorProto.INT32, [1])
        g.input("total_len", TensorProto.INT32, [])
        (y,) = self_attention(g, x, dims, _RandomWeights(dims.n_text_state), "layer", 0, "fp32")
        g.output(y, "y", FLOAT, [1, "n_rows", dims.n_text_state])
        g.save()
    rng = np.random.default_rng(0)
    caches = {f"self_{part}_0": rng.standard_normal((1, 2, 448, 32)).astype(np.float32) for part in "kv"}
    inputs = {
        "x": rng.standard_normal((1, n_rows, 64)).astype(np.float32),
        "past_len": np.array([n_rows - 1], np.int32),
        "total_len": np.array(n_rows, np.int32),
        **caches,
    }
    found = []
    for value in ("0", "1"):
        monkeypatch.setenv(FLASH, value)
        session = ort.InferenceSession(str(g.path), providers=["CPUExecutionProvider"])
        found.append(session.run(["y"], inputs)[0])
    assert found[0].tobytes() == found[1].tobytes()


def test_cross_attention_keeps_to_seven_bits() -> None:
    """Beyond, x86 without VNNI clips the sums of two products, and words change."""
    made = Engine(_demo(), threads=1)
    cross = made.encode(noise_mel(made.dims.n_mels, 400, seed=2)).cross
    rounded = [array for array in cross.values() if array.dtype == np.int8]
    assert rounded and all(int(np.abs(array.astype(int)).max()) == 63 for array in rounded)
