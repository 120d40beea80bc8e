"""How much faster the decoder is with each drafter than without one, on real speech, and what that is end to end.

    python tests/bench/speculate.py [FILE...] [--speech FOLDER] [--token-map X.tmap] [--unrelated FILE...]
                                    [--limit 16] [--rounds 3] [--threads 2] [--random base]

Domains are the shards of spoken utterances in FOLDER (those named in --domains), each FILE (without either the bundled
samples), and the unrelated files. Maps are given, or built here from the training lists alone: a domain with a list of
its own gets that one, others get all. Every utterance is transcribed by all drafters one after another, in an order
that turns with each utterance, and all of it again in each round, so that a slow moment of the machine touches all
alike. A figure is the ratio of the times of `none` to the drafter's (decoder and drafting together) over a round: the
median of the rounds, with the least and the greatest. "end to end" has the encoder in it. Texts are compared too.

`--random SIZE` plays the passes recorded here on a model of that true shape with random weights (support/replayed.py);
the time of drafting in its figures is the one recorded.

It does not measure accuracy, loading, or a busy machine: nothing else may run. The last line of output is JSON; the
exit code is 1 when a text differs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from specedge.export.cli import export_to  # noqa: E402
from specedge.export.training.corpus import list_lines, load_shards  # noqa: E402
from specedge.maps.build import build  # noqa: E402
from specedge.maps.tmap_format import text_fingerprint  # noqa: E402
from specedge.maps.token_map import TokenMap  # noqa: E402
from specedge.models import store  # noqa: E402
from specedge.runtime.bench.rounds import (  # noqa: E402
    WARM_UP,
    Heard,
    Rounds,
    Sums,
    hear,
    measure_rounds,
    turned,
)
from specedge.runtime.bundles.bundle import Bundle  # noqa: E402
from specedge.runtime.bundles.manifest import CTC_GRAPH  # noqa: E402
from specedge.runtime.decoding.calibrate import load_profile  # noqa: E402
from specedge.runtime.drafters import Drafter  # noqa: E402
from specedge.runtime.drafters.by_name import DrafterOptions, costs_here, make_drafter  # noqa: E402
from specedge.runtime.drafters.open_ctc import open_ctc  # noqa: E402
from specedge.runtime.longform.options import TranscribeOptions  # noqa: E402
from specedge.runtime.passes.engine import Engine  # noqa: E402
from specedge.runtime.transcripts import token_sentences  # noqa: E402
from support.checkpoints import make_checkpoint  # noqa: E402
from support.exported import noise_mel  # noqa: E402
from support.noise import SAMPLES  # noqa: E402
from support.replayed import Watcher, Window, play  # noqa: E402

LISTS = ("maintenance", "notes")
FLOOR = 0.95  # of the ratio on unrelated audio
DRAFTERS = ("none", "tokenmap", "paper", "ngram")
HEARING = ("ctc", "ctc alone")  # for bundles with a CTC head


@dataclass
class Domain:
    """Audio of one kind: sounds or files, and the maps for it."""

    name: str
    sources: list[Any]
    maps: list[Path]


@dataclass
class Found:
    """A domain's rounds, and the passes of the first one."""

    rounds: Rounds[Any]
    windows: dict[str, list[Window]] = field(default_factory=dict)

    @property
    def different(self) -> int:
        return sum(self.rounds.different.values())

    def row(self, drafter: str) -> dict[str, Any]:
        """The figures of one drafter."""
        rounds = self.rounds
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

    "ctc always" searches every window, as it would beside a large model: the one to record for `--random`.
    """
    if drafter == "ctc alone":
        return open_ctc(bundle, [], costs_here(bundle, threads), caches=False)
    if drafter == "ctc always":
        maps = [TokenMap.open(path) for path in domain.maps]
        return open_ctc(bundle, maps, costs_here(bundle, threads), weighs=False)
    maps = domain.maps if drafter in ("tokenmap", "paper", "ctc") else []
    preset = "paper" if drafter == "paper" else "default"
    options = DrafterOptions(threads=threads, token_maps=maps, map_preset=preset)
    return make_drafter("tokenmap" if drafter == "paper" else drafter, bundle, options)


def measure(engine: Engine, bundle: Bundle, domain: Domain, drafters: Sequence[str], n_rounds: int) -> Found:
    """All rounds of a domain. Drafters begin anew in each round and live through it, as over several files.

    The first one writes the passes down and is not timed.
    """
    watchers: dict[str, Watcher] = {}

    def begin(round_: int) -> dict[str, Drafter]:
        asked: dict[str, Drafter] = {name: made(name, bundle, domain, engine.threads) for name in drafters}
        if round_ == WARM_UP:
            watchers.update({name: Watcher(drafter) for name, drafter in asked.items()})
            asked.update(watchers)
        print(f"{domain.name}: round {round_ + 1} of {n_rounds}", file=sys.stderr, flush=True)
        return asked

    def listen(drafter: Drafter, source: Any, round_: int) -> Heard:
        return hear(engine, bundle, source, TranscribeOptions(language="en"), drafter)

    rounds = measure_rounds(drafters, domain.sources, n_rounds, begin=begin, listen=listen)
    for name, error in rounds.dropped.items():
        sys.exit(f"{domain.name}: the drafter {name} was dropped: {error}")
    return Found(rounds=rounds, windows={name: watcher.windows for name, watcher in watchers.items()})


def replay(
    size: str, recorded: dict[str, Found], drafters: Sequence[str], n_rounds: int, threads: int
) -> dict[str, Found]:
    """The same passes on random weights of the shape `size`, int8. Counters must come out as they were recorded."""
    replayed: dict[str, Found] = {}
    with tempfile.TemporaryDirectory(prefix="specedge-speculate-") as folder:
        make_checkpoint(Path(folder) / "checkpoint", size=size)
        bundle = export_to(str(Path(folder) / "checkpoint"), Path(folder) / "bundle", name=size)
        engine = Engine(bundle, threads=threads, cache=False)
        mel = noise_mel(bundle.manifest.dims.n_mels, bundle.manifest.n_frames)
        encode_s = []
        for _ in range(4):
            started = time.perf_counter()
            features = engine.encode(mel)
            encode_s.append(time.perf_counter() - started)
        for domain, old in recorded.items():
            rounds: Rounds[int] = Rounds(sources=range(len(old.windows["none"])))
            replayed[domain] = Found(rounds=rounds, windows=old.windows)
            for round_ in range(n_rounds):
                sums = {name: Sums() for name in drafters}
                for at in rounds.sources:
                    longest = max(one[at].n_prompt + one[at].n_tokens for one in old.windows.values())
                    if longest > bundle.manifest.dims.n_text_ctx:
                        continue  # of a model with a longer context
                    for name in turned(drafters, at + round_):
                        window = old.windows[name][at]
                        counted = play(engine, bundle, features, window, drafted=name != "none")
                        if (counted.passes, counted.tokens) != (len(window.passes), window.n_tokens):
                            sys.exit(f"{size}: {counted.passes} passes for {len(window.passes)}: it cannot be replayed")
                        counted = replace(counted, draft_s=window.draft_s)
                        seconds = statistics.median(encode_s[1:])
                        sums[name].add(counted, seconds, seconds + counted.decoder_s + counted.draft_s)
                rounds.sums.append(sums)
                print(f"{size}, {domain}: round {round_ + 1} of {n_rounds}", file=sys.stderr, flush=True)
    return replayed


def domains(given: argparse.Namespace, bundle: Bundle, folder: Path) -> list[Domain]:
    """What there is to transcribe, with its maps."""
    own: dict[str, Path] = {}
    if not given.token_map:
        tokenizer = bundle.tokenizer
        fingerprint = text_fingerprint(tokenizer.ranks, tokenizer.special.eot)
        for name in LISTS:
            sentences = token_sentences(list_lines(f"{name}.train"), tokenizer)
            build(sentences, folder / f"{name}.tmap", n_text=tokenizer.special.eot, fingerprint=fingerprint)
            own[name] = folder / f"{name}.tmap"

    def maps(name: str) -> list[Path]:
        return given.token_map or [path for list_, path in own.items() if list_ in name] or list(own.values())

    found = []
    if given.speech:
        for name, utterances in load_shards(given.speech):
            if name in given.domains.split(","):
                # Spread over the shard, for voices lie one after another in it.
                step = max(1, len(utterances) // given.limit)
                found.append(Domain(name, [one.sound() for one in utterances[::step]][: given.limit], maps(name)))
    for path in given.files or ([] if given.speech else SAMPLES):
        found.append(Domain(Path(path).name, [path], maps(Path(path).name)))
    if given.unrelated:
        found.append(Domain("unrelated", given.unrelated, given.token_map or list(own.values())))
    return found


def report(title: str, found: dict[str, Found], drafters: Sequence[str]) -> dict[str, Any]:
    """Print a table by domain; the same figures for the last line."""
    rows = {domain: {name: one.row(name) for name in drafters if name != "none"} for domain, one in found.items()}
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
    parser.add_argument("-m", "--model", default=store.DEFAULT)
    parser.add_argument("--speech", type=Path, metavar="FOLDER", help="shards of spoken utterances")
    parser.add_argument("--domains", default="maintenance-dev,notes-dev", help="which shards, with commas")
    parser.add_argument("--unrelated", nargs="+", default=[], metavar="FILE", help="audio that no map knows")
    parser.add_argument("--token-map", type=Path, action="append", metavar="FILE")
    parser.add_argument("--drafters", help="with commas; none is always there  [default: all that the bundle can]")
    parser.add_argument("--limit", type=int, default=16, help="utterances of a shard")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--random", metavar="SIZE", help="replay on this shape, such as base or small")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    bundle = Bundle.open(store.find(given.model))
    usual = (*DRAFTERS, *HEARING) if CTC_GRAPH in bundle.manifest.graphs else DRAFTERS
    drafters = tuple(dict.fromkeys(["none", *(given.drafters.split(",") if given.drafters else usual)]))
    engine = Engine(bundle, threads=given.threads)
    figures: dict[str, Any] = {
        "benchmark": "speculate",
        "model": bundle.manifest.name,
        "threads": given.threads,
        "calibrated": load_profile(bundle.digest, given.threads) is not None,
    }
    with tempfile.TemporaryDirectory(prefix="specedge-speculate-") as folder:
        wanted = domains(given, bundle, Path(folder))
        if not wanted or not all(domain.sources for domain in wanted):
            sys.exit("there is no audio to transcribe: give files, or --speech with shards named in --domains")
        found = {domain.name: measure(engine, bundle, domain, drafters, given.rounds) for domain in wanted}
    figures["domains"] = report(f"{bundle.manifest.name}, {given.threads} threads", found, drafters)
    figures["different"] = sum(one.different for one in found.values())
    slow = [
        name for name, row in figures["domains"].get("unrelated", {}).items()
        if name != "paper" and row["decoder_speed_up"] < FLOOR
    ]  # fmt: skip
    figures["below_floor_on_unrelated"] = slow
    if given.random:
        played = replay(given.random, found, drafters, given.rounds, given.threads)
        title = f"{given.random}, random weights, the passes of {bundle.manifest.name}"
        figures["random"] = {given.random: report(title, played, drafters)}
    print(f"\n{figures['different']} texts differ; slower than {FLOOR} on unrelated audio: {', '.join(slow) or 'none'}")
    print(json.dumps(figures))
    return 1 if figures["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
