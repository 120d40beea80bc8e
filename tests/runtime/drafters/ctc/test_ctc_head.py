"""The runtime half of a CTC head: what it hears, and which heads it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from specedge.errors import BundleError, UsageError
from specedge.runtime.bundle.bundle import MANIFEST_NAME, Bundle, hash_file
from specedge.runtime.drafters.ctc.head import ENCODER_KEY, N_UNITS, UNITS_KEY, UNITS_SHA256_KEY, CtcHead
from specedge.runtime.engine.session import Canceller
from support.ctc_heads import bundle_with_head, posteriors, random_head
from support.exported import bundle, engine, noise_mel


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_with_head(bundle(), tmp_path_factory.mktemp("ctc") / "bundle")


def test_it_hears_in_a_window_what_its_weights_say(headed: Bundle) -> None:
    dims = headed.manifest.dims
    hidden = engine().encode(noise_mel(dims.n_mels, headed.manifest.n_frames)).hidden
    heard = CtcHead(headed, Canceller()).hear(hidden)
    expected = posteriors(random_head(dims.n_audio_state), hidden)
    assert heard.n_ctx == dims.n_audio_ctx and heard.log_probs.shape == (len(heard.frames), N_UNITS)
    assert heard.frames.dtype == np.int64 and heard.log_probs.dtype == np.float32
    assert len(heard.frames)
    np.testing.assert_array_equal(heard.frames, expected.frames)
    np.testing.assert_allclose(heard.log_probs, expected.log_probs, atol=1e-3)


def test_windows_of_other_lengths_and_of_nothing(headed: Bundle) -> None:
    n_state = headed.manifest.dims.n_audio_state
    head = CtcHead(headed, Canceller())
    rng = np.random.default_rng(0)
    for n_ctx in (1, 9, 2, 7):
        hidden = 3 * rng.standard_normal((n_ctx, n_state), np.float32)
        heard, expected = head.hear(hidden), posteriors(random_head(n_state), hidden)
        assert heard.n_ctx == n_ctx and heard.frames.tolist() == expected.frames.tolist()
        np.testing.assert_allclose(heard.log_probs, expected.log_probs, atol=1e-3)
    for shape in ((0, n_state), (3, n_state + 1), (n_state,)):
        with pytest.raises(UsageError, match="encoder output has shape"):
            head.hear(np.zeros(shape, np.float32))


def test_a_bundle_without_a_head_says_so() -> None:
    with pytest.raises(BundleError, match="has no CTC head; train a head"):
        CtcHead(bundle(), Canceller())


def _listed(made: Bundle) -> Bundle:
    files = {**made.manifest.files, "ctc.onnx": hash_file(made.path / "ctc.onnx")}
    (made.path / MANIFEST_NAME).write_bytes(replace(made.manifest, files=files).to_bytes())
    return Bundle.open(made.path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (ENCODER_KEY, "0" * 64, "a CTC head for another encoder than this bundle's"),
        (UNITS_KEY, "letters-30", "a CTC head for the units 'letters-30', expected 'bytes-257'"),
        (UNITS_SHA256_KEY, "0" * 64, "a CTC head for the units 'bytes-257'"),
    ],
)
def test_a_head_for_something_else_is_refused(key: str, value: str, message: str, tmp_path: Path) -> None:
    made = bundle_with_head(bundle(), tmp_path / "bundle")
    path = made.path / "ctc.onnx"
    model = onnx.load(str(path))
    helper.set_model_props(model, {**{entry.key: entry.value for entry in model.metadata_props}, key: value})
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BundleError, match=message) as error:
        CtcHead(_listed(made), Canceller())
    assert error.value.exit_code == 4 and "\n" not in str(error.value)


def test_a_damaged_head_is_refused(tmp_path: Path) -> None:
    made = bundle_with_head(bundle(), tmp_path / "bundle")
    path = made.path / "ctc.onnx"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(BundleError, match=r"ctc\.onnx: \d+ bytes, expected"):
        Bundle.open(made.path)
    with pytest.raises(BundleError, match="cannot load this graph"):
        CtcHead(_listed(made), Canceller())
