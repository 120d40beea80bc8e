"""The experiments with drafts of all kinds: each a command, a table, a plot, and a line of JSON.

    python -m tests.bench.experiments e1                      # key length, candidates, merging
    python -m tests.bench.experiments e2                      # least length of several candidates
    python -m tests.bench.experiments e3 --speech FOLDER      # noise: word errors, acceptance, speed-up
    python -m tests.bench.experiments e4                      # texts of another domain
    python -m tests.bench.experiments e5 --draft-model D      # a token map and a draft together, over two domains
    python -m tests.bench.experiments e6 --draft-model D      # a draft of another vocabulary: tokens, runs, words
    python -m tests.bench.experiments e7 --draft-model D      # a draft that learns, over a change of domain
    python -m tests.bench.experiments e8 --draft-model D [--draft-same D]   # a draft of another version, and mistakes
    python -m tests.bench.experiments e9 --draft-model D      # how many tokens a draft model should draft
    python -m tests.bench.experiments e10 --bundle B          # how many heads; chain or tree; one pass or two
    python -m tests.bench.experiments e11 --bundle B          # heads with rules that are not exact: errors, calls
    python -m tests.bench.experiments e12 --bundle B          # beams: exact with drafts, and with heads believed
    python -m tests.bench.experiments e13 --speech FOLDER [--digits FOLDER] --bundle B   # drafts of a CTC head
    python -m tests.bench.experiments e15 --speech FOLDER     # several drafters together, and what they could bring
    python -m tests.bench.experiments e16 --bundle B          # beams of 1 to 5 by the clock
    python -m tests.bench.experiments e17 --draft-model D     # what a draft learns inside its layers, and behind them

Run from the repository's root. e1, e2 and e4 replay lists of export/training/lists and run no model; the others
run it on shards of speech (`python -m specedge.models.recipe.speech dev FOLDER`), else on speech made with espeak-ng.
Prices are those that `specedge calibrate` measured for the bundle on this device, else the built-in table: passes are
not timed, but in e11 and e16; --prices gives others, such as 1:1,2:1.08,8:1.74, and --guess-price what asking heads
costs, which e10 times otherwise. `--plot FILE.svg` writes the plot.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench import (  # noqa: E402
    beam_times,
    cascade_bounds,
    ctc_drafts,
    domain_transfer,
    head_beams,
    head_sweep,
    hybrid_drafts,
    learning_stream,
    lookahead_sweep,
    lossy_sweep,
    noise_sweep,
    row_thresholds,
    token_map_sweep,
    version_mistakes,
    vocabulary_sweep,
)
from bench.draft_runs import DraftRuns  # noqa: E402
from bench.head_runs import HeadRuns  # noqa: E402
from bench.map_texts import Bench, Findings, open_bench  # noqa: E402
from bench.rounds import BenchError, print_json, print_table  # noqa: E402

from specedge.errors import SpecedgeError  # noqa: E402
from specedge.runtime.bench.plots import svg  # noqa: E402
from specedge.runtime.device import CostTable  # noqa: E402

NAMES = ("e1", "e2", "e3", "e4", "e5", "e6", "e7", "e8", "e9", "e10", "e11", "e12", "e13", "e15", "e16", "e17")


def find(name: str, bench: Bench, options: argparse.Namespace) -> Findings:
    """Run one experiment."""
    if name in ("e3", "e15"):
        sweep = noise_sweep.run if name == "e3" else cascade_bounds.run
        return sweep(bench, folder=options.speech, n_utterances=options.utterances, threads=options.threads)
    if name == "e13":
        return ctc_drafts.run(
            bench,
            folder=options.speech,
            digits=options.digits,
            n_utterances=options.utterances,
            threads=options.threads,
        )
    if name in ("e10", "e12"):
        runner = head_sweep.run if name == "e10" else head_beams.run
        return runner(
            HeadRuns(bench, options.threads, options.guess_price),
            folder=options.speech,
            n_utterances=options.utterances,
        )
    if name in ("e11", "e16"):
        timed = lossy_sweep if name == "e11" else beam_times
        return timed.run(
            HeadRuns(bench, options.threads),
            folder=options.speech,
            n_utterances=options.utterances,
            n_rounds=options.rounds,
        )
    if name == "e8":
        runs = DraftRuns(bench, options.draft_model, options.threads, timestamps=True)
        return version_mistakes.run(
            runs, folder=options.speech, n_utterances=options.utterances, same=options.draft_same
        )
    with_drafts = {"e5": hybrid_drafts, "e6": vocabulary_sweep, "e9": lookahead_sweep}
    if name in ("e7", "e17") or name in with_drafts:
        runs = DraftRuns(bench, options.draft_model, options.threads)
        if name == "e17":
            from bench import layer_updates  # here, for torch takes seconds to import

            return layer_updates.run(runs, folder=options.speech, n_utterances=options.utterances)
        if name == "e7":
            return learning_stream.run(
                runs,
                folder=options.speech,
                n_utterances=options.utterances,
                settings=options.settings.split(",") if options.settings else None,
            )
        return with_drafts[name].run(runs, folder=options.speech, n_utterances=options.utterances)
    replayed = {"e1": token_map_sweep, "e2": row_thresholds, "e4": domain_transfer}
    return replayed[name].run(bench)


def cost_table(text: str) -> CostTable:
    """T(k) as the command line has it. Raises ValueError."""
    rows, relative = zip(*(pair.split(":") for pair in text.split(",")), strict=True)
    return CostTable(tuple(map(int, rows)), tuple(map(float, relative)))


def main() -> None:
    """Read the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=NAMES)
    parser.add_argument("--bundle", help="whose vocabulary, prices and (e3) weights count  [the bundled one]")
    parser.add_argument("--threads", type=int, default=2, help="of the calibration, and of e3's model")
    parser.add_argument("--train-lines", type=int, help="of each training list  [all]")
    parser.add_argument("--dev-lines", type=int, help="of each dev list  [all]")
    parser.add_argument("--speech", type=Path, help="folder of dev shards, for all but e1, e2, e4")
    parser.add_argument("--language", default="en", choices=("en", "de"), help="e10: of --speech  [en]")
    parser.add_argument("--digits", type=Path, help="e13: folder of shards of recorded digits")
    parser.add_argument("--utterances", type=int, default=60, help="of each domain; e3: half to make maps")
    parser.add_argument("--rounds", type=int, default=3, help="e11, e16: how often times are taken")
    parser.add_argument("--draft-model", help="e5 to e9, e17: name or folder  [the bundle's own]")
    parser.add_argument("--draft-same", help="e8: a draft of the target's own version, to compare with")
    parser.add_argument("--settings", help="e7: which of them, with commas  [all]")
    parser.add_argument("--prices", type=cost_table, help="of passes by their rows  [measured here, else built in]")
    parser.add_argument("--guess-price", type=float, help="e10: of asking all heads, in passes of one row  [measured]")
    parser.add_argument("--plot", type=Path, help="SVG file to write")
    options = parser.parse_args()
    try:
        with open_bench(
            options.bundle, options.threads, options.train_lines, options.dev_lines, options.prices, options.language
        ) as bench:
            found = find(options.experiment, bench, options)
            costs, prices = bench.costs, bench.prices
            name = bench.bundle.manifest.name
        if options.plot is not None:
            options.plot.write_text(svg(found.panels), encoding="utf-8")
    except (BenchError, SpecedgeError, OSError) as error:
        raise SystemExit(f"experiments: {error}") from None
    table = ", ".join(f"T({k})={cost:.2f}" for k, cost in zip(costs.rows, costs.relative, strict=True))
    print(f"bundle {name}; prices: {prices}: {table}")
    print("cells: speed-up of the decoder (tokens per pass, acceptance)")
    for title, rows in found.tables.items():
        print(f"\n{title}")
        print_table(rows)
    print_json(
        options.experiment,
        bundle=name,
        prices={"from": prices, "rows": costs.rows, "relative": costs.relative},
        figures=found.figures,
    )


if __name__ == "__main__":
    main()
