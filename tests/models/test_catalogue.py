"""Short names lead to the hub ids that users of openai-whisper, faster-whisper and the hub mean by them."""

from __future__ import annotations

import pytest

from specedge.models import catalogue


@pytest.mark.parametrize(
    ("name", "hub_id"),
    [
        ("tiny", "openai/whisper-tiny"),
        ("whisper-tiny", "openai/whisper-tiny"),
        ("openai/whisper-tiny", "openai/whisper-tiny"),
        ("Tiny.EN", "openai/whisper-tiny.en"),
        ("large", "openai/whisper-large-v3"),
        ("whisper-large", "openai/whisper-large-v3"),
        ("large-v1", "openai/whisper-large"),
        ("openai/whisper-large", "openai/whisper-large"),
        ("large-v3-turbo", "openai/whisper-large-v3-turbo"),
        ("turbo", "openai/whisper-large-v3-turbo"),
        ("distil-large-v3.5", "distil-whisper/distil-large-v3.5"),
        ("distil-whisper/distil-small.en", "distil-whisper/distil-small.en"),
    ],
)
def test_names_and_ids(name: str, hub_id: str) -> None:
    checkpoint = catalogue.find(name)
    assert checkpoint is not None and checkpoint.hub_id == hub_id


@pytest.mark.parametrize("name", ["", "huge", "someone/whisper-tiny", "whisper-distil-small.en", "whisper-", "../tiny"])
def test_unknown_names(name: str) -> None:
    assert catalogue.find(name) is None


def test_every_entry_is_found_by_its_own_name_and_by_its_hub_id() -> None:
    for name, checkpoint in catalogue.CHECKPOINTS.items():
        assert checkpoint.name == name
        assert catalogue.find(name) is checkpoint
        assert catalogue.find(checkpoint.hub_id) is checkpoint
        assert (checkpoint.languages == 1) >= name.endswith(".en")
    for alias, name in catalogue.ALIASES.items():
        assert alias not in catalogue.CHECKPOINTS and name in catalogue.CHECKPOINTS


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("tinny", "whisper-tiny"),
        ("larg-v3", "whisper-large-v3"),
        ("turboo", "whisper-large-v3-turbo"),
        ("mine2", "mine"),
    ],
)
def test_suggestions(typed: str, first: str) -> None:
    close = catalogue.suggest(typed, ("mine",))
    assert close[0] == first
    assert len(close) == len(set(close)) <= 3


def test_no_suggestion_for_something_else() -> None:
    assert catalogue.suggest("zzzzzz") == []
    assert catalogue.suggest("x" * 100_000) == []
