"""What is fuzzed: for each reader of files some sound files to begin with, and what may come of any other bytes.

A target's `attempt` takes bytes as a file's content and says whether they were taken for one. A documented refusal is
False; whatever it raises is a finding. Checksums are switched off, or no changed byte would get past them.
"""

from __future__ import annotations

import io
import json
import logging
import sqlite3
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "tests") not in sys.path:
    sys.path.insert(0, str(ROOT / "tests"))

from specedge.errors import AudioError, BundleError, MapError, ModelError, ResourceError  # noqa: E402
from specedge.maps import ngram_cache, tmap_format, token_map  # noqa: E402
from specedge.maps.build import BuildOptions  # noqa: E402
from specedge.maps.ngram_cache import STRICT, UserCache, draft_by_counts  # noqa: E402
from specedge.maps.token_map import TokenMap  # noqa: E402
from specedge.runtime.audio.wav import ByteReader, PcmReader, find_samples, to_float  # noqa: E402
from specedge.runtime.bundle.manifest import Manifest  # noqa: E402
from specedge.runtime.text import tokenizer as tokenizer_module  # noqa: E402
from specedge.runtime.text.tokenizer import Tokenizer, pack_table, unpack_table  # noqa: E402
from support.exported import bundle  # noqa: E402
from support.fake_engine import special_tokens  # noqa: E402
from support.paths import DEMO  # noqa: E402
from support.token_maps import make_map  # noqa: E402

CONTEXTS = [[], [1], [1, 2], [1, 2, 3], [2, 3, 4, 5], [8, 8, 8, 8, 8], [39], [65535], [-1, 70000]]
SENTENCES = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3, 4], [7, 2, 3], [1, 2, 8, 8, 8, 8]] * 2


class Finding(Exception):
    """Something was read that cannot be."""


def require(holds: bool, what: object) -> None:
    if not holds:
        raise Finding(str(what))


class Target:
    """A reader under attack; `folder` is its own. `patch(module, name, value)` is setattr, or a monkeypatch's."""

    def __init__(self, folder: Path, patch: Callable[[Any, str, Any], None] = setattr) -> None:
        self.folder = folder

    def seeds(self) -> list[bytes]:
        """Sound files, small."""
        raise NotImplementedError

    def attempt(self, data: bytes) -> bool:
        raise NotImplementedError


class _AnyChecksum(int):
    """What equals every checksum."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


class NoZlib:
    """Stands for zlib in a module that only sums."""

    @staticmethod
    def crc32(data: Any, value: Any = 0) -> _AnyChecksum:
        return _AnyChecksum()


class Wav(Target):
    """Our reader of plain PCM in WAVE files, from a file and from a pipe."""

    def seeds(self) -> list[bytes]:
        pcm = struct.pack("<8h", *range(-4, 4))
        long_data = b"data" + b"\xff" * 4 + pcm
        extensible = struct.pack("<HHI", 22, 16, 3) + bytes.fromhex("0100000000001000800000aa00389b71")
        return [
            _riff(_fmt(), _chunk(b"data", pcm)),
            _riff(_chunk(b"LIST", b"odd"), _fmt(n_channels=2, bits=24), _chunk(b"data", pcm[:12]), _chunk(b"x", b"y")),
            _riff(_fmt(tag=3, bits=32), _chunk(b"fact", bytes(4)), _chunk(b"data", struct.pack("<2f", 0.5, 9e9))),
            _riff(_fmt(tag=0xFFFE, n_channels=2, extra=extensible), _chunk(b"data", pcm)),
            _riff(_chunk(b"ds64", struct.pack("<QQQI", 9, 16, 8, 0)), _fmt(), long_data, magic=b"RF64"),
            _riff(_fmt(order=">"), _chunk(b"data", pcm, ">"), magic=b"RIFX", order=">"),
        ]  # fmt: skip

    def attempt(self, data: bytes) -> bool:
        n_taken = 0
        for remaining in (len(data), None):
            source, n_bytes = ByteReader(io.BytesIO(data), "x.wav", remaining=remaining), 0
            try:
                found = find_samples(source.peek(4096), "x.wav")
                if found is None:
                    continue
                begins_at, said_bytes, raw = found
                source.read(begins_at)
                for part in PcmReader(source, raw, said_bytes).blocks(1000):
                    block = to_float(part.samples)
                    n_bytes += block.nbytes
                    require(block.dtype == "float32" and block.ndim == 2, block.dtype)
                    require(n_bytes <= 8 * len(data), f"{n_bytes} bytes of samples out of {len(data)}")
                n_taken += 1
            except AudioError as error:
                require("\n" not in str(error), error)
        return n_taken > 0


def _chunk(tag: bytes, body: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}4sI", tag, len(body)) + body + bytes(len(body) % 2)


def _fmt(tag: int = 1, n_channels: int = 1, bits: int = 16, extra: bytes = b"", order: str = "<") -> bytes:
    align = n_channels * bits // 8
    fields = struct.pack(f"{order}HHIIHH", tag, n_channels, 16_000, 16_000 * align, align, bits)
    return _chunk(b"fmt ", fields + extra, order)


def _riff(*chunks: bytes, magic: bytes = b"RIFF", order: str = "<") -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return struct.pack(f"{order}4sI", magic, len(body)) + body


class ManifestFile(Target):
    """A bundle's specedge.json, without its own hash."""

    def seeds(self) -> list[bytes]:
        found = []
        for folder in (DEMO, bundle("int8", "en").path):
            value = json.loads((folder / "specedge.json").read_bytes())
            value.pop("manifest_sha256")
            value["selfcheck"] = {}
            value["graphs"] = {graph: value["graphs"][graph] for graph in ("encoder", "cross_kv", "decoder")}
            found.append(json.dumps(value, separators=(",", ":")).encode())
            found.append(json.dumps(value, indent=1).encode())
        return found

    def attempt(self, data: bytes) -> bool:
        try:
            parsed = Manifest.from_bytes(data, "m.json")
        except BundleError as error:
            require("\n" not in str(error) and len(str(error)) < 1000, error)
            return False
        require(Manifest.from_bytes(parsed.to_bytes(), "m.json") == parsed, "another manifest after a round trip")
        return True


class TokenizerTable(Target):
    """tokenizer.bin, and the tokenizer that is made of it."""

    def __init__(self, folder: Path, patch: Callable[[Any, str, Any], None] = setattr) -> None:
        super().__init__(folder, patch)
        self._special = special_tokens()
        self._seeds = [pack_table([*(bytes([i]) for i in range(256)), *more]) for more in self._more()]
        patch(tokenizer_module, "zlib", NoZlib)

    def _more(self) -> list[list[bytes]]:
        n_words = self._special.eot - 256
        words = [f" word{i}".encode() for i in range(n_words)]
        return [words, [b"", *words[1:]], [*words, b"", b""]]

    def seeds(self) -> list[bytes]:
        return [*self._seeds, self._seeds[0][:24]]

    def attempt(self, data: bytes) -> bool:
        try:
            ranks, _ = unpack_table(data, "t.bin")
        except BundleError as error:
            require("\n" not in str(error), error)
            return False
        require(sum(map(len, ranks)) + 2 * len(ranks) + 24 == len(data), "a table of another length")
        try:
            made = Tokenizer(ranks, self._special)
        except ModelError:
            return True
        for text in ("word1 and word2", "\u00e9\udc80\n", ""):
            told = text.encode("utf-8", errors="replace").decode()
            require(len(made.decode(made.encode(text))) == len(told), f"{text!r} does not come back")
        made.decode(range(self._special.n_vocab))
        return True


class Map(Target):
    """A token map."""

    def __init__(self, folder: Path, patch: Callable[[Any, str, Any], None] = setattr) -> None:
        super().__init__(folder, patch)
        self._seeds = []
        for options in (BuildOptions(n_orders=5), BuildOptions(n_orders=1)):
            self._seeds.append(make_map(folder / "sound.tmap", SENTENCES, options).read_bytes())
        for module in (tmap_format, token_map):
            patch(module, "zlib", NoZlib)

    def seeds(self) -> list[bytes]:
        return self._seeds

    def attempt(self, data: bytes) -> bool:
        path = self.folder / "fuzzed.tmap"
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        try:
            with TokenMap.open(path) as opened:
                opened.info()
                for context in CONTEXTS:
                    for candidate in opened.longest(context)[1]:
                        require(all(0 <= id_ < opened.n_text for id_ in candidate.tokens), candidate)
                        require(len(candidate.confidences) == len(candidate.tokens) + candidate.ends, candidate)
        except MapError as error:
            require("\n" not in str(error), error)
            return False
        return True


class Learned(Target):
    """The database of `--remember`, alone and with what a killed process left beside it."""

    MARK = b"\0-wal\0"
    VOCABULARY = bytes(32)

    def __init__(self, folder: Path, patch: Callable[[Any, str, Any], None] = setattr) -> None:
        super().__init__(folder, patch)
        self._path = folder / "learned.sqlite"
        patch(ngram_cache, "_BUSY_S", 0.05)
        patch(logging.getLogger("specedge.maps.ngram_cache"), "disabled", True)

    def seeds(self) -> list[bytes]:
        self._clear()
        with UserCache(self._path, self.VOCABULARY) as cache:
            cache.learn([1, 2, 3, 1, 2, 4, 5])
        plain = self._path.read_bytes()
        with UserCache(self._path, self.VOCABULARY) as cache:
            cache.learn([1, 2, 3, 9, 9, 8])
            in_use = self._path.read_bytes() + self.MARK + (self.folder / "learned.sqlite-wal").read_bytes()
        self._clear()
        connection = sqlite3.connect(self._path)
        connection.executescript("PRAGMA page_size = 512; CREATE TABLE gram (x); PRAGMA user_version = 1")
        connection.close()
        other = self._path.read_bytes()
        return [plain, in_use, other, plain[:100]]

    def attempt(self, data: bytes) -> bool:
        self._clear()
        database, _, log = data.partition(self.MARK)
        self._path.write_bytes(database)
        if log:
            (self.folder / "learned.sqlite-wal").write_bytes(log)
        try:
            for vocabulary, key, id_, count in ngram_cache.export(self._path):
                require(isinstance(vocabulary, bytes) and isinstance(count, int), (vocabulary, count))
                require(0 <= max(*key, id_) <= 0xFFFF, (key, id_))
        except ResourceError as error:
            require("\n" not in str(error), error)
        with UserCache(self._path, self.VOCABULARY) as cache:
            for context in ([1], [1, 2], [2, 3]):
                for id_, count in cache.pairs(context):
                    require(type(id_) is int and type(count) is int and count > 0, (id_, count))
                tokens, confidences = draft_by_counts(cache.pairs, context, 5, STRICT)
                require(len(tokens) == len(confidences) and all(0 <= c <= 1 for c in confidences), confidences)
            cache.learn([1, 2, 3])
        is_taken = not (self.folder / "learned.sqlite.bad").exists()
        ngram_cache.erase(self._path)
        return is_taken

    def _clear(self) -> None:
        for path in self.folder.glob("learned.sqlite*"):
            path.unlink()


TARGETS: Mapping[str, type[Target]] = {
    "wav": Wav, "manifest": ManifestFile, "tokenizer": TokenizerTable, "map": Map, "learned": Learned,
}  # fmt: skip
