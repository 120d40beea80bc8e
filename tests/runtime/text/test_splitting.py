"""The pattern of Qwen against tiktoken: in the small with Whisper's ranks, in the large with its own."""

from __future__ import annotations

import base64
import random
import unicodedata
from collections.abc import Mapping
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime.text.tokenizer import PATTERNS, QWEN, Encoder, split
from support.vocab import mixed_text, table

# What the pattern turns on: contractions in any case, digits, line breaks, signs before words, marks, letters without
# case, and letters, marks and numbers of a Unicode that Python 3.11 does not know.
_CHARACTERS = (
    "sStTrReEvVmMlLdD'\u017f09½ \t\n\r\u00a0\u3000./-!ÄßǅʰאあÀ\u0301\u0903\ua7cb\ua7cd\U00010d69\U0001e4f0\U00011f12"
)


def _tiktoken(ranks: Mapping[bytes, int]) -> Any:
    tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is the oracle of this test")
    return tiktoken.Encoding(QWEN, pat_str=PATTERNS[QWEN], mergeable_ranks=dict(ranks), special_tokens={})


@cache
def _small() -> tuple[Encoder, Any]:
    ranks = {token: id_ for id_, token in enumerate(table("multilingual")) if token}
    return Encoder(ranks, QWEN), _tiktoken(ranks)


def _real() -> tuple[Encoder, Any]:
    """With the publisher's ranks, out of a package that has them."""
    found = util.find_spec("dashscope")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package dashscope has the ranks, and is not installed")
    path = Path(found.submodule_search_locations[0]) / "resources/qwen.tiktoken"
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, path.read_bytes().splitlines())}
    return Encoder(ranks, QWEN), _tiktoken(ranks)


@given(text=st.text(alphabet=_CHARACTERS) | st.text(alphabet=st.characters(max_codepoint=0x2FFF, codec="utf-8")))
def test_ids_are_those_of_tiktoken(text: str) -> None:
    ours, theirs = _small()
    assert ours.encode(text) == theirs.encode_ordinary(unicodedata.normalize("NFC", text))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("IT'S it'ſ", ["IT", "'S", " it", "'ſ"]),
        ("a 123\r\n\n b", ["a", " ", "1", "2", "3", "\r\n\n", " b"]),
        ("(yes)!\n\nno", ["(yes", ")!\n\n", "no"]),
        ("a\t\tb", ["a", "\t", "\tb"]),
    ],
)
def test_pieces(text: str, pieces: list[str]) -> None:
    assert list(split(text, QWEN)) == pieces


def test_qwen_composes_text() -> None:
    ours, _ = _small()
    assert ours.encode("e\u0301") == ours.encode("é")


@pytest.mark.parametrize("word", ["a" * 50_000, " " * 50_000, "\n \t" * 20_000, "aB" * 25_000, "\u0301." * 25_000])
def test_long_runs_take_no_quadratic_time(word: str) -> None:
    assert "".join(split(word, QWEN)) == word


@pytest.mark.slow
def test_ids_are_those_of_tiktoken_with_the_publishers_ranks() -> None:
    ours, theirs = _real()
    rng, n_tokens = random.Random(QWEN), 0
    for number in range(100_000):
        text = mixed_text(rng, rng.randint(0, 6))
        if number % 2:
            text += "".join(rng.choices(_CHARACTERS, k=rng.randint(1, 30)))
        expected = theirs.encode_ordinary(unicodedata.normalize("NFC", text))
        assert ours.encode(text) == expected, repr(text)
        n_tokens += len(expected)
    assert n_tokens > 1_000_000


@pytest.mark.slow
def test_every_character_has_the_class_that_tiktoken_gives_it() -> None:
    """What is newer than the Unicode of this Python may differ, and a letter that Unicode 17 took the case from."""
    tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is the oracle of this test")
    ranks = {bytes([byte]): byte for byte in range(256)}
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for kind in (r"[\p{Lu}\p{Lt}]", r"\p{Ll}", r"[\p{Lm}\p{Lo}]", r"\p{M}", r"\p{N}", r"\s"):
        oracle = tiktoken.Encoding(kind, pat_str=kind, mergeable_ranks=ranks, special_tokens={})
        ours = regex.compile(kind)
        wrong = [c for c in characters if bool(ours.match(c)) != bool(oracle.encode_ordinary(c))]
        assert all(unicodedata.category(c) == "Cn" or c == "\u0295" for c in wrong), kind
