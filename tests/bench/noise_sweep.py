"""E3: what becomes of a token map's acceptance when the model hears badly (arXiv 2507.21522, accuracy to acceptance).

Utterances with noise under them, 30 to 0 dB; the model writes each down once, and the drafters are replayed on what it
wrote, which gives the counts of a real run (the first setting is run as well, to see that it does). Half of the
utterances are decoded with three maps: of the training list, of the other half's references, and of what the model
itself wrote for the other half at the same noise. Speed-ups are composed, counts times a table: no pass is timed.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench.map_texts import DOMAINS, Bench, Findings
from bench.replay import Counts, path_rows, replay
from bench.rounds import BenchError
from numpy.typing import NDArray

from specedge.export.training.corpus import list_lines, load_shards
from specedge.maps.build import BuildOptions
from specedge.maps.token_map import TokenMap
from specedge.runtime.audio.mel import log_mel
from specedge.runtime.bench.plots import Panel
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import Guard
from specedge.runtime.decoding.rules import build_rules
from specedge.runtime.engine.engine import Engine
from specedge.runtime.text.words import word_errors
from support.noise import SAMPLES, noise, speech

__all__ = ["SNRS_DB", "run", "spoken"]

SNRS_DB = (None, 30, 20, 15, 10, 5, 0)
_N_PATHS = 3
_SAMPLE_TEXTS = {
    "maintenance": "Call the maintenance crew to generator two.",
    "notes": "Ask Maria about the letter and the wheel.",
}
Sound = tuple[NDArray[np.float32], str]


def spoken(folder: Path | None, domain: str, n: int) -> tuple[list[Sound], str]:
    """Up to `n` utterances with their texts, and where they are from: shards, espeak-ng, or the bundled samples."""
    if folder is not None:
        shards = [items for name, items in load_shards(folder) if name == f"{domain}-dev"]
        if not shards:
            raise BenchError(f"{folder}: no shard {domain}-dev; make it with `specedge.models.recipe.speech dev`")
        items = shards[0]
        if n < len(items):
            items = random.Random(3).sample(items, n)  # a shard holds its voices one after another
        return [(item.sound(), item.text) for item in items], "shards"
    if shutil.which("espeak-ng"):
        return _synthesised(domain, n), "espeak-ng"
    sample = next(path for path in SAMPLES if domain in path.name)
    return [(speech(sample), _SAMPLE_TEXTS[domain])] * min(n, 2), "one bundled sample, twice"


def _synthesised(domain: str, n: int) -> list[Sound]:
    from specedge.models.recipe.speech import draw, speak

    rng = random.Random(3)
    made: list[Sound] = []
    with tempfile.TemporaryDirectory() as scratch:
        for text in list_lines(f"{domain}.dev"):
            if len(made) == n:
                break
            voice = draw(rng, held_out=True)
            while not voice.name.startswith("espeak"):
                voice = draw(rng, held_out=True)
            samples = speak(text, voice, Path(scratch))
            if samples.size:
                made.append((samples * np.float32(0.5 / max(float(np.abs(samples).max()), 1e-4)), text))
    return made


class _Model:
    """The bundle's model on single windows, English, without timestamps, at temperature 0."""

    def __init__(self, bench: Bench, threads: int) -> None:
        self._bench, self._engine = bench, Engine(bench.bundle, threads=threads)
        manifest, tokenizer = bench.bundle.manifest, bench.bundle.tokenizer
        self._frames = (manifest.dims.n_mels, manifest.n_frames)
        self.options = DecodeOptions(
            rules=build_rules(
                tokenizer.special,
                space_ids=tokenizer.encode(" "),
                suppressed=manifest.suppress_tokens,
                timestamps=False,
                max_initial_timestamp_index=None,
            ),
            n_text_ctx=manifest.dims.n_text_ctx,
        )

    def write(self, sound: NDArray[np.float32], drafter: Guard | None = None) -> WindowResult:
        features = self._engine.encode(log_mel(sound, *self._frames))
        result = decode_window(self._engine, features, self._bench.setting().prompt, self.options, drafter)
        if drafter is not None:
            drafter.end(result.tokens)
        return result

    @property
    def n_paths(self) -> int:
        return min(_N_PATHS, self._engine.n_paths)


def noisy(sound: NDArray[np.float32], snr_db: float | None) -> NDArray[np.float32]:
    """Speech with pink noise under it, so many dB below its louder half; the same noise for the same speech."""
    if snr_db is None:
        return sound
    level = float(np.sqrt((sound[np.abs(sound) > np.median(np.abs(sound))] ** 2).mean()))
    under = noise(len(sound), rms=level * 10 ** (-snr_db / 20), color="pink", seed=zlib.crc32(sound.tobytes()))
    return np.clip(sound + under, -1, 1).astype(np.float32)


def run(bench: Bench, *, folder: Path | None, n_utterances: int, threads: int) -> Findings:
    """Both domains; half of `n_utterances` are decoded, half make the small maps."""
    model = _Model(bench, threads)
    tables: dict[str, list[list[str]]] = {}
    figures: dict[str, Any] = {}
    panels = []
    for domain in DOMAINS:
        sounds, source = spoken(folder, domain, n_utterances)
        rows, same = _domain(bench, model, domain, sounds)
        maps = [name for name in rows[0] if name not in ("snr_db", "wer")]
        table = [["SNR dB", "WER %", *maps]]
        for row in rows:
            cells = [
                f"{row[name]['speed_up']:.3f} ({row[name]['tokens_per_pass']:.2f}, {row[name]['acceptance']:.2f})"
                for name in maps
            ]
            table.append(["clean" if row["snr_db"] is None else str(row["snr_db"]), f"{row['wer']:.1f}", *cells])
        tables[f"{domain}, {len(sounds)} utterances from {source}"] = table
        figures[domain] = {"source": source, "utterances": len(sounds), "rows": rows, "replay_is_the_run": same}
        panels.append(
            Panel(
                title=domain,
                x="WER %",
                y="speed-up of the decoder, composed",
                series={name: sorted((row["wer"], row[name]["speed_up"]) for row in rows) for name in maps},
                level=1.0,
            )
        )
    return Findings(tables=tables, panels=panels, figures=figures)


def _domain(bench: Bench, model: _Model, domain: str, sounds: Sequence[Sound]) -> tuple[list[dict[str, Any]], bool]:
    half = len(sounds) // 2
    small = BuildOptions(n_orders=5, min_count=1)
    large = bench.make_map(f"{domain}-list", bench.train(domain), BuildOptions(n_orders=5))
    references = bench.make_map(f"{domain}-references", bench.ids([text for _, text in sounds[:half]]), small)
    rows = []
    same = True
    for snr_db in SNRS_DB:
        written = [model.write(noisy(sound, snr_db)) for sound, _ in sounds]
        own = bench.make_map(f"{domain}-own-{snr_db}", _sentences(bench, written[:half]), small)
        texts = [[*one.tokens, *[bench.eot] * one.finished] for one in written[half:]]
        row: dict[str, Any] = {"snr_db": snr_db, "wer": round(100 * _word_error_rate(bench, written, sounds, half), 2)}
        for name, map_ in (("training list", large), ("references", references), ("own output", own)):
            row[name] = _replayed(bench, model, map_, texts).figures()
        if snr_db is None:
            same = _run_alike(bench, model, large, sounds[half:], _replayed(bench, model, large, texts))
        rows.append(row)
    return rows, same


def _sentences(bench: Bench, written: Sequence[WindowResult]) -> list[list[int]]:
    """What the model wrote, as lines of text for a map; one that is empty everywhere gives the end alone."""
    lines = [bench.bundle.tokenizer.decode(one.tokens).strip() for one in written]
    return bench.ids([line for line in lines if line] or ["."])


def _word_error_rate(bench: Bench, written: Sequence[WindowResult], sounds: Sequence[Sound], half: int) -> float:
    decode = bench.bundle.tokenizer.decode
    pairs = zip(sounds[half:], written[half:], strict=True)
    return word_errors((text, decode(one.tokens)) for (_, text), one in pairs).rate


def _replayed(bench: Bench, model: _Model, map_: TokenMap, texts: Sequence[Sequence[int]]) -> Counts:
    return replay(bench.drafter(map_), texts, path_rows(bench.costs), bench.setting(model.n_paths))


def _run_alike(bench: Bench, model: _Model, map_: TokenMap, sounds: Sequence[Sound], expected: Counts) -> bool:
    """Whether the drafter in the real decode loop comes to the same counts, when as many paths are verified."""
    guard = Guard(bench.drafter(map_))
    found = [model.write(sound, guard).speculation for sound, _ in sounds]
    passes, evaluated, accepted = (
        sum(getattr(one, name) for one in found) for name in ("passes", "evaluated", "accepted")
    )
    return (passes, evaluated, accepted) == (expected.passes, expected.evaluated, expected.accepted)
