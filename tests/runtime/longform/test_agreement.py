"""Local agreement: units that join to their text, alignment by edit distance, and nothing ever said twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime.longform.live import LocalAgreement, prefix_length, split_units


@given(text=st.text(max_size=60) | st.text(alphabet=" .a-é中กはｱ\u0e31\n「", max_size=40))
def test_units_join_to_the_text(text: str) -> None:
    units = split_units(text)
    assert "".join(units) == text and all(units)


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


def test_a_word_that_changes_after_it_was_settled_stays_as_it_was() -> None:
    assert settle(["abc", "abc", "axcd", "axcd"]) == ["", "abc", "", "d"]
    assert settle(["abc", "abc", "ab", "abcd"], at_least=4) == ["", "abc", "", "d"]


def test_at_least_settles_what_has_not_agreed() -> None:
    assert settle(["ab", "axyz"], at_least=3) == ["", "axy"]


def test_after_a_cut_only_what_is_left_is_looked_for() -> None:
    agreement = LocalAgreement()
    agreement.push("abcd")
    assert agreement.push("abcd") == (0, 4)
    agreement.cut(1)
    assert agreement.push("dab") == (1, 1)
    assert agreement.push("dab") == (1, 3), "the words come again, and are not those that were cut away"
    agreement.cut(0)
    assert agreement.push("ab") == (0, 0)


@given(words=st.text(alphabet="abc", max_size=12), data=st.data())
def test_a_transcript_that_only_grows_is_settled_word_for_word(words: str, data: st.DataObject) -> None:
    ends = sorted(data.draw(st.lists(st.integers(0, len(words)), max_size=8)))
    hypotheses = [words[:end] for end in [*ends, len(words), len(words)]]
    assert "".join(settle(hypotheses)) == words
