"""True shapes, random weights: float32 bundles against transformers, and every precision's rows over whole windows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.export.export import export_to
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.doctor import examine
from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.made_up import probe_mel
from support.checkpoints import make_checkpoint
from support.exported import load_transformers, noise_mel

pytestmark = pytest.mark.slow

N_WINDOWS, N_TOKENS = 2, 200
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "tiny": {"size": "tiny"},
    "base": {"size": "base"},
    "small": {"size": "small"},
    "tiny in v3's layout": {"size": "tiny", "n_mels": 128, "n_vocab": 51866},
    "tiny.en": {"size": "tiny", "en": True},
}


@pytest.fixture(scope="module", params=CHECKPOINTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = make_checkpoint(
        tmp_path_factory.mktemp(request.param.replace(" ", "-")) / "checkpoint", **CHECKPOINTS[request.param]
    )
    yield folder
    shutil.rmtree(folder)


def test_float32_is_transformers(checkpoint: Path, tmp_path: Path) -> None:
    """What the self-check of an export compares with is right: features and logits along greedy texts, none twice."""
    torch = pytest.importorskip("torch")
    opened = export_to(str(checkpoint), tmp_path / "bundle", precision="fp32")
    model, engine = load_transformers(checkpoint), Engine(opened)
    for seed in range(N_WINDOWS):
        mel = noise_mel(engine.dims.n_mels, opened.manifest.n_frames, seed=seed)
        tokens = greedy(opened, lambda _: [], mel)
        ids = [50, 51, 52, *tokens]
        features = engine.encode(mel)
        state = engine.start(features)
        logits = np.concatenate([engine.forward(state, ids[:100]).copy(), _behind(engine, state, ids, 100)])
        engine.release(state)
        with torch.no_grad():
            theirs = model(torch.from_numpy(mel)[None], decoder_input_ids=torch.tensor([ids]))
        assert np.abs(features.hidden - theirs.encoder_last_hidden_state[0].numpy()).max() <= 1e-3
        assert np.abs(logits - theirs.logits[0].numpy()).max() <= 1e-3


def _behind(engine: Engine, state: Any, ids: Sequence[int], n_done: int) -> np.ndarray:
    """Logits of the rows behind the first `n_done`, which the last pass ran."""
    engine.commit(state, n_done)
    return engine.forward(state, ids[n_done:])


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_rows_are_exact_over_whole_windows(precision: str, checkpoint: Path, tmp_path: Path) -> None:
    opened = export_to(str(checkpoint), tmp_path / "bundle", precision=precision)
    report = examine(opened)
    assert report.healthy, report
    plain = greedy(opened, lambda _: [])
    full = [*plain, *plain]
    oracle = greedy(opened, lambda n_done: full[n_done : n_done + 7])
    liar = greedy(opened, lambda n_done: [full[n_done], full[n_done + 1] ^ 1, 5, 6][: 1 + n_done % 4])
    assert oracle == plain and liar == plain and len(set(plain)) == N_TOKENS
    shutil.rmtree(opened.path)


def greedy(opened: Bundle, draft: Callable[[int], Sequence[int]], mel: Any = None) -> list[int]:
    """The likeliest `N_TOKENS` tokens of one whole window, none twice, in passes as wide as the drafts make them."""
    engine = Engine(opened)
    window = probe_mel(engine.dims, opened.manifest.n_frames) if mel is None else mel
    state = engine.start(engine.encode(window))
    tokens: list[int] = []
    pending = [50, 51, 52]
    while len(tokens) < N_TOKENS:
        guesses = list(draft(len(tokens)))[: N_TOKENS - len(tokens)]
        logits = engine.forward(state, [*pending, *guesses])[len(pending) - 1 :]
        n_right = 0
        for depth, row in enumerate(logits):
            row[tokens] = -np.inf
            tokens.append(int(row.argmax()))
            if depth == len(guesses) or guesses[depth] != tokens[-1]:
                break
            n_right += 1
        engine.commit(state, len(pending) + n_right)
        pending = [tokens[-1]]
    return tokens[:N_TOKENS]
