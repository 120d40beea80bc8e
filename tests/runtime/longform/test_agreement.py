"""Local agreement: units that join to their text, alignment by edit distance, and nothing ever said twice."""

from __future__ import annotations

import pytest

from specedge.runtime.longform.live import LocalAgreement, prefix_length, split_units


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("", []),
        (" Call the crew, now.", [" Call", " the", " crew,", " now."]),
        ("私は猫。 ok", ["私", "は", "猫。", " ok"]),
        (" ... ", [" ...", " "]),
    ],
)
def test_units(text: str, units: list[str]) -> None:
    assert split_units(text) == units


@pytest.mark.parametrize(
    ("settled", "units", "length"),
    [
        ("", "abc", 0),
        ("ab", "abcd", 2),
        ("ab", "xbcd", 2),
        ("abc", "abxc", 4),  # a word more
        ("abc", "acde", 2),  # a word less
        ("ab", "a", 1),
        ("ab", "", 0),
        ("ab", "xyz", 2),
    ],
)
def test_prefix_length(settled: str, units: str, length: int) -> None:
    assert prefix_length(settled, units) == length


def settle(hypotheses: list[str], **last: int) -> list[str]:
    """The newly settled letters after each hypothesis; `last` goes with the last one."""
    agreement, out = LocalAgreement(), []
    for i, hypothesis in enumerate(hypotheses):
        start, end = agreement.push(hypothesis, **last if i == len(hypotheses) - 1 else {})
        out.append(hypothesis[start:end])
    return out


def test_what_two_hypotheses_agree_on_is_settled() -> None:
    assert settle(["ab", "abc", "abcd", "abce"]) == ["", "ab", "c", ""]
    assert settle(["ax", "ab", "ab"]) == ["", "a", "b"]


def test_after_a_cut_only_what_is_left_is_looked_for() -> None:
    agreement = LocalAgreement()
    agreement.push("abcd")
    assert agreement.push("abcd") == (0, 4)
    agreement.cut(1)
    assert agreement.push("dab") == (1, 1)
    assert agreement.push("dab") == (1, 3), "the words come again, and are not those that were cut away"
    agreement.cut(0)
    assert agreement.push("ab") == (0, 0)
