"""Which drafter to use on this device, chosen from what `specedge bench` measured and said in words.

The quickest drafter whose text was that of plain decoding is chosen if it was quicker than plain decoding in every
round, or in four fifths of ten or more, and by 2 % in the median; else plain decoding is. A single round has no spread
of its own and is taken to be 5 % off either way.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Spread:
    """The median of some values, with the least and the greatest; of `MANY` or more also the range of the inner three
    fifths, since a fifth at either end may be an accident of the machine."""

    median: float
    least: float
    greatest: float
    inner: tuple[float, float] | None = None

    @property
    def usual(self) -> tuple[float, float]:
        """The range of most of the values: all of a few."""
        return self.inner or (self.least, self.greatest)

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of one value or more."""
        found = sorted(values)
        n_out = len(found) // 5
        inner = (found[n_out], found[-1 - n_out]) if len(found) >= MANY else None
        return cls(statistics.median(found), found[0], found[-1], inner)


PLAIN = "none"
MANY = 10
MIN_GAIN = 1.02  # less is not worth a change of settings
FEW = 3  # drafters that are named one by one
ONE_ROUND = 1.05  # what a single round may be off by, either way


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The choice. decoder_speed_up, end_to_end: times as fast as plain decoding; least, greatest: of a round, or what
    most of many rounds lie between; near: drafters that these rounds cannot tell apart from it; draft_model,
    token_maps: as they were given; rounds: in which the choice was measured."""

    drafter: str
    decoder_speed_up: float = 1.0
    least: float = 1.0
    greatest: float = 1.0
    end_to_end: float = 1.0
    near: tuple[str, ...] = ()
    draft_model: str | None = None
    token_maps: tuple[str, ...] = ()
    rounds: int = 0

    @property
    def arguments(self) -> str:
        """What to write in the command line."""
        words = ["--drafter", self.drafter]
        if self.draft_model is not None:
            words += ["--draft-model", self.draft_model]
        for path in self.token_maps:
            words += ["--token-map", path]
        return " ".join(words)

    def words(self) -> str:
        """The choice in a sentence or two."""
        rounds = f"{self.rounds} round{'' if self.rounds == 1 else 's'}"
        if self.drafter == PLAIN:
            why = f"no drafter was clearly quicker than plain decoding in {rounds}"
            said = f"on this device use --drafter none: {why}"
        else:
            speed, end_to_end = f"{self.decoder_speed_up:.2f}", f"{self.end_to_end:.2f}"
            mostly = "mostly " if self.rounds >= MANY else ""
            spread = f"{mostly}{self.least:.2f} to {self.greatest:.2f} in {rounds}"
            said = (
                f"on this device use {self.arguments}: its decoder is {speed} times plain decoding ({spread}), "
                f"{end_to_end} times end to end"
            )
        if not self.near:
            return said
        near = f"{len(self.near)} others" if len(self.near) > FEW else ", ".join(self.near)
        return f"{said}; these rounds do not tell it apart from {near}"


def recommend(decoder: Mapping[str, Spread], end_to_end: Mapping[str, Spread], *, rounds: int) -> Recommendation:
    """The choice among drafters by how many times as fast as plain decoding they were, in so many rounds.

    Only drafters that may be chosen are given: none whose text was another, or that was dropped.
    """
    quickest = sorted((name for name in decoder if name != PLAIN), key=lambda name: -decoder[name].median)
    may_be = {name: _may_be(decoder[name], rounds) for name in quickest}
    sure = [name for name in quickest if decoder[name].median >= MIN_GAIN and may_be[name][0] > 1]
    if not sure:
        near = tuple(name for name in quickest if may_be[name][1] >= MIN_GAIN)
        return Recommendation(drafter=PLAIN, near=near, rounds=rounds)
    best = sure[0]
    speed = decoder[best]
    least, greatest = speed.usual
    return Recommendation(
        rounds=rounds,
        drafter=best,
        decoder_speed_up=round(speed.median, 4),
        least=round(least, 4),
        greatest=round(greatest, 4),
        end_to_end=round(end_to_end[best].median, 4),
        near=tuple(name for name in quickest if name != best and may_be[name][1] >= may_be[best][0]),
    )


def _may_be(speed: Spread, rounds: int) -> tuple[float, float]:
    """The least and greatest that a speed-up measured in so many rounds may be."""
    off = ONE_ROUND if rounds == 1 else 1.0
    least, greatest = speed.usual
    return least / off, greatest * off
