"""Counts a corpus of token ids into a token map, within bounded memory.

The corpus goes to disk as u16 ids with `END` around every sentence. Its positions are sorted by their id, again on
disk, and taken in runs of ids small enough for memory; in each, the occurrences of every key stand together, sorted by
what comes next, and `counting` finds the candidates. Since keys sort by their most recent id, the runs' results follow
each other in the order of the file. Token Map Drafting (arXiv 2507.21522) leaves most of this open; what was decided:

- a key has one start of sentence at most (two would say the same as a shorter key);
- a candidate may end with the end of its sentence, so that a drafter can propose the end of the text too;
- a candidate is followed while it keeps `min_count` occurrences and `min_share` of those of its key.

Knows ids; not text. The same sentences and options give the same bytes.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import ResourceError, UsageError
from specedge.files import check_output, scratch_folder

from .corpus import Kept, Tally, keep
from .counting import by_continuation, candidates_of
from .tmap_format import END, MAX_LENGTH, MAX_N_TEXT, MAX_ORDER, TOKEN_MAP, quantise_count
from .writer import Chunk, Spill, write_map

__all__ = ["BuildOptions", "BuildReport", "build"]

BUILDER_VERSION = 1
_BATCH = 1 << 19  # positions that are counted together: about 300 bytes of memory each
_LARGEST_BATCH = 3 << 20  # of what occurs more often, every k-th occurrence is counted, k times
_SORT_BLOCK = 1 << 21
_FLUSH = 1 << 20
_LARGEST_CORPUS = 1 << 30  # it is sorted in memory
_MAX_TOKENS = (1 << 32) - 1
_HEAD = MAX_ORDER
_TAIL = MAX_LENGTH + 4


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What to keep of a corpus.

    n_orders: keys of 1 to so many ids; n_candidates: at most, for each key; max_length: ids of a candidate, the end of
    the sentence counted; min_count: occurrences that a key and a candidate need; min_share: of the key's occurrences
    that a candidate needs to be followed further; budget_bytes: size of the file, least valuable keys dropped first;
    corpus_bytes: of the file for the sentences themselves, for look-ups of any length, 0 for none; at most half of
    `budget_bytes` is taken for them.

    Raises UsageError for values that cannot be.
    """

    n_orders: int = 4
    n_candidates: int = 3
    max_length: int = 32
    min_count: int = 2
    min_share: float = 0.02
    budget_bytes: int | None = None
    corpus_bytes: int = 0

    def __post_init__(self) -> None:
        for name, is_right, expected in (
            ("n_orders", 1 <= self.n_orders <= MAX_ORDER, f"1 to {MAX_ORDER}"),
            ("n_candidates", 1 <= self.n_candidates <= 8, "1 to 8"),
            ("max_length", 1 <= self.max_length <= MAX_LENGTH, f"1 to {MAX_LENGTH}"),
            ("min_count", 1 <= self.min_count < 1 << 31, "1 or more"),
            ("min_share", 0 <= self.min_share <= 1, "0 to 1"),
            ("budget_bytes", self.budget_bytes is None or self.budget_bytes > 0, "1 or more bytes, or None"),
            ("corpus_bytes", 0 <= self.corpus_bytes <= _LARGEST_CORPUS, f"0 to {_LARGEST_CORPUS} bytes"),
        ):
            if not is_right:
                raise UsageError(f"{name}: got {getattr(self, name)!r}, expected {expected}")

    def to_json(self) -> dict[str, Any]:
        """As in the map's own metadata."""
        corpus = {"corpus_bytes": self.corpus_bytes} if self.corpus_bytes else {}
        return corpus | {
            "builder": BUILDER_VERSION,
            "orders": self.n_orders,
            "candidates": self.n_candidates,
            "max_length": self.max_length,
            "min_count": self.min_count,
            "min_share": self.min_share,
            "budget_bytes": self.budget_bytes,
        }


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """What went in: sentences and tokens."""

    n_sentences: int
    n_tokens: int


def build(
    sentences: Iterable[Sequence[int]],
    path: str | os.PathLike[str],
    *,
    n_text: int,
    fingerprint: bytes,
    options: BuildOptions | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> BuildReport:
    """Write the token map of `sentences` to `path`; the old file there stays until the new one is whole.

    sentences: ids below `n_text` (the id of `<|endoftext|>`), read once; on_progress gets (stage, done, total).
    Needs free disk space beside `path` of about ten times the tokens in bytes, and removes what it put there.

    Raises
    ------
    UsageError
        an id outside the vocabulary, no sentence at all, a budget below the empty map, a corpus too small for any, or
        a file at `path` that is no map.
    ResourceError
        disk space or permission is missing, or the corpus has 4 billion tokens and more.
    """
    options = options or BuildOptions()
    if not 1 <= n_text <= MAX_N_TEXT:
        raise UsageError(f"a vocabulary of {n_text} text tokens, expected 1 to {MAX_N_TEXT}")
    check_output(path, TOKEN_MAP)
    with scratch_folder(path) as folder, Spill(folder, options.n_orders) as spill:
        tally = Tally(folder / "sentences") if options.corpus_bytes else None
        report = _write_corpus(sentences, folder / "text", n_text, tally)
        text = np.memmap(folder / "text", dtype="<u2", mode="r")
        corpus = None if tally is None else _kept(tally, text, options)
        starts = _sort_positions(text, folder / "positions")
        _count(text, folder / "positions", starts, spill, options, on_progress or (lambda *_: None))
        spill.finish()
        _give_back(text)
        meta = options.to_json() | {"sentences": report.n_sentences, "tokens": report.n_tokens}
        write_map(
            path,
            spill,
            text,
            n_text=n_text,
            fingerprint=fingerprint,
            meta=meta,
            budget_bytes=options.budget_bytes,
            corpus=corpus,
        )
        del text  # before its folder is removed, which Windows would refuse
    return report


def _kept(tally: Tally, text: NDArray[np.uint16], options: BuildOptions) -> Kept:
    budget = options.corpus_bytes
    if options.budget_bytes is not None:
        budget = min(budget, options.budget_bytes // 2)
    kept = keep(tally.kept(text, _HEAD, budget))
    if kept is None:
        raise UsageError(f"a corpus of {budget} bytes is too small: not one of the sentences fits in it")
    return kept


def _write_corpus(sentences: Iterable[Sequence[int]], path: Path, n_text: int, tally: Tally | None) -> BuildReport:
    """END, then every sentence and END after it; more of them at both ends, so that windows need no bounds."""
    n_sentences = n_tokens = 0
    buffer = array("H", [END] * _HEAD)
    with open(path, "xb") as file:
        for sentence in sentences:
            if not len(sentence):
                continue
            if min(sentence) < 0 or max(sentence) >= n_text:
                wrong = next(id_ for id_ in sentence if not 0 <= id_ < n_text)
                raise UsageError(f"token id {wrong} is no text token of this vocabulary: expected 0 to {n_text - 1}")
            buffer.extend(sentence)
            buffer.append(END)
            if tally is not None:
                tally.add(sentence)
            n_sentences += 1
            n_tokens += len(sentence)
            if len(buffer) >= _FLUSH:
                buffer.tofile(file)
                del buffer[:]
        buffer.extend([END] * _TAIL)
        buffer.tofile(file)
    if not n_sentences:
        raise UsageError("there is no text to build a token map from: expected at least one sentence")
    if n_tokens + n_sentences + _HEAD + _TAIL > _MAX_TOKENS:
        raise ResourceError(f"{n_tokens} tokens are too many for one token map: split the corpus and merge the maps")
    return BuildReport(n_sentences=n_sentences, n_tokens=n_tokens)


def _sort_positions(text: NDArray[np.uint16], path: Path) -> NDArray[np.int64]:
    """All positions that may be the last of a key, as u32 in the file `path`, sorted by id and then position.

    Returns i64[65537]: where each id's positions begin.
    """
    low, high = _HEAD - 1, len(text) - _TAIL - 1  # after the last sentence's END nothing comes
    counts = np.zeros(END + 1, dtype=np.int64)
    for at in range(low, high, _SORT_BLOCK):
        counts += np.bincount(text[at : min(at + _SORT_BLOCK, high)], minlength=END + 1)
    starts = np.concatenate(([0], np.cumsum(counts)))
    positions = np.memmap(path, dtype="<u4", mode="w+", shape=(high - low,))
    filled = starts[:-1].copy()
    for at in range(low, high, _SORT_BLOCK):
        block = text[at : min(at + _SORT_BLOCK, high)]
        order = np.argsort(block, kind="stable")
        ids = block[order]
        n_ids = np.bincount(ids, minlength=END + 1)
        rank = np.arange(len(ids)) - (np.cumsum(n_ids) - n_ids)[ids]
        positions[filled[ids] + rank] = at + order
        filled += n_ids
        _give_back(positions)
        _give_back(text)
    return starts


def _give_back(mapped: NDArray[Any]) -> None:
    """Let go of the pages of a mapped file, which count as memory of this process; what was written stays there."""
    base: Any = mapped.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def _count(
    text: NDArray[np.uint16],
    positions: Path,
    starts: NDArray[np.int64],
    spill: Spill,
    options: BuildOptions,
    on_progress: Callable[[str, int, int], None],
) -> None:
    """Fill the spill, batch by batch of neighbouring ids."""
    total, done, id_ = int(starts[-1]), 0, 0
    while id_ <= END:
        stop = max(id_ + 1, int(np.searchsorted(starts, starts[id_] + _BATCH, side="right")) - 1)
        n = int(starts[stop] - starts[id_])
        if n:
            batch = np.fromfile(positions, dtype="<u4", count=n, offset=4 * int(starts[id_])).astype(np.int64)
            if n <= _LARGEST_BATCH:
                _count_batch(text, batch, 1, spill, options, range(1, options.n_orders + 1))
            else:
                _count_frequent(text, batch, spill, options)
            done += n
            on_progress("counting", done, total)
        id_ = stop


def _count_frequent(text: NDArray[np.uint16], last: NDArray[np.int64], spill: Spill, options: BuildOptions) -> None:
    """The keys of one id that occurs too often for memory: alone by a sample, the longer ones by the id before it."""
    weight = -(-len(last) // _LARGEST_BATCH)
    _count_batch(text, last[::weight], weight, spill, options, range(1, 2))
    before = text[last - 1]
    order = np.argsort(before, kind="stable")
    last, before = last[order], before[order]
    starts = np.searchsorted(before, np.arange(END + 2))
    id_ = 0
    while id_ <= END:
        stop = max(id_ + 1, int(np.searchsorted(starts, starts[id_] + _BATCH, side="right")) - 1)
        batch = last[starts[id_] : starts[stop]]
        if len(batch):
            weight = -(-len(batch) // _LARGEST_BATCH)
            _count_batch(text, batch[::weight], weight, spill, options, range(2, options.n_orders + 1))
        id_ = stop


def _count_batch(
    text: NDArray[np.uint16],
    last: NDArray[np.int64],
    weight: int,
    spill: Spill,
    options: BuildOptions,
    orders: range,
) -> None:
    """Keys of `orders` whose last ids stand at the positions `last`; each occurrence counts `weight` times."""
    last = last[by_continuation(text, last + 1, options.max_length)]
    key = text[last].astype(np.uint64)
    old = np.zeros(len(last), dtype=np.uint16)
    for n in range(1, orders.stop):
        if n > 1:
            # The ids before the last must lie in its sentence; only the oldest may be the start.
            inside = text[last - (n - 2)] != END
            last, key, old = last[inside], key[inside], text[last[inside] - (n - 1)]
        if 1 < n < MAX_ORDER:
            key = key << np.uint64(16) | old
        if n not in orders:
            continue
        order = np.argsort(key, kind="stable") if n < MAX_ORDER else np.lexsort((old, key))
        chunk = _count_keys(text, last[order] + 1, key[order], old[order], n, weight, options)
        spill.append(n, chunk)


def _count_keys(
    text: NDArray[np.uint16],
    after: NDArray[np.int64],
    key: NDArray[np.uint64],
    old: NDArray[np.uint16],
    n: int,
    weight: int,
    options: BuildOptions,
) -> Chunk:
    """The keys of one order whose sorted occurrences are given, with their candidates."""
    is_new = np.ones(len(key), dtype=np.bool_)
    is_new[1:] = key[1:] != key[:-1]
    if n == MAX_ORDER:
        is_new[1:] |= old[1:] != old[:-1]
    low = np.flatnonzero(is_new)
    high = np.append(low[1:], len(key)) if len(low) else low
    needed = -(-options.min_count // weight)
    frequent = high - low >= needed
    low, high = low[frequent], high[frequent]
    found = candidates_of(
        text,
        after,
        low,
        high,
        n_candidates=options.n_candidates,
        max_length=options.max_length,
        floor=np.maximum(np.ceil((high - low) * options.min_share).astype(np.int64), needed),
    )
    n_candidates = np.bincount(found.owner, minlength=len(low))
    has_some = n_candidates > 0
    is_first = np.concatenate(([True], found.owner[1:] != found.owner[:-1])) if len(found.owner) else found.owner > 0
    within = np.arange(options.max_length) < found.length[:, None]
    # Worth of a key: the tokens that its best candidate can be expected to save over all its occurrences.
    sure = np.where(within[is_first], found.confidence[is_first], 0).astype(np.float64) / 255
    expected = np.cumprod(sure, axis=1).sum(axis=1)
    return Chunk(
        key=key[low[has_some]],
        old=old[low[has_some]],
        n_candidates=n_candidates[has_some].astype(np.uint8),
        value=((high - low)[has_some] * weight * expected).astype(np.float32),
        start=found.start.astype(np.uint32),
        length=found.length.astype(np.uint8),
        count=quantise_count(found.count * weight),
        confidence=found.confidence[within],
    )
