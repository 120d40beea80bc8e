"""A line of a published table, and our answer to it out of the results of our own experiments.

An answer is the figure and a verdict. Ratios are held to the published one; a shape either shows or does not. It knows
neither papers nor experiments, and holds no figure of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ANSWERED",
    "DOMAINS",
    "NOT_COMPARED",
    "NEAR",
    "NOT_RUN",
    "UNCHANGED",
    "Answer",
    "Claim",
    "Figures",
    "Line",
    "Paper",
    "answered",
    "held_to",
    "in_each_domain",
    "shown",
]

Figures = Mapping[str, Any]
DOMAINS = ("maintenance", "notes")  # of the demo: most experiments have figures of each
MATCHED, NOT_MATCHED = "matched", "not matched"
ANSWERED = "answered"  # of what a paper only asked
NOT_RUN, NOT_COMPARED, NOT_FOUND = "not run", "not compared", "not in the results"
NEAR = 0.1  # of a ratio, up or down, that counts as the same
UNCHANGED = 0.02  # from 1: no change, which is not the other way


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Our figure under a published heading, and whether it matched."""

    ours: str
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """what: the heading; published: the figure, and `where` it stands; needs: names of results, whose figures `ask`
    gets in that order; why: the difference in set-up that an answer which did not match, or cannot be compared, is read
    by; aside: one that any answer is read by; timed: whether the answer is a clock's, which a busy machine has none of.
    Without `ask` nothing of ours is comparable, and `why` says so."""

    what: str
    published: str
    where: str
    why: str
    aside: str = ""
    timed: bool = False
    needs: Sequence[str] = ()
    ask: Callable[..., Answer] | None = None


@dataclass(frozen=True, kw_only=True)
class Paper:
    """name: for the command line; setting: what was published with, and what ours are had with."""

    name: str
    title: str
    setting: str
    claims: Sequence[Claim]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A claim with its answer."""

    what: str
    published: str
    where: str
    ours: str
    verdict: str
    why: str


def answered(claim: Claim, results: Mapping[str, Figures]) -> Line:
    """The line of a claim; a result that is not there, or holds something else, is said and is no error."""
    missing = [name for name in claim.needs if name not in results]
    if claim.ask is None:
        found = Answer(ours="-", verdict=NOT_COMPARED)
    elif missing:
        found = Answer(ours=f"not run: {', '.join(missing)}", verdict=NOT_RUN)
    else:
        try:
            found = claim.ask(*(results[name] for name in claim.needs))
        except (KeyError, IndexError, ValueError):  # heads that the bundle has not, an experiment on other settings
            found = Answer(ours=f"not in {', '.join(claim.needs)}", verdict=NOT_FOUND)
    said = [claim.aside, "" if found.verdict in (MATCHED, ANSWERED) else claim.why]
    why = "" if found.verdict in (NOT_RUN, NOT_FOUND) else "; ".join(part for part in said if part)
    return Line(
        what=claim.what,
        published=claim.published,
        where=claim.where,
        ours=found.ours,
        verdict=found.verdict,
        why=why,
    )


def held_to(published: float, ours: float) -> str:
    """The verdict on a ratio whose 1 means no change: the same within a tenth, else how it is off."""
    if abs(ours - published) <= NEAR * published:
        return MATCHED
    if abs(ours - 1) > UNCHANGED and (ours - 1) * (published - 1) < 0:
        return "the other way"
    return "larger" if ours > published else "smaller"


def shown(*, is_so: bool) -> str:
    """The verdict on a shape."""
    return MATCHED if is_so else NOT_MATCHED


def in_each_domain(ask: Callable[..., tuple[str, bool]]) -> Callable[..., Answer]:
    """What `Claim.ask` may be, of an `ask` for one domain: our figures there, and whether a shape shows in them."""

    def of_all(*results: Figures) -> Answer:
        found = [ask(*(result[domain] for result in results)) for domain in DOMAINS]
        ours = "; ".join(f"{domain} {said}" for domain, (said, _) in zip(DOMAINS, found, strict=True))
        return Answer(ours=ours, verdict=shown(is_so=all(is_so for _, is_so in found)))

    return of_all
