"""The five papers' published tables beside ours: what matched, what did not, and why.

    python -m tests.bench.papers --speech FOLDER --results FOLDER
    python -m tests.bench.papers --papers token-map,multi-token --results FOLDER --only-results

Ours come from our own experiments (`python -m tests.bench.experiments`, `tests/bench/true_shapes.py`), each a command
of its own. What one printed is kept as NAME.txt below --results and read from there the next time, so that long ones
can be run one by one: `... experiments e7 ... > FOLDER/e7.txt`. Their last line, JSON, is what counts. The published
figures stand in `published`, with the table, the section, or the page of notes ("algorithms") that they are from.

`llm-` experiments run on demo-llm, a speech LLM as in Raj et al.; `many-` and `mwer-` ones on the bundles `many` and
`mwer` of the folder --heads, whose heads are fifteen, and fine-tuned for word errors (docs/papers.md says how they are
made), and without it they are left out. What times passes (`speculate`, e16) is left out unless --timed is given, and
the run at large-v2's shape unless --shapes is: it takes gigabytes and minutes. Both need a machine on which nothing
else runs, as do e10's price of heads and e11's real-time factors; all else is counted. Where the load says that the
machine was busy, what a clock alone answers stays "not run", and real-time factors are left out. --page FILE puts the
tables into a page between its marks, where rows that were not run, and other papers, stay as they are; --agree FILE
holds the verdicts to those of a page, says which differ, and then ends with 1. What was not run, here or there, does
not differ.

A verdict holds one figure to another: ratios within a tenth match, a shape shows or does not. It does not say whether
the set-ups can be compared: that is what the column "why" is for. The tables are Markdown, the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.pages import put  # noqa: E402
from bench.published.claim import NOT_FOUND, NOT_RUN, Claim, Figures, Line, Paper, answered  # noqa: E402
from bench.published.cross_version import CROSS_VERSION  # noqa: E402
from bench.published.multi_token import MULTI_TOKEN  # noqa: E402
from bench.published.omnidraft import OMNIDRAFT  # noqa: E402
from bench.published.token_map import TOKEN_MAP  # noqa: E402
from bench.published.whisper_medusa import WHISPER_MEDUSA  # noqa: E402
from bench.rounds import BenchError, print_json, run_text  # noqa: E402

__all__ = [
    "MARKS",
    "PAPERS",
    "Other",
    "Result",
    "command_of",
    "differing",
    "lines_of",
    "main",
    "markdown",
    "page_of",
    "result_of",
]

PAPERS = {paper.name: paper for paper in (TOKEN_MAP, OMNIDRAFT, CROSS_VERSION, WHISPER_MEDUSA, MULTI_TOKEN)}
TEXT_ALONE = ("e1", "e2", "e4")  # experiments that replay lists and hear nothing
DRAFTS = {
    "e5": "draft_same",
    "e6": "draft_en",
    "e7": "draft_en",
    "e8": "draft_model",
    "e9": "draft_model",
    "e17": "draft_same",
}


class Other(NamedTuple):
    """An experiment on a bundle of its own, a path, of a trained one below --heads; or with other arguments."""

    experiment: str
    bundle: str | None = None
    is_trained: bool = False
    more: Sequence[str] = ()


LAMBDAS = ("no learning", "any time", "n-grams 0", "n-grams dynamic", "n-grams 1")
FIVE = 0.2  # of a pass: what five latent heads take
FIFTEEN = (
    0.46  # of a pass: five latent heads take 0.20 ms beside 0.97 on the quiet demo, fifteen by the bytes they read
)
OTHERS = {
    **{f"llm-{name}": Other(name, "models/bundled/demo-llm") for name in ("e10", "e11", "e12")},
    "lambda-e7": Other("e7", more=("--utterances", "200", "--settings", ",".join(LAMBDAS))),
    "many-e10": Other("e10", "many", is_trained=True, more=("--guess-price", str(FIFTEEN))),
    "many-e12": Other("e12", "many", is_trained=True),
    "mwer-e12": Other("e12", "mwer", is_trained=True),
    **{
        f"{name}-e10": Other("e10", name, is_trained=True, more=("--guess-price", str(FIVE), *more))
        for name, more in (("frozen", ()), ("unfrozen", ()), ("german", ("--language", "de")))
    },
}
TIMED = {"speculate": ("--drafters", "paper,tokenmap"), "e16": ()}
SHAPES = {"large-v2": ("--shapes", "large-v2", "--rounds", "1", "--limit", "4", "--only", "pass,drafters")}
BUSY = 3.0  # the load beyond which others kept a clock from its figures: two threads of ours alone make up to 2.7
CLOCKED = ("decoder_rtf",)  # figures of a clock beside counted ones
MARKS = ("<!-- tables of tests.bench.papers -->", "<!-- end of tables -->")
_FROM = "Ours from "
HEAD = ("heading", "published", "where", "ours", "verdict", "why")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an experiment came to. conditions: bundle, prices and the machine's load, as far as it says them."""

    name: str
    figures: Figures
    conditions: str
    is_busy: bool = False


def result_of(name: str, printed: str, where: str) -> Result:
    """A result from what an experiment printed. Raises BenchError where the last line is not that experiment's JSON."""
    last = next((line for line in reversed(printed.split("\n")) if line.strip()), "")
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    expected = "true_shapes" if name in SHAPES else OTHERS[name].experiment if name in OTHERS else name
    if not isinstance(found, dict) or found.get("benchmark") != expected:
        raise BenchError(f"{where}: its last line is not the JSON of {expected}; delete it and run that to its end")
    bundle = found.get("bundle", found.get("model"))
    parts = [] if bundle is None else [f"bundle {bundle}"]
    if "prices" in found:
        parts.append(f"prices: {found['prices']['from']}")
    load = found.get("machine", {}).get("load_average")
    parts.append(f"load {load}")
    figures = found.get("figures", found)
    heard = {row["utterances"] for row in figures.values() if isinstance(row, Mapping) and "utterances" in row}
    parts += [f"{n} utterances of each list" for n in sorted(heard)]
    is_busy = load is not None and load > BUSY
    kept = _counted(figures) if is_busy else figures
    return Result(name=name, figures=kept, conditions=", ".join(parts), is_busy=is_busy)


def _counted(figures: Any) -> Any:
    """Figures, and those in them, without what a clock gave."""
    if not isinstance(figures, Mapping):
        return figures
    return {name: _counted(value) for name, value in figures.items() if name not in CLOCKED}


def command_of(name: str, options: argparse.Namespace) -> list[str]:
    """The command that a result is had by."""
    threads = ["--threads", str(options.threads)]
    if name in SHAPES:
        return [sys.executable, str(ROOT / "tests" / "bench" / "true_shapes.py"), *SHAPES[name], *threads]
    if name == "speculate":
        command = [sys.executable, str(ROOT / "tests" / "bench" / "speculate.py"), *TIMED[name], *threads]
        command += [] if options.bundle is None else ["--model", options.bundle]
        return command + ["--limit", str(options.limit), *(["--speech", str(options.speech)] if options.speech else [])]
    other = OTHERS.get(name, Other(name, options.bundle))
    command = [sys.executable, "-m", "tests.bench.experiments", other.experiment, *threads]
    if other.bundle is not None:
        command += ["--bundle", str(options.heads / other.bundle) if other.is_trained else other.bundle]
    if name not in TEXT_ALONE:
        command += ["--utterances", str(options.limit)]
        command += [] if options.speech is None else ["--speech", str(options.speech)]
    elif options.lines is not None:
        command += ["--dev-lines", str(options.lines), "--train-lines", str(options.lines)]
    if other.experiment in DRAFTS:
        command += ["--draft-model", getattr(options, DRAFTS[other.experiment])]
    command += ["--draft-same", options.draft_same] if name == "e8" else []
    return [*command, *other.more]


def had(name: str, options: argparse.Namespace) -> Result | None:
    """A result: read where it is kept, else run; None where it is neither."""
    kept = None if options.results is None else options.results / f"{name}.txt"
    if kept is not None and kept.is_file():
        return result_of(name, kept.read_text(encoding="utf-8"), str(kept))
    is_left_out = (name in SHAPES and not options.shapes) or (name in TIMED and not options.timed)
    if options.only_results or is_left_out or (name in OTHERS and OTHERS[name].is_trained and options.heads is None):
        return None
    print(f"running {name}", file=sys.stderr)
    printed = run_text(command_of(name, options), env={})
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(printed, encoding="utf-8")
    return result_of(name, printed, f"what {name} printed")


def lines_of(paper: Paper, results: Mapping[str, Result]) -> list[Line]:
    """All claims of a paper, answered; those by a clock only from a machine that was not busy."""

    def figures(claim: Claim) -> dict[str, Figures]:
        return {name: one.figures for name, one in results.items() if not (claim.timed and one.is_busy)}

    return [answered(claim, figures(claim)) for claim in paper.claims]


def markdown(
    paper: Paper, lines: Sequence[Line], results: Mapping[str, Result], kept: Mapping[str, str] | None = None
) -> str:
    """A paper's table, its set-up above it, and below it under which conditions ours were taken; `kept` has those of
    results that are not among these."""
    rows = [HEAD, ("---",) * len(HEAD)]
    rows += [(line.what, line.published, line.where, line.ours, line.verdict, line.why) for line in lines]
    table = ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    conditions = dict(kept or {}) | {name: result.conditions for name, result in results.items()}
    used = sorted({name for claim in paper.claims for name in claim.needs if name in conditions})
    taken = "; ".join(f"{name}: {conditions[name]}" for name in used) or "nothing was run"
    return "\n".join([f"## {paper.title}", "", paper.setting, "", *table, "", f"{_FROM}{taken}."])


class Page(NamedTuple):
    """What a page has: our answer, the verdict and why, by title and heading; conditions of results, by title."""

    rows: Mapping[tuple[str, str], tuple[str, str, str]]
    conditions: Mapping[str, Mapping[str, str]]


def page_of(text: str) -> Page:
    """The tables in a page, as far as it has any."""
    rows: dict[tuple[str, str], tuple[str, str, str]] = {}
    conditions: dict[str, dict[str, str]] = {}
    title, at = "", HEAD.index("ours") + 1
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split("|")]
        if line.startswith("## "):
            title = line.removeprefix("## ")
        elif len(cells) == len(HEAD) + 2 and cells[1] != HEAD[0] and set(cells[1]) != {"-"}:
            rows[title, cells[1]] = (cells[at], cells[at + 1], cells[at + 2])
        elif line.startswith(_FROM):
            pairs = (part.partition(": ") for part in line.removeprefix(_FROM).removesuffix(".").split("; "))
            conditions[title] = {name: said for name, colon, said in pairs if colon}
    return Page(rows, conditions)


def _as_it_was(title: str, line: Line, page: Page) -> Line:
    """A line that was not run as the page has it."""
    if line.verdict != NOT_RUN or (title, line.what) not in page.rows:
        return line
    ours, verdict, why = page.rows[title, line.what]
    return replace(line, ours=ours, verdict=verdict, why=why)


def differing(page: Page, title: str, lines: Sequence[Line]) -> list[str]:
    """What became of verdicts that changed, a line each; rows that are on one side alone, or not run, are none."""
    pairs = [(line, page.rows[title, line.what][1]) for line in lines if (title, line.what) in page.rows]
    return [
        f"{title}: {line.what}: {before}, now {line.verdict}"
        for line, before in pairs
        if before != line.verdict and not {before, line.verdict} & {NOT_RUN, NOT_FOUND}
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, have the results, print. Raises SystemExit, with 1 where verdicts differ."""
    options = _options(arguments)
    try:
        wanted = [PAPERS[name] for name in options.papers.split(",")]
    except KeyError as error:
        raise SystemExit(f"papers: {error.args[0]!r} is none of {', '.join(PAPERS)}") from None
    needed = dict.fromkeys(name for paper in wanted for claim in paper.claims for name in claim.needs)
    try:
        found = {name: had(name, options) for name in needed}
    except (BenchError, OSError) as error:
        raise SystemExit(f"papers: {error}") from None
    results = {name: result for name, result in found.items() if result is not None}
    tables: dict[str, Any] = {}
    printed, changed = [], []
    try:
        page = page_of("" if options.page is None else options.page.read_text(encoding="utf-8"))
        there = page_of("" if options.agree is None else options.agree.read_text(encoding="utf-8"))
        for paper in PAPERS.values():
            ours = results if paper in wanted else {}
            if paper not in wanted and all(title != paper.title for title, _ in page.rows):
                continue
            lines = lines_of(paper, ours)
            changed += differing(there, paper.title, lines)
            lines = [_as_it_was(paper.title, line, page) for line in lines]
            printed.append(markdown(paper, lines, ours, page.conditions.get(paper.title)))
            tables[paper.name] = [asdict(line) for line in lines]
        verdicts = [line["verdict"] for lines in tables.values() for line in lines]
        counts = {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
        printed.append(", ".join(f"{n} {verdict}" for verdict, n in counts.items()))
        print(*printed, *changed, sep="\n\n")
        if options.page is not None:
            whole = put(options.page.read_text(encoding="utf-8"), MARKS, "\n\n".join(printed))
            options.page.write_text(whole, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SystemExit(f"papers: {error}") from None
    print_json("papers", verdicts=counts, papers=tables, differing=changed)
    if changed:
        raise SystemExit(1)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", default=",".join(PAPERS), help=f"with commas, of {', '.join(PAPERS)}  [all]")
    parser.add_argument(
        "--results", "--keep", type=Path, help="folder of NAME.txt, read where there, written where not: to go on later"
    )
    parser.add_argument("--only-results", action="store_true", help="run nothing")
    parser.add_argument("--timed", action="store_true", help=f"also run what times passes: {', '.join(TIMED)}")
    parser.add_argument("--page", type=Path, help="file to put the tables into, such as docs/papers.md")
    parser.add_argument("--agree", type=Path, help="page, such as docs/papers.md, whose verdicts are to be the same")
    parser.add_argument("--shapes", action="store_true", help="also run the demo grown to large-v2")
    parser.add_argument("--bundle", help="as of `experiments`  [the bundled one]")
    parser.add_argument("--heads", type=Path, help="folder with the bundles `many` and `mwer`")
    parser.add_argument("--speech", type=Path, help="folder of dev shards, as of `experiments`")
    parser.add_argument("--limit", type=int, default=60, help="utterances of each domain")
    parser.add_argument("--lines", type=int, help="of each list, where texts alone are replayed  [all]")
    parser.add_argument("--draft-model", default="demo-draft", help="a draft of another version")
    parser.add_argument("--draft-same", default="demo-draft-same", help="a draft of the bundle's own version")
    parser.add_argument("--draft-en", default="demo-draft-en", help="a draft of another vocabulary")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
