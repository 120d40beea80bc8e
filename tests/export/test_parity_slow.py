"""True shapes, random weights: float32 bundles against transformers, and every precision's rows over whole windows."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from specedge.export.export import export_to
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.doctor import examine
from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.made_up import probe_mel
from support.checkpoints import make_checkpoint

pytestmark = pytest.mark.slow

N_WINDOWS, N_TOKENS = 20, 200
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


def script(name: str) -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("distinct", [False, True], ids=["greedy", "no token twice"])
def test_float32_is_transformers_over_20_windows(distinct: bool, checkpoint: Path) -> None:
    """Random weights soon repeat themselves; without repetition every step is another decision."""
    found = script("parity").measure(checkpoint, n_windows=N_WINDOWS, n_tokens=N_TOKENS, distinct=distinct)
    assert found.windows == N_WINDOWS and found.tokens == N_WINDOWS * N_TOKENS
    assert found.features_max_error <= 1e-3 and found.logits_max_error <= 1e-3, found
    assert found.different == 0 and found.ties <= 2, found


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


def greedy(opened: Bundle, draft: Callable[[int], Sequence[int]]) -> list[int]:
    """The likeliest `N_TOKENS` tokens of one whole window, none twice, in passes as wide as the drafts make them."""
    engine = Engine(opened, cache=False)
    state = engine.start(engine.encode(probe_mel(engine.dims, opened.manifest.n_frames)))
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
