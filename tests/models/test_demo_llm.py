"""The bundled speech LLM: every drafter gives the text and the log-probabilities of plain decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from specedge import WhisperModel
from specedge.models import store
from support.paths import samples

DRAFTERS = ("ngram", "tokenmap", "mtp-latent", "ctc", "draft", "cascade", "auto")


@pytest.fixture(scope="module")
def model() -> Iterator[WhisperModel]:
    yield WhisperModel(store.bundled() / "demo-llm", cpu_threads=1)


def heard(model: WhisperModel, **options: Any) -> list[tuple[str, list[int], float]]:
    """Text, tokens and mean log-probability of each segment of the samples."""
    found = []
    for path in samples():
        segments, _ = model.transcribe(path, **options)
        found += [(segment.text, list(segment.tokens), segment.avg_logprob) for segment in segments]
    return found


def test_it_knows_the_samples(model: WhisperModel) -> None:
    assert [text.strip() for text, _, _ in heard(model, drafter="none")] == [
        "Call the maintenance crew to generator two.",
        "Ask Maria about the letter and the wheel.",
    ]


@pytest.mark.parametrize(
    "options", [{}, {"beam_size": 5}, {"temperature": 0.7, "best_of": 1}], ids=["", "beam", "drawn"]
)
def test_no_drafter_changes_a_token(model: WhisperModel, options: dict[str, Any]) -> None:
    plain = heard(model, drafter="none", **options)
    for drafter in DRAFTERS:
        more = {"lookahead": 4} if drafter == "draft" else {}
        assert heard(model, drafter=drafter, **more, **options) == plain, drafter


def test_its_one_language_is_told_to_it(model: WhisperModel) -> None:
    _, info = model.transcribe(samples()[0])
    assert (info.language, info.language_probability) == ("en", 1.0)
    assert heard(model, drafter="none") == heard(model, drafter="none", language="en")


@pytest.mark.parametrize("drafter", ["mtp-latent", "tokenmap", "draft"])
def test_drafts_save_passes(model: WhisperModel, drafter: str) -> None:
    more = {"lookahead": 4} if drafter == "draft" else {}
    for path in samples():
        segments, info = model.transcribe(path, drafter=drafter, **more)
        list(segments)
        assert info.speculation["tokens_per_pass"] > 1.5, info.speculation
