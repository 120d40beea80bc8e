"""Text to token ids and back, and the file `tokenizer.bin` that carries a model's byte table.

Byte-level byte-pair encoding as tiktoken does it, without tiktoken. `split` cuts text into pieces by the pattern of
GPT-2 or of Qwen, which composes text first (NFC), as its publishers do, and
`Encoder` merges the UTF-8 bytes of each piece, always the pair whose merged bytes have the lowest id, the leftmost
first (ids are ranks in every vocabulary that is read).

docs/bundle-format.md has the layout of tokenizer.bin; the "\\r\\n" in its magic is there because a copy in text mode
breaks it. A token may be empty: the multilingual vocabulary has one such, at id 50256.
A reader checks the size of the file and the CRC, and only then builds the table.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import struct
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache, partial
from typing import Any

from specedge.errors import BundleError, ModelError, UsageError
from specedge.files import write_atomic

from .special import SpecialTokens, TokenLayout

GPT2, QWEN = "gpt2", "qwen"
PATTERNS = {
    GPT2: r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    QWEN: (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+"
    ),
}
"""As their publishers write them, by the names that tokenizer files have for them."""


@cache
def _compiled(pattern: str) -> Any:
    import regex

    return regex.compile(PATTERNS[pattern], regex.VERSION0)


def split(text: str, pattern: str = GPT2) -> Iterator[str]:
    """The pieces of `text` by the pattern of this name; joined they are `text` again."""
    for match in _compiled(pattern).finditer(text):
        yield match.group()


_MAX_CACHED_CHARS = 64  # longer pieces are merged afresh each time, so the cache is bounded in bytes too
_MAX_CACHED_PIECES = 1 << 14


def merge(ranks: Mapping[bytes, int], piece: str) -> tuple[int, ...]:
    """Token ids of one piece, O(n log n) for n bytes; `ranks` holds every byte of it.

    A heap keeps the candidate pairs by (id, position); the parts are a linked list of offsets. A pair that a merge has
    overtaken stays in the heap and is recognised when it comes up.
    """
    word = piece.encode()
    whole = ranks.get(word)
    if whole is not None:
        return (whole,)
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
    return tuple(ids)


def _without_surrogates(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates turned into U+FFFD, as in tiktoken."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class Encoder:
    """Text to token ids, with a bounded cache of pieces. Safe to use from several threads.

    `ranks` maps the bytes of every token to its id and holds all 256 single bytes; `pattern`: of PATTERNS.
    """

    def __init__(self, ranks: Mapping[bytes, int], pattern: str = GPT2) -> None:
        self._pattern = pattern
        self._merge = partial(merge, ranks)
        self._cached = lru_cache(maxsize=_MAX_CACHED_PIECES)(self._merge)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, special tokens not recognised. Lone surrogates count as U+FFFD."""
        text = _without_surrogates(text)
        if self._pattern == QWEN:
            text = unicodedata.normalize("NFC", text)
        ids: list[int] = []
        for piece in split(text, self._pattern):
            ids.extend(self._cached(piece) if len(piece) <= _MAX_CACHED_CHARS else self._merge(piece))
        return ids


MAGIC = b"\x89SETOK\r\n"
VERSION, PATTERN_VERSION = 1, 2
_PATTERN_NAMES = (GPT2, QWEN)  # by their numbers
MAX_TOKENS = 1 << 20
MAX_TABLE_BYTES = 64 << 20
MAX_TOKEN_BYTES = 0xFFFF
_HEADER = struct.Struct("<8sHHIII")
_CRC_OFFSET = _HEADER.size - 4


def pack_table(ranks: Sequence[bytes], pattern: str = GPT2) -> bytes:
    """The bytes of a tokenizer.bin with the tokens `ranks`, index = id. Raises ModelError beyond its limits."""
    number = _PATTERN_NAMES.index(pattern)
    version = PATTERN_VERSION if number else VERSION
    longest = max(map(len, ranks), default=0)
    if not 1 <= len(ranks) <= MAX_TOKENS or longest > MAX_TOKEN_BYTES:
        expected = f"1 to {MAX_TOKENS} of at most {MAX_TOKEN_BYTES}"
        raise ModelError(f"byte table: {len(ranks)} tokens of up to {longest} bytes, expected {expected}")
    lengths = [n.to_bytes(2, "little") for n in range(longest + 1)]
    table = b"".join([part for n, token in zip(map(len, ranks), ranks, strict=True) for part in (lengths[n], token)])
    if len(table) > MAX_TABLE_BYTES:
        raise ModelError(f"byte table: {len(table)} bytes, expected at most {MAX_TABLE_BYTES}")
    head = _HEADER.pack(MAGIC, version, number, len(ranks), len(table), 0)[:_CRC_OFFSET]
    return head + zlib.crc32(table, zlib.crc32(head)).to_bytes(4, "little") + table


def unpack_table(data: bytes, where: str) -> tuple[list[bytes], str]:
    """The tokens of a tokenizer.bin, index = id, and the name of its pattern.

    Raises BundleError, naming `where`, for what the format forbids.
    """
    if len(data) < _HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise BundleError(f"{where} is no specedge byte table: it does not begin with the magic bytes; export it again")
    _, version, number, count, n_bytes, crc = _HEADER.unpack_from(data)
    if (version, number) not in ((VERSION, 0), (PATTERN_VERSION, 1)):
        raise BundleError(
            f"{where} has byte table version {version} and pattern {number}, expected version {VERSION} with pattern "
            f"0, or {PATTERN_VERSION} with 1; export it again"
        )
    tokens = []
    at, size, view = _HEADER.size, len(data), memoryview(data)
    is_whole = size == at + n_bytes and crc == zlib.crc32(view[at:], zlib.crc32(view[:_CRC_OFFSET]))
    for _ in range(min(count, MAX_TOKENS) if is_whole else 0):
        if at + 2 > size:
            break
        stop = at + 2 + (data[at] | data[at + 1] << 8)
        tokens.append(data[at + 2 : stop])
        at = stop
    if at != size or not 1 <= len(tokens) == count:
        raise BundleError(f"{where} is damaged: it is not what its header says; export it again or copy it again")
    return tokens, _PATTERN_NAMES[number]


def write_table(path: str | os.PathLike[str], ranks: Sequence[bytes], pattern: str = GPT2) -> None:
    """Write a tokenizer.bin. Raises ModelError as `pack_table`, ResourceError if the file cannot be written."""
    write_atomic(path, pack_table(ranks, pattern))


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads.

    `ranks[id]` is the bytes of token `id`, and ids are merge ranks: byte-pair encoding prefers the lowest. The ids
    below `special.eot` are all there, among them the 256 single bytes; only empty tokens occur twice. Ids from
    `special.eot` on may follow, where a fine-tune has added text tokens of its own after the timestamps: they are
    decoded, never encoded. pattern: the name of what text is split by. Raises ModelError for a table that does not fit
    the layout.
    """

    def __init__(self, ranks: Sequence[bytes], special: TokenLayout, pattern: str = GPT2) -> None:
        self.pattern = pattern
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
        missing = len({bytes([byte]) for byte in range(256)} - texts)
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
        return Encoder({token: id_ for id_, token in enumerate(self.ranks[: self.special.eot]) if token}, self.pattern)

    @classmethod
    def load(cls, path: str | os.PathLike[str], special: TokenLayout) -> Tokenizer:
        """From a tokenizer.bin. Raises BundleError if it is missing, damaged or does not fit the layout."""
        where = os.fspath(path)
        try:
            with open(path, "rb") as file:
                data = file.read(_HEADER.size + MAX_TABLE_BYTES + 1)
        except OSError as error:
            raise BundleError(f"cannot read the byte table {where}: {error.strerror or error}") from error
        ranks, pattern = unpack_table(data, where)
        try:
            return cls(ranks, special, pattern)
        except ModelError as error:
            raise BundleError(f"{where}: {error}") from None

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, all below `special.eot`; "<|en|>" in a text is just characters.

        `decode` gives the text back, except that lone surrogates become U+FFFD, and Qwen's tokenizer composes text.
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
        return hashlib.sha256(pack_table(self.ranks, self.pattern) + layout.encode("ascii")).hexdigest()
