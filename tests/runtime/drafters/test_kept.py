"""Drafters stay open between the calls of one model, where they did not fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge import WhisperModel
from specedge.runtime import model as models
from specedge.runtime.decoding.drafter import NO_GUESS, DraftContext, Drafter, DraftTree, TargetModel
from specedge.runtime.drafters.kept import KeptDrafters
from specedge.runtime.options import DrafterOptions
from support.exported import bundle

SOUND = np.full(16_000, 0.01, np.float32)


class Noted(Drafter):
    """Proposes nothing and notes what is done to it."""

    raises = False

    def __init__(self) -> None:
        self.n_windows, self.is_closed = 0, False

    def begin(self, window: Any) -> None:
        assert not self.is_closed
        self.n_windows += 1

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        if self.raises:
            raise RuntimeError("no more")
        return NO_GUESS

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Noted]:
    """The drafters that a model made, one for each that was asked for by name."""
    found: list[Noted] = []

    def make(asked: Any, target: TargetModel, **_: bool) -> Drafter:
        if not isinstance(asked, DrafterOptions):
            return asked  # type: ignore[no-any-return]
        found.append(Noted())
        return found[-1]

    monkeypatch.setattr(models, "make_drafter", make)
    return found


@pytest.fixture
def model(made: list[Noted]) -> WhisperModel:
    return WhisperModel(bundle().path, cpu_threads=1)


def call(model: WhisperModel, **options: Any) -> Iterator[Any]:
    loose: dict[str, Any] = {"language": "en", "temperature": 0.0, "max_new_tokens": 4, "no_speech_threshold": None}
    return model.transcribe(SOUND, **loose, **options)[0]


def test_the_next_call_has_the_drafter_of_the_last(model: WhisperModel, made: list[Noted]) -> None:
    for _ in range(3):
        list(call(model))
    (drafter,) = made
    assert drafter.n_windows == 3 and not drafter.is_closed


def test_a_call_whose_drafter_fails_gives_nothing_back(model: WhisperModel, made: list[Noted]) -> None:
    failing = call(model)
    made[0].raises = True
    list(failing)
    list(call(model))
    assert [drafter.is_closed for drafter in made] == [True, False]


def test_a_call_that_is_left_early_gives_its_drafter_back(model: WhisperModel, made: list[Noted]) -> None:
    call(model).close()  # type: ignore[attr-defined]
    left = call(model)
    next(left)
    left.close()  # type: ignore[attr-defined]
    list(call(model))
    (drafter,) = made
    assert not drafter.is_closed and drafter.n_windows == 2


def test_other_options_are_another_drafter(model: WhisperModel, made: list[Noted], tmp_path: Path) -> None:
    map_file = tmp_path / "a.tmap"
    map_file.write_bytes(b"one")
    list(call(model, drafter="tokenmap", token_map=map_file))
    list(call(model, drafter="tokenmap", token_map=map_file))
    assert len(made) == 1
    map_file.write_bytes(b"another")  # the file was built anew
    list(call(model, drafter="tokenmap", token_map=map_file))
    list(call(model, drafter="ngram"))
    assert len(made) == 3


def test_a_drafter_of_the_programs_own_is_left_alone(model: WhisperModel, made: list[Noted]) -> None:
    own = Noted()
    list(call(model, drafter=own))
    call(model, drafter=own).close()  # type: ignore[attr-defined]
    assert not own.is_closed and not made


def test_few_are_kept() -> None:
    kept = KeptDrafters()
    loans = []
    for i in range(9):
        with kept.lend(DrafterOptions("ngram"), Noted, besides=i) as loan:
            loan.keep()
        loans.append(loan)
    open_ = [loan.drafter for loan in loans if not loan.drafter.is_closed]  # type: ignore[attr-defined]
    assert open_ == [loan.drafter for loan in loans[-4:]]
    kept.close()
    assert all(drafter.is_closed for drafter in open_)  # type: ignore[attr-defined]
