"""Text to token ids and back, and the file `tokenizer.bin` that carries a model's byte table.

Knows bytes, ids and the special-token layout; opens no file after loading and knows nothing of audio or decoding.
Byte-pair encoding itself is `bpe`, the layout `special`, the languages `languages`.

tokenizer.bin, version 1 (all integers little-endian, no padding):

    offset  size  what
    0       8     magic, the bytes 89 53 45 54 4F 4B 0D 0A ("\\x89SETOK\\r\\n": a text-mode copy breaks it)
    8       2     u16 version, 1
    10      2     u16 reserved, 0
    12      4     u32 count, number of tokens: 1 to 1,048,576
    16      4     u32 n_bytes, size of the table: the file is 24 + n_bytes long, n_bytes at most 67,108,864
    20      4     u32 CRC-32 (zlib) of the bytes 0 to 19 and the table
    24            the table: for each id from 0 on, u16 length and that many bytes; length 0 is allowed
                  (the multilingual vocabulary has it at id 50256)

The table ends where the file ends. A reader checks sizes against the file, then the CRC, and only then builds the
table.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from specedge.runtime.errors import BundleError, ModelError, ResourceError, UsageError
from specedge.runtime.text.bpe import Encoder
from specedge.runtime.text.languages import LANGUAGE_ALIASES, LANGUAGE_NAMES, find_language
from specedge.runtime.text.special import SpecialTokens

__all__ = [
    "LANGUAGE_ALIASES",
    "LANGUAGE_NAMES",
    "SpecialTokens",
    "Tokenizer",
    "find_language",
    "pack_table",
    "read_table",
    "unpack_table",
    "write_table",
]

MAGIC = b"\x89SETOK\r\n"
VERSION = 1
MAX_TOKENS = 1 << 20
MAX_TABLE_BYTES = 64 << 20
MAX_TOKEN_BYTES = 0xFFFF

_HEADER = struct.Struct("<8sHHIII")
_CRC_OFFSET = _HEADER.size - 4


def pack_table(ranks: Sequence[bytes]) -> bytes:
    """The bytes of a tokenizer.bin with the tokens `ranks`, index = id.

    Raises `ModelError` beyond the format's limits.
    """
    if not 1 <= len(ranks) <= MAX_TOKENS:
        raise ModelError(f"byte table: {len(ranks)} tokens, expected 1 to {MAX_TOKENS}")
    longest = max(map(len, ranks))
    if longest > MAX_TOKEN_BYTES:
        raise ModelError(f"byte table: a token of {longest} bytes, expected at most {MAX_TOKEN_BYTES}")
    table = b"".join([len(token).to_bytes(2, "little") + token for token in ranks])
    if len(table) > MAX_TABLE_BYTES:
        raise ModelError(f"byte table: {len(table)} bytes, expected at most {MAX_TABLE_BYTES}")
    head = _HEADER.pack(MAGIC, VERSION, 0, len(ranks), len(table), 0)[:_CRC_OFFSET]
    return head + zlib.crc32(table, zlib.crc32(head)).to_bytes(4, "little") + table


def unpack_table(data: bytes, where: str) -> list[bytes]:
    """The tokens of a tokenizer.bin, index = id.

    Raises `BundleError` naming `where` for anything the format forbids.
    """
    if len(data) < _HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise BundleError(f"{where} is no specedge byte table: it does not begin with the magic bytes; export it again")
    _, version, reserved, count, n_bytes, crc = _HEADER.unpack_from(data)
    if version != VERSION or reserved != 0:
        raise BundleError(f"{where} has byte table version {version}, expected {VERSION}; export it again")
    if n_bytes != len(data) - _HEADER.size or n_bytes > MAX_TABLE_BYTES:
        raise BundleError(f"{where} is {len(data)} bytes long, expected {_HEADER.size + n_bytes}; export it again")
    if not 1 <= count <= min(MAX_TOKENS, n_bytes // 2):
        raise BundleError(f"{where} says it holds {count} tokens in {n_bytes} bytes, which cannot be; export it again")
    view = memoryview(data)
    if zlib.crc32(view[_HEADER.size :], zlib.crc32(view[:_CRC_OFFSET])) != crc:
        raise BundleError(f"{where} is damaged: its checksum does not match; export it again or copy it again")
    tokens = []
    at, size = _HEADER.size, len(data)
    for _ in range(count):
        if at + 2 > size:
            break
        stop = at + 2 + (data[at] | data[at + 1] << 8)
        tokens.append(data[at + 2 : stop])
        at = stop
    if len(tokens) != count or at != size:
        raise BundleError(f"{where} is damaged: its tokens do not fill the table exactly; export it again")
    return tokens


def write_table(path: str | os.PathLike[str], ranks: Sequence[bytes]) -> None:
    """Writes `ranks`, index = id, as a tokenizer.bin.

    Raises `ModelError` beyond the format's limits and `ResourceError` if the file cannot be written.
    """
    data = pack_table(ranks)
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise ResourceError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error


def read_table(path: str | os.PathLike[str]) -> list[bytes]:
    """The tokens of a tokenizer.bin, index = id. Raises `BundleError` if it is missing, too large or damaged."""
    limit = _HEADER.size + MAX_TABLE_BYTES
    try:
        with open(path, "rb") as file:
            data = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
    except OSError as error:
        raise BundleError(f"cannot read the byte table {os.fspath(path)}: {error.strerror or error}") from error
    return unpack_table(data, os.fspath(path))


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads.

    `ranks[id]` is the bytes of token `id`, and ids are merge ranks: byte-pair encoding prefers the lowest. The ids
    below `special.eot` are all there, among them the 256 single bytes; only empty tokens occur twice. Ids from
    `special.eot` on may follow, where a fine-tune has added text tokens of its own after the timestamps: they are
    decoded, never encoded.

    Raises `ModelError` for a table that does not fit the layout.
    """

    def __init__(self, ranks: Sequence[bytes], special: SpecialTokens) -> None:
        self.ranks: tuple[bytes, ...] = tuple(ranks)
        self.special = special
        eot = special.eot
        if not eot <= len(self.ranks) <= special.n_vocab:
            raise ModelError(
                f"vocabulary: {len(self.ranks)} tokens in the byte table, expected {eot} to {special.n_vocab}"
            )
        if any(self.ranks[eot : special.timestamp_end]):
            raise ModelError(f"vocabulary: special tokens ({eot} to {special.timestamp_end - 1}) have text")
        texts = set(self.ranks[:eot]) - {b""}
        n_repeated = eot - self.ranks[:eot].count(b"") - len(texts)
        if n_repeated:
            raise ModelError(f"vocabulary: {n_repeated} tokens of the byte table occur twice, expected each once")
        missing = sum(bytes([byte]) not in texts for byte in range(256))
        if missing:
            raise ModelError(f"vocabulary: {missing} of the 256 bytes have no token: not every text can be encoded")

    @cached_property
    def _encoder(self) -> Encoder:
        # Made at the first text to encode: most transcripts are only decoded, and the index is megabytes.
        return Encoder({token: id_ for id_, token in enumerate(self.ranks[: self.special.eot]) if token})

    @classmethod
    def load(cls, path: str | os.PathLike[str], special: SpecialTokens) -> Tokenizer:
        """From a tokenizer.bin and the layout of the manifest.

        Raises `BundleError` if the file is missing, damaged or does not fit the layout.
        """
        ranks = read_table(path)
        try:
            return cls(ranks, special)
        except ModelError as error:
            raise BundleError(f"{os.fspath(path)}: {error}") from None

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, all below `special.eot`; "<|en|>" in a text is just characters.

        `decode` gives the text back, except that lone surrogates become U+FFFD.
        """
        return self._encoder.encode(text)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Bytes of the text tokens in `ids`; special tokens and timestamps have none.

        Raises `UsageError` for an id outside [0, n_vocab).
        """
        ranks, n_ranks, n_vocab = self.ranks, len(self.ranks), self.special.n_vocab
        parts = []
        for id_ in ids:
            if 0 <= id_ < n_ranks:
                parts.append(ranks[id_])
            elif not 0 <= id_ < n_vocab:
                raise UsageError(f"token id {id_} is outside the vocabulary: expected 0 to {n_vocab - 1}")
        return b"".join(parts)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids` without special tokens and timestamps; bytes that are no UTF-8 become U+FFFD.

        Raises `UsageError` for an id outside [0, n_vocab).
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, over the packed byte table and the layout as sorted JSON: equal means the same ids.

        `n_vocab` is not in it: padding the vocabulary with ids that mean nothing changes no id.
        """
        layout = json.dumps(self.special.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(pack_table(self.ranks) + layout.encode("ascii")).hexdigest()
