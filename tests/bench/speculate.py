"""How much faster the decoder is with each drafter than without one, on real speech, and what that is end to end.

    python tests/bench/speculate.py [FILE...] [--speech FOLDER...] [--made silence,noise] [--unrelated FILE...]
                                    [--token-map X.tmap] [--texts FILE] [--limit 16] [--rounds 3] [--threads 2]
                                    [--random base]

Domains are the shards of spoken utterances in each FOLDER (those whose names begin with one of --domains), each FILE
(without either the bundled samples), the unrelated files, and made sounds of 2 to 8 seconds. Maps are given, built
here of --texts, or else of the training lists alone: a domain with a list of its own gets that one, others get all.
Every utterance is transcribed by all drafters one after another, in an order that turns with each utterance, and all of
it again in each round, so that a slow moment of the machine touches all alike. A figure is the ratio of the times of
`none` to the drafter's (decoder and drafting together) over a round: the median of the rounds, with the least and the
greatest. "end to end" has the encoder in it. Texts are compared too.

`--random SIZE` plays passes on a model of that true shape with random weights (support/replayed.py). They are recorded
here once more with that model's prices, and with drafters that do not weigh what they take here. The time of drafting
in these figures is the one recorded; that of heads is measured on random heads of that shape, of as many tokens as
--pruned says, the first draft of a window apart.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from specedge.export.bundling import write_bundle  # noqa: E402
from specedge.export.checkpoint import open_checkpoint  # noqa: E402
from specedge.export.training.corpus import RATE_HZ, list_lines, load_shards  # noqa: E402
from specedge.maps.build import build  # noqa: E402
from specedge.maps.tmap_format import text_fingerprint  # noqa: E402
from specedge.models import store  # noqa: E402
from specedge.runtime.bench.rounds import Heard, Rounds, Sums, hear, measure_rounds, turned  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.bundle.manifest import CTC_GRAPH  # noqa: E402
from specedge.runtime.decoding.drafter import (  # noqa: E402
    Drafter,
    TargetModel,  # noqa: E402
)
from specedge.runtime.device import (  # noqa: E402
    CostTable,
    load_profile,  # noqa: E402
)
from specedge.runtime.drafters.ctc.drafter import open_ctc  # noqa: E402
from specedge.runtime.drafters.registry import (  # noqa: E402
    costs_here,
    make_drafter,
)
from specedge.runtime.engine.calibrate import measure as calibrated  # noqa: E402
from specedge.runtime.engine.engine import Engine  # noqa: E402
from specedge.runtime.engine.heads import HeadsPass  # noqa: E402
from specedge.runtime.engine.session import Canceller  # noqa: E402
from specedge.runtime.options import (  # noqa: E402
    HEAD_KINDS,
    READS_MAPS,  # noqa: E402
    DrafterOptions,  # noqa: E402
    TranscribeOptions,  # noqa: E402
)
from specedge.runtime.text.transcripts import token_sentences  # noqa: E402
from support.checkpoints import make_checkpoint  # noqa: E402
from support.exported import noise_mel  # noqa: E402
from support.heads import random_heads  # noqa: E402
from support.noise import SAMPLES, noise  # noqa: E402
from support.replayed import Watcher, Window, play  # noqa: E402

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


def made(drafter: str, bundle: Bundle, domain: Domain, threads: int, costs: CostTable | None = None) -> Drafter:
    """A drafter of this name for a domain; "paper" is tokenmap with the paper's settings, "ctc alone" has no maps.

    "draft=NAME" is draft with that model.

    costs: those of another model, beside which what a drafter takes here is nothing.
    """
    weighs = costs is None
    if drafter == "ctc alone":
        return open_ctc(bundle, [], costs or costs_here(bundle, threads), caches=False, weighs=weighs)
    maps = domain.maps if drafter in (*READS_MAPS, "paper") else []
    preset = "paper" if drafter == "paper" else "default"
    drafter, _, model = drafter.partition("=")
    name = "tokenmap" if drafter == "paper" else drafter
    options = DrafterOptions(name, token_maps=maps, map_preset=preset, draft_model=model or None)
    return make_drafter(options, TargetModel(bundle, threads=threads, costs=costs, weighs=weighs))


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


def record(
    engine: Engine,
    bundle: Bundle,
    domain: Domain,
    drafters: Sequence[str],
    costs: CostTable,
    options: TranscribeOptions,
) -> dict[str, list[Window]]:
    """The passes of each drafter, with the prices of another model."""
    windows = {}
    for name in drafters:
        watcher = Watcher(made(name, bundle, domain, engine.threads, costs))
        for source in domain.sources:
            hear(engine, bundle, source, options, watcher)
        watcher.close()
        windows[name] = watcher.windows
    return windows


class Large:
    """A model of a true shape with random weights and heads, and what its passes and drafts take."""

    def __init__(self, size: str, folder: Path, drafters: Sequence[str], given: argparse.Namespace, like: Bundle):
        self.size = size
        with open_checkpoint(str(make_checkpoint(folder / "checkpoint", size=size))) as checkpoint:
            dims = checkpoint.spec.dims
            tokens = np.arange(min(given.pruned, dims.n_vocab))
            heads = [
                random_heads(kind, dims, n_heads=HeadsPass(like, kind, Canceller()).n_heads, tokens=tokens)
                for kind in HEAD_KINDS if kind in drafters
            ]  # fmt: skip
            self.bundle = write_bundle(
                checkpoint, folder / "bundle", precision="int8", name=size, version="0", heads=heads
            )
        self.engine = Engine(self.bundle, threads=given.threads, cache=False)
        self.features = self.engine.encode(noise_mel(self.bundle.manifest.dims.n_mels, self.bundle.manifest.n_frames))
        profile = calibrated(self.engine)
        self.encode_s = profile.encode_s
        self.costs = profile.costs()
        self.guess_s = {heads.spec.kind: self._guessed(heads.spec.kind) for heads in heads}

    def _guessed(self, kind: str) -> tuple[float, float]:
        """Seconds of the first draft of a window, and of any other."""
        heads = HeadsPass(self.bundle, kind, Canceller())
        hidden = np.random.default_rng(0).standard_normal((24, self.bundle.manifest.dims.n_text_state), np.float32)
        first, others = [], []
        for _ in range(5):
            heads.begin(self.features.hidden.copy())
            for n in range(16, 24):
                started = time.perf_counter()
                heads.guess(hidden[:n], 4)
                (others if n > 16 else first).append(time.perf_counter() - started)
        return statistics.median(first), statistics.median(others)

    def draft_s(self, drafter: str, window: Window) -> float:
        """What drafting took in a window."""
        if drafter not in self.guess_s:
            return window.draft_s
        first, other = self.guess_s[drafter]
        n_drafts = sum(bool(one.parents) for one in window.passes)
        return first + other * (n_drafts - 1) if n_drafts else 0.0


def _branches(window: Window) -> bool:
    """Whether a pass of it verifies several paths."""
    return any(len(set(one.parents)) < len(one.parents) for one in window.passes)


def replay(large: Large, recorded: dict[str, dict[str, list[Window]]], n_rounds: int) -> dict[str, Rounds[int]]:
    """The recorded passes on a large model. Counters must come out as they were recorded."""
    replayed: dict[str, Rounds[int]] = {}
    for domain, windows in recorded.items():
        rounds: Rounds[int] = Rounds(sources=range(len(windows["none"])))
        replayed[domain] = rounds
        for name, every in windows.items():  # graphs are loaded when they are first needed
            play(large.engine, large.bundle, large.features, max(every, key=_branches), drafted=name != "none")
        for round_ in range(n_rounds):
            sums = {name: Sums() for name in windows}
            for at in rounds.sources:
                longest = max(one[at].n_prompt + one[at].n_tokens for one in windows.values())
                if longest > large.bundle.manifest.dims.n_text_ctx:
                    continue  # of a model with a longer context
                for name in turned(list(windows), at + round_):
                    window = windows[name][at]
                    counted = play(large.engine, large.bundle, large.features, window, drafted=name != "none")
                    if (counted.passes, counted.tokens) != (len(window.passes), window.n_tokens):
                        sys.exit(f"{large.size}: {counted.passes} passes, {len(window.passes)} were recorded")
                    counted = replace(counted, draft_s=large.draft_s(name, window))
                    sums[name].add(counted, large.encode_s, large.encode_s + counted.decoder_s + counted.draft_s)
            rounds.sums.append(sums)
            print(f"{large.size}, {domain}: round {round_ + 1} of {n_rounds}", file=sys.stderr, flush=True)
    return replayed


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
    parser.add_argument("-m", "--model", default=store.DEFAULT)
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
    parser.add_argument("--random", metavar="SIZE", help="replay on this shape, such as base or small")
    parser.add_argument("--pruned", type=int, default=8192, help="tokens of that shape's heads")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    bundle = Bundle.open(store.find(given.model))
    usual = (*DRAFTERS, *HEARING) if CTC_GRAPH in bundle.manifest.graphs else DRAFTERS
    drafters = tuple(dict.fromkeys(["none", *(given.drafters.split(",") if given.drafters else usual)]))
    engine = Engine(bundle, threads=given.threads)
    options = TranscribeOptions(language="en", without_timestamps=given.without_timestamps)
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
        found = {domain.name: measure(engine, bundle, domain, drafters, given.rounds, options) for domain in wanted}
        if given.random:
            large = Large(given.random, Path(folder), drafters, given, bundle)
            recorded = {
                domain.name: record(engine, bundle, domain, drafters, large.costs, options) for domain in wanted
            }
            played = replay(large, recorded, given.rounds)
    figures["domains"] = report(f"{bundle.manifest.name}, {given.threads} threads", found, drafters)
    figures["different"] = sum(sum(one.different.values()) for one in found.values())
    slow = [
        name for name, row in figures["domains"].get("unrelated", {}).items()
        if name != "paper" and row["decoder_speed_up"] < FLOOR
    ]  # fmt: skip
    figures["below_floor_on_unrelated"] = slow
    if given.random:
        title = f"{given.random}, random weights, the passes of {bundle.manifest.name}"
        figures["random"] = {given.random: report(title, played, drafters)}
        figures["random_pass_s"] = dict(zip(large.costs.rows, large.costs.relative, strict=True))
    print(f"\n{figures['different']} texts differ; slower than {FLOOR} on unrelated audio: {', '.join(slow) or 'none'}")
    print(json.dumps(figures))
    return 1 if figures["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
