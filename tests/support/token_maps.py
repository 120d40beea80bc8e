"""Small token maps for tests, and what they should say, counted the slow way with dictionaries."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from specedge.maps.build import BuildOptions, build
from specedge.maps.tmap_format import END

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
