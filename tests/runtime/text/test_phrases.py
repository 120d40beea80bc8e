"""Phrases of a map that may change the text: their file, their weight, and how they are spelled."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from specedge.errors import UsageError
from specedge.runtime.model import transcribe_options
from specedge.runtime.text.phrases import Phrases, phrases, sentences, tree_of_pairs, tree_of_sentences
from support import exported


def test_a_file_gives_phrases_and_a_weight(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("get me a latte\n\nStop.\n", encoding="utf-8")
    expected = ("get me a latte", "Stop.")
    assert phrases(path) == Phrases(expected) and phrases(f"{path}:0.5") == Phrases(expected, 0.5)
    assert transcribe_options({"only": ["Stop."]}).only == Phrases(("Stop.",))


@pytest.mark.parametrize(
    "given, said",
    [
        ("nowhere.txt", "bias: cannot read nowhere.txt"),
        ("words.txt:x", "bias: got the weight 'x', expected a number"),
        ("words.txt:0", "bias: words.txt: got the weight 0, expected a number above 0"),
        ("words.txt:nan", "bias: words.txt: got the weight nan"),
        ("empty.txt", "bias: empty.txt: no phrases"),
        ([], "bias: no phrases"),
    ],
)
def test_what_cannot_be_is_one_line(given: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("latte", encoding="utf-8")
    Path("empty.txt").touch()
    with pytest.raises(UsageError, match=said):
        transcribe_options({"bias": given})


def written(texts: list[str], text: str) -> bool:
    """Whether `only` lets the model write `text` and end."""
    tokenizer = exported.bundle().tokenizer
    eot = tokenizer.special.eot
    node = tree_of_sentences(sentences(texts), tokenizer, eot).behind([*tokenizer.encode(text), eot])
    return node is not None


def test_a_sentence_is_spelled_as_whisper_writes_it() -> None:
    for text in (" get me one", " Get me one", " Get me one.", " Get me one?"):
        assert written(["get me one."], text)
    assert written(["一"], "一")
    assert not written(["get me one."], " Get me") and not written(["get me one."], " Get me one now")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (" Get me a small latte", True),
        (" I want a latte.", True),
        (" I want a twelve ounce mocha", True),
        (" I want a twelve mocha", False),
        (" Get I want a latte", False),
        (" I want a small large latte", False),
    ],
)
def test_sentences_may_hold_choices_options_and_names(text: str, is_one: bool) -> None:
    lines = ["size = small|twelve ounce", "(get me|I want) a [ <size> ] (latte|mocha)."]
    assert written(lines, text) is is_one


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("get (a|b", "'get (a|b': expected ')', got ''"),
        ("get (a]", "expected ')', got ']'"),
        ("get a]", "nothing opens the ']'"),
        ("get <size>", '<size> is not known, expected a line "size = ..." before it'),
        ("size = small", "no sentence in it"),
        ("get < a", "< is not known"),
    ],
)
def test_a_wrong_sentence_is_one_line(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        transcribe_options({"only": [line]})
    assert str(caught.value).startswith("only: ") and said in str(caught.value)


def test_names_of_names_cannot_grow_without_end() -> None:
    lines = ["n0 = a|b", *(f"n{i + 1} = <n{i}> <n{i}>" for i in range(40)), "<n40>"]
    with pytest.raises(UsageError, match="stands for more than 100,000 words"):
        sentences(lines)
    with pytest.raises(UsageError, match="brackets"):
        sentences(["(" * 5000])


def test_what_was_said_is_not_kept() -> None:
    """A server would grow with each new sentence of a grammar."""
    tokenizer = exported.bundle().tokenizer
    given = sentences(["(a|b) (a|b) (a|b) end"])
    said = tree_of_sentences(given, tokenizer, tokenizer.special.eot).behind(tokenizer.encode(" a b"))
    seen = weakref.ref(said)
    del said
    gc.collect()
    assert seen() is None


def test_a_phrase_is_known_by_pairs_of_words() -> None:
    """So a list of sentences makes their parts likelier in any order; a lone word is known by its own tokens."""
    tokenizer = exported.bundle().tokenizer
    tree = tree_of_pairs(Phrases(("a light roast latte", "Babbage.")), tokenizer)
    behind = tree.behind(tokenizer.encode(" roast"))
    assert behind is not None and set(behind.branches) == {tokenizer.encode(f" {x}atte")[0] for x in "lL"}
    first, *rest = tokenizer.encode(" Babbage")
    node = tree.behind([first])
    assert node is not None and (not rest or rest[0] in node.branches)
