"""Do the contents of a token map's sections agree with each other? Asked once, before anything is looked up in it.

A checksum only says that the file is as it was written; this says that its counts and offsets can be followed. Works in
blocks, so that what is allocated stays far below the size of the file. Does not know files; only views of their bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.maps.tmap_format import CONF_BLOCK, CORPUS_DEPTH, END, MAX_LENGTH, MAX_ORDER, REMEDY
from specedge.runtime.errors import MapError

__all__ = ["check_contents", "check_sizes", "parse_meta"]

_BLOCK = 1 << 13
_ITEM_BYTES = {"keys": 8, "csr": 4, "first": 4, "old": 2}
_ITEM_BYTES |= {"ref": 4, "confat": 4, "pool": 2, "corpus": 2, "suffix": 4}
MAX_META_BYTES = 1 << 16


def check_sizes(n_bytes: Mapping[str, int], n_orders: int, where: str) -> None:
    """Refuse sections whose lengths cannot belong together. Raises MapError naming `where`."""

    def expect(is_right: bool, section: str) -> None:
        if not is_right:
            raise MapError(f"{where}: section {section!r} has an impossible length, {n_bytes[section]} bytes; {REMEDY}")

    expect(n_bytes["meta"] <= MAX_META_BYTES, "meta")
    for n in range(1, n_orders + 1):
        n_keys = n_bytes[f"keys{n}"] // 8
        expect(n_bytes[f"keys{n}"] % 8 == 0, f"keys{n}")
        expect(n_bytes[f"csr{n}"] % 4 == 0 and 2 <= n_bytes[f"csr{n}"] // 4 <= END + 2, f"csr{n}")
        expect(n_bytes[f"first{n}"] == 4 * (n_keys + 1), f"first{n}")
        if n == MAX_ORDER:
            expect(n_bytes[f"old{n}"] == 2 * n_keys, f"old{n}")
    expect(n_bytes["ref"] % 4 == 0, "ref")
    n_candidates = n_bytes["ref"] // 4
    expect(n_bytes["len"] == n_candidates, "len")
    expect(n_bytes["count"] == n_candidates, "count")
    expect(n_bytes["confat"] == 4 * (n_candidates // CONF_BLOCK + 1), "confat")
    expect(n_bytes["pool"] % 2 == 0, "pool")
    if "corpus" in n_bytes:
        expect(n_bytes["corpus"] % 2 == 0 and n_bytes["corpus"] > 0, "corpus")
        expect(n_bytes["suffix"] % 4 == 0 and n_bytes["suffix"] < 2 * n_bytes["corpus"], "suffix")


def parse_meta(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object of the section `meta`. Raises MapError."""
    try:
        meta = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise MapError(f"{where}: the section 'meta' is no JSON; {REMEDY}") from None
    if not isinstance(meta, dict):
        raise MapError(f"{where}: the section 'meta' is no JSON object; {REMEDY}")
    return meta


def check_contents(views: Mapping[str, memoryview], n_orders: int, n_text: int, where: str) -> None:
    """Refuse counts, offsets and ids that lead nowhere.

    views: the bytes of each section, lengths already checked by `check_sizes`. Raises MapError.
    """

    def refuse(section: str, what: str) -> MapError:
        return MapError(f"{where}: section {section!r} is wrong: {what}; {REMEDY}")

    arrays = {name: _array(name, view) for name, view in views.items() if name != "meta"}
    n_candidates, n_pool = len(arrays["ref"]), len(arrays["pool"])
    base = 0
    for n in range(1, n_orders + 1):
        problem = _order_problem(arrays, n, base, n_text)
        if problem:
            raise refuse(*problem)
        base = int(arrays[f"first{n}"][-1])
    if base != n_candidates:
        raise refuse(f"first{n_orders}", f"{base} candidates, expected {n_candidates}")
    if not _ids_are_text(arrays["pool"], n_text):
        raise refuse("pool", f"a token id is not below {n_text}")
    total = 0
    for at in range(0, n_candidates, _BLOCK):
        lengths = arrays["len"][at : at + _BLOCK].astype(np.int64)
        if lengths.min() < 1 or lengths.max() > MAX_LENGTH:
            raise refuse("len", f"a candidate's length is not 1 to {MAX_LENGTH}")
        if (arrays["ref"][at : at + _BLOCK] + lengths).max() > n_pool:
            raise refuse("ref", "a candidate ends beyond the pool")
        starts = total + np.cumsum(lengths) - lengths
        if not np.array_equal(starts[::CONF_BLOCK], arrays["confat"][at // CONF_BLOCK :][: len(starts[::CONF_BLOCK])]):
            raise refuse("confat", "it does not add up the lengths")
        total += int(lengths.sum())
    if n_candidates % CONF_BLOCK == 0 and arrays["confat"][-1] != total:
        raise refuse("confat", "it does not add up the lengths")
    if len(arrays["conf"]) != total:
        raise refuse("conf", f"{len(arrays['conf'])} confidences for {total} tokens")
    problem = _corpus_problem(arrays["corpus"], arrays["suffix"], n_text) if "corpus" in arrays else None
    if problem:
        raise refuse(*problem)


def _array(name: str, view: memoryview) -> NDArray[Any]:
    kind = name.rstrip("0123456789")
    return np.frombuffer(view, dtype=f"<u{_ITEM_BYTES.get(kind, 1)}")


def _order_problem(arrays: Mapping[str, NDArray[Any]], n: int, base: int, n_text: int) -> tuple[str, str] | None:
    keys, csr, first = arrays[f"keys{n}"], arrays[f"csr{n}"], arrays[f"first{n}"]
    if not _rises(first, strictly=True) or first[0] != base:
        return f"first{n}", "its numbers do not rise from where the order before ended"
    if not _rises(csr, strictly=False) or csr[0] != 0 or csr[-1] != len(keys):
        return f"csr{n}", "its numbers do not rise from 0 to the number of keys"
    if not _keys_rise(keys, arrays.get(f"old{n}")):
        return f"keys{n}", "its keys do not rise"
    n_rows = len(csr) - 2  # last tokens with a row of their own; then comes the start of the sentence
    if n_rows > n_text:
        return f"csr{n}", f"it has rows for ids beyond {n_text}"
    return _index_problem(keys, csr, n)


def _index_problem(keys: NDArray[Any], csr: NDArray[Any], n: int) -> tuple[str, str] | None:
    """Whether the rising `keys` begin where the rising `csr` says, for each id and then for the start of a sentence."""
    n_rows = len(csr) - 2
    shift = np.uint64(16 * (min(n, MAX_ORDER - 1) - 1))
    for at in range(0, n_rows + 1, _BLOCK):
        row = np.arange(at, min(at + _BLOCK, n_rows + 1))
        start = csr[at : at + len(row)].astype(np.int64)
        before, here = start > 0, start < len(keys)
        if (keys[start[before] - 1] >> shift >= row[before]).any() or (keys[start[here]] >> shift < row[here]).any():
            return f"csr{n}", "it does not fit the keys"
    if csr[n_rows] < len(keys) and keys[csr[n_rows]] >> shift != END:
        return f"keys{n}", "a key ends in an id without a row in the index"
    return None


def _rises(values: NDArray[Any], *, strictly: bool) -> bool:
    for at in range(0, len(values) - 1, _BLOCK):
        block = values[at : at + _BLOCK + 1]
        if (block[1:] <= block[:-1]).any() if strictly else (block[1:] < block[:-1]).any():
            return False
    return True


def _keys_rise(keys: NDArray[Any], old: NDArray[Any] | None) -> bool:
    if old is None:
        return _rises(keys, strictly=True)
    for at in range(0, len(keys) - 1, _BLOCK):
        block, tail = keys[at : at + _BLOCK + 1], old[at : at + _BLOCK + 1]
        if not ((block[1:] > block[:-1]) | ((block[1:] == block[:-1]) & (tail[1:] > tail[:-1]))).all():
            return False
    return True


def _ids_are_text(pool: NDArray[Any], n_text: int) -> bool:
    return all(
        bool(((block < n_text) | (block == END)).all())
        for block in (pool[at : at + _BLOCK] for at in range(0, len(pool), _BLOCK))
    )


def _corpus_problem(corpus: NDArray[Any], suffix: NDArray[Any], n_text: int) -> tuple[str, str] | None:
    """Whether `suffix` has the place of every token of the corpus once, sorted by the bytes from there on."""
    if corpus[0] != END or corpus[-1] != END:
        return "corpus", "it does not begin and end with the end of a sentence"
    if not _ids_are_text(corpus, n_text):
        return "corpus", f"a token id is not below {n_text}"
    is_listed = np.zeros(len(corpus), dtype=np.bool_)
    for at in range(0, len(suffix), _BLOCK):
        block = suffix[at : at + _BLOCK]
        if block.max() >= len(corpus):
            return "suffix", "a place lies beyond the corpus"
        is_listed[block] = True
    n_tokens = 0
    for at in range(0, len(corpus), _BLOCK):
        is_token = corpus[at : at + _BLOCK] != END
        n_tokens += int(np.count_nonzero(is_token))
        if not np.array_equal(is_token, is_listed[at : at + _BLOCK]):
            return "suffix", "it does not list the tokens of the corpus"
    if n_tokens != len(suffix):
        return "suffix", "it lists a place twice"
    blocks = (suffix[at : at + _BLOCK + 1].astype(np.int64) for at in range(0, len(suffix) - 1, _BLOCK))
    return None if all(_places_rise(corpus, block) for block in blocks) else ("suffix", "its places are not sorted")


def _places_rise(corpus: NDArray[Any], places: NDArray[np.int64]) -> bool:
    """Whether each place sorts after the one before, or agrees with it up to the end of a sentence or the depth."""
    before, after = places[:-1], places[1:]
    for depth in range(CORPUS_DEPTH):
        a, b = corpus[before + depth].byteswap(), corpus[after + depth].byteswap()
        if (a > b).any():
            return False
        is_open = (a == b) & (a != END)
        before, after = before[is_open], after[is_open]
    return True
