"""What the grown shapes are to reach, and what measured figures say to it: met, not met, or not measured.

Figures are those of a shape in the JSON of `true_shapes.py`. A target is the number for a shape, or two: the first for
commands (maintenance), the second for notes. Recordings of one's own are held to the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specedge.runtime.options import HEAD_KINDS

__all__ = ["BASE_DRAFT", "MIX", "OTHERS_MAP", "QUIET", "Verdict", "table", "verdicts"]

MIX, OTHERS_MAP, QUIET = "mix", "other map", ("silence", "noise")  # names of domains
BASE_DRAFT = "draft of base's shape"
MAPPED = ("tokenmap", "ctc", "cascade", "auto")
MAPLESS = ("ctc alone", *HEAD_KINDS, "draft", BASE_DRAFT)
FLOOR = 0.97

Figures = Mapping[str, Any]
Numbers = float | tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A line of the table. got is None where the run had nothing of the kind; at_most: whether less is better."""

    what: str
    domain: str
    target: float
    at_most: bool
    got: float | None
    by: str = ""

    @property
    def word(self) -> str:
        """met, not met, or not measured."""
        if self.got is None:
            return "not measured"
        return "met" if (self.got <= self.target if self.at_most else self.got >= self.target) else "not met"

    def figures(self) -> dict[str, Any]:
        """For the JSON."""
        return {
            "what": self.what,
            "domain": self.domain,
            "target": self.target,
            "at_most": self.at_most,
            "got": self.got,
            "by": self.by,
            "verdict": self.word,
        }


_PASS: Sequence[tuple[str, str, Mapping[str, float]]] = (
    ("pass_over_read", "a pass over reading its weights", {"base": 1.8, "small": 1.5, "large-v2": 1.3}),
    ("t8", "T(8) over T(1)", dict.fromkeys(("base", "small", "large-v2"), 1.35)),
    ("t16", "T(16) over T(1)", dict.fromkeys(("base", "small", "large-v2"), 1.8)),
    ("paths_passes", "several paths beyond their rows, in passes", dict.fromkeys(("base", "small", "large-v2"), 0.1)),
    ("python_share", "Python in a plain pass", {"base": 0.05}),
)
_DECODER: Sequence[tuple[str, Sequence[str], Mapping[str, Numbers]]] = (
    ("best drafter, right map", (*MAPPED, *MAPLESS), {"base": (2.4, 2.2), "small": (3.0, 2.6), "large-v2": (3.4, 2.8)}),
    ("best drafter, no map", MAPLESS, {"base": 1.7, "small": 2.1, "large-v2": 2.3}),
    ("tokenmap", ("tokenmap",), {"base": (1.4, 1.3), "small": (1.45, 1.35), "large-v2": (1.5, 1.4)}),
    ("best heads", HEAD_KINDS, {"base": 1.7, "small": 1.9, "large-v2": 2.0}),
    ("draft, same encoder, two layers", ("draft",), {"base": 1.3, "small": 1.8, "large-v2": 2.4}),
)
_BESIDE: Sequence[tuple[str, str, Mapping[str, float]]] = (
    ("whole windows, times faster-whisper", "full", {"small": 3.2, "large-v2": 3.0}),
    ("over the audio that is there, times faster-whisper", "auto", {"small": 5.0, "large-v2": 5.0}),
)
_MEMORY = 0.6
_TOKENS_A_PASS = (4.5, 4.3)
_OF_THE_BEST, _OF_THE_SINGLE = 0.95, 1.1


def verdicts(shape: str, figures: Figures) -> list[Verdict]:
    """All targets of a shape and what its figures say; none for a shape that has no targets."""
    found = []
    for key, what, numbers in _PASS:
        if shape in numbers:
            got = figures.get("pass", {}).get(key)
            found.append(Verdict(what=what, domain="", target=numbers[shape], at_most=True, got=got))
    rows: Mapping[str, Figures] = figures.get("domains", {})
    for domain in (name for name in rows if name not in (MIX, OTHERS_MAP, *QUIET)):
        found += _of_domain(shape, domain, rows[domain])
    if rows.get(MIX):
        single, by = _best(rows[MIX], [name for name in rows[MIX] if name not in ("cascade", "auto")])
        got = (
            None if single is None or "cascade" not in rows[MIX] else rows[MIX]["cascade"]["decoder_speed_up"] / single
        )
        found.append(_at_least("cascade over the best single source", MIX, _OF_THE_SINGLE, got, by))
    for domain in (OTHERS_MAP, *QUIET):
        if rows.get(domain):
            by, least = min(((name, row["decoder_speed_up"]) for name, row in rows[domain].items()), key=lambda x: x[1])
            found.append(_at_least("slowest drafter", domain, FLOOR, least, by))
    found += _beside(shape, figures.get("beside") or {})
    if "different" in figures:
        got = figures["different"]
        found.append(Verdict(what="texts that differ", domain="", target=0, at_most=True, got=got))
    return found


def _at_least(what: str, domain: str, target: float, got: float | None, by: str = "") -> Verdict:
    return Verdict(
        what=what, domain=domain, target=target, at_most=False, got=None if got is None else round(got, 3), by=by
    )


def _best(row: Figures, names: Sequence[str]) -> tuple[float | None, str]:
    there = [(row[name]["decoder_speed_up"], name) for name in names if name in row]
    return max(there, default=(None, ""))


def _of_domain(shape: str, domain: str, row: Figures) -> list[Verdict]:
    at = 0 if domain.startswith("maintenance") else 1
    found = []
    for what, names, numbers in _DECODER:
        if shape in numbers:
            number = numbers[shape]
            got, by = _best(row, names)
            target = number[at] if isinstance(number, tuple) else number
            found.append(_at_least(what, domain, target, got, by if len(names) > 1 else ""))
    if shape in _DECODER[0][2]:
        got = row["ctc"]["tokens_per_pass"] if "ctc" in row else None
        found.append(_at_least("tokens a pass of ctc, right map", domain, _TOKENS_A_PASS[at], got))
        best, by = _best(row, (*MAPPED, *MAPLESS))
        got = None if best is None or "auto" not in row else row["auto"]["decoder_speed_up"] / best
        found.append(_at_least("auto over the best", domain, _OF_THE_BEST, got, by))
    return found


def _beside(shape: str, found: Figures) -> list[Verdict]:
    made = []
    for domain, row in found.get("domains", {}).items():
        theirs = row.get("faster-whisper")
        if theirs is None:
            continue
        for what, context, numbers in _BESIDE:
            if shape in numbers:
                times = [(one["times_base"], name) for name, one in row.items() if name.endswith(f", {context}")]
                got, by = max(times, default=(None, ""))
                made.append(_at_least(what, domain, numbers[shape], got, by))
        most, by = max((one["peak_mb"], name) for name, one in row.items() if name.endswith(", full"))
        share = round(most / theirs["peak_mb"], 3)
        what = "peak memory over faster-whisper's"
        made.append(Verdict(what=what, domain=domain, target=_MEMORY, at_most=True, got=share, by=by))
    return made


def table(found: Sequence[Verdict]) -> list[list[str]]:
    """Rows to print, the head first."""
    rows = [["target", "on", "wanted", "got", "by", "verdict"]]
    for one in found:
        wanted = f"{'<=' if one.at_most else '>='} {one.target:g}"
        rows.append([one.what, one.domain, wanted, "-" if one.got is None else f"{one.got:g}", one.by, one.word])
    return rows
