"""A CTC head's graph against the same head in NumPy, and its gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from specedge.export.ctc_graph import UNSAID, CtcWeights, write_ctc_graph
from support.ctc_heads import posteriors, random_head

N_STATE = 24


def _run(weights: CtcWeights, features: NDArray[np.float32], folder: Path) -> tuple[Any, Any, Any]:
    path = folder / "ctc.onnx"
    write_ctc_graph(path, weights, {"key": "value"})
    onnx.checker.check_model(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    frames, log_probs, times = session.run(None, {"features": features[None]})
    return frames, log_probs, times


def _features(n_ctx: int) -> NDArray[np.float32]:
    return 3 * np.random.default_rng(n_ctx).standard_normal((n_ctx, N_STATE)).astype(np.float32)


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"n_blocks": 0},
        {"n_taps": 9, "n_blocks": 3},
        {"n_taps": 1, "n_trunk": 1},
        {"n_parts": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_ctx", [1, 2, 60])
def test_the_graph_computes_what_the_weights_say(shape: dict[str, int], n_ctx: int, tmp_path: Path) -> None:
    weights, features = random_head(N_STATE, **shape), _features(n_ctx)
    frames, log_probs, times = _run(weights, features, tmp_path)
    expected = posteriors(weights, features)
    np.testing.assert_array_equal(frames, expected.frames)
    np.testing.assert_allclose(times, expected.times, atol=1e-4)
    np.testing.assert_allclose(log_probs, expected.log_probs, atol=1e-4)
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=1), 1, atol=1e-5)
    assert len(times) == n_ctx * shape.get("n_parts", 1)


def test_the_gate_keeps_the_frames_below_the_ceiling_alone(tmp_path: Path) -> None:
    features = _features(60)
    everything = random_head(N_STATE, bias=-1e4)
    open_frames, *_ = _run(everything, features, tmp_path)
    assert open_frames.tolist() == list(range(60))
    frames, log_probs, _ = _run(random_head(N_STATE), features, tmp_path)
    assert 0 < len(frames) < 60 and (np.exp(log_probs[:, 0]) < 0.99).all()
    closed, none, _ = _run(random_head(N_STATE, bias=1e4), features, tmp_path)
    assert closed.shape == (0,) and none.shape == (0, 257)


def test_a_head_for_few_bytes_hears_no_others(tmp_path: Path) -> None:
    narrow, features = random_head(N_STATE, said=range(40, 90)), _features(60)
    frames, log_probs, _ = _run(narrow, features, tmp_path)
    expected = posteriors(narrow, features)
    np.testing.assert_array_equal(frames, expected.frames)
    np.testing.assert_allclose(log_probs, expected.log_probs, atol=1e-4)
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=1), 1, atol=1e-5)
    outside = np.delete(log_probs, [0, *range(41, 91)], axis=1)
    assert (outside == UNSAID).all()
