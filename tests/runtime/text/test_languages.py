"""Names people type for languages."""

from __future__ import annotations

import pytest

from specedge.errors import UsageError
from specedge.runtime.text.special import find_language


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("en", "en"),
        ("EN", "en"),
        ("English", "en"),
        (" german ", "de"),
        ("Haitian  Creole", "ht"),
        ("mandarin", "zh"),
        ("Castilian", "es"),
        ("burmese", "my"),
        ("farsi", "fa"),
        ("Bokmål", "no"),
        ("jv", "jw"),
        ("jw", "jw"),
        ("cantonese", "yue"),
        ("en-US", "en"),
        ("pt_BR", "pt"),
        ("zh-Hant-TW", "zh"),
    ],
)
def test_find_language(text: str, code: str) -> None:
    assert find_language(text) == code


@pytest.mark.parametrize("text", ["", "  ", "klingon", "e", "english2", "<|en|>", "-", "x" * 10_000, "a\nb"])
def test_an_unknown_language_is_a_usage_error_of_one_short_line(text: str) -> None:
    with pytest.raises(UsageError, match="unknown language") as caught:
        find_language(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_a_near_miss_gets_a_hint() -> None:
    with pytest.raises(UsageError, match="did you mean .*portuguese"):
        find_language("portugese")
