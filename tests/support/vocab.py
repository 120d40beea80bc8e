"""Vocabularies for tests: Hugging Face tokenizer files written from a byte table, toys, and texts of every kind.

The files are written without any tokenizer library and without the code under test, which only supplies the built-in
byte tables: GPT-2's alphabet and the recovery of merges from ranks are spelled out here a second time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from specedge.export.vocabulary import built_in_table
from specedge.runtime.text.special import SpecialTokens

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
HF_FILES = ("tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json", "tokenizer_config.json")


class TokenLayout(Protocol):
    """What `write_hf_tokenizer` needs to know; `support.checkpoints.Layout` is one."""

    @property
    def n_text(self) -> int: ...
    @property
    def en(self) -> bool: ...
    @property
    def specials(self) -> Mapping[str, int]: ...
    @property
    def timestamps(self) -> Mapping[str, int]: ...


@lru_cache(maxsize=4)
def table(name: str) -> tuple[bytes, ...]:
    """The built-in byte table "gpt2" or "multilingual"."""
    return tuple(built_in_table(name))


def toy_ranks(n_text: int = 300, name: str = "multilingual") -> list[bytes]:
    """The first `n_text` tokens of a real table: a byte-pair vocabulary in its own right."""
    return list(table(name)[:n_text])


def toy_special(n_text: int = 300, n_timestamps: int = 51, languages: Sequence[str] = ("en", "de")) -> SpecialTokens:
    """Whisper's order of special tokens behind `n_text` text tokens; no languages means English-only."""
    ids = iter(range(n_text, n_text + 100))
    eot, sot = next(ids), next(ids)
    spoken = {code: next(ids) for code in languages}
    names = ("translate", "transcribe", "sot_lm", "sot_prev", "no_speech", "no_timestamps", "timestamp_begin")
    others = {name: next(ids) for name in names}
    return SpecialTokens(n_vocab=others["timestamp_begin"] + n_timestamps, eot=eot, sot=sot, languages=spoken, **others)


@lru_cache(maxsize=1)
def _alphabet() -> tuple[str, ...]:
    """GPT-2's printable character of every byte."""
    characters, n_shifted = [], 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            characters.append(chr(byte))
        else:
            characters.append(chr(256 + n_shifted))
            n_shifted += 1
    return tuple(characters)


def spell(token: bytes) -> str:
    """A token as vocab.json spells it."""
    return "".join(_alphabet()[byte] for byte in token)


def _parts(token: bytes, id_of: Mapping[bytes, int], below: int) -> list[bytes]:
    """`token` after all merges with an id lower than `below`, done the slow and obvious way."""
    parts = [bytes([byte]) for byte in token]
    while True:
        pairs = [(id_of.get(parts[i] + parts[i + 1], below), i) for i in range(len(parts) - 1)]
        rank, i = min(pairs, default=(below, 0))
        if rank >= below:
            return parts
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@lru_cache(maxsize=4)
def merges_of(ranks: tuple[bytes, ...]) -> tuple[tuple[str, str], ...]:
    """The merges that make the tokens of several bytes, in the order of their ids."""
    id_of = {token: id_ for id_, token in enumerate(ranks) if token}
    merges = []
    for id_, token in enumerate(ranks):
        if len(token) > 1:
            left, right = _parts(token, id_of, id_)
            merges.append((spell(left), spell(right)))
    return tuple(merges)


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def write_hf_tokenizer(
    folder: Path,
    layout: TokenLayout,
    *,
    ranks: Sequence[bytes] | None = None,
    files: Sequence[str] = HF_FILES,
    timestamps: bool = True,
    extra: Mapping[str, int] | None = None,
    pairs_as_text: bool = True,
) -> Path:
    """Writes the tokenizer files of a Whisper checkpoint into `folder` and gives it back.

    `ranks` defaults to the first `layout.n_text` tokens of the real table; `timestamps=False` leaves their tokens out,
    as older checkpoints do; `extra` are tokens a fine-tune has added, text unless they look like <|...|>;
    `pairs_as_text` spells merges in tokenizer.json "a b", else ["a", "b"] as newer files do.
    """
    ranks = tuple(ranks if ranks is not None else table("gpt2" if layout.en else "multilingual")[: layout.n_text])
    merges = merges_of(ranks) if {"tokenizer.json", "merges.txt"} & set(files) else ()  # which take seconds
    vocab = {spell(token): id_ for id_, token in enumerate(ranks)}
    added = {**layout.specials, **(layout.timestamps if timestamps else {}), **(extra or {})}
    tokens = [
        {"id": id_, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": not special, "special": special}
        for content, id_ in added.items()
        for special in [content in layout.specials]
    ]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    spelled: list[Any] = [" ".join(pair) if pairs_as_text else list(pair) for pair in merges]
    if "tokenizer.json" in files:
        _dump(
            folder / "tokenizer.json",
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": tokens,
                "normalizer": None,
                "pre_tokenizer": level,
                "post_processor": None,
                "decoder": level,
                "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                          "end_of_word_suffix": "", "fuse_unk": False, "vocab": vocab, "merges": spelled},
            },
        )  # fmt: skip
    if "vocab.json" in files:  # <|endoftext|> stands here and not among the added tokens, as in the published files
        _dump(folder / "vocab.json", {**vocab, "<|endoftext|>": layout.specials["<|endoftext|>"]})
    if "merges.txt" in files:
        lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
        (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if "added_tokens.json" in files:
        _dump(folder / "added_tokens.json", {c: id_ for c, id_ in added.items() if c != "<|endoftext|>"})
    if "tokenizer_config.json" in files:
        decoder = {str(t["id"]): {key: t[key] for key in t if key != "id"} for t in tokens}
        _dump(
            folder / "tokenizer_config.json",
            {"added_tokens_decoder": decoder, "tokenizer_class": "WhisperTokenizer", "errors": "replace"},
        )
    return folder


_SCRIPTS = (  # first and last code points
    (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x530, 0x58F), (0x590, 0x5FF),
    (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F), (0x0F00, 0x0FFF),
    (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1200, 0x137F), (0x1780, 0x17FF), (0x1E00, 0x1EFF), (0x2000, 0x206F),
    (0x2070, 0x218F), (0x2460, 0x24FF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFF00, 0xFFEF),
    (0x10400, 0x1044F), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF),
)  # fmt: skip
_SPACES = ("", "", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n ", "\u00a0",
           "\u2003 ", "\u3000", "\x1c", "\x85 ")  # fmt: skip
_FRAGMENTS = (
    "I'm", "you'll", "they've", "it's", "we'd", "can't", "'re", "'S", "'LL", "\u2019s", "''s", "'", "x'dd", "3'll",
    "don't've", "def f(x: int) -> str:\n    return f\"{x!r}\"\n", "if (a&&b||!c) { i += 0x1F; }  // done", "\\n",
    "</p><br/>", "==--__::", "1,234.56", "\u00bd\u00b2\u2167", "\u0663\u0664", "e\u0301a\u0308\u0323",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\0", "\0\0 \0", "\ufeff",
    "\ufffd", "\ufffe", "<|endoftext|>", "<|0.00|>", "Stra\u00dfe", "na\u00efve caf\u00e9", "\uc548\ub155",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u3053\u3093\u306b\u3061\u306f",
)  # fmt: skip


def mixed_text(rng: random.Random, n_words: int) -> str:
    """Words of many scripts, code, emoji, combining marks, contractions, all kinds of white space, any code point."""
    words = []
    for _ in range(n_words):
        kind = rng.random()
        if kind < 0.55:
            low, high = rng.choice(_SCRIPTS)
            words.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 9))))
        elif kind < 0.8:
            words.append(rng.choice(_FRAGMENTS))
        elif kind < 0.9:
            words.append("".join(rng.choice("etaoinshrdlu'") for _ in range(rng.randint(1, 14))))
        else:
            ends = [rng.choice(((0, 0xD7FF), (0xE000, 0x10FFFF))) for _ in range(rng.randint(1, 5))]
            words.append("".join(chr(rng.randint(low, high)) for low, high in ends))
        words.append(rng.choice(_SPACES))
    return "".join(words)
