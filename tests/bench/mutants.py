"""Mutation run: one change at a time to the modules of the papers' methods, and whether their tests see it.

    python tests/bench/mutants.py                                   # 10 minutes, over all modules
    python tests/bench/mutants.py --minutes 60 --keep FILE          # goes on where FILE ends
    python tests/bench/mutants.py --only accept,lookahead --minutes 5 --slow

`mutations.py` says what is changed, `mutant_runs.py` how tests are run on it: without writing any file, and for a
change inside a function only those tests that come through its statement. mutmut and cosmic-ray change files in place
or in copies, and so need the installed layout to be the source's, which it is not here.

Each module gets time by how many of its mutants are left, and they are run in an order drawn by --seed, so what there
was time for is a sample. --keep keeps what was found as lines of JSON; mutants of an older source are run again, and so
are survivors where the tests have changed, before all others. A killed one counts as killed by the tests of today too:
remove the file when tests were removed.

Score: killed mutants over all that were run. Where not all were, it is an estimate: the modules' shares weighed by
their numbers of mutants, with an interval of 95 %, in which a module has one killed and one survivor more than were
seen. `mutants_survived.json` says why a survivor may live: by module, then by "function: before -> after". All others
are printed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.mutant_runs import MutantTests, TestsFail  # noqa: E402
from bench.mutations import Mutant, mutants_of  # noqa: E402
from bench.rounds import print_json, print_table  # noqa: E402

__all__ = ["CLAIMS", "Count", "estimate", "main"]

_DECODING, _DRAFTERS, _DRAFT = "tests/runtime/decoding", "tests/runtime/drafters", "tests/runtime/drafters/draft"
_EQUATIONS = f"{_DRAFTERS}/test_published_equations.py"
CLAIMS = {
    "accept": ("runtime/decoding/accept.py", _EQUATIONS, f"{_DECODING}/test_accept.py",
               f"{_DRAFT}/test_drawn_drafts.py"),
    "adapter": ("runtime/papers/adapter.py", _EQUATIONS, f"{_DRAFT}/test_adapter.py",
                f"{_DRAFT}/test_factor_file.py"),
    "lookahead": ("runtime/drafters/draft/lookahead.py", _EQUATIONS, f"{_DRAFT}/test_lookahead.py",
                  f"{_DRAFT}/test_head.py"),
    "tokenmap": ("runtime/drafters/tokenmap.py", f"{_DRAFTERS}/test_tokenmap.py", f"{_DRAFTERS}/test_by_name.py"),
    "translate": ("runtime/drafters/draft/translate.py", f"{_DRAFT}/test_translation_by_definition.py",
                  f"{_DRAFT}/test_across_words.py",
                  f"{_DRAFT}/test_drawn_drafts.py", f"{_DRAFTERS}/test_published_mistakes.py",
                  f"{_DRAFT}/test_lessons.py", "tests/maps/test_word_cache.py"),
    "heads": ("runtime/papers/heads.py", f"{_DRAFTERS}/test_head_tree.py", f"{_DRAFTERS}/test_heads.py",
              f"{_DECODING}/test_grouped_beam.py"),
    "beam": ("runtime/decoding/beam.py", f"{_DECODING}/test_beam_by_definition.py",
             f"{_DECODING}/test_grouped_beam.py", f"{_DECODING}/test_beam.py"),
    "build": ("maps/build.py", _EQUATIONS, "tests/maps/test_map_by_definition.py", "tests/maps/test_token_map.py",
              "tests/maps/test_merge.py", "tests/maps/test_numbered_maps.py"),
}  # fmt: skip
"""Name -> the module's file, then the tests that claim it."""

_SURVIVED = Path(__file__).with_name("mutants_survived.json")
_LANES = ("-m", "not stress and not network and not cpus and not programs and not browser")
_SURE = 1.96  # standard deviations of an interval of 95 %


@dataclass(frozen=True)
class Count:
    """Of a module: all its mutants, those that were run, and the killed among them."""

    mutants: int
    run: int
    killed: int


def estimate(counts: Sequence[Count]) -> tuple[float, float, float] | None:
    """The share of all mutants that the tests kill, and its interval of 95 %; None where a module had no mutant run."""
    if any(one.mutants and not one.run for one in counts):
        return None
    n_all = sum(one.mutants for one in counts)
    share = variance = 0.0
    for one in counts:
        if not one.mutants:
            continue
        weight, cautious = one.mutants / n_all, (one.killed + 1) / (one.run + 2)
        share += weight * one.killed / one.run
        variance += weight**2 * cautious * (1 - cautious) / one.run * (1 - one.run / one.mutants)
    around = _SURE * math.sqrt(variance)
    return share, max(0.0, share - around), min(1.0, share + around)


def states_of(module: str) -> tuple[str, str]:
    """What a result holds for: a hash of the module, and one of the tests that claim it."""
    file, *tests = [(ROOT / name).read_bytes() for name in CLAIMS[module]]
    return hashlib.sha256(file).hexdigest()[:16], hashlib.sha256(b"".join(tests)).hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, run what there is time for, print."""
    options = _options(arguments)
    os.chdir(ROOT)
    names = options.only.split(",")
    if unknown := [name for name in names if name not in CLAIMS]:
        raise SystemExit(f"mutants: {unknown[0]!r} is none of {', '.join(CLAIMS)}")
    _load()
    mutants = {name: mutants_of(name, (ROOT / CLAIMS[name][0]).read_text(encoding="utf-8")) for name in names}
    kept, again = {}, {}
    for name in names:
        kept[name], again[name] = _kept(options.keep, name)
    left = {name: [one for one in mutants[name] if one.name not in kept[name].keys() - again[name]] for name in names}
    deadline = time.monotonic() + 60 * options.minutes
    for at, name in enumerate(names):
        n_left = sum(len(left[other]) for other in names[at:])
        share_s = (deadline - time.monotonic()) * len(left[name]) / max(n_left, 1)
        if share_s > 0:
            drawn = random.Random(f"{options.seed} {name}").sample(left[name], len(left[name]))
            drawn.sort(key=lambda mutant: mutant.name not in again[name])
            _run(name, mutants[name], drawn, kept[name], time.monotonic() + share_s, options)
    _report(mutants, kept)


def _run(
    name: str,
    mutants: Sequence[Mutant],
    drawn: Sequence[Mutant],
    kept: dict[str, bool],
    deadline: float,
    options: argparse.Namespace,
) -> None:
    """Run a module's mutants until the deadline, into `kept`. Ends the program where the tests fail as they are."""
    file, *tests = CLAIMS[name]
    of, by = states_of(name)
    try:
        with MutantTests(ROOT / file, [*(_LANES if options.slow else ()), *tests], mutants) as running:
            for mutant in drawn:
                if time.monotonic() > deadline:
                    break
                kept[mutant.name] = running.kill(mutant)
                if options.keep is not None:
                    line = {"module": name, "name": mutant.name, "killed": kept[mutant.name], "of": of, "by": by}
                    with options.keep.open("a", encoding="utf-8") as out:
                        print(json.dumps(line), file=out)
    except TestsFail:
        raise SystemExit(f"mutants: {name}: its tests fail, or take 15 minutes, without any change") from None


def _load() -> None:
    """Import what takes long, once for all mutants; nothing of specedge that may be changed."""
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import onnxruntime  # noqa: F401
    import pytest  # noqa: F401

    for name in [name for name in sys.modules if name.split(".")[0] in ("specedge", "support", "bench")]:
        del sys.modules[name]


def _kept(path: Path | None, module: str) -> tuple[dict[str, bool], set[str]]:
    """Whether each mutant of earlier runs was killed, and the survivors that the tests of today were not run on."""
    if path is None or not path.is_file():
        return {}, set()
    of, by = states_of(module)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    mine = {line["name"]: line for line in lines if line["module"] == module and line["of"] == of}
    again = {name for name, line in mine.items() if not line["killed"] and line["by"] != by}
    return {name: line["killed"] for name, line in mine.items()}, again


def _report(mutants: Mapping[str, Sequence[Mutant]], killed: Mapping[str, Mapping[str, bool]]) -> None:
    argued = json.loads(_SURVIVED.read_text(encoding="utf-8"))
    rows = [["module", "mutants", "run", "killed", "argued", "others"]]
    modules: dict[str, Any] = {}
    counts = []
    for module, of_one in mutants.items():
        run = [mutant for mutant in of_one if mutant.name in killed[module]]
        alive = [mutant for mutant in run if not killed[module][mutant.name]]
        others = [mutant for mutant in alive if mutant.name not in argued.get(module, {})]
        count = Count(len(of_one), len(run), len(run) - len(alive))
        counts.append(count)
        n_argued = len(alive) - len(others)
        rows.append([module, *map(str, (count.mutants, count.run, count.killed, n_argued, len(others)))])
        modules[module] = {
            **vars(count),
            "argued": n_argued,
            "others": [f"{CLAIMS[module][0]}:{mutant.line} {mutant.name}" for mutant in others],
        }
    print_table(rows)
    for found in modules.values():
        print(*found["others"], sep="\n")
    n_all, n_run, n_killed = (sum(getattr(one, what) for one in counts) for what in ("mutants", "run", "killed"))
    found = estimate(counts)
    score = n_killed / n_run if n_run else None
    print(f"killed {n_killed} of {n_run}" + ("" if score is None else f", {score:.1%}"), end="")
    if n_run == n_all:
        print(": all there are")
    elif found is None:
        print(f" of {n_all}: no estimate, a module had none run")
    else:
        print(f", a sample of {n_all}: estimate {found[0]:.1%}, between {found[1]:.1%} and {found[2]:.1%} (95 %)")
    print_json("mutants", score=score, mutants=n_all, run=n_run, killed=n_killed, estimate=found, modules=modules)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", default=",".join(CLAIMS), help=f"with commas, of {', '.join(CLAIMS)}  [all]")
    parser.add_argument("--slow", action="store_true", help="run the tests marked slow too")
    parser.add_argument("--keep", type=Path, help="file of results, read and added to")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
