"""A hard list of phrases: what is near a line is that line, all else is refused, and impossible lists are said."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.errors import UsageError
from specedge.runtime.text.phrases import Phrases

LINES = [
    "Open valve four.",
    "Close valve four.",
    "Call the crew to generator two.",
    "Stop pump 3.",
    "Größe messen",
    "Stop",
]


@pytest.mark.parametrize(
    ("heard", "line"),
    [
        ("open valve four", "Open valve four."),
        (" Open, valve four!", "Open valve four."),
        ("Open the valve four", "Open valve four."),
        ("Open valve for", "Open valve four."),
        ("call the crews to generators two", "Call the crew to generator two."),
        ("STOP PUMP 3", "Stop pump 3."),
        ("Gro\u0308ße messen", "Größe messen"),
        ("stop!", "Stop"),
        ("Call the crew to generator eight", None),
        ("Open valve three", None),  # another word, not a slip of this one
        ("Stop pump 4", None),
        ("do not stop", None),
        ("Please tell me about the weather of tomorrow", None),
        ("valve four", None),
        ("", None),
        ("...", None),
    ],
)
def test_the_nearest_line_or_none(heard: str, line: str | None) -> None:
    assert Phrases(LINES).nearest(heard) == line


def test_two_lines_as_near_as_each_other_are_refused() -> None:
    assert Phrases(["turn left lamp", "turn lift lamp"]).nearest("turn loft lamp") is None
    assert Phrases(["turn left lamp", "turn lift lamp"]).nearest("turn lift lamp") == "turn lift lamp"


def test_another_short_word_in_a_long_line_is_another_command() -> None:
    phrases = Phrases(["Turn the big lamp in the living room of the upper floor off"])
    assert phrases.nearest("turn the big lamp in the living room of the upper floor on") is None
    assert phrases.nearest("turn a big lamp in the living rooms of upper floor off") is None
    assert phrases.nearest("turn the big lamp in the living rooms of the upper floor off") is not None


def test_a_script_without_spaces() -> None:
    assert Phrases(["打开一号阀门", "关闭一号水泵"]).nearest("打开一号伐门。") == "打开一号阀门"


@given(
    st.lists(st.sampled_from(["open", "close", "valve", "pump", "one", "two", "7"]), min_size=1, max_size=8), st.data()
)
def test_every_line_is_its_own_nearest(words: list[str], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.text(max_size=12)))
    line = " ".join(words)
    try:
        phrases = Phrases([line, *others])
    except UsageError:
        return
    assert phrases.nearest(line) == line
    assert phrases.nearest(line.upper() + ".") == line


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no phrase in it, expected one on each line"),
        (b" \n\n", "no phrase in it"),
        (b"Stop\n...\n", "line 2 is no phrase that can be said: '...'; expected words"),
        (b"Stop\x00pump\n", "line 1 is no phrase that can be said"),
        (b"go\n" + b"word " * 60, "line 2 has 299 characters, expected at most 200"),
        (b"go\n\nStop pump\nstop, pump!\n", "line 4 says the same as line 3: 'stop, pump!'; leave one of them out"),
        (b"go\nGr\xf6\xdfe\n", "line 2 is not UTF-8: convert the file first"),
        (b"\n".join(b"pump %d" % i for i in range(1001)), "1001 phrases, expected at most 1000"),
    ],
)
def test_lists_that_cannot_be(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        Phrases.read(path)
    assert str(caught.value).startswith(f"{path}: ") and said in str(caught.value)


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read .*none.txt: No such file"):
        Phrases.read(tmp_path / "none.txt")
    with pytest.raises(UsageError, match="cannot read "):
        Phrases.read(tmp_path)


def test_lines_end_as_on_windows_and_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes("\ufeffGo on\r\nStop\r\n".encode())
    phrases = Phrases.read(tmp_path / "list.txt")
    assert len(phrases) == 2 and phrases.nearest("go on") == "Go on"
