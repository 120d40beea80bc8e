"""A drafter of a program's own whose properties raise: it is dropped, and nothing but speed has changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import specedge
from specedge.errors import Interrupted
from specedge.runtime.decoding.drafter import DraftContext, Drafter, DraftTree, Verdict, WindowContext
from specedge.runtime.decoding.statistics import Learning
from support import exported

SOUND = np.random.default_rng(5).standard_normal(16_000 * 5).astype(np.float32) * 0.1
OPTIONS: dict[str, Any] = {"language": "en", "temperature": 0.0, "no_speech_threshold": None}
PROPERTIES = (
    *("name", "reads_hidden", "listens", "learning", "rests", "wants_rows", "choice", "sources"),
    *("guess", "model"),
)


class Plain(Drafter):
    """Guesses, mostly wrongly."""

    name = "plain"

    def begin(self, window: WindowContext) -> None:
        """Nothing to prepare."""

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """The same few tokens always."""
        return DraftTree([11, 12, 13][:budget])

    def observe(self, verdict: Verdict) -> None:
        """Nothing to learn."""

    def end(self, tokens: tuple[int, ...]) -> None:
        """Nothing to learn."""


def hostile(attribute: str, error: BaseException, *, after: int = 0) -> Any:
    """A drafter whose `attribute` raises, from the time on that it was read `after` times."""
    n_read = 0

    def value(self: object) -> Any:
        nonlocal n_read
        n_read += 1
        if n_read <= after:
            return {"name": "plain", "learning": Learning()}.get(attribute, False)
        raise error

    return type("Hostile", (Plain,), {attribute: property(value)})()


@pytest.fixture(scope="module")
def model() -> specedge.WhisperModel:
    return specedge.WhisperModel(str(exported.bundle().path), cpu_threads=1)


@pytest.fixture(scope="module")
def plain(model: specedge.WhisperModel) -> list[Any]:
    segments = list(model.transcribe(SOUND, **OPTIONS)[0])
    assert len(segments) > 0
    return segments


@pytest.mark.parametrize("attribute", PROPERTIES)
def test_a_property_that_raises_changes_nothing_but_speed(
    model: specedge.WhisperModel, plain: list[Any], attribute: str
) -> None:
    for drafter in (hostile(attribute, RuntimeError("no such luck")), hostile(attribute, OSError("gone"), after=2)):
        segments, info = model.transcribe(SOUND, drafter=drafter, **OPTIONS)
        assert list(segments) == plain
        assert info.speculation["drafter"] in ("plain", "Hostile")


@pytest.mark.parametrize("attribute", ["name", "reads_hidden", "listens", "learning", "guess", "another", "share"])
def test_nor_in_batches_live_and_beams(model: specedge.WhisperModel, attribute: str) -> None:
    pipeline, short = specedge.BatchedInferencePipeline(model), SOUND[: 16_000 * 2]
    drafter = hostile(attribute, ValueError("no"))
    assert list(pipeline.transcribe(short, drafter=drafter, **OPTIONS)[0]) == list(
        pipeline.transcribe(short, **OPTIONS)[0]
    )
    beams = {**OPTIONS, "beam_size": 2}
    drafter = hostile(attribute, ValueError("no"))
    assert list(model.transcribe(short, drafter=drafter, **beams)[0]) == list(model.transcribe(short, **beams)[0])
    live = {**OPTIONS, "temperature": (0.0,)}
    assert list(model.stream([short], drafter=hostile(attribute, ValueError("no")), **live)) == list(
        model.stream([short], **live)
    )
    if attribute == "guess":  # no heads to believe, then
        live["beam_size"] = 2
        believing = model.stream([short], drafter=hostile(attribute, ValueError("no")), accept="0.8", **live)
        assert list(believing) == list(model.stream([short], **live))


@pytest.mark.parametrize("attribute", ["name", "reads_hidden", "listens", "learning"])
@pytest.mark.parametrize("stop", [Interrupted("stop"), KeyboardInterrupt()])
def test_a_stop_passes(model: specedge.WhisperModel, attribute: str, stop: BaseException) -> None:
    with pytest.raises(type(stop)):
        list(model.transcribe(SOUND[:16_000], drafter=hostile(attribute, stop), **OPTIONS)[0])
