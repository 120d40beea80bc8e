"""Acceptance rules: which token a position gets, given the model's row and the drafts of that position.

`Exact`, the default, is the model's own choice: the likeliest token, or above temperature 0 the keyed sample. The rules
of papers can change the text; `rule_named` finds them by name (`papers.accept`). A rule sees one filtered row and the
drafts of its position, best first. A draft that Whisper's rules forbid is never kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..registered import find
from .rules import Logits
from .sampling import Draw

Drawn = tuple[NDArray[np.int64], NDArray[np.float64]]
Classed = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A draft of one position: its id, and the drafter's confidence where it gave one.

    drawn: the distribution that the draft was drawn from, ids int[n] without repetition and probabilities float[n]; or,
    with the class of each id int[n], one of which only the sums over classes are known, and all of the draft's class.
    """

    token: int
    conf: float | None = None
    drawn: Drawn | Classed | None = None


class AcceptanceRule(ABC):
    """A rule. lossless: whether the text is that of plain decoding, whatever the drafts are.

    tau: how sure a head must be for a beam to believe it unasked; None: beams verify every draft.
    """

    lossless: bool = False
    tau: float | None = None

    @abstractmethod
    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int:
        """Return the position's token, by the row f32[n_vocab]; the candidate with that token is accepted."""


@dataclass(frozen=True, kw_only=True)
class Exact(AcceptanceRule):
    """The model's own choice: the likeliest token, or the keyed sample."""

    lossless: bool = True

    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int:
        """Return the token of plain decoding, whatever the candidates are."""
        return draw.own(logits)


def rule_named(name: str) -> AcceptanceRule:
    """Return the rule that `TranscribeOptions.accept` names."""
    rule: AcceptanceRule = Exact()
    if name in ("typical", "residual"):
        rule = find("accept", name)()
    elif name.startswith("top-"):
        rule = find("accept", "top")(m=int(name.removeprefix("top-")))
    elif name != "exact":
        rule = find("accept", "threshold")(tau=float(name))
    return rule
