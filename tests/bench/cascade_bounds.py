"""E15: what several drafters together could bring on a mix of both domains, beside what the cascade makes of them.

Sentences of both domains in turn, written down once by the bundle's model with timestamps, then replayed, with a map of
each domain and with a map of one of them alone, as where the others' transcripts are new: each drafter alone, the
cascade of them, and two that know what comes. "best of a window" is the drafter that a window costs least with, chosen
in hindsight. "best draft" asks all drafters before every pass and verifies of the draft that is right longest only what
is right; the same of one drafter alone shows how much of that is knowing where to stop.

A speed-up is counts times the table of prices. What drafting takes is left out, so all figures are bounds, and more so
on a small model. It does not know times, nor trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench.map_texts import DOMAINS, Bench, Findings
from bench.noise_sweep import spoken
from bench.replay import Counts, Setting, path_rows, replay
from numpy.typing import NDArray

from specedge.export.training.features import RowRecorder
from specedge.maps.build import BuildOptions
from specedge.runtime.audio.mel import log_mel
from specedge.runtime.bench.plots import Panel
from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.drafter import (
    NO_DRAFT,
    Draft,
    DraftContext,
    Drafter,
    DraftTree,
    Guard,
    TargetModel,
    Verdict,
    WindowContext,
)
from specedge.runtime.decoding.rules import build_rules
from specedge.runtime.drafters.cascade import CascadeDrafter, own_verdict
from specedge.runtime.drafters.registry import make_drafter, runnable
from specedge.runtime.engine.engine import Engine
from specedge.runtime.options import READS_MAPS, DrafterOptions

__all__ = ["Foreseen", "run"]

ALONE = ("tokenmap", "ctc", "mtp-latent", "medusa-block")
TOGETHER = ("tokenmap", "ctc", "medusa-block")
WITH_LATENT = ("tokenmap", "ctc", "mtp-latent")  # as beside a small decoder


class Foreseen(Drafter):
    """Of the first paths of several drafters the one that is right longest, as far as it is right.

    texts: what will be decided, window by window, with the end of the text.
    """

    name = "foreseen"

    def __init__(self, drafters: Sequence[Drafter], texts: Sequence[Sequence[int]]) -> None:
        self._guards = [Guard(drafter) for drafter in drafters]
        self._texts = iter(texts)
        self._text: Sequence[int] = ()
        self._n_vocab = 0
        self._drafts: list[Draft] = []

    def begin(self, window: WindowContext) -> None:
        """The next text."""
        self._text, self._n_vocab = next(self._texts), window.n_vocab
        for guard in self._guards:
            guard.begin(window)

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """See the class."""
        rest = self._text[len(context.sampled) :]
        best: list[int] = []
        self._drafts = []
        for guard in self._guards:
            draft = NO_DRAFT
            if not guard.is_idle:
                draft = guard.propose(context, budget, n_vocab=self._n_vocab, useless=())
            self._drafts.append(draft)
            ids = draft.tokens((draft.paths(1, budget) or [()])[0])
            n = next((i for i, (token, said) in enumerate(zip(ids, rest, strict=False)) if token != said), len(ids))
            best = max(best, list(ids[:n]), key=len)
        return DraftTree(best)

    def observe(self, verdict: Verdict) -> None:
        """Each hears of its own draft."""
        for guard, draft in zip(self._guards, self._drafts, strict=True):
            guard.observe(own_verdict(draft, verdict))

    def end(self, tokens: tuple[int, ...]) -> None:
        """All hear of it."""
        for guard in self._guards:
            guard.end(tokens)


class _Written:
    """What the bundle's model wrote over sentences of both domains in turn."""

    def __init__(self, bench: Bench, folder: Path | None, n_utterances: int, threads: int) -> None:
        self._bench, self._threads = bench, threads
        manifest, special = bench.bundle.manifest, bench.bundle.tokenizer.special
        engine = Engine(bench.bundle, threads=threads)
        prompt = tuple(special.prompt("en" if special.is_multilingual else None, "transcribe", True))
        self._setting = Setting(special=special, prompt=prompt, n_text_ctx=manifest.dims.n_text_ctx)
        rules = build_rules(
            special,
            space_ids=bench.bundle.tokenizer.encode(" "),
            suppressed=manifest.suppress_tokens,
            timestamps=True,
            max_initial_timestamp_index=manifest.max_initial_timestamp_index,
        )
        heard = [spoken(folder, domain, n_utterances) for domain in DOMAINS]
        self.source = heard[0][1]
        self.texts: list[list[int]] = []
        self._features: list[Any] = []
        self._hidden: list[NDArray[np.float32]] = []
        for pair in zip(*(sounds for sounds, _ in heard), strict=False):
            for sound, _ in pair:
                features = engine.encode(log_mel(sound, manifest.dims.n_mels, manifest.n_frames))
                recorder = RowRecorder()
                options = DecodeOptions(rules=rules, n_text_ctx=manifest.dims.n_text_ctx)
                done = decode_window(engine, features, prompt, options, recorder)
                if recorder.rows is None:
                    continue
                self.texts.append([*done.tokens, *[special.eot] * done.finished])
                self._features.append(features)
                self._hidden.append(recorder.rows.copy())

    def replayed(
        self, names: Sequence[str], maps: Sequence[Path], join: Callable[[Sequence[Drafter]], Drafter]
    ) -> list[Counts]:
        """Of each window; drafters of these names, which take no account of time, live through all of them."""
        drafters = [
            make_drafter(
                DrafterOptions(name, token_maps=maps if name in READS_MAPS else ()),
                TargetModel(self._bench.bundle, threads=self._threads, costs=self._bench.costs, weighs=False),
            )
            for name in names
        ]
        drafter, price = join(drafters), path_rows(self._bench.costs)
        windows = zip(self.texts, self._features, self._hidden, strict=True)
        counts = [replay(drafter, [text], price, self._setting, [heard], [rows]) for text, heard, rows in windows]
        for one in drafters:
            one.close()
        return counts


def run(bench: Bench, *, folder: Path | None, n_utterances: int, threads: int) -> Findings:
    """Sentences of each domain; drafters that the bundle can have."""
    written = _Written(bench, folder, n_utterances, threads)
    maps = {domain: bench.folder / f"{domain}-bound.tmap" for domain in DOMAINS}
    for domain, path in maps.items():
        bench.make_map(path.stem, bench.train(domain), BuildOptions(n_orders=5))
    tables, figures, panels = {}, {}, []
    for title, of in {"maps of both": DOMAINS, **{f"map of {domain}": (domain,) for domain in DOMAINS}}.items():
        found = _ways(bench, written, threads, [maps[domain] for domain in of])
        figures[title] = found
        table = [["", "speed-up", "of the best alone", "tokens a pass", "acceptance"]]
        for name, row in found.items():
            columns = ("speed_up", "of_best_alone", "tokens_per_pass", "acceptance")
            table.append([name, *(f"{row[column]:.3f}" for column in columns)])
        tables[f"{title}: {len(written.texts)} sentences of both domains in turn, from {written.source}"] = table
        bars = {name: [(float(i), row["speed_up"])] for i, (name, row) in enumerate(found.items())}
        ticks = [(float(i), name) for i, name in enumerate(found)]
        panels.append(Panel(title=title, x="", y="speed-up", series=bars, level=1.0, ticks=ticks))
    return Findings(tables=tables, panels=panels, figures=figures)


def _ways(bench: Bench, written: _Written, threads: int, maps: Sequence[Path]) -> dict[str, dict[str, float]]:
    """The figures of each drafter alone, of the cascade, and of those that know what comes."""
    able = runnable(bench.bundle, DrafterOptions("auto", token_maps=maps))
    alone, together, latent = ([name for name in names if name in able] for names in (ALONE, TOGETHER, WITH_LATENT))
    found = {name: written.replayed([name], maps, lambda drafters: drafters[0]) for name in alone}
    sums = {name: _summed(windows) for name, windows in found.items()}
    best = max(sums, key=lambda name: sums[name].speed_up)

    def cascade(drafters: Sequence[Drafter]) -> Drafter:
        return CascadeDrafter(drafters, bench.costs, weighs=False)

    def foreseen(drafters: Sequence[Drafter]) -> Drafter:
        return Foreseen(drafters, written.texts)

    by_window = zip(*found.values(), strict=True)
    sums["cascade"] = _summed(written.replayed(["cascade"], maps, lambda drafters: drafters[0]))
    sums[f"cascade of {', '.join(latent)}"] = _summed(written.replayed(latent, maps, cascade))
    sums["best of a window"] = _summed([min(each, key=lambda counts: counts.cost) for each in by_window])
    sums["best draft"] = _summed(written.replayed(together, maps, foreseen))
    sums[f"best draft of {best}"] = _summed(written.replayed([best], maps, foreseen))
    return {
        name: {**counts.figures(), "of_best_alone": round(counts.speed_up / sums[best].speed_up, 4)}
        for name, counts in sums.items()
    }


def _summed(windows: Sequence[Counts]) -> Counts:
    total = Counts()
    for one in windows:
        for name, value in vars(one).items():
            setattr(total, name, getattr(total, name) + value)
    return total
