"""Tokens that share a row get its logit, each its own bits; files of something else are refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specedge.errors import BundleError
from specedge.runtime.bundle.token_rows import FILE_DTYPE, TokenRows


def numbered(keys: list[int]) -> NDArray[np.int64]:
    """Rows in the order of their first tokens, one for each distinct key."""
    known: dict[int, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)


@given(keys=st.lists(st.integers(0, 6), min_size=1, max_size=60), n=st.integers(1, 4), n_padding=st.integers(0, 5))
def test_each_token_has_the_logit_of_its_row(keys: list[int], n: int, n_padding: int) -> None:
    rows = numbered(keys)
    made = TokenRows(len(rows), rows)
    assert made.n_rows == len(set(keys))
    logits = np.random.default_rng(0).standard_normal((n, made.n_rows + n_padding)).astype(np.float32)
    got = made.of_tokens(logits[:, : made.n_rows])
    assert got.dtype == np.float32 and got.shape == (n, len(rows))
    assert got.tobytes() == logits[:, rows].tobytes() == np.stack([made.of_tokens(row) for row in logits]).tobytes()
    assert made.counts is not None and np.array_equal(made.counts, np.bincount(rows))
    assert np.array_equal(made.of(np.arange(len(rows))), rows)
    assert np.array_equal(made.of(list(range(len(rows)))), rows)
    assert np.array_equal(made.of(tuple(range(len(rows)))), rows)


def test_what_a_caller_writes_into_logits_of_tokens_leaves_those_of_rows() -> None:
    made = TokenRows(4, np.array([0, 1, 1, 1]))
    logits = np.array([[1, 2]], np.float32)
    made.of_tokens(logits)[:] = -np.inf
    assert made.of_tokens(logits).tolist() == [[1, 2, 2, 2]]


def test_without_shared_rows_nothing_is_copied() -> None:
    made = TokenRows(3)
    logits = np.zeros((2, 3), np.float32)
    assert made.n_rows == 3 and made.counts is None and made.of([2, 0]) == [2, 0]
    assert made.of_tokens(logits) is logits


def test_a_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(np.array([0, 1, 0, 2, 2], FILE_DTYPE).tobytes())
    assert np.array_equal(TokenRows.load(path, 5).of(np.arange(5)), [0, 1, 0, 2, 2])


@pytest.mark.parametrize("rows", [[], [0, 1], [0, 1, 2, 3], [1, 0, 0], [0, 2, 1], [0, 1, 2**32 - 1]])
def test_another_file_is_refused(rows: list[int], tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(np.array(rows, FILE_DTYPE).tobytes())
    with pytest.raises(BundleError, match="rows: not the rows of 3 tokens in the order of their first tokens"):
        TokenRows.load(path, 3)


@pytest.mark.parametrize("data", [None, b"12345"])
def test_a_file_that_cannot_be_read_is_one_line(data: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(BundleError, match="rows: cannot be read") as raised:
        TokenRows.load(path, 3)
    assert "\n" not in str(raised.value)
