"""The tokenizer as a whole, and tokenizer.bin in good and bad health."""

from __future__ import annotations

import base64
import dataclasses
import random
import struct
import zlib
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.errors import BundleError, ModelError, ResourceError, UsageError
from specedge.runtime.text.tokenizer import PATTERNS, Tokenizer, pack_table, unpack_table, write_table
from support.vocab import mixed_text, table, toy_ranks, toy_special

HEADER_BYTES = 24


@lru_cache(maxsize=4)
def tokenizer(name: str) -> Tokenizer:
    ranks = table(name)
    languages = () if name == "gpt2" else ("en", "de")
    return Tokenizer(ranks, toy_special(len(ranks), n_timestamps=1501, languages=languages))


@pytest.mark.parametrize("name", ["gpt2", "multilingual"])
@given(text=st.text())
def test_decode_gives_the_text_back(name: str, text: str) -> None:
    ids = tokenizer(name).encode(text)
    assert tokenizer(name).decode(ids) == text
    assert tokenizer(name).decode_bytes(ids) == text.encode()
    assert all(0 <= id_ < tokenizer(name).special.eot for id_ in ids)


def test_special_tokens_have_no_text_and_text_makes_no_special_tokens() -> None:
    it = tokenizer("multilingual")
    special = it.special
    before = [special.sot, special.languages["en"], special.transcribe or 0, special.timestamp_begin]
    assert it.decode([*before, *it.encode("hi"), special.n_vocab - 1, special.eot]) == "hi"
    assert max(it.encode("<|endoftext|><|en|><|0.00|>")) < special.eot


def test_the_empty_token_is_decoded_to_nothing_and_never_made() -> None:
    it = tokenizer("multilingual")
    assert it.ranks[50256] == b"" and it.decode([50256]) == ""
    rng = random.Random(4)
    assert all(50256 not in it.encode(mixed_text(rng, 30)) for _ in range(20))


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    it = tokenizer("gpt2")
    first, *rest = it.encode("\U0001f600")
    assert it.decode([first]) == "\ufffd"
    assert it.decode([first, *rest]) == "\U0001f600"


@pytest.mark.parametrize("id_", [-1, 10**9])
def test_an_id_outside_the_vocabulary_is_refused(id_: int) -> None:
    with pytest.raises(UsageError, match="outside the vocabulary"):
        tokenizer("gpt2").decode([1, id_])


def test_text_that_a_fine_tune_added_is_decoded() -> None:
    special = dataclasses.replace(toy_special(), n_vocab=toy_special().n_vocab + 3)
    ranks = [*toy_ranks(), *[b""] * (special.timestamp_end - 300), b"", "größe".encode()]
    it = Tokenizer(ranks, special)
    assert it.decode([special.timestamp_end, special.timestamp_end + 1, special.timestamp_end + 2]) == "größe"
    assert it.encode("größe") == Tokenizer(toy_ranks(), toy_special()).encode("größe")


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (toy_ranks(299), "299 tokens"),
        ([*toy_ranks(), *[b""] * 100], "400 tokens"),
        ([*toy_ranks(), b"x"], "have text"),
        ([*toy_ranks(299), toy_ranks()[298]], "occur twice"),
        ([*toy_ranks()[1:], b"new word"], "1 of the 256 bytes"),
        ([b""] * 300, "256 of the 256 bytes"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(ranks: list[bytes], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        Tokenizer(ranks, toy_special())
    write_table(tmp_path / "tokenizer.bin", ranks)
    with pytest.raises(BundleError, match=f"tokenizer.bin: .*{message}"):
        Tokenizer.load(tmp_path / "tokenizer.bin", toy_special())


def test_the_file_is_as_documented() -> None:
    body = b"\x89SETOK\r\n" + struct.pack("<HHII", 1, 0, 2, 7)
    content = b"\x03\x00abc\x00\x00"
    expected = body + struct.pack("<I", zlib.crc32(body + content)) + content
    assert pack_table([b"abc", b""]) == expected


def _resealed(data: bytes) -> bytes:
    """`data` with the checksum made right again: what is left to find is in the structure."""
    crc = zlib.crc32(data[HEADER_BYTES:], zlib.crc32(data[: HEADER_BYTES - 4]))
    return data[: HEADER_BYTES - 4] + struct.pack("<I", crc) + data[HEADER_BYTES:]


def test_every_truncation_and_every_extension_is_refused() -> None:
    data = pack_table(toy_ranks())
    for length in range(len(data)):
        with pytest.raises(BundleError, match="here"):
            unpack_table(data[:length], "here")
    for more in (b"\0", b"\0\0", data):
        with pytest.raises(BundleError, match="here"):
            unpack_table(data + more, "here")


def test_every_change_of_one_byte_is_refused() -> None:
    data = bytearray(pack_table(toy_ranks(280)))
    rng = random.Random(5)
    for at in range(len(data)):
        for flip in {0x01, 0x80, 0xFF, rng.randrange(1, 256)}:
            data[at] ^= flip
            with pytest.raises(BundleError, match="here"):
                unpack_table(bytes(data), "here")
            data[at] ^= flip
    assert unpack_table(bytes(data), "here")[0] == toy_ranks(280)


@pytest.mark.parametrize("count", [0, 5, 1 << 20, 0xFFFFFFFF])
def test_a_false_count_is_refused(count: int) -> None:
    packed = pack_table([b"abc", b"", b"de", b"f"])
    with pytest.raises(BundleError, match="here"):
        unpack_table(_resealed(packed[:12] + struct.pack("<I", count) + packed[16:]), "here")


def test_a_newer_version_says_so() -> None:
    packed = pack_table([b"a"])
    with pytest.raises(BundleError, match="version 3 and pattern 0, expected version 1 with pattern 0, or 2"):
        unpack_table(_resealed(packed[:8] + b"\x03\x00" + packed[10:]), "here")


@pytest.mark.parametrize(("version", "number"), [(1, 1), (2, 0), (2, 3), (1, 65535)])
def test_a_pattern_that_a_version_does_not_have_is_refused(version: int, number: int) -> None:
    packed = pack_table([b"a"])
    with pytest.raises(BundleError, match=f"version {version} and pattern {number}, expected"):
        unpack_table(_resealed(packed[:8] + struct.pack("<HH", version, number) + packed[12:]), "here")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_pattern_is_kept_in_the_file(tmp_path: Path, pattern: str) -> None:
    write_table(tmp_path / "tokenizer.bin", toy_ranks(), pattern)
    loaded = Tokenizer.load(tmp_path / "tokenizer.bin", toy_special())
    assert loaded.pattern == pattern and list(loaded.ranks) == toy_ranks()
    assert loaded.encode("No. 12") == Tokenizer(toy_ranks(), toy_special(), pattern).encode("No. 12")
    plain = Tokenizer(toy_ranks(), toy_special())
    assert (loaded.fingerprint == plain.fingerprint) == (pattern == plain.pattern)


def test_a_file_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot read .*absent"):
        Tokenizer.load(tmp_path / "absent", toy_special())
    with pytest.raises(BundleError, match="cannot read"):
        Tokenizer.load(tmp_path, toy_special())
    with pytest.raises(ResourceError, match="cannot write"):
        write_table(tmp_path / "no" / "folder", [b"a"])


@pytest.mark.parametrize("ranks", [[], [b"x" * 65536]])
def test_a_table_beyond_the_format_is_not_written(ranks: list[bytes], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="byte table"):
        write_table(tmp_path / "tokenizer.bin", ranks)
    assert not (tmp_path / "tokenizer.bin").exists()


@pytest.mark.parametrize("name", ["gpt2", "multilingual"])
def test_the_tables_are_those_of_the_rank_files(name: str) -> None:
    from support.paths import shared

    lines = shared("tokenizer", f"{name}.tiktoken").read_text().splitlines()
    expected = [base64.b64decode(line.split(" ")[0]) for line in lines]
    assert [int(line.split(" ")[1]) for line in lines] == list(range(len(lines)))
    assert list(table(name)) == expected
