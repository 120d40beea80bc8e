"""The sentences of a corpus that a token map keeps: each once, the most frequent first, as many as a budget holds.

How often a sentence occurs is counted by 8-byte digests on disk, so memory holds some numbers for each sentence and no
text; only what is kept is sorted. The same sentences give the same arrays. Does not know: files of maps, look-ups.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.maps.counting import by_continuation
from specedge.maps.tmap_format import CORPUS_DEPTH, END

__all__ = ["Kept", "Tally", "corpus_bytes", "keep", "taking_turns"]

_FLUSH = 1 << 16
_TOKEN_BYTES = 6  # in the corpus and in the list of places
_END_BYTES = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """The sections of a corpus as docs/tmap-format.md has them: `corpus` u16 [n_places], `suffix` u32 [n_tokens]."""

    corpus: NDArray[np.uint16]
    suffix: NDArray[np.uint32]

    @property
    def n_sentences(self) -> int:
        return len(self.corpus) - 1 - len(self.suffix)


def corpus_bytes(n_sentences: int, n_tokens: int) -> int:
    """What both sections of so much text take in the file."""
    return _END_BYTES * (n_sentences + 1) + _TOKEN_BYTES * n_tokens


class Tally:
    """Counts equal sentences in the file `path`, made for it; add all of them before asking."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = array("Q")
        path.touch(exist_ok=False)

    def add(self, sentence: Sequence[int]) -> None:
        """The next sentence of the corpus; `sentence` is not empty."""
        digest = hashlib.blake2b(array("H", sentence).tobytes(), digest_size=8).digest()
        self._rows.extend((int.from_bytes(digest, "little"), len(sentence)))
        if len(self._rows) >= _FLUSH:
            self._flush()

    def kept(self, text: NDArray[np.uint16], first: int, budget_bytes: int) -> Iterator[list[int]]:
        """The most frequent sentences, of equals the earlier ones, as many as fit into the budget.

        text: all sentences as they were added, the first at `first`, one `END` behind each.
        """
        self._flush()
        rows = np.fromfile(self._path, dtype=np.uint64).reshape(-1, 2)
        lengths = rows[:, 1].astype(np.int64)
        distinct = _ranked(rows[:, 0])
        del rows
        starts = np.cumsum(lengths + 1) - (lengths + 1) + first
        sizes = _END_BYTES + _TOKEN_BYTES * lengths[distinct]
        fits = sizes <= budget_bytes - _END_BYTES
        distinct, ends = distinct[fits], np.cumsum(sizes[fits]) + _END_BYTES
        for number in distinct[: np.searchsorted(ends, budget_bytes, side="right")]:
            yield text[starts[number] : starts[number] + lengths[number]].tolist()

    def _flush(self) -> None:
        with open(self._path, "ab") as file:
            self._rows.tofile(file)
        del self._rows[:]


def keep(sentences: Iterable[Sequence[int]]) -> Kept | None:
    """The sections of these sentences, all different, most frequent first; None for no sentences.

    Takes about 100 bytes of memory a token while it sorts.
    """
    backwards = array("H", [END])
    for sentence in sentences:
        row = array("H", sentence)
        row.reverse()
        row.append(END)
        backwards.extend(row)
    if len(backwards) == 1:
        return None
    corpus = np.array(backwards, dtype=np.uint16)
    places = np.flatnonzero(corpus != END)
    # Bytes compare as the numbers that they are the other way round.
    text = np.concatenate((corpus.byteswap(), np.full(CORPUS_DEPTH, END, dtype=np.uint16)))
    suffix = places[by_continuation(text, places, CORPUS_DEPTH)].astype(np.uint32)
    return Kept(corpus=corpus, suffix=suffix)


def taking_turns(corpora: Sequence[Iterable[Sequence[int]]], budget_bytes: int) -> Iterator[Sequence[int]]:
    """The first sentence of each corpus, then the second of each, each of them once, as many as fit into the budget."""
    seen: set[bytes] = set()
    left = budget_bytes - _END_BYTES
    waiting = [iter(corpus) for corpus in corpora]
    while waiting:
        for source in tuple(waiting):
            sentence = next(source, None)
            if sentence is None:
                waiting.remove(source)
                continue
            name = array("H", sentence).tobytes()
            size = _END_BYTES + _TOKEN_BYTES * len(sentence)
            if name not in seen and size <= left:
                seen.add(name)
                left -= size
                yield sentence


def _ranked(digests: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The number of each different digest's first occurrence: the most frequent ones first, of equals the earlier."""
    order = np.argsort(digests, kind="stable")
    ordered = digests[order]
    begins = np.flatnonzero(np.concatenate((np.ones(min(1, len(ordered)), np.bool_), ordered[1:] != ordered[:-1])))
    counts = np.diff(np.append(begins, len(ordered)))
    first = order[begins]
    ranked: NDArray[np.int64] = first[np.lexsort((first, -counts))]
    return ranked
