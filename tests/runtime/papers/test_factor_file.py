"""Learned factors come back from their file as they were, or not at all with one warning."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specedge.runtime.papers.adapter import load_factors, save_factors

OF = bytes(range(32))
A = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
B = np.random.default_rng(1).standard_normal((3, 12)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "folder" / "x.factors"
    assert save_factors(made, OF, (A, B))
    return made


def warned(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "\n" not in record.message
    caplog.clear()
    return record.message


def test_they_come_back(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = load_factors(path, OF, 12, 3)
    assert found is not None and (found[0] == A).all() and (found[1] == B).all()
    assert [entry.name for entry in path.parent.iterdir()] == ["x.factors"]
    assert load_factors(path.with_name("other"), OF, 12, 3) is None and not caplog.records


def test_those_of_others_are_not_used(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_factors(path, bytes(32), 12, 3) is None
    assert "another draft, target or domain" in warned(caplog)
    assert load_factors(path, OF, 3, 12) is None
    assert "another draft" in warned(caplog)
    assert load_factors(path, OF, 12, 4) is None
    assert "length" in warned(caplog)


def test_a_file_that_cannot_be_read(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_factors(path.parent, OF, 12, 3) is None
    assert "is not used: Is a directory" in warned(caplog)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(at=st.integers(0, 79 + 288), bit=st.integers(0, 7))
def test_a_flipped_bit_is_seen(path: Path, caplog: pytest.LogCaptureFixture, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    broken = path.with_name("broken")
    broken.write_bytes(data)
    assert load_factors(broken, OF, 12, 3) is None
    warned(caplog)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(n=st.integers(0, 367), more=st.binary(max_size=9))
def test_a_file_of_another_length_is_refused(path: Path, caplog: pytest.LogCaptureFixture, n: int, more: bytes) -> None:
    data = path.read_bytes()
    broken = path.with_name("broken")
    broken.write_bytes(data[:n] if not more else data + more)
    assert load_factors(broken, OF, 12, 3) is None
    warned(caplog)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e4, -1e9])
def test_numbers_that_cannot_be(path: Path, caplog: pytest.LogCaptureFixture, value: float) -> None:
    bad = B.copy()
    bad[1, 1] = value
    save_factors(path, OF, (A, bad))
    assert load_factors(path, OF, 12, 3) is None
    assert "cannot be" in warned(caplog)


def test_what_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert not save_factors(tmp_path / "file" / "x.factors", OF, (A, B))
    assert "is not kept" in warned(caplog)
