"""Text to token ids and back, and the file `tokenizer.bin` that carries a model's byte table.

Byte-level byte-pair encoding as openai-whisper's tiktoken does it, without tiktoken. `split` cuts text into pieces by
the GPT-2 pattern

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

and `Encoder` merges the UTF-8 bytes of each piece, always the pair whose merged bytes have the lowest id, the leftmost
first (ids are ranks in every Whisper vocabulary). Python's `re` has no `\\p{L}`, so each character is first replaced by
one ASCII character for its class. The classes are the Unicode categories of the running Python plus the letters and
numbers that came after Unicode 14, up to 16.0: so Python 3.11 and 3.14 cut alike.

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

A reader checks sizes against the file, then the CRC, and only then builds the table.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path

from specedge.errors import BundleError, ModelError, ResourceError, UsageError

from .special import LANGUAGE_NAMES, SpecialTokens, TokenLayout, find_language

__all__ = ["LANGUAGE_NAMES", "SpecialTokens", "Tokenizer", "find_language"]

# White_Space of Unicode, which `\s` is in tiktoken: without U+001C..U+001F, that str.isspace counts in.
_SPACES = frozenset(
    [*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
)

# First and last code points of the letters and of the numbers assigned in Unicode 15.0 to 16.0.
_NEW_LETTERS = (
    (0x1C89, 0x1C8A), (0xA7CB, 0xA7CD), (0xA7DA, 0xA7DC), (0x105C0, 0x105F3), (0x10D4A, 0x10D65), (0x10D6F, 0x10D85),
    (0x10EC2, 0x10EC4), (0x1123F, 0x11240), (0x11380, 0x11389), (0x1138B, 0x1138B), (0x1138E, 0x1138E),
    (0x11390, 0x113B5), (0x113B7, 0x113B7), (0x113D1, 0x113D1), (0x113D3, 0x113D3), (0x11BC0, 0x11BE0),
    (0x11F02, 0x11F02), (0x11F04, 0x11F10), (0x11F12, 0x11F33), (0x1342F, 0x1342F), (0x13441, 0x13446),
    (0x13460, 0x143FA), (0x16100, 0x1611D), (0x16D40, 0x16D6C), (0x18CFF, 0x18CFF), (0x1B132, 0x1B132),
    (0x1B155, 0x1B155), (0x1DF25, 0x1DF2A), (0x1E030, 0x1E06D), (0x1E4D0, 0x1E4EB), (0x1E5D0, 0x1E5ED),
    (0x1E5F0, 0x1E5F0), (0x2B739, 0x2B739), (0x2EBF0, 0x2EE5D), (0x31350, 0x323AF),
)  # fmt: skip

_NEW_NUMBERS = (
    (0x10D40, 0x10D49), (0x116D0, 0x116E3), (0x11BF0, 0x11BF9), (0x11F50, 0x11F59), (0x16130, 0x16139),
    (0x16D70, 0x16D79), (0x1CCF0, 0x1CCF9), (0x1D2C0, 0x1D2D3), (0x1E4F0, 0x1E4F9), (0x1E5F1, 0x1E5FA),
)  # fmt: skip

_LETTER, _NUMBER, _SPACE, _OTHER = "a", "0", "\n", "."
_CONTRACTING = "strevmld"  # the letters of 's 't 're 've 'm 'll 'd stand for themselves
# The GPT-2 pattern over class characters: letters [a-z], numbers 0, white space [ \n], the rest [.']
_PIECES = re.compile(r"'(?:[stmd]|ll|re|ve)| ?[a-z]+| ?0+| ?[.']+|[ \n]+(?![a-z0.'])|[ \n]+")
_MAX_CLASSES = 1 << 15  # entries remembered; a text of a million different characters must not stay in memory
_MAX_CACHED_CHARS = 64  # longer pieces are merged afresh each time, so the cache is bounded in bytes too
_MAX_CACHED_PIECES = 1 << 14


def _within(ranges: tuple[tuple[int, int], ...], code_point: int) -> bool:
    at = bisect_right(ranges, (code_point, 0x110000)) - 1
    return at >= 0 and ranges[at][0] <= code_point <= ranges[at][1]


def _class_of(code_point: int) -> str:
    character = chr(code_point)
    if character in _CONTRACTING or character in " '":
        return character
    if code_point in _SPACES:
        return _SPACE
    if character.isalpha() or _within(_NEW_LETTERS, code_point):
        return _LETTER
    if character.isnumeric() or _within(_NEW_NUMBERS, code_point):
        return _NUMBER
    return _OTHER


class _Classes(dict[int, str]):
    """Code point -> class character, filled as code points are met, up to a limit."""

    def __missing__(self, code_point: int) -> str:
        found = _class_of(code_point)
        if len(self) < _MAX_CLASSES:
            self[code_point] = found
        return found


_CLASSES = _Classes()


def split(text: str) -> Iterator[str]:
    """The pieces of `text` by the GPT-2 pattern; joined they are `text` again."""
    for match in _PIECES.finditer(text.translate(_CLASSES)):
        yield text[match.start() : match.end()]


def merge(word: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """Token ids of one piece, O(n log n) for n bytes; `ranks` holds every byte of `word`.

    A heap keeps the candidate pairs by (id, position); the parts are a linked list of offsets. A pair that a merge has
    overtaken stays in the heap and is recognised when it comes up.
    """
    whole = ranks.get(word)
    if whole is not None:
        return [whole]
    n = len(word)
    end = [*range(1, n + 1), -1]  # end[i]: where the part that starts at i stops; n if no part starts at i any more
    previous = list(range(-1, n))  # previous[i]: start of the part before the one that starts at i
    heap = [(ranks[pair], i, i + 2) for i in range(n - 1) if (pair := word[i : i + 2]) in ranks]
    heapq.heapify(heap)
    while heap:
        _, start, stop = heapq.heappop(heap)
        middle = end[start]
        if end[middle] != stop:
            continue
        end[start], end[middle] = stop, n
        previous[stop] = start
        before, after = previous[start], end[stop]
        if before >= 0 and (rank := ranks.get(word[before:stop])) is not None:
            heapq.heappush(heap, (rank, before, stop))
        if after > 0 and (rank := ranks.get(word[start:after])) is not None:
            heapq.heappush(heap, (rank, start, after))
    ids, at = [], 0
    while at < n:
        ids.append(ranks[word[at : end[at]]])
        at = end[at]
    return ids


def _without_surrogates(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates turned into U+FFFD, as in tiktoken."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _encode_piece(ranks: Mapping[bytes, int], piece: str) -> tuple[int, ...]:
    return tuple(merge(piece.encode(), ranks))


class Encoder:
    """Text to token ids, with a bounded cache of pieces. Safe to use from several threads.

    `ranks` maps the bytes of every token to its id and holds all 256 single bytes.
    """

    def __init__(self, ranks: Mapping[bytes, int]) -> None:
        self._encode_piece = partial(_encode_piece, ranks)
        self._cached = lru_cache(maxsize=_MAX_CACHED_PIECES)(self._encode_piece)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, special tokens not recognised. Lone surrogates count as U+FFFD."""
        ids: list[int] = []
        for piece in split(_without_surrogates(text)):
            ids.extend(self._cached(piece) if len(piece) <= _MAX_CACHED_CHARS else self._encode_piece(piece))
        return ids


MAGIC = b"\x89SETOK\r\n"
VERSION = 1
MAX_TOKENS = 1 << 20
MAX_TABLE_BYTES = 64 << 20
MAX_TOKEN_BYTES = 0xFFFF
_HEADER = struct.Struct("<8sHHIII")
_CRC_OFFSET = _HEADER.size - 4


def pack_table(ranks: Sequence[bytes]) -> bytes:
    """The bytes of a tokenizer.bin with the tokens `ranks`, index = id. Raises ModelError beyond its limits."""
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
    """The tokens of a tokenizer.bin, index = id. Raises BundleError, naming `where`, for what the format forbids."""
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
    """Write a tokenizer.bin. Raises ModelError as `pack_table`, ResourceError if the file cannot be written."""
    data = pack_table(ranks)
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise ResourceError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error


def read_table(path: str | os.PathLike[str]) -> list[bytes]:
    """The tokens of a tokenizer.bin, index = id. Raises BundleError if it is missing, too large or damaged."""
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
    decoded, never encoded. Raises ModelError for a table that does not fit the layout.
    """

    def __init__(self, ranks: Sequence[bytes], special: TokenLayout) -> None:
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

    @property
    def whisper_special(self) -> SpecialTokens:
        """The special tokens of a Whisper. Raises UsageError for another kind of model."""
        if not isinstance(self.special, SpecialTokens):
            raise UsageError("this needs the vocabulary of a Whisper model, and got that of a speech LLM")
        return self.special

    @cached_property
    def _encoder(self) -> Encoder:
        # Made at the first text to encode: most transcripts are only decoded, and the index is megabytes.
        return Encoder({token: id_ for id_, token in enumerate(self.ranks[: self.special.eot]) if token})

    @classmethod
    def load(cls, path: str | os.PathLike[str], special: TokenLayout) -> Tokenizer:
        """From a tokenizer.bin. Raises BundleError if it is missing, damaged or does not fit the layout."""
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
        """Bytes of the text tokens in `ids`. Raises UsageError for an id outside [0, n_vocab)."""
        ranks, n_ranks, n_vocab = self.ranks, len(self.ranks), self.special.n_vocab
        parts = []
        for id_ in ids:
            if 0 <= id_ < n_ranks:
                parts.append(ranks[id_])
            elif not 0 <= id_ < n_vocab:
                raise UsageError(f"token id {id_} is outside the vocabulary: expected 0 to {n_vocab - 1}")
        return b"".join(parts)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids` without special tokens; bytes that are no UTF-8 become U+FFFD. Raises UsageError likewise."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, over the packed byte table and the layout as sorted JSON: equal means the same ids.

        `n_vocab` is not in it: padding the vocabulary with ids that mean nothing changes no id.
        """
        layout = json.dumps(self.special.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(pack_table(self.ranks) + layout.encode("ascii")).hexdigest()
