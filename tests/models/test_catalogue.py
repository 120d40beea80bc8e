"""Short names lead to the hub ids that users of openai-whisper, faster-whisper and the hub mean by them."""

from __future__ import annotations

import pytest

from specedge.errors import ModelError
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
        ("Systran/faster-whisper-small", "openai/whisper-small"),
        ("Systran/faster-whisper-large-v1", "openai/whisper-large"),
        ("Systran/faster-distil-whisper-medium.en", "distil-whisper/distil-medium.en"),
        ("deepdml/faster-whisper-large-v3-turbo-ct2", "openai/whisper-large-v3-turbo"),
        ("distil-whisper/distil-large-v3.5-ct2", "distil-whisper/distil-large-v3.5"),
        ("rhasspy/faster-whisper-tiny-int8", "openai/whisper-tiny"),
    ],
)
def test_names_and_ids(name: str, hub_id: str) -> None:
    checkpoint = catalogue.find(name)
    assert checkpoint is not None and checkpoint.hub_id == hub_id


@pytest.mark.parametrize(
    "name",
    [
        "",
        "huge",
        "someone/whisper-tiny",
        "someone/faster-whisper-tiny",
        "whisper-distil-small.en",
        "whisper-",
        "../tiny",
    ],
)
def test_unknown_names(name: str) -> None:
    assert catalogue.find(name) is None


def test_every_openai_and_distil_checkpoint_is_pinned_to_a_commit_of_its_own() -> None:
    revisions = [c.revision for c in catalogue.CHECKPOINTS.values() if c.revision is not None]
    assert len(set(revisions)) == len(revisions) and all(map(catalogue.is_commit, revisions))
    unpinned = {c.hub_id.split("/")[0] for c in catalogue.CHECKPOINTS.values() if c.revision is None}
    assert not unpinned & {"openai", "distil-whisper"}
    assert catalogue.pinned("someone/whisper-tiny") is None and not catalogue.is_commit("main")


@pytest.mark.parametrize(
    ("name", "draft"), [("large", "distil-large-v3.5"), ("medium.en", "distil-medium.en"), ("turbo", "whisper-tiny")]
)
def test_a_draft_is_found_by_any_name_of_its_target(name: str, draft: str) -> None:
    assert catalogue.draft_for(name) == draft


@pytest.mark.parametrize("name", ["base", "me/mine"])
def test_where_no_draft_is_known_the_error_says_what_to_do(name: str) -> None:
    with pytest.raises(ModelError, match="name a smaller model with"):
        catalogue.draft_for(name)
