"""Small token maps for tests, and what they should say, counted the slow way with dictionaries."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from specedge.maps.build import BuildOptions, build
from specedge.maps.tmap_format import END, Section, aligned, head_bytes, pack_head, parse_head
from specedge.maps.token_map import Candidate, TokenMap

N_TEXT = 40
FINGERPRINT = bytes(range(32))
Key = tuple[int, ...]


def make_map(path: Path, sentences: Iterable[Sequence[int]], options: BuildOptions | None = None) -> Path:
    """A map of the sentences, ids below `N_TEXT`, at `path`."""
    build(sentences, path, n_text=N_TEXT, fingerprint=FINGERPRINT, options=options)
    return path


def occurrences(sentences: Iterable[Sequence[int]], n_orders: int) -> dict[Key, list[Key]]:
    """What came after each key of 1 to `n_orders` ids, END first or last where the sentence began or ended."""
    found: dict[Key, list[Key]] = defaultdict(list)
    for sentence in sentences:
        padded = (END, *sentence, END) if len(sentence) else ()
        for at in range(1, len(padded)):
            for n in range(1, min(n_orders, at) + 1):
                found[tuple(padded[at - n : at])].append(tuple(padded[at:]))
    return found


def best_path(rests: Sequence[Key], options: BuildOptions) -> tuple[Key, int, list[float]]:
    """The first candidate of a key: ids, count, confidences; always the most frequent id, of equals the smallest."""
    total, path, shares = len(rests), (), []
    while len(path) < options.max_length and (not path or path[-1] != END):
        here = [rest for rest in rests if rest[: len(path)] == path]
        id_, count = min(Counter(rest[len(path)] for rest in here).items(), key=lambda item: (-item[1], item[0]))
        if count < max(options.min_count, options.min_share * total):
            break
        path, shares = (*path, id_), [*shares, count / len(here)]
    return path, sum(rest[: len(path)] == path for rest in rests), shares


def sections_of(data: bytes) -> dict[str, bytes]:
    """The contents of each section of a sound map."""
    found, _, _, _ = parse_head(memoryview(data), "x")
    return {s.name: data[s.offset : s.offset + s.n_bytes] for s in found.values()}


def sealed(contents: Mapping[str, bytes], *, n_text: int = N_TEXT, fingerprint: bytes = FINGERPRINT) -> bytes:
    """A file of these sections with checksums that are right, whatever the sections say."""
    n_orders = sum(name.startswith("keys") for name in contents)
    at, body, sections = head_bytes(n_orders, numbered="ids" in contents), b"", []
    for name, content in contents.items():
        padding = aligned(at) - at
        sections.append(Section(name, at + padding, len(content), zlib.crc32(content)))
        body += bytes(padding) + content
        at += padding + len(content)
    return pack_head(sections, n_text=n_text, fingerprint=fingerprint) + body


def answers(opened: TokenMap, contexts: Iterable[Sequence[int]]) -> list[tuple[int, tuple[Candidate, ...]]]:
    """What the map says to each context."""
    return [opened.longest(context) for context in contexts]
