"""Whole maps against a count with dictionaries: every key, every candidate in its place, every confidence.

Token Map Drafting (arXiv 2507.21522), construction: n-gram keys, their continuations ranked by frequency. What the
paper leaves open is as `specedge.maps.build` says: the first candidate always goes on by the most frequent id, the
others begin at the most frequent branches that it left, and each goes on while enough occurrences do. Of equals the
earlier branch is first, then the smaller id.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from specedge.errors import ResourceError, UsageError
from specedge.maps import build as build_module
from specedge.maps.build import BuildOptions, BuildReport, build
from specedge.maps.tmap_format import END, END_ID, MAX_TOKENS
from specedge.maps.token_map import TokenMap
from support.token_maps import FINGERPRINT, N_TEXT, make_map

WIDE = 200_000  # a vocabulary of ids that do not fit into a u16
_LAST = math.inf  # an end of a sentence sorts behind all ids
Ids = tuple[int, ...]


class Continued(NamedTuple):
    """A candidate: its ids, the end of the sentence among them, how often it followed the key, and the share of each id
    in what followed the ids before it."""

    ids: Ids
    count: int
    shares: list[float]


class Counted(NamedTuple):
    """What a map should hold of a corpus; `end` stands for the start and for the end of a sentence."""

    sentences: list[list[int]]
    options: BuildOptions
    end: int

    def keys(self) -> dict[Ids, list[Continued]]:
        """Keys that have candidates, and these."""
        rests: dict[Ids, list[Ids]] = {}
        for sentence in self.sentences:
            padded = (self.end, *sentence, self.end) if sentence else ()
            for at in range(1, len(padded)):
                for n in range(1, min(self.options.n_orders, at) + 1):
                    rests.setdefault(tuple(padded[at - n : at]), []).append(tuple(padded[at:]))
        found = {key: self.candidates(of_key) for key, of_key in rests.items()}
        return {key: paths for key, paths in found.items() if paths}

    def candidates(self, rests: list[Ids]) -> list[Continued]:
        """Of a key, best first; `rests` is what followed it, to the end of the sentence each time."""
        options = self.options
        floor = max(options.min_count, options.min_share * len(rests))
        best, branches = self.walk(rests, (), [], floor)
        paths = [best]
        for _, at, _, id_ in sorted(branches)[: options.n_candidates - 1]:
            start = best.ids[:at]
            behind = Counter(rest[at] for rest in rests if rest[:at] == start)
            shares = [*best.shares[:at], behind[id_] / behind.total()]
            paths.append(self.walk(rests, (*start, id_), shares, floor)[0])
        return [path for path in paths if path.ids]

    def walk(
        self, rests: list[Ids], path: Ids, shares: list[float], floor: float
    ) -> tuple[Continued, list[tuple[int, int, float, int]]]:
        """How far a path goes on by the most frequent id, and the branches that it leaves, which sort as they rank:
        -occurrences, depth, how the id sorts, the id."""
        branches = []
        here = [rest for rest in rests if rest[: len(path)] == path]
        while len(path) < self.options.max_length and path[-1:] != (self.end,):
            behind = Counter(rest[len(path)] for rest in here)
            ranked = sorted((-n, self.sorts_as(id_), id_) for id_, n in behind.items() if n >= floor)
            if not ranked:
                break
            branches += [(count, len(path), sorts_as, id_) for count, sorts_as, id_ in ranked[1:]]
            count, _, best = ranked[0]
            path, shares = (*path, best), [*shares, -count / len(here)]
            here = [rest for rest in here if rest[: len(path)] == path]
        return Continued(path, len(here), shares), branches

    def sorts_as(self, id_: int) -> float:
        return _LAST if id_ == self.end else id_


def phrases(seed: int, ids: Sequence[int]) -> list[list[int]]:
    """Sentences that begin alike for long and then part; some are empty, of one token, or said twice. Two begin as no
    other does, and the first of them goes on by the higher id."""
    rng = random.Random(seed)
    stems = [[rng.choice(ids) for _ in range(14)] for _ in range(2)]
    two = [rng.choice(ids) for _ in range(8)]
    found: list[list[int]] = [[], [ids[0]], [ids[-1]] * 3, [*two, ids[-1]], [*two, ids[0]]]
    for _ in range(24):
        stem = rng.choice(stems)
        start, stop = sorted(rng.sample(range(15), 2))
        found.append([*stem[start:stop], *(rng.choice(ids) for _ in range(rng.randrange(3)))])
    return found + found[7:10]


def said(opened: TokenMap, end: int) -> dict[Ids, list[tuple[Ids, int, tuple[float, ...]]]]:
    """What a map says of each key: the fields of `Continued` of each candidate."""
    found = {}
    for n in range(1, opened.n_orders + 1):
        for key, numbers in opened.items(n):
            candidates = [opened.candidate(number) for number in numbers]
            found[key] = [((*one.tokens, *[end] * one.ends), one.count, one.confidences) for one in candidates]
    return found


OPTIONS = [
    BuildOptions(n_orders=5, n_candidates=8, min_count=1, min_share=0.0),
    BuildOptions(n_orders=4, n_candidates=3, max_length=9),
    BuildOptions(n_orders=5, n_candidates=2, max_length=5, min_count=1, min_share=0.3),
    BuildOptions(n_orders=2, n_candidates=4, max_length=4, min_count=3, min_share=0.2),
    BuildOptions(n_orders=1, n_candidates=1, max_length=64, min_count=2, min_share=1.0),
    BuildOptions(n_orders=3, n_candidates=5, max_length=1, min_count=1),
]


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("n_text", [MAX_TOKENS, WIDE])
@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_a_map_is_what_was_counted(
    number: int, n_text: int, in_blocks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_blocks:
        for name, value in (("_BATCH", 3), ("_SORT_BLOCK", 7), ("_FLUSH", 4)):
            monkeypatch.setattr(build_module, name, value)
    vocabulary, end = ((0, 1, 0x2001, 0xFFFD), END) if n_text == MAX_TOKENS else ((0, 0xFFFF, 70_000, WIDE - 1), END_ID)
    counted = Counted(phrases(number, vocabulary), OPTIONS[number], end)
    path = tmp_path / "x.tmap"
    report = build(iter(counted.sentences), path, n_text=n_text, fingerprint=FINGERPRINT, options=counted.options)
    with TokenMap.open(path) as opened:
        opened.verify()
        found, expected, told = said(opened, end), counted.keys(), opened.info()["build"]
    assert found.keys() == expected.keys()
    for key, paths in expected.items():
        assert [ids for ids, _, _ in found[key]] == [path.ids for path in paths]
        for (_, count, shares), wanted in zip(found[key], paths, strict=True):
            assert count == pytest.approx(wanted.count, rel=0 if wanted.count <= 13 else 0.08)
            assert shares == pytest.approx(wanted.shares, abs=0.6 / 255)
    full = [sentence for sentence in counted.sentences if sentence]
    assert report == BuildReport(n_sentences=len(full), n_tokens=sum(map(len, full)))
    assert (told["sentences"], told["tokens"]) == (report.n_sentences, report.n_tokens)
    assert all(told[name] == getattr(counted.options, name) for name in ("max_length", "min_count", "min_share"))


@pytest.mark.parametrize("share", [0.35, 0.6, 0.85])
def test_a_budget_keeps_the_keys_that_save_most(share: float, tmp_path: Path) -> None:
    """What a key saves is its occurrences times the tokens that its first candidate is expected to save: the sum over
    them of the probability that all up to there are right. Probabilities are kept in steps of 1/255."""
    sentences = [sentence for seed in range(4) for sentence in phrases(seed, (0, 1, 2, 3, 4, 5))]
    options = BuildOptions(n_orders=5, min_count=1)
    size = make_map(tmp_path / "all.tmap", sentences, options).stat().st_size
    fitting = BuildOptions(n_orders=5, min_count=1, budget_bytes=int(share * size))
    with TokenMap.open(make_map(tmp_path / "some.tmap", sentences, fitting)) as opened:
        kept = said(opened, END)
    rests = Counted(sentences, options, END).keys()
    worth = {key: _worth(key, paths[0], sentences) for key, paths in rests.items()}
    dropped = worth.keys() - kept.keys()
    assert dropped and kept
    assert max(worth[key] for key in dropped) <= 1.02 * min(worth[key] for key in kept)


def _worth(key: Ids, best: Continued, sentences: list[list[int]]) -> float:
    n = sum(
        padded[at : at + len(key)] == key
        for padded in ((END, *sentence, END) for sentence in sentences if sentence)
        for at in range(len(padded) - len(key))
    )
    return n * sum(math.prod(best.shares[: at + 1]) for at in range(len(best.shares)))


@pytest.mark.parametrize(
    ("name", "right", "wrong", "expected"),
    [
        ("n_orders", (1, 5), (0, 6), "1 to 5"),
        ("n_candidates", (1, 8), (0, 9), "1 to 8"),
        ("max_length", (1, 64), (0, 65), "1 to 64"),
        ("min_count", (1, 2**31 - 1), (0, 2**31), "1 or more"),
        ("min_share", (0.0, 1.0), (-0.01, 1.01), "0 to 1"),
        ("budget_bytes", (1, None), (0, -1), "1 or more bytes, or None"),
    ],
)
def test_options_are_told_what_they_may_be(
    name: str, right: tuple[int, int], wrong: tuple[int, int], expected: str
) -> None:
    for value in right:
        assert getattr(BuildOptions(**{name: value}), name) == value  # type: ignore[arg-type]
    for value in wrong:
        with pytest.raises(UsageError, match=f"^{name}: got {value}, expected {expected}$"):
            BuildOptions(**{name: value})  # type: ignore[arg-type]


def test_more_places_than_a_map_can_count_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six tokens and two ends of sentences are 81 places, with the 5 ends before them and the 68 behind."""
    sentences = [[1, 2, 3], [4, 5, 6]]
    monkeypatch.setattr(build_module, "_MAX_TOKENS", 81)
    make_map(tmp_path / "x.tmap", sentences)
    monkeypatch.setattr(build_module, "_MAX_TOKENS", 80)
    with pytest.raises(ResourceError, match="^6 tokens are too many for one token map: split the corpus and merge"):
        make_map(tmp_path / "y.tmap", sentences)
    assert not (tmp_path / "y.tmap").exists()


def test_an_id_outside_the_vocabulary_is_named_with_what_was_expected(tmp_path: Path) -> None:
    for sentence, wrong in (([3, -1, N_TEXT], -1), ([0, N_TEXT], N_TEXT)):
        with pytest.raises(UsageError, match=f"token id {wrong} is no text token .*: expected 0 to {N_TEXT - 1}"):
            make_map(tmp_path / "x.tmap", [[0, N_TEXT - 1], sentence])
