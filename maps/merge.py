"""Merge several token maps into one, with their counts added.

Maps are read key by key in their common order, so memory does not grow with them. Occurrences below a source's minimum
count are gone, and counts are as exact as their quantisation.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, islice
from operator import itemgetter, mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import MapError, UsageError
from specedge.files import check_output, scratch_folder

from .tmap_format import COUNTS, END, END_ID, MAX_ORDER, MAX_TOKENS, TOKEN_MAP, quantise_count
from .token_map import TokenMap
from .writer import CANDIDATE, KEY, Chunk, Spill, write_map

_KEYS_AT_ONCE = 1 << 14
Key = tuple[int, ...]
Candidate = tuple[Key, int, Key, int]
"""Ids with `TokenMap.end`, quantised count, quantised confidences, where in the pool."""


def merge(maps: Sequence[TokenMap], path: str | os.PathLike[str], *, budget_bytes: int | None = None) -> None:
    """Write one map with all keys of `maps` to `path`, which may be one of them.

    maps: one or more. Where they disagree about a key, the more frequent candidates come first, as many as any of the
    maps has. Raises UsageError for a file at `path` that is no map; MapError for maps of different vocabularies or
    damaged ones; ResourceError when the file cannot be written.
    """
    check_output(path, TOKEN_MAP)
    first = maps[0]
    for opened in maps:
        if opened.fingerprint != first.fingerprint or opened.n_text != first.n_text:
            raise MapError(
                f"{opened.where} and {first.where} are for different vocabularies: maps of one vocabulary can be "
                "merged, build the other again with the same -m"
            )
    n_orders = max(opened.n_orders for opened in maps)
    every = (opened.items(n) for opened in maps for n in range(1, opened.n_orders + 1))
    n_candidates = max((len(numbers) for items in every for _, numbers in items), default=1)
    ids = _all_ids(maps)
    with scratch_folder(path) as folder:
        spill = Spill(folder, n_orders)
        with open(spill.text, "xb") as file:
            for opened in maps:
                file.write(_pool(opened, ids))
            file.write(b"\xff\xff")  # a memory map cannot be empty
        for n in range(1, n_orders + 1):
            rows = _rows(maps, n, n_candidates)
            while len((chunk := _chunk(list(islice(rows, _KEYS_AT_ONCE)), ids)).keys):
                spill.append(n, chunk)
        built = [opened.info()["build"] for opened in maps]
        meta: dict[str, Any] = {"merged": built}
        for name in ("sentences", "tokens"):
            meta[name] = sum(value for one in built if isinstance(value := one.get(name), int))
        write_map(
            path,
            spill,
            n_text=first.n_text,
            fingerprint=first.fingerprint,
            meta=meta,
            ids=ids,
            budget_bytes=budget_bytes,
        )


def _all_ids(maps: Sequence[TokenMap]) -> NDArray[np.uint32] | None:
    """The ids of all numbered maps, rising; None where tokens are ids. Raises UsageError for too many."""
    tables = [table for opened in maps if (table := opened.ids()) is not None]
    if not tables:
        return None
    ids = np.unique(np.concatenate(tables))
    if len(ids) > MAX_TOKENS:
        raise UsageError(
            f"the maps have {len(ids)} different token ids together, expected at most {MAX_TOKENS}: merge fewer, or "
            "build one map of all the texts, which keeps the most frequent ids"
        )
    return ids


def _pool(opened: TokenMap, ids: NDArray[np.uint32] | None) -> memoryview | bytes:
    """The pool of a map as tokens of the merged one."""
    table = opened.ids()
    if ids is None or table is None:
        return opened.pool_bytes()
    tokens = np.full(END + 1, END, dtype="<u2")
    tokens[: len(table)] = ids.searchsorted(table)
    found: bytes = tokens[np.frombuffer(opened.pool_bytes(), "<u2")].tobytes()
    return found


def _rows(maps: Sequence[TokenMap], n: int, n_candidates: int) -> Iterator[tuple[Key, list[Candidate]]]:
    """Every key of order `n` in file order, with its best candidates in the maps together."""
    pools = [0, *accumulate(opened.info()["pool_tokens"] for opened in maps)]

    def keys(i: int) -> Iterator[tuple[Key, int, range]]:
        for key, numbers in maps[i].items(n):
            yield key[::-1], i, numbers

    merged = heapq.merge(*(keys(i) for i, opened in enumerate(maps) if n <= opened.n_orders))
    for backwards, sources in groupby(merged, itemgetter(0)):
        found = []
        for _, i, numbers in sources:
            raw = map(maps[i].raw_candidate, numbers)
            found.append([(ids, count, confidences, pools[i] + at) for ids, count, confidences, at in raw])
        yield backwards[::-1], found[0] if len(found) == 1 else _added(found, n_candidates)


def _added(sources: list[list[Candidate]], n_candidates: int) -> list[Candidate]:
    """The candidates of a key from those of several maps."""
    counts: dict[Key, float] = {}  # occurrences of each path, as far as they are known
    places: dict[Key, int] = {}  # where each whole candidate can be read
    for candidates in sources:
        # A key occurred as often as its candidates imply at most.
        whole = max(COUNTS[c] / _reached(q)[-1] for _, c, q, _ in candidates)
        here: dict[Key, float] = {}
        for ids, _, confidences, at in candidates:
            here.update((ids[:depth], share) for depth, share in enumerate(_reached(confidences, whole)))
            places.setdefault(ids, at)
        for path, share in here.items():
            counts[path] = counts.get(path, 0.0) + share
    paths = [ids for ids in places if not any(other != ids and other[: len(ids)] == ids for other in places)]
    paths.sort(key=lambda ids: ([-counts[ids[: i + 1]] for i in range(len(ids))], ids))
    merged = []
    for ids in paths[:n_candidates]:
        known = [counts[ids[:i]] for i in range(len(ids) + 1)]
        confidences = tuple(max(1, round(255 * min(b / a, 1.0))) for a, b in zip(known, known[1:], strict=False))
        count = int(quantise_count(np.array([max(1, round(known[-1]))]))[0])
        merged.append((ids, count, confidences, places[ids]))
    return merged


def _reached(confidences: Key, of: float = 1.0) -> list[float]:
    """Of `of` occurrences all, and then how many go as far as each token."""
    return list(accumulate((confidence / 255 for confidence in confidences), mul, initial=of))


def _chunk(rows: Sequence[tuple[Key, list[Candidate]]], ids: NDArray[np.uint32] | None) -> Chunk:
    """Rows as columns, with the value of a key as `build` computes it; `ids` as `write_map` has them."""
    keys = []
    for key, candidates in rows:
        if ids is not None:
            key = tuple([END if id_ == END_ID else int(ids.searchsorted(id_)) for id_ in key])
        _, count, confidences, _ = candidates[0]
        _, *sure = _reached(confidences)
        value = COUNTS[count] / sure[-1] * sum(sure)
        packed = sum(id_ << 16 * i for i, id_ in enumerate(key[-(MAX_ORDER - 1) :]))
        keys.append((packed, key[0] if len(key) == MAX_ORDER else 0, len(candidates), value))
    found = [candidate for _, candidates in rows for candidate in candidates]
    return Chunk(
        np.array(keys, KEY),
        np.array([(at, len(ids), count) for ids, count, _, at in found], CANDIDATE),
        np.array([c for _, _, confidences, _ in found for c in confidences], np.uint8),
    )
