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

PLAIN = "none"
MANY = 10
MIN_GAIN = 1.02  # less is not worth a change of settings
ONE_ROUND = 1.05  # what a single round may be off by, either way


@dataclass(frozen=True)
class Spread:
    """The median of some values, with the least and the greatest; of `MANY` or more without a fifth at either end,
    which may be an accident of the machine."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of one value or more."""
        found = sorted(values)
        n_out = len(found) // 5 if len(found) >= MANY else 0
        return cls(statistics.median(found), found[n_out], found[-1 - n_out])


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
        draft = [] if self.draft_model is None else ["--draft-model", self.draft_model]
        maps = [word for path in self.token_maps for word in ("--token-map", path)]
        return " ".join(["--drafter", self.drafter, *draft, *maps])

    def words(self) -> str:
        """The choice in a sentence or two."""
        rounds = f"{self.rounds} round{'' if self.rounds == 1 else 's'}"
        if self.drafter == PLAIN:
            why = f"no drafter was clearly quicker than plain decoding in {rounds}"
        else:
            mostly = "mostly " if self.rounds >= MANY else ""
            why = (
                f"its decoder is {self.decoder_speed_up:.2f} times plain decoding ({mostly}{self.least:.2f} to "
                f"{self.greatest:.2f} in {rounds}), {self.end_to_end:.2f} times end to end"
            )
        near = f"; these rounds do not tell it apart from {', '.join(self.near)}" if self.near else ""
        return f"on this device use {self.arguments}: {why}{near}"


def recommend(decoder: Mapping[str, Spread], end_to_end: Mapping[str, Spread], *, rounds: int) -> Recommendation:
    """The choice among drafters by how many times as fast as plain decoding they were, in so many rounds.

    Only drafters that may be chosen are given: none whose text was another, or that was dropped.
    """
    off = ONE_ROUND if rounds == 1 else 1.0
    quickest = sorted((name for name in decoder if name != PLAIN), key=lambda name: -decoder[name].median)
    sure = [name for name in quickest if decoder[name].median >= MIN_GAIN and decoder[name].least > off]
    if not sure:
        near = tuple(name for name in quickest if decoder[name].greatest * off >= MIN_GAIN)
        return Recommendation(drafter=PLAIN, near=near, rounds=rounds)
    best, speed = sure[0], decoder[sure[0]]
    return Recommendation(
        rounds=rounds,
        drafter=best,
        decoder_speed_up=round(speed.median, 4),
        least=round(speed.least, 4),
        greatest=round(speed.greatest, 4),
        end_to_end=round(end_to_end[best].median, 4),
        near=tuple(name for name in quickest if name != best and decoder[name].greatest * off >= speed.least / off),
    )
