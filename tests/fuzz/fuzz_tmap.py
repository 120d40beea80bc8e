"""Fuzzing of the token map reader: any bytes give a map whose answers are sane, or a `MapError`.

    python tests/fuzz/fuzz_tmap.py CORPUS_FOLDER [libFuzzer options]     with `pip install atheris`
    python tests/fuzz/fuzz_tmap.py --rounds 20000                                 without: random edits of a sound map

Checksums are switched off, or no changed byte would get past them. What crashes becomes a case of
tests/maps/test_hostile_maps.py.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from specedge.maps import tmap_format, token_map
from specedge.maps.build import BuildOptions
from specedge.maps.token_map import TokenMap
from specedge.runtime.errors import MapError
from support.token_maps import make_map

CONTEXTS = [[], [1], [1, 2], [1, 2, 3], [2, 3, 4, 5], [8, 8, 8, 8, 8], [39], [65535], [-1, 70000]]
SENTENCES = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3, 4], [7, 2, 3], [1, 2, 8, 8, 8, 8]] * 2
OPTIONS = BuildOptions(n_orders=5, corpus_bytes=1000)


class _AnyChecksum(int):
    """What equals every checksum."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


class _NoZlib:
    @staticmethod
    def crc32(data: Any, value: Any = 0) -> _AnyChecksum:
        return _AnyChecksum()


def without_checksums(patch: Any) -> None:
    """`patch(module, name, value)` is setattr or a monkeypatch's."""
    patch(tmap_format, "zlib", _NoZlib)
    patch(token_map, "zlib", _NoZlib)


def try_bytes(data: bytes, path: Path) -> bool:
    """Open `data` as a map and ask it; whether it was taken for one."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    try:
        with TokenMap.open(path) as opened:
            opened.info()
            for context in CONTEXTS:
                for candidate in opened.longest(context)[1]:
                    if any(not 0 <= id_ < opened.n_text for id_ in candidate.tokens):
                        raise RuntimeError(f"ids beyond the vocabulary: {candidate}")
                    if len(candidate.confidences) != len(candidate.tokens) + candidate.ends:
                        raise RuntimeError(f"confidences do not fit: {candidate}")
                _try_corpus(opened, context)
    except MapError:
        return False
    return True


def _try_corpus(opened: TokenMap, context: list[int]) -> None:
    match = None if opened.corpus is None else opened.corpus.longest(context)
    if match is None:
        return
    if any(not 0 <= id_ < opened.n_text for id_ in match.tokens) or not 0 < match.length <= len(context):
        raise RuntimeError(f"ids beyond the vocabulary, or a match longer than the text: {match}")
    if len(match.confidences) != len(match.tokens) + match.ends or not all(0 < c <= 1 for c in match.confidences):
        raise RuntimeError(f"confidences do not fit: {match}")


def random_edits(rounds: int, folder: Path, seed: int = 1) -> int:
    """Try a sound map with a few bytes changed, many times; how many were taken for a map all the same."""
    sound = make_map(folder / "sound.tmap", SENTENCES, OPTIONS).read_bytes()
    rng, n_taken = random.Random(seed), 0
    for _ in range(rounds):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            width = rng.choice((1, 1, 2, 4, 8))
            data[at : at + width] = rng.choice((rng.randbytes(width), b"\xff" * width, bytes(width)))
        n_taken += try_bytes(bytes(data), folder / "edited.tmap")
    return n_taken


def main() -> None:
    """Fuzz with atheris where it is installed, else with random edits."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        without_checksums(setattr)
        try:
            import atheris
        except ImportError:
            rounds = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 20_000
            print(f"{random_edits(rounds, folder)} of {rounds} edited maps were readable, none did harm")
            return
        for argument in sys.argv[1:]:
            if Path(argument).is_dir() and not any(Path(argument).iterdir()):
                make_map(Path(argument) / "sound.tmap", SENTENCES, OPTIONS)
                make_map(Path(argument) / "no_corpus.tmap", SENTENCES, BuildOptions(n_orders=5))
        atheris.instrument_func(try_bytes)
        atheris.Setup(sys.argv, lambda data: try_bytes(data, folder / "fuzzed.tmap") and None)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
