"""docs/results.md out of kept runs: one command for all of its tables, and for those of docs/papers.md.

    python -m tests.bench.results --keep RESULTS                        # tables of what RESULTS has; nothing is run
    python -m tests.bench.results --keep RESULTS --run shapes,callers --speech SPEECH/dev --small SMALL/bundle
    python -m tests.bench.results --keep RESULTS --run all --speech SPEECH/dev --small SMALL/bundle --large LARGE

Each part is a benchmark of its own. What it printed is kept as NAME.txt below --keep, and read from there the next
time, so a long run can be stopped and goes on where it was; delete a file to measure it again. A table of the page
stands between two marks, with the command, the commit and the load below it. A table whose parts are not all there
stays as it is, and is named.

The part `papers` is `python -m tests.bench.papers`, whose results lie below RESULTS/papers, and whose tables go into
docs/papers.md.

It measures nothing itself, does not touch what is written around the tables, and does not say whether the machine was
quiet: the load does. The last line is JSON: which tables were written and which were kept.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench import papers, result_tables  # noqa: E402
from bench.pages import put  # noqa: E402
from bench.result_tables import Figures, Rows  # noqa: E402
from bench.rounds import BenchError, print_json  # noqa: E402

__all__ = ["PARTS", "TABLES", "Part", "Table", "command_of", "filled", "main", "marks_of", "read"]

PAPERS = "papers"
PLACES = ("DEV", "SMALL", "LARGE", "KEEP")  # words of a command that stand for what the options name


@dataclass(frozen=True, kw_only=True)
class Part:
    """A benchmark: its program in tests/bench, and the arguments, in which a word of PLACES stands for a path.

    ends: the exit codes of a run that came to its end; 1 says that a target was missed or a text differs.
    """

    program: str
    arguments: Sequence[str]
    ends: Sequence[int] = (0, 1)


@dataclass(frozen=True, kw_only=True)
class Table:
    """needs: the parts whose figures `rows` gets, in order; the head comes first."""

    needs: Sequence[str]
    rows: Callable[..., Rows]


PARTS: Mapping[str, Part] = {
    "shapes": Part(
        program="true_shapes",
        arguments=("--shapes", "base,small", "--speech", "DEV", "--limit", "10", "--rounds", "3", "--keep", "KEEP"),
    ),
    "large": Part(
        program="true_shapes",
        arguments=(
            *("--shapes", "large-v2", "--only", "drafters", "--speech", "DEV"),
            *("--limit", "2", "--rounds", "1", "--keep", "KEEP"),
        ),
    ),
    "batched": Part(
        program="peers_batched", arguments=("--shape", "small", "--speech", "DEV", "--limit", "32", "--rounds", "3")
    ),
    "callers": Part(program="callers", arguments=("--speech", "DEV", "--limit", "32", "--rounds", "5")),
    "callers-small": Part(program="callers", arguments=("-m", "SMALL", "--speech", "DEV", "--rounds", "3")),
    "lossless": Part(program="lossless", arguments=("--speech", "DEV")),
    "export_memory": Part(program="export_memory", arguments=("LARGE",)),
    "soak": Part(program="soak", arguments=()),
    "load": Part(program="load", arguments=("SMALL",)),
    "map_lookup": Part(program="map_lookup", arguments=()),
}
TABLES: Mapping[str, Table] = {
    "beside faster-whisper": Table(needs=["shapes"], rows=result_tables.beside),
    "batches": Table(needs=["batched"], rows=result_tables.batched),
    "speed-ups": Table(needs=["shapes"], rows=lambda found: result_tables.speed_ups(found, ("base", "small"))),
    "speed-ups of large-v2": Table(needs=["large"], rows=lambda found: result_tables.speed_ups(found, ("large-v2",))),
    "floor": Table(needs=["shapes"], rows=lambda found: result_tables.floor(found, "small")),
    "callers": Table(needs=["callers"], rows=result_tables.callers),
    "callers of small": Table(needs=["callers-small"], rows=result_tables.callers),
    "same text": Table(needs=["lossless"], rows=result_tables.lossless),
    "memory": Table(needs=["export_memory", "soak", "load", "map_lookup"], rows=result_tables.memory),
}


def marks_of(table: str) -> tuple[str, str]:
    """The lines of the page between which a table stands."""
    return f"<!-- table: {table} -->", f"<!-- end of table: {table} -->"


def read(part: str, keep: Path) -> Figures | None:
    """What a part came to; None where it was not run. Raises BenchError where that is not the JSON of its program."""
    path = keep / f"{part}.txt"
    if not path.is_file():
        return None
    last = next((line for line in reversed(path.read_text(encoding="utf-8").split("\n")) if line.strip()), "")
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    program = PARTS[part].program
    if not isinstance(found, dict) or found.get("benchmark") != program:
        raise BenchError(f"{path}: its last line is not the JSON of {program}; delete it and run that to its end")
    return found


def command_of(part: str, places: Mapping[str, Path | None]) -> list[str]:
    """The command line behind a part. Raises BenchError where a path is needed that was not given."""
    found = [sys.executable, str(ROOT / "tests" / "bench" / f"{PARTS[part].program}.py")]
    for word in PARTS[part].arguments:
        if word not in PLACES:
            found.append(word)
        elif (path := places[word]) is None:
            raise BenchError(f"{part} needs {'--speech' if word == 'DEV' else f'--{word.lower()}'}")
        else:
            found.append(str(path / part) if word == "KEEP" else str(path))
    return found


def run(part: str, places: Mapping[str, Path | None], keep: Path) -> None:
    """Measure a part and keep what it printed. Raises BenchError where it did not come to its end."""
    command = command_of(part, places)
    print(f"running {part}", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in PARTS[part].ends:
        raise BenchError(f"{part} ended with code {done.returncode}; its reason is above")
    keep.mkdir(parents=True, exist_ok=True)
    (keep / f"{part}.txt").write_text(done.stdout, encoding="utf-8")


def _taken(part: str, found: Figures) -> str:
    """How a part was measured: the command as a reader would give it, and the machine's state."""
    words = [word for word in PARTS[part].arguments if word not in ("--keep", "KEEP")]
    machine = found.get("machine", {})
    said = [f"`python {' '.join([f'tests/bench/{PARTS[part].program}.py', *words])}`"]
    said += [
        f"{name} {machine[key]}" for name, key in (("commit", "commit"), ("load", "load_average")) if key in machine
    ]
    if "different" in found:
        said.append(f"{found['different']} texts differ")
    shares = [
        share for one in found.get("shapes", {}).values() for share in one["others"].values() if share is not None
    ]
    if shares:
        said.append(f"other processes had at most {max(shares):.1%} of the CPUs")
    return ", ".join(said)


def filled(table: str, parts: Mapping[str, Figures]) -> str:
    """A table as Markdown, and below it how its parts were measured."""
    head, *rows = TABLES[table].rows(*(parts[name] for name in TABLES[table].needs))
    lines = [head, ["---"] * len(head), *rows]
    taken = "; ".join(_taken(name, parts[name]) for name in TABLES[table].needs)
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in lines), "", f"{taken}."])


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure what was asked for, fill the pages."""
    given = _options(arguments)
    places = {"DEV": given.speech, "SMALL": given.small, "LARGE": given.large, "KEEP": given.keep}
    wanted = [*PARTS, PAPERS] if given.run == "all" else [name for name in given.run.split(",") if name]
    if unknown := [name for name in wanted if name not in (*PARTS, PAPERS)]:
        raise SystemExit(f"results: {unknown[0]!r} is none of {', '.join((*PARTS, PAPERS))}")
    try:
        for part in wanted:
            if part != PAPERS and not (given.keep / f"{part}.txt").is_file():
                run(part, places, given.keep)
        parts = {name: found for name in PARTS if (found := read(name, given.keep)) is not None}
        page = given.page.read_text(encoding="utf-8")
        written = [name for name, table in TABLES.items() if all(part in parts for part in table.needs)]
        for name in written:
            page = put(page, marks_of(name), filled(name, parts))
    except (BenchError, OSError, ValueError) as error:
        raise SystemExit(f"results: {error}") from None
    except KeyError as error:
        raise SystemExit(f"results: a kept run has no {error}: delete it and run that part again") from None
    given.page.write_text(page, encoding="utf-8")
    kept = {name: [part for part in TABLES[name].needs if part not in parts] for name in TABLES if name not in written}
    kept_papers = ["--keep", str(given.keep / PAPERS), "--page", str(given.papers)]
    with contextlib.redirect_stdout(io.StringIO()):  # the tables that it prints are on its page
        if PAPERS in wanted:
            speech = [] if given.speech is None else ["--speech", str(given.speech)]
            heads = [] if given.heads is None else ["--heads", str(given.heads)]
            papers.main([*kept_papers, "--timed", "--shapes", *speech, *heads])
        elif (given.keep / PAPERS).is_dir():
            papers.main([*kept_papers, "--only-results"])
    for name in written:
        print(f"{name}: written")
    for name, missing in kept.items():
        print(f"{name}: as it was, without {', '.join(missing)}")
    print_json("results", written=written, kept=kept)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, required=True, metavar="FOLDER", help="of kept runs, read and added to")
    names = ", ".join((*PARTS, PAPERS))
    parser.add_argument("--run", default="", metavar="PARTS", help=f"with commas, or all: {names}  [none]")
    parser.add_argument("--speech", type=Path, metavar="FOLDER", help="shards of the dev lists")
    parser.add_argument("--small", type=Path, metavar="FOLDER", help="the grown bundle of small's shape")
    parser.add_argument("--large", type=Path, metavar="FOLDER", help="a checkpoint of large-v2's shape")
    parser.add_argument("--heads", type=Path, metavar="FOLDER", help="as of `papers`")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "results.md", help="  [docs/results.md]")
    parser.add_argument("--papers", type=Path, default=ROOT / "docs" / "papers.md", help="  [docs/papers.md]")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
