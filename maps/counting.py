"""Candidates of keys by counting: for sorted occurrences of keys, the paths that most of them took.

A path is walked one token at a time, always to the token that came next most often; the best branches that the first
path left behind, walked on likewise, are the further candidates. All keys walk at once, in NumPy. Knows arrays of ids
and positions; not files, and not where keys come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .tmap_format import END, quantise_confidence

__all__ = ["Candidates", "candidates_of", "by_continuation"]

_Ints = NDArray[np.int64]
_LOW = (1 << 32) - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """Candidates sorted by key, best first.

    owner i64[Q]: number of the key; start i64[Q]: where in the text the candidate first occurs; length, count i64[Q];
    confidence u8[Q, max_length], meaningful up to `length`.
    """

    owner: _Ints
    start: _Ints
    length: _Ints
    count: _Ints
    confidence: NDArray[np.uint8]


@dataclass(kw_only=True, eq=False)
class _Paths:
    """Walks under way: occurrences [low, high) agree on `length` tokens; not walked below `floor` occurrences."""

    owner: _Ints
    low: _Ints
    high: _Ints
    length: _Ints
    floor: _Ints
    confidence: NDArray[np.uint8]

    def walked(self, max_length: int) -> _Ints:
        """Numbers of the paths that could go on."""
        return np.flatnonzero(self.length < max_length)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Branches:
    """Branches that paths left behind: `path` at `length` had `parent` occurrences, [low, high) of them went here."""

    path: _Ints
    length: _Ints
    low: _Ints
    high: _Ints
    parent: _Ints
    ends: NDArray[np.bool_]


def by_continuation(text: NDArray[np.uint16], after: _Ints, n_tokens: int) -> _Ints:
    """The order of the positions `after` by the `n_tokens` ids from there on; ties stay in order.

    What comes after the end of a sentence does not count. `text` must go on for `n_tokens` after the last position.
    """
    words = _words(text, after, 0)
    order = np.argsort(words, kind="stable")
    words = words[order]
    group = np.cumsum(np.concatenate(([0], words[1:] != words[:-1]))) if len(order) else order
    for at in range(4, n_tokens, 4):
        size = np.bincount(group)[group] if len(group) else group
        open_ = np.flatnonzero((size > 1) & ~_has_end(text, after[order], at - 4))
        if not len(open_):
            break
        words = _words(text, after[order[open_]], at)
        resorted = np.lexsort((words, group[open_]))
        order[open_] = order[open_[resorted]]
        words, groups = words[resorted], group[open_]
        # Splitting a group renumbers it and all that follow.
        splits = np.zeros(len(order), dtype=np.int64)
        splits[open_[1:]] = (words[1:] != words[:-1]) & (groups[1:] == groups[:-1])
        group = group + np.cumsum(splits)
    return order


def _words(text: NDArray[np.uint16], after: _Ints, offset: int) -> NDArray[np.uint64]:
    """Four ids from each position as one number that sorts as they do."""
    words = np.zeros(len(after), dtype=np.uint64)
    for i in range(4):
        words = words << np.uint64(16) | text[after + (offset + i)]
    return words


def _has_end(text: NDArray[np.uint16], after: _Ints, offset: int) -> NDArray[np.bool_]:
    found = np.zeros(len(after), dtype=np.bool_)
    for i in range(4):
        found |= text[after + (offset + i)] == END
    return found


def candidates_of(
    text: NDArray[np.uint16],
    after: _Ints,
    low: _Ints,
    high: _Ints,
    *,
    n_candidates: int,
    max_length: int,
    floor: _Ints,
) -> Candidates:
    """Up to `n_candidates` for each key, whose occurrences are `after[low:high]`, sorted by continuation.

    after: position in `text` of the first id after the key; floor: how many occurrences a candidate needs, by key.
    """
    paths = _Paths(
        owner=np.arange(len(low)),
        low=low.copy(),
        high=high.copy(),
        length=np.zeros(len(low), dtype=np.int64),
        floor=floor,
        confidence=np.zeros((len(low), max_length), dtype=np.uint8),
    )
    left = _walk(text, after, paths, max_length, collect=n_candidates > 1)
    if left:
        chosen = _best_branches(left, n_candidates - 1)
        branched = _branch(paths, chosen, max_length)
        _walk(text, after, branched, max_length, collect=False, from_=~chosen.ends)
        paths = _joined(paths, branched)
    order = np.argsort(paths.owner, kind="stable")
    order = order[paths.length[order] > 0]
    return Candidates(
        owner=paths.owner[order],
        start=_first_of(after, paths.low[order], paths.high[order]),
        length=paths.length[order],
        count=(paths.high - paths.low)[order],
        confidence=paths.confidence[order],
    )


def _walk(
    text: NDArray[np.uint16],
    after: _Ints,
    paths: _Paths,
    max_length: int,
    *,
    collect: bool,
    from_: NDArray[np.bool_] | None = None,
) -> list[_Branches]:
    """Take every path as far as it goes; returns the branches that were left behind."""
    left: list[_Branches] = []
    active = paths.walked(max_length)
    if from_ is not None:
        active = active[from_[active]]
    while len(active):
        low, high, length = paths.low[active], paths.high[active], paths.length[active]
        at, path = _expand(low, high)
        tokens = text[after[at] + length[path]]
        is_new = np.concatenate(([True], (tokens[1:] != tokens[:-1]) | (path[1:] != path[:-1])))
        run_at = np.flatnonzero(is_new)
        run_n = np.diff(np.append(run_at, len(at)))
        run_path, run_low, run_ends = path[run_at], at[run_at], tokens[run_at] == END
        first_run = np.flatnonzero(np.concatenate(([True], run_path[1:] != run_path[:-1])))
        # The longest run of each path, the first of equals: length above, number below turned round.
        best = np.maximum.reduceat(run_n << 32 | (_LOW - np.arange(len(run_n))), first_run)
        best_run, best_n = _LOW - (best & _LOW), best >> 32
        if collect:
            others = run_n >= paths.floor[active][run_path]
            others[best_run] = False
            left.append(
                _Branches(
                    path=active[run_path[others]],
                    length=length[run_path[others]],
                    low=run_low[others],
                    high=(run_low + run_n)[others],
                    parent=(high - low)[run_path[others]],
                    ends=run_ends[others],
                )
            )
        goes_on = best_n >= paths.floor[active]
        moved, best_run, best_n = active[goes_on], best_run[goes_on], best_n[goes_on]
        paths.confidence[moved, length[goes_on]] = quantise_confidence(best_n, (high - low)[goes_on])
        paths.low[moved], paths.high[moved] = run_low[best_run], run_low[best_run] + best_n
        paths.length[moved] += 1
        active = moved[(paths.length[moved] < max_length) & ~run_ends[best_run]]
    return left


def _expand(low: _Ints, high: _Ints) -> tuple[_Ints, _Ints]:
    """All numbers of the ranges [low, high), none of them empty, one after the other, and the range of each."""
    sizes = high - low
    path = np.repeat(np.arange(len(low)), sizes)
    at = np.arange(len(path)) + (low - (np.cumsum(sizes) - sizes))[path]
    return at, path


def _best_branches(left: list[_Branches], n_wanted: int) -> _Branches:
    """The `n_wanted` branches of each path with the most occurrences; of equals the earlier ones."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(b, name) for b in left]) for name in _Branches.__dataclass_fields__
    }
    order = np.lexsort((columns["low"], columns["length"], columns["low"] - columns["high"], columns["path"]))
    path = columns["path"][order]
    starts = np.flatnonzero(np.concatenate(([True], path[1:] != path[:-1]))) if len(path) else path
    rank = np.arange(len(path)) - np.repeat(starts, np.diff(np.append(starts, len(path))))
    return _Branches(**{name: column[order[rank < n_wanted]] for name, column in columns.items()})


def _branch(paths: _Paths, branches: _Branches, max_length: int) -> _Paths:
    """Paths that leave theirs at the branches and have taken one step."""
    confidence = paths.confidence[branches.path]
    confidence[np.arange(max_length) >= branches.length[:, None]] = 0
    if len(branches.path):
        confidence[np.arange(len(confidence)), branches.length] = quantise_confidence(
            branches.high - branches.low, branches.parent
        )
    return _Paths(
        owner=paths.owner[branches.path],
        low=branches.low.copy(),
        high=branches.high.copy(),
        length=branches.length + 1,
        floor=paths.floor[branches.path],
        confidence=confidence,
    )


def _joined(a: _Paths, b: _Paths) -> _Paths:
    names = _Paths.__dataclass_fields__
    return _Paths(**{name: np.concatenate([getattr(a, name), getattr(b, name)]) for name in names})


def _first_of(after: _Ints, low: _Ints, high: _Ints) -> _Ints:
    """The smallest position among the occurrences of each range."""
    if not len(low):
        return low
    at, _ = _expand(low, high)
    sizes = high - low
    return np.minimum.reduceat(after[at], np.cumsum(sizes) - sizes)
