"""Whole transcriptions equal openai-whisper's and faster-whisper's on the same weights (support/longform.py)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import demo
from support.checkpoints import make_checkpoint
from support.demo import with_published_limit
from support.longform import Case, Comparison, demo_cases, random_cases

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def peers() -> Iterator[None]:
    pytest.importorskip("whisper", reason="openai-whisper is not installed")
    pytest.importorskip("faster_whisper", reason="faster-whisper is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the others' own
        yield


def compared(checkpoint: Path, work: Path, cases: list[Case], *, faster: bool) -> list[Comparison]:
    from support.peers import Compared

    model = Compared(checkpoint, work, faster=faster)
    return [found for case in cases for found in model.compare(case)]


def assert_equal(found: list[Comparison], n_expected: int) -> None:
    different = [f"{one.case}: {one.difference}" for one in found if one.difference is not None]
    assert not different, "\n".join(different)
    assert len(found) == n_expected
    assert sum(one.n_segments for one in found) > n_expected, "too little is said for the comparison to mean much"


def n_comparisons(cases: list[Case], *, faster: bool) -> int:
    return sum(case.openai + (case.faster and faster) for case in cases)


@pytest.mark.filterwarnings("ignore")
def test_the_demo_model(tmp_path: Path) -> None:
    cases = demo_cases()
    assert len(cases) >= 30
    checkpoint = with_published_limit(demo.checkpoint(), tmp_path / "checkpoint")
    assert_equal(compared(checkpoint, tmp_path, cases, faster=True), n_comparisons(cases, faster=True))


@pytest.mark.filterwarnings("ignore")
def test_random_weights(tmp_path: Path) -> None:
    cases = random_cases()
    checkpoint = make_checkpoint(tmp_path / "checkpoint", dtype="float32")
    assert_equal(compared(checkpoint, tmp_path, cases, faster=False), n_comparisons(cases, faster=False))
