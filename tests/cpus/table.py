"""The lane's table: a row for each CPU, and what is wrong there in words.

A CPU passes when everything was done there and is as promised; one that could not be run, or not to its end, does not.
The texts of an x86 CPU from AVX2 on are this machine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cpus.cpu_models import Cpu

__all__ = ["Outcome", "faults", "table"]

HEAD = (
    "CPU",
    "stands for",
    "first probe",
    "rows that differ: demo int8",
    "small int8, int4, fp32",
    "from the exporter",
    "export",
    "drafters equal to none",
    "texts as here",
    "verdict",
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a CPU printed, and why there is no more of it, if so."""

    cpu: Cpu
    steps: list[dict[str, Any]] = field(default_factory=list)
    trouble: str | None = None

    def of(self, step: str) -> list[dict[str, Any]]:
        return [line for line in self.steps if line["step"] == step]

    def texts(self) -> dict[str, str]:
        """Every text, by the name of its recording."""
        return {line["what"]: line["text"] for line in self.of("text")}


def _others(outcome: Outcome, here: Outcome) -> tuple[int, int]:
    """How many texts differ from this machine's, of how many."""
    expected = here.texts()
    both = {name: text for name, text in outcome.texts().items() if name in expected}
    return sum(text != expected[name] for name, text in both.items()), len(both)


def faults(outcome: Outcome, here: Outcome) -> list[str]:
    """What keeps a CPU from passing, one line each."""
    found = [outcome.trouble] if outcome.trouble else []
    found += [f"{line['what']}: rows differ in the first probe" for line in outcome.of("probe") if not line["exact"]]
    for line in outcome.of("doctor"):
        if line["n_differing"]:
            found.append(f"{line['what']}: {_rows(line)} rows differ")
        if not line["agrees"]:
            found.append(f"{line['what']}: {line['golden_difference']:.2g} from the exporting machine")
        if not (line["healthy"] or line["n_differing"]) and line["agrees"]:
            found.append(f"{line['what']}: doctor says {'; '.join(line['problems'])}")
    found += [f"export {line['what']}: {line['message']}" for line in outcome.of("export") if not line["ok"]]
    unequal = [line["what"] for line in outcome.of("drafter") if line["difference"]]
    if unequal:
        found.append(f"{len(unequal)} runs of drafters give another result than none: {'; '.join(unequal)}")
    differing, n_texts = _others(outcome, here)
    if outcome.cpu.same_text and differing:
        found.append(f"{differing} of {n_texts} texts differ from this machine's")
    return found


def _rows(line: dict[str, Any]) -> str:
    return f"{line['n_differing']} of {line['n_compared']}"


def _cells(outcome: Outcome, here: Outcome) -> Iterator[str]:
    cpu, doctor, drafters = outcome.cpu, outcome.of("doctor"), outcome.of("drafter")
    yield f"{cpu.name} ({cpu.how})"
    yield cpu.stands_for
    yield ", ".join("exact" if line["exact"] else "differs" for line in outcome.of("probe"))
    yield ", ".join(_rows(line) for line in doctor if line["what"].startswith("demo"))
    yield ", ".join(_rows(line) for line in doctor if not line["what"].startswith("demo"))
    yield ", ".join(f"{line['golden_difference'] or 0:.2g}" for line in doctor[:1])
    yield ", ".join(f"{line['what']} {'ok' if line['ok'] else 'FAILS'}" for line in outcome.of("export"))
    yield f"{sum(not line['difference'] for line in drafters)} of {len(drafters)}"
    differing, n_texts = _others(outcome, here)
    yield f"{n_texts - differing} of {n_texts}"
    if not outcome.steps:
        yield f"not run: {outcome.trouble}"
    elif outcome.trouble:
        yield f"not finished: {outcome.trouble}"
    else:
        yield "FAILS" if faults(outcome, here) else "passes"


def table(outcomes: Sequence[Outcome], here: Outcome) -> str:
    """The table in Markdown, and under it what is wrong."""
    rows = [[*HEAD], ["---"] * len(HEAD)]
    rows += [[cell or "-" for cell in _cells(outcome, here)] for outcome in outcomes]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    wrong = [f"- {outcome.cpu.name}: {fault}" for outcome in outcomes for fault in faults(outcome, here)]
    return "\n".join([*lines, *([""] if wrong else []), *wrong])
