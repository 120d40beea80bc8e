"""The graphs that a draft learns with change no bit until something is learned, and are added to a bundle in place."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.errors import UsageError
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import LEARN_GRAPH
from specedge.runtime.cli.main import main
from specedge.runtime.engine.draft_model import DraftModel, DraftText
from support.exported import PRECISIONS, bundle, checkpoint, engine, learnable, noise_mel

RANK = 4


def factors(n_state: int, size: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((n_state, RANK)), rng.standard_normal((RANK, n_state))
    return a.astype(np.float32), (size * b).astype(np.float32)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("variant", ["plain", "untied", "draft en"])
def test_what_has_learned_nothing_gives_the_decoders_bits(precision: str, variant: str) -> None:
    made = engine(precision, variant, threads=1)
    model = DraftModel(learnable(precision, variant), threads=1, learns=True)
    features = made.encode(noise_mel(made.dims.n_mels, 200))
    text = DraftText(model, features, factors(made.dims.n_text_state, 0.0), gives_hidden=True)
    state = made.start(features, keeps_hidden=True)
    for length in (3, 4, 9):
        ids = list(range(5, 5 + length))
        expected = made.forward(state, ids[state.length :], [length - state.length - 1])[0].copy()
        made.commit(state, length - state.length)
        assert state.hidden is not None
        hidden = state.hidden[length - 1].copy()
        assert text.follow(ids).tobytes() == expected.tobytes()
        assert text.hidden.tobytes() == hidden.tobytes()
    made.release(state)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("variant", ["plain", "untied"])
def test_logits_are_the_vectors_times_the_changed_rows(precision: str, variant: str) -> None:
    model = DraftModel(learnable(precision, variant), threads=1, learns=True)
    dims = model.bundle.manifest.dims
    a, b = factors(dims.n_text_state, 0.0)
    features = model.engine.encode(noise_mel(dims.n_mels, 200))
    text = DraftText(model, features, (a, b), gives_hidden=True)
    before = text.follow([5, 6, 7]).copy()
    b += factors(dims.n_text_state, 0.01)[1]  # in place: the next pass reads it
    after = text.follow([5, 6, 8]).copy()
    row = text.hidden + (text.hidden @ a) @ b
    assert model.vectors is not None
    logits = model.vectors.of(np.arange(dims.n_vocab)) @ row
    slack = 1e-4 if precision == "fp32" else 0.15 * before.std()  # int8 rounds the row
    assert np.abs(logits - after).max() < slack
    assert text.follow([5, 6, 8, 9]).shape == (dims.n_vocab,)


def test_a_bundle_without_them_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="cannot learn; make it so with `specedge export .* --learnable`"):
        DraftModel(bundle(), threads=1, learns=True)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle("int8", "draft").path, tmp_path / "old"))


def test_it_is_added_in_place_by_the_command(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in old.iterdir()}
    assert main(["export", str(old), "--learnable"]) == 0
    assert "can learn as a draft now" in capsys.readouterr().out
    changed = {path.name for path in old.iterdir() if path.stat().st_mtime_ns != before.get(path.name)}
    assert changed == {"learn.onnx", "vectors.onnx", "specedge.json"}
    assert Bundle.open(old).digest == learnable("int8", "draft").digest
    assert main(["export", str(old), "--learnable"]) == 2
    assert "has the graphs to learn with already" in capsys.readouterr().err
    assert main(["export", str(old), "--learnable", "--name", "other"]) == 2
    assert "give no option but --force" in capsys.readouterr().err


def test_it_is_exported_with_a_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["export", str(checkpoint("draft")), "-o", str(out), "--learnable"]) == 0
    assert LEARN_GRAPH in Bundle.open(out).manifest.graphs
