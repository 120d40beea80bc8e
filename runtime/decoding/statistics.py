"""Statistics of speculative decoding: counted pass by pass in a window, and summed over windows.

Two runs that decide alike are equal however long they took: counters take part in comparisons, times do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from .passes import Ran


class _Summed:
    """A dataclass of numbers."""

    def plus(self, other: Self, sign: int = 1) -> Self:
        """Return the sum of both, field by field."""
        pairs = [(name, value, getattr(other, name)) for name, value in vars(self).items()]
        return type(self)(**{name: mine + sign * theirs for name, mine, theirs in pairs})


@dataclass(frozen=True)
class DraftCounts(_Summed):
    """One drafter's nodes: proposed, run as rows of a pass, and accepted."""

    proposed: int = 0
    evaluated: int = 0
    accepted: int = 0


@dataclass(frozen=True, kw_only=True)
class Learning(_Summed):
    """What a draft model that learns did: updates of its factors, seconds spent on them, times it was rolled back."""

    updates: int = 0
    seconds: float = 0.0
    rollbacks: int = 0


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Statistics of one window or several. `tokens == accepted + passes` without beams: each pass decides one
    token of its own. With beams tokens are those of the best text.

    passes: those that a window had a part in, so one that n windows share counts n times; runs: of the decoder, so it
    counts once; rows, texts: of those runs, this window's own.
    proposed: nodes that the drafter gave; evaluated: those that were rows of a pass; accepted: those that became text;
    bonus: passes in which a whole path of the draft was accepted (one draft or more); tokens: decided tokens, the end
    of text included; evaluated_by_position, accepted_by_position: the same counts by depth in the draft; by_drafter:
    the counts of each drafter, one unless the drafter combines several; lossless: whether the text is by
    construction that of plain decoding, and of the model without a map that may change it.
    Times in seconds: draft_s in the drafter; decoder_s all else, of which verify_s in passes of the decoder and
    rules_s in rules and decisions; of a shared pass the share of this window's rows. learning: what a draft model
    learned, mostly between windows, outside draft_s. choice: why the drafter was chosen, "" where there was no choice.
    Runs with their rows and texts, times, learning and choice take no part in comparisons.
    """

    drafter: str = "none"
    proposed: int = 0
    evaluated: int = 0
    accepted: int = 0
    bonus: int = 0
    passes: int = 0
    tokens: int = 0
    evaluated_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    by_drafter: Mapping[str, DraftCounts] = field(default_factory=dict)
    lossless: bool = True
    rows: int = field(default=0, compare=False)
    texts: int = field(default=0, compare=False)
    runs: int = field(default=0, compare=False)
    decoder_s: float = field(default=0.0, compare=False)
    verify_s: float = field(default=0.0, compare=False)
    rules_s: float = field(default=0.0, compare=False)
    draft_s: float = field(default=0.0, compare=False)
    learning: Learning | None = field(default=None, compare=False)
    choice: str = field(default="", compare=False)

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / evaluated, or None when nothing was evaluated."""
        return self.accepted / self.evaluated if self.evaluated else None

    @property
    def acceptance_by_position(self) -> tuple[float | None, ...]:
        """accepted / evaluated at each depth of the draft."""
        pairs = zip(self.accepted_by_position, self.evaluated_by_position, strict=True)
        return tuple(accepted / evaluated if evaluated else None for accepted, evaluated in pairs)

    @property
    def tokens_per_pass(self) -> float | None:
        """tokens / passes, or None before the first pass."""
        return self.tokens / self.passes if self.passes else None

    @property
    def rows_per_pass(self) -> float | None:
        """Rows of a run of the decoder, or None before the first."""
        return self.rows / self.runs if self.runs else None

    @property
    def texts_per_pass(self) -> float | None:
        """Texts in a run of the decoder: windows, samples, beams, paths of a draft. None before the first."""
        return self.texts / self.runs if self.runs else None

    def plus(self, other: Speculation) -> Speculation:
        """Return the sum over both; the drafter's name is the later one's."""
        names = {**self.by_drafter, **other.by_drafter}
        none = DraftCounts()
        return Speculation(
            drafter=other.drafter,
            evaluated_by_position=_add(self.evaluated_by_position, other.evaluated_by_position),
            accepted_by_position=_add(self.accepted_by_position, other.accepted_by_position),
            by_drafter={name: self.by_drafter.get(name, none).plus(other.by_drafter.get(name, none)) for name in names},
            lossless=self.lossless and other.lossless,
            learning=self.learning.plus(other.learning)
            if self.learning is not None and other.learning is not None
            else self.learning or other.learning,
            choice=other.choice or self.choice,
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMMED},
        )


_SUMMED = (
    *("proposed", "evaluated", "accepted", "bonus", "passes", "tokens", "rows", "texts", "runs"),
    *("decoder_s", "verify_s", "rules_s", "draft_s"),
)


def calls_per_word(passes: int, n_words: int, n_reference_words: int | None = None) -> float | None:
    """Return decoder calls per word, 2 passes / (words of the reference + words of the text) (Raj et al., eq. 13).

    Without a reference the text takes its place. None where there are no words.
    """
    n_both = n_words + (n_words if n_reference_words is None else n_reference_words)
    return 2 * passes / n_both if n_both else None


class Tally:
    """The counters of one window in work. Who decides tokens counts them and their passes, and adds times."""

    def __init__(self) -> None:
        self.proposed = self.passes = self.tokens = self.bonus = 0
        self.runs = self.rows = self.texts = 0
        self.decoder_s = self.verify_s = self.rules_s = 0.0
        self._evaluated: list[int] = []
        self._accepted: list[int] = []
        self._by_drafter: dict[str, list[int]] = {}

    def count_proposed(self, n_by_drafter: Mapping[str, int]) -> None:
        """Count proposed nodes, by drafter."""
        for name, n in n_by_drafter.items():
            self.proposed += n
            self._by_drafter.setdefault(name, [0, 0, 0])[0] += n

    def count_run(self, ran: Ran, waited_s: float, *, n_texts: int = 1) -> None:
        """Count a run of the decoder over `n_texts` of this window, for which it waited so long.

        Call it while `decoder_s` is timed: in its place comes this window's share.
        """
        self.verify_s += ran.seconds
        self.decoder_s += ran.seconds - waited_s
        self.texts += n_texts
        self.rows += ran.n_own
        self.runs += ran.is_first

    def count_draft(
        self, depths: Sequence[int], names: Sequence[str], evaluated: Sequence[int], accepted: Sequence[int]
    ) -> None:
        """Count what became of a draft.

        depths, names: of each node of the draft its depth, from 0, and the drafter; evaluated, accepted: nodes.
        """
        for column, counts, nodes in ((1, self._evaluated, evaluated), (2, self._accepted, accepted)):
            for node in nodes:
                depth = depths[node]
                counts.extend([0] * (depth + 1 - len(counts)))
                counts[depth] += 1
                self._by_drafter.setdefault(names[node], [0, 0, 0])[column] += 1

    def result(self, drafter: str, *, lossless: bool, draft_s: float, choice: str = "") -> Speculation:
        """Return the window's statistics so far."""
        n_positions = len(self._evaluated)
        return Speculation(
            drafter=drafter,
            evaluated=sum(self._evaluated),
            accepted=sum(self._accepted),
            evaluated_by_position=tuple(self._evaluated),
            accepted_by_position=(*self._accepted, *[0] * (n_positions - len(self._accepted))),
            by_drafter={name: DraftCounts(*counts) for name, counts in self._by_drafter.items()},
            lossless=lossless,
            draft_s=draft_s,
            choice=choice,
            **{name: value for name, value in vars(self).items() if name in _SUMMED},
        )


def _add(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0))
