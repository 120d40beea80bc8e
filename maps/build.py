"""Count a corpus of token ids into a token map (Token Map Drafting, arXiv 2507.21522), in bounded memory.

The corpus goes to disk as u16 tokens with `END` around every sentence: ids, or, of a vocabulary with more of them than
a u16 can tell apart, their numbers among the ids that occur. A corpus of more than `MAX_TOKENS` different ids keeps the
most frequent ones, and its sentences are cut at the others. Its positions are sorted by id, again on disk, and
taken in batches of neighbouring ids. In a batch the occurrences of a key stand together, sorted by what follows. Keys
sort by their most recent id, so the batches come out in the order of the file. The paper leaves open what we decided:

- a key has at most one start of sentence (two would say the same as a shorter key);
- a candidate may end with the end of its sentence, so that a drafter can propose the end of the text too;
- a candidate is followed while it keeps `min_count` occurrences and `min_share` of those of its key.

The first candidate of a key always goes on to the token that came next most often. The further ones begin at the most
frequent branches that it left. NumPy walks all keys at once. The same sentences and options give the same bytes.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from specedge.errors import ResourceError, UsageError
from specedge.files import check_output, scratch_folder

from .tmap_format import (
    END,
    MAX_LENGTH,
    MAX_ORDER,
    MAX_TOKENS,
    TOKEN_MAP,
    quantise_confidence,
    quantise_count,
)
from .writer import CANDIDATE, KEY, Chunk, Spill, write_map

BUILDER_VERSION = 1
_BATCH = 1 << 19  # positions that are counted together: about 300 bytes of memory each
_LARGEST_BATCH = 3 << 20  # of what occurs more often, every k-th occurrence is counted, k times
_SORT_BLOCK = 1 << 21
_FLUSH = 1 << 20
_MAX_TOKENS = (1 << 32) - 1
_HEAD = MAX_ORDER
_TAIL = MAX_LENGTH + 4
_Ints = NDArray[np.int64]
_LOW = (1 << 32) - 1


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What to keep of a corpus.

    n_orders: keys have 1 to so many ids, at most `MAX_ORDER`; n_candidates: the most for each key, 1 to 8; max_length:
    the most ids of a candidate, the end of the sentence included, 1 to `MAX_LENGTH`; min_count: occurrences that a key
    and a candidate need, 1 or more; min_share: of the key's occurrences, to follow a candidate further; budget_bytes:
    size of the file, least valuable keys dropped first.
    """

    n_orders: int = 4
    n_candidates: int = 3
    max_length: int = 32
    min_count: int = 2
    min_share: float = 0.02
    budget_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """For the map's metadata."""
        named = {name.removeprefix("n_"): value for name, value in vars(self).items()}
        return {"builder": BUILDER_VERSION, **named}


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    n_sentences: int
    n_tokens: int


def build(
    sentences: Iterable[Sequence[int]],
    path: str | os.PathLike[str],
    *,
    n_text: int,
    fingerprint: bytes,
    options: BuildOptions | None = None,
) -> BuildReport:
    """Write the token map of `sentences` to `path`; the old file there stays until the new one is whole.

    sentences: ids below `n_text` (the id of `<|endoftext|>`), read once.
    Needs about ten bytes of disk space beside `path` for each token while it works, 14 of a large vocabulary.

    Raises UsageError for an id outside the vocabulary, no sentence, a budget below an empty map, or a file at `path`
    that is no map; ResourceError when disk space or permission is missing, or for 4 billion tokens and more.
    """
    options = options or BuildOptions()
    check_output(path, TOKEN_MAP)
    with scratch_folder(path) as folder:
        spill = Spill(folder, options.n_orders)
        report, ids = _write_tokens(sentences, folder, n_text)
        _count(folder / "positions", spill, options)
        meta = options.to_json() | {"sentences": report.n_sentences, "tokens": report.n_tokens}
        write_map(
            path,
            spill,
            n_text=n_text,
            fingerprint=fingerprint,
            meta=meta,
            ids=ids,
            budget_bytes=options.budget_bytes,
        )
    return report


def _write_tokens(
    sentences: Iterable[Sequence[int]], folder: Path, n_text: int
) -> tuple[BuildReport, NDArray[np.uint32] | None]:
    """The corpus as u16 tokens in the file `text`, and the id of each token, None where tokens are ids."""
    if n_text <= MAX_TOKENS:
        return _write_corpus(sentences, folder / "text", n_text, "H", END), None
    report = _write_corpus(sentences, folder / "ids", n_text, "I", n_text)
    seen = np.memmap(folder / "ids", dtype="=u4", mode="r")
    counts = np.zeros(n_text + 1, dtype=np.int64)
    for at in range(0, len(seen), _SORT_BLOCK):
        counts += np.bincount(seen[at : at + _SORT_BLOCK], minlength=n_text + 1)
        _give_back(seen)
    frequent = np.argsort(-counts[:n_text], kind="stable")[:MAX_TOKENS]
    ids = np.sort(frequent[counts[frequent] > 0]).astype(np.uint32)
    tokens = np.full(n_text + 1, END, dtype="<u2")
    tokens[ids] = np.arange(len(ids))
    before = END
    with open(folder / "text", "xb") as file:
        array("H", [END] * _HEAD).tofile(file)
        for at in range(_HEAD, len(seen), _SORT_BLOCK):
            block = tokens[seen[at : at + _SORT_BLOCK]]
            is_second_end = (block == END) & (np.append(before, block[:-1]) == END)  # nothing is left in between
            file.write(block[~is_second_end].data)
            before = int(block[-1])
            _give_back(seen)
        array("H", [END] * _TAIL).tofile(file)
    del seen
    os.unlink(folder / "ids")
    return report, ids


def _write_corpus(sentences: Iterable[Sequence[int]], path: Path, n_text: int, kind: str, end: int) -> BuildReport:
    """`end`, then every sentence with `end` after it; more at both ends, so that slices need no bounds checks."""
    n_sentences = n_tokens = 0
    buffer = array(kind, [end] * _HEAD)
    with open(path, "xb") as file:
        for sentence in sentences:
            if not len(sentence):
                continue
            if min(sentence) < 0 or max(sentence) >= n_text:
                wrong = next(id_ for id_ in sentence if not 0 <= id_ < n_text)
                raise UsageError(f"token id {wrong} is no text token of this vocabulary: expected 0 to {n_text - 1}")
            buffer.extend(sentence)
            buffer.append(end)
            n_sentences += 1
            n_tokens += len(sentence)
            if len(buffer) >= _FLUSH:
                buffer.tofile(file)
                del buffer[:]
        buffer.extend([end] * _TAIL)
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
    low, high = _HEAD - 1, len(text) - _TAIL - 1  # nothing follows the last sentence's END
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
    """Drop the resident pages of a mapped file; what was written stays in the file."""
    base: Any = mapped.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def _count(positions: Path, spill: Spill, options: BuildOptions) -> None:
    """Fill the spill, batch by batch of neighbouring ids."""
    text = np.memmap(spill.text, dtype="<u2", mode="r")
    starts = _sort_positions(text, positions)
    for start, stop in _batches(starts):
        batch = np.fromfile(positions, dtype="<u4", count=stop - start, offset=4 * start).astype(np.int64)
        if len(batch) <= _LARGEST_BATCH:
            _count_batch(text, batch, 1, spill, options, range(1, options.n_orders + 1))
        else:
            _count_frequent(text, batch, spill, options)


def _batches(starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of about `_BATCH` occurrences, whole ids each; `starts`, i64[65537], is where each id's begin."""
    id_ = 0
    while id_ <= END:
        stop = max(id_ + 1, int(np.searchsorted(starts, starts[id_] + _BATCH, side="right")) - 1)
        if starts[stop] > starts[id_]:
            yield int(starts[id_]), int(starts[stop])
        id_ = stop


def _count_frequent(text: NDArray[np.uint16], last: NDArray[np.int64], spill: Spill, options: BuildOptions) -> None:
    """One id that occurs too often for memory: its own key from a sample, longer keys by the id before it."""
    weight = -(-len(last) // _LARGEST_BATCH)
    _count_batch(text, last[::weight], weight, spill, options, range(1, 2))
    before = text[last - 1]
    order = np.argsort(before, kind="stable")
    last, before = last[order], before[order]
    for start, stop in _batches(np.searchsorted(before, np.arange(END + 2))):
        weight = -(-(stop - start) // _LARGEST_BATCH)
        _count_batch(text, last[start:stop:weight], weight, spill, options, range(2, options.n_orders + 1))


def _count_batch(
    text: NDArray[np.uint16], last: NDArray[np.int64], weight: int, spill: Spill, options: BuildOptions, orders: range
) -> None:
    """Keys of `orders` whose last ids stand at the positions `last`; each occurrence counts `weight` times."""
    last = last[_by_continuation(text, last + 1, options.max_length)]
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
    """The keys of one order, whose sorted occurrences are given, with their candidates."""
    is_new = np.ones(len(key), dtype=np.bool_)
    is_new[1:] = key[1:] != key[:-1]
    if n == MAX_ORDER:
        is_new[1:] |= old[1:] != old[:-1]
    low = np.flatnonzero(is_new)
    high = np.append(low[1:], len(key)) if len(low) else low
    needed = -(-options.min_count // weight)
    frequent = high - low >= needed
    low, high = low[frequent], high[frequent]
    floor = np.maximum(np.ceil((high - low) * options.min_share).astype(np.int64), needed)
    found = _candidates_of(text, after, low, high, floor, options)
    n_candidates = np.bincount(found["owner"], minlength=len(low))
    has_some = n_candidates > 0
    _, first = np.unique(found["owner"], return_index=True)
    within = np.arange(options.max_length) < found["length"][:, None]
    # Value of a key: the tokens that its best candidate is expected to save over all its occurrences.
    sure = np.where(within[first], found["confidence"][first], 0).astype(np.float64) / 255
    expected = np.cumprod(sure, axis=1).sum(axis=1)
    value = ((high - low) * weight)[has_some] * expected
    start = _first_of(after, found["low"], found["high"])
    count = quantise_count((found["high"] - found["low"]) * weight)
    return Chunk(
        np.rec.fromarrays([key[low[has_some]], old[low[has_some]], n_candidates[has_some], value], dtype=KEY),
        np.rec.fromarrays([start, found["length"], count], dtype=CANDIDATE),
        found["confidence"][within],
    )


_Paths = NDArray[Any]
"""Candidates of the keys `owner`: occurrences [low, high) agree on `length` tokens. A path goes on while it keeps
`floor` occurrences. confidence is meaningful up to `length`."""


def _step(paths: _Paths, moved: _Ints, low: _Ints, n: _Ints) -> None:
    """The paths `moved` go on by one token, to the `n` occurrences from `low` on."""
    whole = paths["high"][moved] - paths["low"][moved]
    paths["confidence"][moved, paths["length"][moved]] = quantise_confidence(n, whole)
    paths["low"][moved], paths["high"][moved] = low, low + n
    paths["length"][moved] += 1


def _by_continuation(text: NDArray[np.uint16], after: _Ints, n_tokens: int) -> _Ints:
    """The order of the positions `after` by the `n_tokens` ids from there on; ties stay."""
    following = sliding_window_view(text, n_tokens)[after].byteswap(inplace=True)  # so that bytes sort as ids do
    return np.argsort(following.view(f"S{2 * n_tokens}")[:, 0], kind="stable")


def _candidates_of(
    text: NDArray[np.uint16], after: _Ints, low: _Ints, high: _Ints, floor: _Ints, options: BuildOptions
) -> _Paths:
    """The candidates of keys, sorted by key, best first.

    The occurrences of a key are `after[low:high]`, positions of the id behind it, sorted by continuation; floor: how
    many of them a candidate needs.
    """
    integers = [(name, "i8") for name in ("owner", "low", "high", "length", "floor")]
    paths = np.zeros(len(low), [*integers, ("confidence", "u1", (options.max_length,))])
    paths["owner"], paths["low"], paths["high"], paths["floor"] = np.arange(len(low)), low, high, floor
    left = _walk(text, after, paths, np.arange(len(low)), collect=options.n_candidates > 1)
    if left:
        branches = _best(np.concatenate(left), options.n_candidates - 1)
        has_ended = text[after[branches["low"]] + branches["length"] - 1] == END
        goes_on = np.flatnonzero(~has_ended & (branches["length"] < options.max_length))
        _walk(text, after, branches, goes_on, collect=False)
        paths = np.concatenate([paths, branches])
    order = np.argsort(paths["owner"], kind="stable")
    return paths[order[paths["length"][order] > 0]]


def _walk(text: NDArray[np.uint16], after: _Ints, paths: _Paths, active: _Ints, *, collect: bool) -> list[_Paths]:
    """Take the `active` paths as far as they go; returns the branches not taken, if they are to be collected."""
    left: list[_Paths] = []
    max_length = paths["confidence"].shape[1]
    while len(active):
        low, high, length = paths["low"][active], paths["high"][active], paths["length"][active]
        at, path = _expand(low, high)
        tokens = text[after[at] + length[path]]
        is_new = np.concatenate(([True], (tokens[1:] != tokens[:-1]) | (path[1:] != path[:-1])))
        run_at = np.flatnonzero(is_new)
        run_n = np.diff(np.append(run_at, len(at)))
        run_path, run_low, run_ends = path[run_at], at[run_at], tokens[run_at] == END
        first_run = np.flatnonzero(np.concatenate(([True], run_path[1:] != run_path[:-1])))
        # The longest run of each path, of equals the first: length in the upper bits, inverted number in the lower.
        best = np.maximum.reduceat(run_n << 32 | (_LOW - np.arange(len(run_n))), first_run)
        best_run, best_n = _LOW - (best & _LOW), best >> 32
        if collect:
            others = run_n >= paths["floor"][active][run_path]
            others[best_run] = False
            left.append(paths[active[run_path[others]]])
            _step(left[-1], np.arange(len(left[-1])), run_low[others], run_n[others])
        goes_on = best_n >= paths["floor"][active]
        moved, best_run = active[goes_on], best_run[goes_on]
        _step(paths, moved, run_low[best_run], best_n[goes_on])
        active = moved[(length[goes_on] + 1 < max_length) & ~run_ends[best_run]]
    return left


def _expand(low: _Ints, high: _Ints) -> tuple[_Ints, _Ints]:
    """All numbers of the ranges [low, high), none empty, one after the other, and the range of each."""
    sizes = high - low
    path = np.repeat(np.arange(len(low)), sizes)
    at = np.arange(len(path)) + (low - (np.cumsum(sizes) - sizes))[path]
    return at, path


def _best(branches: _Paths, n_wanted: int) -> _Paths:
    """The `n_wanted` branches of each owner with the most occurrences; of equals the earlier ones."""
    n = branches["high"] - branches["low"]
    order = np.lexsort((branches["low"], branches["length"], -n, branches["owner"]))
    owner = branches["owner"][order]
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    return branches[order[rank < n_wanted]]


def _first_of(after: _Ints, low: _Ints, high: _Ints) -> _Ints:
    """The smallest position among the occurrences of each range."""
    if not len(low):
        return low
    at, _ = _expand(low, high)
    sizes = high - low
    return np.minimum.reduceat(after[at], np.cumsum(sizes) - sizes)
