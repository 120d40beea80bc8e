"""The special-token layout: prompts, timestamps, languages, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from specedge.errors import ModelError, UsageError
from specedge.runtime.text.special import SpecialTokens
from support.vocab import toy_special

MULTILINGUAL = toy_special()  # eot 300, sot 301, en 302, de 303, translate 304, ..., timestamps 310 to 360
ENGLISH = toy_special(languages=())


def test_prompts_of_a_multilingual_model() -> None:
    assert MULTILINGUAL.prompt("en", "transcribe", True) == [301, 302, 305]
    assert MULTILINGUAL.prompt("German", "translate", False) == [301, 303, 304, MULTILINGUAL.no_timestamps]


def test_prompts_of_an_english_model() -> None:
    assert ENGLISH.prompt(None, "transcribe", True) == [301]
    assert ENGLISH.prompt("English", "transcribe", False) == [301, ENGLISH.no_timestamps]


@pytest.mark.parametrize(
    ("special", "language", "task", "message"),
    [
        (MULTILINGUAL, None, "transcribe", "needs a language"),
        (MULTILINGUAL, "fr", "transcribe", "does not know 'fr'; it knows en, de$"),
        (MULTILINGUAL, "klingon", "transcribe", "unknown language"),
        (MULTILINGUAL, "en", "summarise", "unknown task"),
        (ENGLISH, "de", "transcribe", "only transcribes English"),
        (ENGLISH, "en", "translate", "only transcribes English"),
        (ENGLISH, "klingon", "transcribe", "unknown language"),
        (dataclasses.replace(MULTILINGUAL, translate=None), "en", "translate", "no token for the task"),
    ],
)
def test_impossible_prompts_are_usage_errors(
    special: SpecialTokens, language: str | None, task: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        special.prompt(language, task, True)


def test_a_language_of_the_models_own_needs_no_entry_in_our_table() -> None:
    special = toy_special(languages=("en", "x-own"))
    assert special.prompt("x-own") == [301, 303, special.transcribe]
    assert special.language_of(303) == "x-own"


@pytest.mark.parametrize("special", [MULTILINGUAL, ENGLISH, dataclasses.replace(MULTILINGUAL, translate=None)])
def test_json_round_trip(special: SpecialTokens) -> None:
    data = json.loads(json.dumps(special.to_json()))
    assert SpecialTokens.from_json(data, special.n_vocab) == special


@pytest.mark.parametrize(
    "change",
    [
        {"eot": "300"},
        {"eot": 300.0},
        {"eot": True},
        {"eot": None},
        {"eot": -1},
        {"sot": 10_000},
        {"sot": 300},
        {"sot_prev": 299},
        {"no_speech": 312},
        {"translate": "no"},
        {"languages": None},
        {"languages": {"en": None}},
        {"languages": {"en": 301}},
        {"languages": {"EN": 302}},
        {"languages": {"": 302}},
        {"languages": {"en\n": 302}},
        {"n_timestamps": 52},
        {"n_timestamps": -1},
        {"n_timestamps": None},
        {"time_precision_s": 0},
        {"time_precision_s": float("nan")},
        {"time_precision_s": float("inf")},
        {"time_precision_s": "0.02"},
        {"surprise": 1},
    ],
    ids=str,
)
def test_from_json_refuses(change: dict[str, Any]) -> None:
    with pytest.raises((ModelError, TypeError, ValueError)) as caught:
        SpecialTokens.from_json(MULTILINGUAL.to_json() | change, MULTILINGUAL.n_vocab)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("n_vocab", [0, -5, 360])
def test_the_vocabulary_must_have_room(n_vocab: int) -> None:
    with pytest.raises(ModelError):
        dataclasses.replace(MULTILINGUAL, n_vocab=n_vocab)


@pytest.mark.parametrize("name", ["eot", "sot", "timestamp_begin"])
@pytest.mark.parametrize("value", ["300", None, 1.5])
def test_an_id_that_is_no_integer_is_told_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ModelError, match=f"{name} has id {value!r}, expected an integer"):
        dataclasses.replace(MULTILINGUAL, **{name: value})
