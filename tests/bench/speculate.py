"""How much faster the decoder is with each drafter than without one, on real speech, and what that is end to end.

    python tests/bench/speculate.py [FILE...] [--speech FOLDER...] [--made silence,noise] [--unrelated FILE...]
                                    [--token-map X.tmap] [--texts FILE] [--limit 16] [--rounds 3] [--threads 2]

Domains are the shards of spoken utterances in each FOLDER (those whose names begin with one of --domains), each FILE
(without either the bundled samples), the unrelated files, and made sounds of 2 to 8 seconds. Maps are given, built
here of --texts, or else of the training lists alone: a domain with a list of its own gets that one, others get all.
Every utterance is transcribed by all drafters one after another, in an order that turns with each utterance, and all of
it again in each round, so that a slow moment of the machine touches all alike. A figure is the ratio of the times of
`none` to the drafter's (decoder and drafting together) over a round: the median of the rounds, with the least and the
greatest. "end to end" has the encoder in it. Texts are compared too.

It does not measure accuracy, loading, or a busy machine: nothing else may run. The last line of output is JSON; the
exit code is 1 when a text differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.rounds import print_json  # noqa: E402

from specedge.export.training.corpus import RATE_HZ, list_lines, load_shards  # noqa: E402
from specedge.maps.build import build  # noqa: E402
from specedge.maps.tmap_format import text_fingerprint  # noqa: E402
from specedge.models import store  # noqa: E402
from specedge.runtime.bench.rounds import Heard, Rounds, hear, measure_rounds  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.bundle.manifest import CTC_GRAPH  # noqa: E402
from specedge.runtime.decoding.drafter import (  # noqa: E402
    Drafter,
    TargetModel,  # noqa: E402
)
from specedge.runtime.device import (  # noqa: E402
    load_profile,  # noqa: E402
)
from specedge.runtime.drafters.ctc.drafter import open_ctc  # noqa: E402
from specedge.runtime.drafters.registry import (  # noqa: E402
    costs_here,
    make_drafter,
)
from specedge.runtime.engine.engine import Engine  # noqa: E402
from specedge.runtime.engine.speech import open_engine  # noqa: E402
from specedge.runtime.options import (  # noqa: E402
    READS_MAPS,  # noqa: E402
    DrafterOptions,  # noqa: E402
    TranscribeOptions,  # noqa: E402
)
from specedge.runtime.text.transcripts import token_sentences  # noqa: E402
from support.noise import SAMPLES, noise  # noqa: E402

LISTS = ("maintenance", "notes")
FLOOR = 0.95  # of the ratio on unrelated audio
DRAFTERS = ("none", "tokenmap", "paper", "ngram")
HEARING = ("ctc", "ctc alone")  # for bundles with a CTC head
MADE = ("silence", "noise")
COLORS = ("white", "pink", "brown")


@dataclass
class Domain:
    """Audio of one kind: sounds or files, and the maps for it."""

    name: str
    sources: list[Any]
    maps: list[Path]


def figures_of(rounds: Rounds[Any], drafter: str) -> dict[str, Any]:
    """The figures of one drafter."""
    counted = rounds.sums[0][drafter].counted
    speed_up = rounds.speed_up(drafter, lambda sums: sums.decoder_s)
    drafting = rounds.spread(drafter, lambda sums: sums.counted.draft_s / sums.decoder_s)
    return {
        "decoder_speed_up": round(speed_up.median, 3),
        "least": round(speed_up.least, 3),
        "greatest": round(speed_up.greatest, 3),
        "tokens_per_pass": round(counted.tokens_per_pass or 0, 3),
        "acceptance": round(counted.acceptance_rate or 0, 3),
        "end_to_end": round(rounds.speed_up(drafter, lambda sums: sums.total_s).median, 3),
        "encoder_share": round(rounds.spread("none", lambda sums: sums.encoder_s / sums.total_s).median, 3),
        "tokens": counted.tokens,
        "draft_share": round(drafting.median, 4),
    }


def made(drafter: str, bundle: Bundle, domain: Domain, threads: int) -> Drafter:
    """A drafter of this name for a domain; "paper" is tokenmap with the paper's settings, "ctc alone" has no maps.

    "draft=NAME" is draft with that model.
    """
    if drafter == "ctc alone":
        return open_ctc(bundle, [], costs_here(bundle, threads), threads=threads, caches=False)
    preset = "paper" if drafter == "paper" else "default"
    drafter, _, model = drafter.partition("=")
    maps = domain.maps if drafter in (*READS_MAPS, "paper") else []
    name = "tokenmap" if drafter == "paper" else drafter
    options = DrafterOptions(name, token_maps=maps, map_preset=preset, draft_model=model or None)
    return make_drafter(options, TargetModel(bundle, threads=threads))


def measure(
    engine: Engine,
    bundle: Bundle,
    domain: Domain,
    drafters: Sequence[str],
    n_rounds: int,
    options: TranscribeOptions,
) -> Rounds[Any]:
    """All rounds of a domain. Drafters begin anew in each round and live through it, as over several files."""

    def begin(round_: int, names: Sequence[str]) -> dict[str, Drafter]:
        print(f"{domain.name}: round {round_ + 1} of {n_rounds}", file=sys.stderr, flush=True)
        return {name: made(name, bundle, domain, engine.threads) for name in names}

    def listen(drafter: Drafter, source: Any, round_: int) -> Heard:
        return hear(engine, bundle, source, options, drafter)

    rounds = measure_rounds(drafters, domain.sources, n_rounds, begin=begin, listen=listen)
    for name, error in rounds.dropped.items():
        sys.exit(f"{domain.name}: the drafter {name} was dropped: {error}")
    return rounds


def map_of(lines: Sequence[str], bundle: Bundle, path: Path) -> Path:
    """A token map of sentences for this model, written to `path`."""
    tokenizer = bundle.tokenizer
    fingerprint = text_fingerprint(tokenizer.ranks, tokenizer.special.eot)
    build(token_sentences(lines, tokenizer), path, n_text=tokenizer.special.eot, fingerprint=fingerprint)
    return path


def domains(given: argparse.Namespace, bundle: Bundle, folder: Path) -> list[Domain]:
    """What there is to transcribe, with its maps."""
    own: dict[str, Path] = {}
    given_maps = list(given.token_map or [])
    if given.texts:
        given_maps.append(map_of(list_lines(str(given.texts)), bundle, folder / "texts.tmap"))
    if not given_maps:
        own = {name: map_of(list_lines(f"{name}.train"), bundle, folder / f"{name}.tmap") for name in LISTS}

    def maps(name: str) -> list[Path]:
        return given_maps or [path for list_, path in own.items() if list_ in name] or list(own.values())

    found = []
    for shards in given.speech:
        for name, utterances in load_shards(shards):
            if name.startswith(tuple(given.domains.split(","))):
                # Spread over the shard, for voices lie one after another in it.
                step = max(1, len(utterances) // given.limit)
                found.append(Domain(name, [one.sound() for one in utterances[::step]][: given.limit], maps(name)))
    for path in given.files or ([] if given.speech or given.made else SAMPLES):
        found.append(Domain(Path(path).name, [path], maps(Path(path).name)))
    if given.unrelated:
        found.append(Domain("unrelated", given.unrelated, maps("unrelated")))
    for name in given.made.split(",") if given.made else ():
        found.append(Domain(name, made_sounds(name, given.limit), maps(name)))
    return found


def made_sounds(name: str, n: int) -> list[Any]:
    """Sounds in which nobody speaks, of lengths as utterances have them. Exits for a name that is none."""
    if name not in MADE:
        sys.exit(f"--made: got {name!r}, expected {' or '.join(MADE)}")
    lengths = np.random.default_rng(0).integers(2 * RATE_HZ, 8 * RATE_HZ, n)
    if name == "silence":
        return [np.zeros(length, np.float32) for length in lengths]
    return [noise(length, rms=0.05, color=COLORS[i % len(COLORS)], seed=i) for i, length in enumerate(lengths)]


def report(title: str, found: Mapping[str, Rounds[Any]], drafters: Sequence[str]) -> dict[str, Any]:
    """Print a table by domain; the same figures for the last line."""
    rows = {
        domain: {name: figures_of(one, name) for name in drafters if name != "none"} for domain, one in found.items()
    }
    columns = next(iter(next(iter(rows.values())).values()))
    print(f"\n{title}")
    print(f"{'domain':20} {'drafter':10}" + "".join(f"{column:>17}" for column in columns))
    for domain, by_drafter in rows.items():
        for name, row in by_drafter.items():
            print(f"{domain:20} {name:10}" + "".join(f"{value:>17}" for value in row.values()))
    return rows


def _arguments() -> argparse.Namespace:
    lines = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(
        description="\n\n".join([lines[0], *lines[2:]]), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="audio of the maps' domain")
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--speech", type=Path, nargs="+", default=[], metavar="FOLDER", help="spoken utterances")
    parser.add_argument("--domains", default="maintenance-dev,notes-dev,digits-dev", help="which shards, with commas")
    parser.add_argument("--made", metavar="KINDS", help=f"sounds without speech, of {', '.join(MADE)}, with commas")
    parser.add_argument("--unrelated", nargs="+", default=[], metavar="FILE", help="audio that no map knows")
    parser.add_argument("--token-map", type=Path, action="append", metavar="FILE")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="sentences, one a line, of which a map is built")
    parser.add_argument("--drafters", help="with commas; none is always there  [default: all that the bundle can]")
    parser.add_argument("--limit", type=int, default=16, help="utterances of a shard")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-timestamps", action="store_true")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    bundle = Bundle.open(store.find(given.model))
    usual = (*DRAFTERS, *HEARING) if CTC_GRAPH in bundle.manifest.graphs else DRAFTERS
    drafters = tuple(dict.fromkeys(["none", *(given.drafters.split(",") if given.drafters else usual)]))
    engine = open_engine(bundle, threads=given.threads)
    options = TranscribeOptions(language="en", without_timestamps=given.without_timestamps)
    figures: dict[str, Any] = {
        "model": bundle.manifest.name,
        "threads": given.threads,
        "calibrated": load_profile(bundle.digest, given.threads) is not None,
    }
    with tempfile.TemporaryDirectory(prefix="specedge-speculate-") as folder:
        wanted = domains(given, bundle, Path(folder))
        if not wanted or not all(domain.sources for domain in wanted):
            sys.exit("there is no audio to transcribe: give files, or --speech with shards named in --domains")
        found = {domain.name: measure(engine, bundle, domain, drafters, given.rounds, options) for domain in wanted}
    figures["domains"] = report(f"{bundle.manifest.name}, {given.threads} threads", found, drafters)
    figures["different"] = sum(sum(one.different.values()) for one in found.values())
    slow = [
        name for name, row in figures["domains"].get("unrelated", {}).items()
        if name != "paper" and row["decoder_speed_up"] < FLOOR
    ]  # fmt: skip
    figures["below_floor_on_unrelated"] = slow
    print(f"\n{figures['different']} texts differ; slower than {FLOOR} on unrelated audio: {', '.join(slow) or 'none'}")
    print_json("speculate", **figures)
    return 1 if figures["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
