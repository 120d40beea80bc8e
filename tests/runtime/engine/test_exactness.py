"""The probe finds rows that notice their company, wherever they stand, and finds none in what is exported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.runtime.engine.exactness import ROWS_PER_PASS, Invariance, probe_rows, probe_starts
from specedge.runtime.engine.made_up import probe_mel
from support.exported import PRECISIONS, engine

Fault = Callable[[NDArray[np.float32], int, int], None]


class FaultyDecoder:
    """Logits that say their position and token, changed by `fault(rows, n_before, width)` for each pass."""

    threads, n_paths, lock = 1, 1, threading.RLock()

    def __init__(self, fault: Fault, n_text_ctx: int = 448) -> None:
        self.dims: Any = SimpleNamespace(n_text_ctx=n_text_ctx, n_vocab=1000, n_mels=80, n_audio_ctx=100)
        self._fault = fault
        self.n_open = 0

    def start(self, _features: object) -> Any:
        self.n_open += 1
        return SimpleNamespace(length=0, memory=SimpleNamespace(caches={}))

    def forward(self, state: Any, ids: Any, logit_rows: Any = None) -> NDArray[np.float32]:
        assert state.length + len(ids) <= self.dims.n_text_ctx
        positions = np.arange(state.length, state.length + len(ids), dtype=np.float32)
        rows = np.stack([positions, np.array(ids, np.float32)], axis=1)
        self._fault(rows, state.length, len(ids))
        return rows if logit_rows is None else rows[logit_rows]

    def commit(self, state: Any, n_rows: int, _path: int = 0) -> None:
        state.length += n_rows

    def release(self, _state: Any) -> None:
        self.n_open -= 1


def probe(fault: Fault, n_text_ctx: int = 448) -> Invariance:
    decoder: Any = FaultyDecoder(fault, n_text_ctx)
    features: Any = None
    results, _ = probe_rows(decoder, features)
    assert decoder.n_open == 0
    return Invariance(results=tuple(results))


def nothing(_rows: NDArray[np.float32], _n_before: int, _width: int) -> None:
    pass


def test_rows_that_depend_on_nothing_pass() -> None:
    found = probe(nothing)
    assert found.exact and found.max_difference == 0
    assert {(row.n_before, row.rows_per_pass) for row in found.results} == {
        (start, width) for start in (0, 408) for width in ROWS_PER_PASS
    }


def width_16(rows: NDArray[np.float32], _n_before: int, width: int) -> None:
    if width == 16:
        rows += 1


def last_of_odd(rows: NDArray[np.float32], _n_before: int, width: int) -> None:
    if width % 2 and width > 1:
        rows[-1] = np.nextafter(rows[-1], np.float32(np.inf))


def deep(rows: NDArray[np.float32], n_before: int, width: int) -> None:
    if n_before + width > 440 and width > 1:
        rows[:, 0] += 0.25


def minus_zero(rows: NDArray[np.float32], n_before: int, width: int) -> None:
    if width == 2 and n_before == 0:
        rows[0, 0] = -0.0


@pytest.mark.parametrize(
    ("fault", "widths", "starts"),
    [(width_16, {16}, {0, 408}), (last_of_odd, {3, 5, 8, 16}, {0, 408}), (minus_zero, {2}, {0})],
)
def test_a_fault_is_found_where_it_is(fault: Fault, widths: set[int], starts: set[int]) -> None:
    found = [row for row in probe(fault).results if row.n_differing]
    assert {row.rows_per_pass for row in found} == widths and {row.n_before for row in found} == starts


def test_a_fault_at_the_end_of_long_texts_is_found() -> None:
    found = probe(deep)
    assert not found.exact and found.max_difference == 0.25
    assert {row.n_before for row in found.results if row.n_differing} == {408}


@pytest.mark.parametrize("variant", ["odd lengths", "odd heads", "one head of 64"])
def test_what_is_exported_is_exact(variant: str) -> None:
    made = engine("int8", variant)
    features = made.encode(probe_mel(made.dims, 2 * made.dims.n_audio_ctx))
    found = Invariance(results=tuple(probe_rows(made, features)[0]))
    assert found.exact, found
    assert {row.n_before for row in found.results} == set(probe_starts(made.dims))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_is_exact(precision: str) -> None:
    made = engine(precision)
    features = made.encode(probe_mel(made.dims))
    assert Invariance(results=tuple(probe_rows(made, features)[0])).exact
