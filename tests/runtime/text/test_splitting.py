"""The patterns of Qwen and Tekken against tiktoken: in the small with Whisper's ranks, in the large with their own."""

from __future__ import annotations

import base64
import json
import random
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime.text.splitting import PATTERNS, QWEN, TEKKEN, split
from specedge.runtime.text.tokenizer import Encoder
from support.vocab import mixed_text, table

NEWER = (QWEN, TEKKEN)
# What the patterns turn on: contractions in any case, digits, line breaks, signs before words, marks, letters without
# case, and letters, marks and numbers of a Unicode that Python 3.11 does not know.
_CHARACTERS = (
    "sStTrReEvVmMlLdD'\u017f09½ \t\n\r\u00a0\u3000./-!ÄßǅʰאあÀ\u0301\u0903\ua7cb\ua7cd\U00010d69\U0001e4f0\U00011f12"
)


def _tiktoken(pattern: str, ranks: Mapping[bytes, int]) -> Any:
    tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is the oracle of this test")
    published = PATTERNS[pattern]
    return tiktoken.Encoding(pattern, pat_str=published, mergeable_ranks=dict(ranks), special_tokens={})


@lru_cache(maxsize=2)
def _small(pattern: str) -> tuple[Encoder, Any]:
    ranks = {token: id_ for id_, token in enumerate(table("multilingual")) if token}
    return Encoder(ranks, pattern), _tiktoken(pattern, ranks)


@lru_cache(maxsize=2)
def _real(pattern: str) -> tuple[Encoder, Any]:
    """With the publisher's ranks, out of a package that has them."""
    package, place = {QWEN: ("dashscope", "resources/qwen.tiktoken"), TEKKEN: ("mistral_common", "data")}[pattern]
    found = util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"the package {package} has the ranks, and is not installed")
    path = Path(found.submodule_search_locations[0]) / place
    if pattern == QWEN:
        lines = path.read_bytes().splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    else:
        content = json.loads((path / "tekken_240911.json").read_text(encoding="utf-8"))
        assert content["config"]["pattern"] == PATTERNS[TEKKEN]
        n_text = content["config"]["default_vocab_size"] - content["config"]["default_num_special_tokens"]
        ranks = {base64.b64decode(row["token_bytes"]): row["rank"] for row in content["vocab"][:n_text]}
    return Encoder(ranks, pattern), _tiktoken(pattern, ranks)


def _as_seen(text: str, pattern: str) -> str:
    return unicodedata.normalize("NFC", text) if pattern == QWEN else text


@pytest.mark.parametrize("pattern", NEWER)
@given(text=st.text(alphabet=_CHARACTERS) | st.text(alphabet=st.characters(max_codepoint=0x2FFF, codec="utf-8")))
def test_ids_are_those_of_tiktoken(pattern: str, text: str) -> None:
    ours, theirs = _small(pattern)
    assert ours.encode(text) == theirs.encode_ordinary(_as_seen(text, pattern))


@pytest.mark.parametrize(
    ("pattern", "text", "pieces"),
    [
        (QWEN, "IT'S it'ſ", ["IT", "'S", " it", "'ſ"]),
        (QWEN, "a 123\r\n\n b", ["a", " ", "1", "2", "3", "\r\n\n", " b"]),
        (QWEN, "(yes)!\n\nno", ["(yes", ")!\n\n", "no"]),
        (QWEN, "a\t\tb", ["a", "\t", "\tb"]),
        (TEKKEN, "HelloWorld NASA's", ["Hello", "World", " NASA", "'s"]),
        (TEKKEN, "a/b //\n12", ["a", "/b", " //\n", "1", "2"]),
        (TEKKEN, "e\u0301a ǅa", ["e\u0301a", " ǅa"]),
    ],
)
def test_pieces(pattern: str, text: str, pieces: list[str]) -> None:
    assert list(split(text, pattern)) == pieces


def test_qwen_composes_text() -> None:
    ours, _ = _small(QWEN)
    assert ours.encode("e\u0301") == ours.encode("é") != _small(TEKKEN)[0].encode("e\u0301")


@pytest.mark.parametrize("pattern", NEWER)
@pytest.mark.parametrize("word", ["a" * 50_000, " " * 50_000, "\n \t" * 20_000, "aB" * 25_000, "\u0301." * 25_000])
def test_long_runs_take_no_quadratic_time(pattern: str, word: str) -> None:
    assert "".join(split(word, pattern)) == word


@pytest.mark.slow
@pytest.mark.parametrize("pattern", NEWER)
def test_ids_are_those_of_tiktoken_with_the_publishers_ranks(pattern: str) -> None:
    ours, theirs = _real(pattern)
    rng, n_tokens = random.Random(pattern), 0
    for number in range(100_000):
        text = mixed_text(rng, rng.randint(0, 6))
        if number % 2:
            text += "".join(rng.choices(_CHARACTERS, k=rng.randint(1, 30)))
        expected = theirs.encode_ordinary(_as_seen(text, pattern))
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
