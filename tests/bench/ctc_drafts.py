"""E13: drafts of what the encoder has heard, alone and guided by token maps, and what each part of them is worth.

Every utterance is encoded and written down once by the bundle's model, under each condition; the drafters are replayed
on what it wrote, over the head's posteriors of the very same encoder output, which gives the counts of a real run.
Every window is searched, also where that takes longer than the passes it saves. Conditions: as spoken; noise at 20, 10
and 5 dB; faster and slower by a fifth (resampled, so the pitch moves too); and recorded digits, where a folder of them
is given. Word errors are plain decoding's. Variants: no map, the domain's, another domain's, both, the bundle's, one
with every second word wrong, one with every second sentence of the other domain; re-synchronisation, beam width, length
of n-grams and the online cache are varied one at a time.

A speed-up is composed: counts times the table of prices, and with a calibration of this device the time of the drafter
itself (hearing and search), measured here while other work may run, so an upper bound. It does not know the encoder's
share, nor a quiet machine; `speculate.py` times whole runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.map_texts import DOMAINS, Bench, Findings
from bench.noise_sweep import noisy, spoken
from bench.replay import Counts, Setting, path_rows, replay
from bench.rounds import BenchError
from numpy.typing import NDArray

from specedge.export.training.corpus import load_shards
from specedge.maps.build import BuildOptions
from specedge.maps.ngram_cache import NgramCache
from specedge.maps.tmap_format import text_fingerprint
from specedge.maps.token_map import TokenMap
from specedge.runtime.audio.mel import log_mel
from specedge.runtime.bench.plots import Panel
from specedge.runtime.bundle.manifest import CTC_GRAPH
from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.rules import build_rules
from specedge.runtime.drafters.ctc.drafter import CtcDrafter
from specedge.runtime.drafters.ctc.head import CtcHead
from specedge.runtime.drafters.ctc.ngram_lm import Guide
from specedge.runtime.drafters.ctc.rescore import SearchOptions
from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.session import Canceller
from specedge.runtime.text.words import ends_sentence, word_errors

__all__ = ["BEAMS", "CONDITIONS", "half_replaced", "half_wrong", "run"]

Sound = NDArray[np.float32]


def faster(sound: Sound, rate: float) -> Sound:
    """Played `rate` times as fast."""
    at = np.arange(0, len(sound) - 1, rate)
    return np.interp(at, np.arange(len(sound)), sound).astype(np.float32)


CONDITIONS: dict[str, Callable[[Sound], Sound]] = {
    "as spoken": lambda sound: sound,
    "20 dB": lambda sound: noisy(sound, 20),
    "10 dB": lambda sound: noisy(sound, 10),
    "5 dB": lambda sound: noisy(sound, 5),
    "fast": lambda sound: faster(sound, 1.2),
    "slow": lambda sound: faster(sound, 0.83),
}
BEAMS = (1, 2, 3, 6)
LENGTHS = (1, 2, 3, 4)
GUIDES = {
    "no re-sync": "head alone, no re-sync",
    "alone": "head alone",
    "cache": "cache",
    "map": "map",
    "both": "map and cache",
    "other map": "other domain's map",
}
SWEPT = ("head alone", "map and cache", "half of the words wrong", "half of the sentences wrong")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way to draft: maps, whether texts of the run guide too, settings of the search, ids of an n-gram at most."""

    maps: Sequence[TokenMap] = ()
    caches: bool = False
    search: SearchOptions = SearchOptions()
    longest: int = 3
    resyncs: bool = True


@dataclass(frozen=True, kw_only=True)
class Written:
    """What the model wrote under one condition: the features and the ids of each window, the end of the text too; wer:
    its word errors, in percent."""

    features: Sequence[Any]
    texts: Sequence[Sequence[int]]
    wer: float


class _Model:
    """The bundle's model and head on single windows, English, at temperature 0."""

    def __init__(self, bench: Bench, threads: int, *, timestamps: bool) -> None:
        bundle = bench.bundle
        if CTC_GRAPH not in bundle.manifest.graphs:
            raise BenchError(f"{bundle.manifest.name} has no CTC head: train one with `specedge train ctc`")
        self._bench, self._engine = bench, Engine(bundle, threads=threads)
        self._head = CtcHead(bundle, Canceller())
        manifest, tokenizer = bundle.manifest, bundle.tokenizer
        self._frames = (manifest.dims.n_mels, manifest.n_frames)
        special = tokenizer.special
        prompt = tuple(special.prompt("en" if special.is_multilingual else None, "transcribe", timestamps))
        self.setting = Setting(special=special, prompt=prompt, n_text_ctx=manifest.dims.n_text_ctx)
        self._options = DecodeOptions(
            rules=build_rules(
                special,
                space_ids=tokenizer.encode(" "),
                suppressed=manifest.suppress_tokens,
                timestamps=timestamps,
                max_initial_timestamp_index=manifest.max_initial_timestamp_index,
            ),
            n_text_ctx=manifest.dims.n_text_ctx,
        )

    def write(self, sounds: Sequence[Sound], references: Sequence[str]) -> Written:
        features, texts, said = [], [], []
        for sound in sounds:
            heard = self._engine.encode(log_mel(sound, *self._frames))
            done = decode_window(self._engine, heard, self.setting.prompt, self._options)
            features.append(heard)
            texts.append([*done.tokens, *[self.setting.special.eot] * done.finished])
            said.append(self._bench.bundle.tokenizer.decode([id_ for id_ in done.tokens if id_ < self._bench.eot]))
        wer = 100 * word_errors(zip(references, said, strict=True)).rate
        return Written(features=features, texts=texts, wer=round(wer, 2))

    def drafter(self, variant: Variant) -> CtcDrafter:
        tokenizer = self._bench.bundle.tokenizer
        cache = NgramCache() if variant.caches else None
        guide = None
        if variant.maps or cache is not None:
            guide = Guide(variant.maps, cache, ends=ends_sentence(tokenizer), longest=variant.longest)
        return CtcDrafter(
            self._head.hear,
            tokenizer,
            self._bench.costs,
            guide=guide,
            options=variant.search,
            resyncs=variant.resyncs,
        )

    def figures(self, variant: Variant, written: Written) -> dict[str, float]:
        price = path_rows(self._bench.costs)
        counts = replay(self.drafter(variant), written.texts, price, self.setting, written.features)
        return {"wer": written.wer, **_figures(self._bench, counts)}


def variants(
    own: TokenMap, other: TokenMap, words: TokenMap, sentences: TokenMap, bundled: Sequence[TokenMap]
) -> dict[str, Variant]:
    """The ablation, by name; `words` and `sentences` are half wrong, `bundled` the bundle's, if it has any."""
    found = {
        "head alone, no re-sync": Variant(resyncs=False),
        "head alone": Variant(),
        "cache": Variant(caches=True),
        "map": Variant(maps=[own]),
        "map and cache": Variant(maps=[own], caches=True),
        "map, no re-sync": Variant(maps=[own], resyncs=False),
        "half of the words wrong": Variant(maps=[words], caches=True),
        "half of the sentences wrong": Variant(maps=[sentences], caches=True),
        "other domain's map": Variant(maps=[other], caches=True),
        "both domains' maps": Variant(maps=[own, other], caches=True),
    }
    if bundled:
        found["the bundle's own map"] = Variant(maps=bundled, caches=True)
    found |= {f"map, beam {n}": Variant(maps=[own], search=SearchOptions(beam=n)) for n in BEAMS}
    found |= {f"map, n-grams of {n}": Variant(maps=[own], longest=n) for n in LENGTHS}
    return found


def half_replaced(lines: Sequence[str], others: Sequence[str]) -> list[str]:
    """Every second line is one of the others."""
    return [*lines[::2], *others[1 : len(lines) : 2]]


def half_wrong(lines: Sequence[str]) -> list[str]:
    """The lines with every second word taken from another one."""
    rng = random.Random(5)
    words = [word for line in lines for word in line.split()]
    return [" ".join(rng.choice(words) if rng.random() < 0.5 else word for word in line.split()) for line in lines]


def run(bench: Bench, *, folder: Path | None, digits: Path | None, n_utterances: int, threads: int) -> Findings:
    """Both domains under all conditions, the ablation as spoken, without timestamps and with them."""
    tables: dict[str, list[list[str]]] = {}
    figures: dict[str, Any] = {}
    panels: list[Panel] = []
    maps = {domain: bench.make_map(domain, bench.train(domain), BuildOptions(n_orders=5)) for domain in DOMAINS}
    wrong = {domain: _wrong_maps(bench, domain) for domain in DOMAINS}
    bundled = _bundled_maps(bench)
    for timestamps in (False, True):
        model = _Model(bench, threads, timestamps=timestamps)
        for at, domain in enumerate(DOMAINS):
            name = f"{domain}, {'with' if timestamps else 'without'} timestamps"
            spoken_, source = spoken(folder, domain, n_utterances)
            sounds, references = [sound for sound, _ in spoken_], [text for _, text in spoken_]
            ways = variants(maps[domain], maps[DOMAINS[1 - at]], *wrong[domain], bundled)
            written = {c: model.write([change(s) for s in sounds], references) for c, change in CONDITIONS.items()}
            found = {way: model.figures(ways[way], written["as spoken"]) for way in ways}
            tables[f"{name}: ablation, {len(sounds)} utterances from {source}"] = _table("variant", found)
            swept = {way: {c: model.figures(ways[way], w) for c, w in written.items()} for way in SWEPT}
            for way, by_condition in swept.items():
                tables[f"{name}: {way}"] = _table("condition", by_condition)
            figures[name] = {"source": source, "utterances": len(sounds), "ablation": found, "conditions": swept}
            panels.append(_panel(name, swept))
        if digits is not None:
            figures[f"digits {timestamps}"] = found = _digits(bench, model, digits, n_utterances, maps[DOMAINS[0]])
            tables[f"digits, {'with' if timestamps else 'without'} timestamps"] = _table("variant", found)
    ablation = {name: found["ablation"] for name, found in figures.items() if "ablation" in found}
    return Findings(tables=tables, panels=[*panels, *_ablation_panels(ablation)], figures=figures)


def _bundled_maps(bench: Bench) -> list[TokenMap]:
    """Open until the bench is closed."""
    bundle = bench.bundle
    fingerprint = text_fingerprint(bundle.tokenizer.ranks, bench.eot)
    files = [bundle.file(name) for name in sorted(bundle.manifest.files) if name.startswith("maps/")]
    return [bench.resources.enter_context(TokenMap.open(file, fingerprint=fingerprint)) for file in files]


def _wrong_maps(bench: Bench, domain: str) -> tuple[TokenMap, TokenMap]:
    """Of the domain, with half of the words wrong, and with half of the sentences of the other domain."""
    lines = bench.train_lines(domain)
    others = bench.train_lines(next(other for other in DOMAINS if other != domain))
    found = {"words": half_wrong(lines), "sentences": half_replaced(lines, others)}
    words, sentences = (
        bench.make_map(f"{domain}-wrong-{name}", bench.ids(wrong), BuildOptions(n_orders=5))
        for name, wrong in found.items()
    )
    return words, sentences


def _digits(bench: Bench, model: _Model, folder: Path, n: int, map_: TokenMap) -> dict[str, dict[str, float]]:
    """A speaker that nothing was trained on, without a map and with one that knows other words."""
    items = [item for _, found in load_shards(folder) for item in found]
    items = random.Random(3).sample(items, min(n, len(items)))
    written = model.write([item.sound() for item in items], [item.text for item in items])
    ways = {
        "head alone": Variant(),
        "cache": Variant(caches=True),
        "other domain's map": Variant(maps=[map_], caches=True),
    }
    return {way: model.figures(variant, written) for way, variant in ways.items()}


def _figures(bench: Bench, counts: Counts) -> dict[str, float]:
    """Counts and prices; `with_drafting` has the drafter's own time, where a pass of one row was measured here."""
    n_windows = max(1, counts.windows)
    found = {**counts.figures(), "draft_ms": round(1e3 * counts.draft_s / n_windows, 3)}
    if bench.one_row_s is not None:
        own = counts.draft_s / bench.one_row_s
        found["with_drafting"] = round(counts.plain_cost / (counts.cost + own), 4)
    return found


def _table(head: str, found: dict[str, dict[str, float]]) -> list[list[str]]:
    columns = ["wer", "tokens_per_pass", "acceptance", "speed_up", "with_drafting", "draft_ms"]
    rows = [[head, "WER %", "tokens per pass", "acceptance", "speed-up", "with drafting", "drafting, ms a window"]]
    for name, figures in found.items():
        rows.append([name, *("" if column not in figures else f"{figures[column]:.2f}" for column in columns)])
    return rows


def _panel(name: str, swept: dict[str, dict[str, dict[str, float]]]) -> Panel:
    conditions = list(CONDITIONS)
    return Panel(
        title=name,
        x="condition",
        y="tokens per pass",
        series={
            way: [(float(i), found[condition]["tokens_per_pass"]) for i, condition in enumerate(conditions)]
            for way, found in swept.items()
        },
        level=1.0,
        ticks=[(float(i), condition) for i, condition in enumerate(conditions)],
    )


def _ablation_panels(found: dict[str, dict[str, dict[str, float]]]) -> list[Panel]:
    """What guides the search, its beam, and the length of the n-grams: tokens per pass of each domain."""

    def series(names: Sequence[tuple[float, str]]) -> dict[str, list[tuple[float, float]]]:
        return {domain: [(x, ways[name]["tokens_per_pass"]) for x, name in names] for domain, ways in found.items()}

    y = "tokens per pass"
    guides = [(float(i), name) for i, name in enumerate(GUIDES.values())]
    ticks = [(float(i), label) for i, label in enumerate(GUIDES)]
    beams = [(float(n), f"map, beam {n}") for n in BEAMS]
    widths = [(float(n), str(n)) for n in BEAMS]
    lengths = [(float(n), f"map, n-grams of {n}") for n in LENGTHS]
    return [
        Panel(title="What guides", x="", y=y, series=series(guides), level=1.0, ticks=ticks),
        Panel(title="Beam", x="strings", y=y, series=series(beams), level=1.0, ticks=widths),
        Panel(title="n-grams", x="ids", y=y, series=series(lengths), level=1.0),
    ]
