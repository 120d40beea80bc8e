"""The encoder: windows that share a pass never notice each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.errors import UsageError
from specedge.runtime.engine import engine as engine_module
from specedge.runtime.engine.engine import Engine, Features
from support.exported import PRECISIONS, bundle, engine, noise_mel


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many windows each pass of the encoder had."""
    seen: list[int] = []
    original = Engine._encode_pass

    def note(self: Engine, windows: NDArray[np.float32]) -> list[Features]:
        seen.append(len(windows))
        return original(self, windows)

    monkeypatch.setattr(Engine, "_encode_pass", note)
    return seen


def same(a: Features, b: Features) -> bool:
    return a.hidden.tobytes() == b.hidden.tobytes() and all(
        a.cross[name].tobytes() == b.cross[name].tobytes() for name in b.cross
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n_frames", [200, 131])
def test_windows_encoded_together_have_the_bits_of_their_own(
    precision: str, n_frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether these shapes share a pass is the kernels' affair: for a few channels, convolutions notice neighbours."""
    made = engine(precision)
    windows = [noise_mel(made.dims.n_mels, n_frames, seed=seed) for seed in range(7)]
    alone = [made.encode(window) for window in windows]
    monkeypatch.setattr(engine_module, "SHARED_POSITIONS", 3 * (n_frames // 2 + 1))
    for _ in range(2):
        assert all(map(same, made.encode_all(windows), alone))


def test_a_pass_of_a_size_that_is_exact_is_shared_from_then_on(
    passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Engine(bundle(), threads=1)
    windows = [noise_mel(made.dims.n_mels, 200, seed=seed) for seed in range(7)]
    monkeypatch.setattr(engine_module, "SHARED_POSITIONS", 300)
    monkeypatch.setattr(engine_module, "_same_bits", lambda a, b: True)
    passes.clear()
    for _ in range(2):
        made.encode_all(windows)
    assert passes == [1, 1, 1, 3, 3, 1, 3, 3, 1]


def test_where_neighbours_are_noticed_windows_take_turns(passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    made = Engine(bundle(), threads=1)
    windows = [noise_mel(made.dims.n_mels, 200, seed=seed) for seed in range(2)]
    alone = [made.encode(window) for window in windows]
    counted = Engine._encode_pass

    def coupled(self: Engine, given: NDArray[np.float32]) -> list[Features]:
        found = counted(self, given)
        if len(given) > 1:
            found[1].hidden[0, 0] = np.nextafter(found[1].hidden[0, 0], np.float32(9))
        return found

    monkeypatch.setattr(Engine, "_encode_pass", coupled)
    passes.clear()
    for _ in range(3):
        assert all(map(same, made.encode_all(windows), alone))
    assert passes == [1, 1, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("lengths", [[], [200, 190]])
def test_windows_of_several_lengths_are_refused(lengths: list[int]) -> None:
    made = engine("int8")
    mels: list[Any] = [noise_mel(made.dims.n_mels, n_frames) for n_frames in lengths]
    with pytest.raises(UsageError, match="all of one length"):
        made.encode_all(mels)
