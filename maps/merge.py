"""Merge several token maps into one, with their counts added.

Maps are read key by key in their common order, so memory does not grow with them. Occurrences below a source's minimum
count are gone, and counts are as exact as their quantisation.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import MapError, UsageError
from specedge.files import check_output, scratch_folder

from .tmap_format import COUNTS, END, END_ID, MAX_ORDER, MAX_TOKENS, TOKEN_MAP, quantise_count
from .token_map import TokenMap
from .writer import Chunk, Spill, write_map

_KEYS_AT_ONCE = 1 << 14
Key = tuple[int, ...]
Candidate = tuple[
    Key, int, Key, int
]  # ids with `TokenMap.end`, quantised count, quantised confidences, where in the pool


def merge(maps: Sequence[TokenMap], path: str | os.PathLike[str], *, budget_bytes: int | None = None) -> None:
    """Write one map with all keys of `maps` to `path`, which may be one of them.

    maps: one or more. Where they disagree about a key, the more frequent candidates come first, as many as any of the
    maps has. Raises UsageError for a file at `path` that is no map; MapError for maps of different vocabularies or
    damaged ones; ResourceError when the file cannot be written.
    """
    check_output(path, TOKEN_MAP)
    _check_mergeable(maps)
    first = maps[0]
    n_orders = max(opened.n_orders for opened in maps)
    n_candidates = max(_most_candidates(opened) for opened in maps)
    pools = np.cumsum([0, *(opened.info()["pool_tokens"] for opened in maps)])
    ids = _all_ids(maps)
    with scratch_folder(path) as folder:
        spill = Spill(folder, n_orders)
        with open(folder / "text", "xb") as file:
            for opened in maps:
                file.write(_pool(opened, ids))
            file.write(b"\xff\xff")  # a memory map cannot be empty
        text = np.memmap(folder / "text", dtype="<u2", mode="r")
        for n in range(1, n_orders + 1):
            rows: list[tuple[Key, list[Candidate]]] = []
            for key, sources in _aligned(maps, n):
                found = [[(ids, c, q, int(pools[i]) + at) for ids, c, q, at in cs] for i, cs in sources]
                rows.append((key, found[0] if len(found) == 1 else _added(found, n_candidates)))
                if len(rows) == _KEYS_AT_ONCE:
                    spill.append(n, _chunk(rows, ids))
                    rows = []
            spill.append(n, _chunk(rows, ids))
        meta: dict[str, Any] = {"merged": [opened.info()["build"] for opened in maps]}
        meta |= {name: sum(_number(opened, name) for opened in maps) for name in ("sentences", "tokens")}
        write_map(
            path,
            spill,
            text,
            n_text=first.n_text,
            fingerprint=first.fingerprint,
            meta=meta,
            ids=ids,
            budget_bytes=budget_bytes,
        )
        del text


def _check_mergeable(maps: Sequence[TokenMap]) -> None:
    for opened in maps:
        opened.verify()
        if opened.fingerprint != maps[0].fingerprint or opened.n_text != maps[0].n_text:
            raise MapError(
                f"{opened.where} and {maps[0].where} are for different vocabularies: maps of one vocabulary can be "
                "merged, build the other again with the same -m"
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


def _most_candidates(opened: TokenMap) -> int:
    return max((len(numbers) for n in range(1, opened.n_orders + 1) for _, numbers in opened.items(n)), default=1)


def _number(opened: TokenMap, name: str) -> int:
    value = opened.info()["build"].get(name)
    return value if isinstance(value, int) else 0


def _aligned(maps: Sequence[TokenMap], n: int) -> Iterator[tuple[Key, list[tuple[int, list[Candidate]]]]]:
    """Every key of order `n` in file order, with the number of each map that has it and its candidates there."""

    def keys(i: int, opened: TokenMap) -> Iterator[tuple[Key, int, range]]:
        for key, numbers in opened.items(n):
            yield key[::-1], i, numbers

    sources = [keys(i, opened) for i, opened in enumerate(maps) if n <= opened.n_orders]
    for reverse, group in groupby(heapq.merge(*sources, key=lambda item: item[:2]), key=lambda item: item[0]):
        yield reverse[::-1], [(i, [maps[i].raw_candidate(q) for q in numbers]) for _, i, numbers in group]


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
    if ids is not None:
        rows = [(_tokens(key, ids), candidates) for key, candidates in rows]
    found = [candidate for _, candidates in rows for candidate in candidates]
    values: list[float] = []
    for _, candidates in rows:
        _, count, confidences, _ = candidates[0]
        _, *sure = _reached(confidences)
        values.append(COUNTS[count] / sure[-1] * sum(sure))
    packed = [sum(id_ << 16 * i for i, id_ in enumerate(key[-(MAX_ORDER - 1) :])) for key, _ in rows]

    def column(values: Any, dtype: type) -> NDArray[Any]:
        return np.array(values, dtype=dtype)

    return Chunk(
        key=column(packed, np.uint64),
        old=column([key[0] if len(key) == MAX_ORDER else 0 for key, _ in rows], np.uint16),
        n_candidates=column([len(candidates) for _, candidates in rows], np.uint8),
        value=column(values, np.float32),
        start=column([at for _, _, _, at in found], np.uint32),
        length=column([len(ids) for ids, _, _, _ in found], np.uint8),
        count=column([count for _, count, _, _ in found], np.uint8),
        confidence=column([c for _, _, confidences, _ in found for c in confidences], np.uint8),
    )


def _tokens(key: Key, ids: NDArray[np.uint32]) -> Key:
    return tuple(END if id_ == END_ID else int(ids.searchsorted(id_)) for id_ in key)
