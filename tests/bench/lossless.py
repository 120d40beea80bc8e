"""Every drafter beside plain decoding, on as many tokens as asked for: nothing may differ, to the last bit.

    python tests/bench/lossless.py [--tokens 100000] [--speech FOLDER] [--speech-tokens 20000] [--seed 0]
    python tests/bench/lossless.py -m BUNDLE [--tokens 100000] [--speech FOLDER] [--encoder-provider NAME]

Part "random": small bundles with random weights, made through the real export in every precision, on noise. Part
"speech": the bundled model on speech, by `transcribe()` and by `WhisperModel`; FOLDER holds shards of spoken
utterances (export/training/corpus.py), else the bundled samples are cut and joined. Each sound is transcribed plainly,
then by each drafter: ids, log-probabilities, silence, segments with their times, seeks and words are compared with ==,
windows thrown away in fallback included. Tokens are those that drafters had a part in; plain runs are not counted.

With -m nothing but that model is run, on speech, with each drafter that it can, until each has had so many tokens; the
drafters live on from sound to sound, and always draft. --encoder-provider has its encoder run elsewhere, for plain
decoding and drafters alike.

It does not measure speed, and a machine is only one machine: bits are promised for the same one and the same
number of threads. The last line of output is JSON; the exit code is 1 when something differs, or when a sound drafter
was dropped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.rounds import print_json  # noqa: E402

from specedge.errors import UsageError  # noqa: E402
from specedge.export.training.corpus import list_lines, load_shards  # noqa: E402
from specedge.maps.build import BuildOptions, build  # noqa: E402
from specedge.maps.ngram_cache import (  # noqa: E402
    NgramCache,
    UserCache,  # noqa: E402
)
from specedge.maps.tmap_format import text_fingerprint  # noqa: E402
from specedge.maps.token_map import TokenMap  # noqa: E402
from specedge.models import store  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.bundle.manifest import SPEECH  # noqa: E402
from specedge.runtime.decoding.drafter import (  # noqa: E402
    Drafter,
    TargetModel,  # noqa: E402
)
from specedge.runtime.decoding.statistics import Speculation  # noqa: E402
from specedge.runtime.device import DEFAULT_COSTS, CostTable  # noqa: E402
from specedge.runtime.drafters.draft.load import open_draft  # noqa: E402
from specedge.runtime.drafters.ngram import NgramDrafter  # noqa: E402
from specedge.runtime.drafters.registry import make_drafter, runnable  # noqa: E402
from specedge.runtime.drafters.tokenmap import PAPER, TokenMapDrafter, TokenMapOptions  # noqa: E402
from specedge.runtime.engine.engine import Engine  # noqa: E402
from specedge.runtime.engine.speech import open_engine  # noqa: E402
from specedge.runtime.model import WhisperModel  # noqa: E402
from specedge.runtime.options import (  # noqa: E402
    CPU,  # noqa: E402
    ENCODER_PROVIDERS,  # noqa: E402
    DrafterOptions,  # noqa: E402
    TranscribeOptions,  # noqa: E402
)
from specedge.runtime.text.transcripts import token_sentences  # noqa: E402
from support import exported  # noqa: E402
from support.drafting import KINDS  # noqa: E402
from support.lossless import (  # noqa: E402
    BROKEN,
    OnceEncoded,
    Run,
    Sound,
    Truths,
    adversary,
    difference,
    random_sentences,
    recorded,
    run,
)
from support.noise import SAMPLES, noise, speech  # noqa: E402

FREE = CostTable((1, 64), (1.0, 1.0))  # where rows cost nothing, everything is drafted
DRAFT_WAYS: dict[str, dict[str, Any]] = {
    "by cost": {}, "4 at a time": {"lookahead": "4"}, "by rule": {"lookahead": "rule"},
    "tokens": {"lookahead": "confidence", "translation": "tokens"},
}  # fmt: skip
NO_TESTS: dict[str, Any] = {
    "compression_ratio_threshold": None, "log_prob_threshold": None, "no_speech_threshold": None, "temperature": (0.0,),
}  # fmt: skip
NO_TEXT_PASSES: dict[str, Any] = {
    "compression_ratio_threshold": 0.01, "log_prob_threshold": None, "no_speech_threshold": None,
    "temperature": (0.0, 0.4, 1.0),
}  # fmt: skip

RANDOM_CASES = {
    "timestamps": TranscribeOptions(**NO_TESTS),
    "no timestamps": TranscribeOptions(**NO_TESTS, without_timestamps=True),
    "prompt": TranscribeOptions(**NO_TESTS, initial_prompt=(5, 99, 12, 7), carry_initial_prompt=True),
    "forced fallback": TranscribeOptions(**NO_TEXT_PASSES, best_of=1, seed=3),
    "fallback, samples": TranscribeOptions(**NO_TEXT_PASSES, best_of=3, without_timestamps=True, seed=4),
    "penalties": TranscribeOptions(**NO_TESTS, repetition_penalty=1.3, no_repeat_ngram_size=3),
    "no suppression": TranscribeOptions(**NO_TESTS, suppress_tokens=(), suppress_blank=False),
}
SPEECH_CASES = {
    "defaults": TranscribeOptions(language="en"),
    "no timestamps": TranscribeOptions(language="en", without_timestamps=True),
    "words": TranscribeOptions(language="en", word_timestamps=True),
    "prompt": TranscribeOptions(language="en", initial_prompt="Notes of the shift.", carry_initial_prompt=True),
    "alone": TranscribeOptions(language="en", condition_on_previous_text=False, max_initial_timestamp=None),
    "forced fallback": TranscribeOptions(language="en", **NO_TEXT_PASSES, best_of=2, seed=5),
    "detected": TranscribeOptions(multilingual=True, hotwords="pump, valve"),
}

MODEL_CASES = ("defaults", "no timestamps", "prompt", "forced fallback")
LLM_CASES = ("defaults", "alone", "forced fallback")  # a speech LLM may have no place for a prompt


@dataclass
class Cell:
    """Sums over the runs of one drafter, or of one case."""

    runs: int = 0
    tokens: int = 0
    different: int = 0
    dropped: int = 0
    drafted: int = 0
    evaluated: int = 0
    accepted: int = 0


@dataclass
class Ledger:
    """Everything that was compared: sums by part, and within it by drafter and by case; differences in words."""

    drafters: dict[tuple[str, str], Cell] = field(default_factory=dict)
    cases: dict[tuple[str, str], Cell] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    limit_s: float = float("inf")
    started: float = field(default_factory=time.monotonic)

    def wants(self, part: str, n_tokens: int, share: float = 1.0) -> bool:
        """Whether a part goes on, until so much of the time is over."""
        return self.sum("tokens", part) < n_tokens and time.monotonic() - self.started < self.limit_s * share

    def compare(self, part: str, case: str, drafter: str, expected: Run, got: Run, *, may_drop: bool = False) -> None:
        """One run of a drafter beside the plain run."""
        found = difference(expected, got)
        dropped = got.drafter_error is not None and not may_drop
        if found or dropped:
            line = f"{part}, {case}, {drafter}: {found or f'dropped: {got.drafter_error}'}"
            self.differences.append(line)
            print(f"DIFFERENT {line}"[:600], file=sys.stderr, flush=True)
        counted = got.speculation
        cells = (
            self.drafters.setdefault((part, drafter), Cell()),
            self.cases.setdefault((part, case.split(": ")[-1]), Cell()),
        )
        for cell in cells:
            cell.runs += 1
            cell.tokens += got.n_tokens
            cell.different += bool(found)
            cell.dropped += dropped
            cell.drafted += counted.proposed
            cell.evaluated += counted.evaluated
            cell.accepted += counted.accepted

    def sum(self, name: str, part: str | None = None) -> int:
        """Of one column, over a part or all of it."""
        return sum(getattr(cell, name) for (of, _), cell in self.drafters.items() if part in (None, of))

    def progress(self, part: str, wanted: int) -> None:
        tokens, spent_s = self.sum("tokens", part), time.monotonic() - self.started
        print(f"{part}: {tokens} of {wanted} tokens, {self.sum('different')} different, {spent_s:.0f} s",
              file=sys.stderr, flush=True)  # fmt: skip


@dataclass
class Drafters:
    """The real drafters over one bundle; the caches live on from run to run, and so learn as they go."""

    bundle: Bundle
    folder: Path
    drafts: Mapping[str, Path] = field(default_factory=dict)
    made_maps: int = 0

    def __post_init__(self) -> None:
        tokenizer = self.bundle.tokenizer
        self.fingerprint = text_fingerprint(tokenizer.ranks, tokenizer.special.eot)
        self.cache = NgramCache()
        self.user_cache = UserCache(self.folder / "user.db", self.fingerprint)

    def ends(self, token: int) -> bool:
        return self.bundle.tokenizer.ranks[token].endswith((b".", b"?", b"!"))

    def map_of(self, sentences: Any, *, min_count: int = 1) -> TokenMap:
        """A map built of the ids of some sentences."""
        self.made_maps += 1
        path = self.folder / f"{self.made_maps}.tmap"
        eot = self.bundle.tokenizer.special.eot
        options = BuildOptions(n_orders=5, min_count=min_count)
        build(sentences, path, n_text=eot, fingerprint=self.fingerprint, options=options)
        opened = TokenMap.open(path, fingerprint=self.fingerprint)
        path.unlink()
        return opened

    def made(self, knows: Sequence[TokenMap], knows_not: TokenMap) -> Iterator[tuple[str, Drafter]]:
        """New drafters, one of each way to use them."""

        def tokenmap(maps: Sequence[TokenMap], costs: CostTable, options: TokenMapOptions | None = None) -> Drafter:
            return TokenMapDrafter(maps, costs, ends=self.ends, options=options)

        yield "tokenmap, knows", tokenmap(knows, DEFAULT_COSTS)
        yield "tokenmap, knows, free rows", tokenmap(knows, FREE)
        yield "tokenmap, knows not", tokenmap([knows_not], DEFAULT_COSTS)
        yield "tokenmap, knows not, ungated", tokenmap([knows_not], FREE, TokenMapOptions(gated=False))
        yield "tokenmap, two maps", tokenmap([knows_not, *knows], FREE)
        yield "tokenmap, paper", tokenmap([*knows, knows_not], DEFAULT_COSTS, PAPER)
        yield "ngram", NgramDrafter(DEFAULT_COSTS)
        yield "ngram, free rows", NgramDrafter(FREE)
        yield "ngram, kept and user's", NgramDrafter(FREE, cache=self.cache, user_cache=self.user_cache)
        yield from self.neural()

    def neural(self) -> Iterator[tuple[str, Drafter]]:
        """Draft models: the target's own weights, and those of `drafts` that can serve it, each in several ways."""
        for name, folder in (("own weights", self.bundle.path), *self.drafts.items()):
            for way, asked in DRAFT_WAYS.items():
                if name == "own weights" and "translation" in asked:
                    continue
                options = DrafterOptions("draft", draft_model=folder, **asked)
                try:
                    drafter = open_draft(TargetModel(self.bundle, threads=1), options, FREE)
                except UsageError:  # larger than the target, or with shorter windows
                    break
                yield f"draft, {name}, {way}", drafter
                drafter.close()


def compare_all(
    ledger: Ledger, part: str, case: str, transcribe: Callable[[Drafter | None], Run], drafters: Drafters,
    others: Callable[[Truths], tuple[Sequence[TokenMap], TokenMap]], seed: int,
) -> None:  # fmt: skip
    """One sound with one set of options: plainly, then with every drafter there is."""
    plain, truths = transcribe(None), Truths()
    ledger.compare(part, case, "empty", plain, transcribe(truths.recorder()))
    for kind in KINDS:
        if kind != "empty":
            got = transcribe(adversary(kind, truths, drafters.bundle, seed))
            ledger.compare(part, case, kind, plain, got, may_drop=kind in BROKEN)
    for name, drafter in drafters.made(*others(truths)):
        ledger.compare(part, case, name, plain, transcribe(drafter))


def compare_random(ledger: Ledger, n_tokens: int, seed: int, threads: int, folder: Path, *, share: float = 1.0) -> None:
    """Random weights: bundles and cases in turn, a new sound of noise each time, until there are enough tokens."""
    cells = [(precision, variant) for variant in exported.VARIANTS for precision in exported.PRECISIONS]
    known: dict[tuple[str, str], Drafters] = {}
    at = 0
    while ledger.wants("random", n_tokens, share):
        precision, variant = cells[at % len(cells)]
        case = list(RANDOM_CASES)[(at + at // len(cells)) % len(RANDOM_CASES)]
        bundle, engine = exported.bundle(precision, variant), OnceEncoded(exported.engine(precision, variant, threads))
        drafters = known.get((precision, variant))
        if drafters is None:
            drafts = {name: exported.bundle(precision, name).path for name in exported.DRAFTS}
            drafters = known[precision, variant] = Drafters(bundle, Path(tempfile.mkdtemp(dir=folder)), drafts)
        window_samples = bundle.manifest.n_frames * 160
        sound = np.concatenate([noise(window_samples, rms=0.02 * (1 + i), color=color, seed=seed + at)
                                for i, color in enumerate(("white", "pink"))])  # fmt: skip
        options = RANDOM_CASES[case]
        eot = bundle.manifest.tokens.eot

        def others(truths: Truths, drafters: Drafters = drafters, eot: int = eot, at: int = at) -> Any:
            knows = drafters.map_of(truths.sentences(eot, drafters.ends))
            return [knows], drafters.map_of(random_sentences(eot, seed + at))

        def transcribe(drafter: Drafter | None, engine: Any = engine, bundle: Bundle = bundle, sound: Sound = sound,
                       options: TranscribeOptions = options) -> Run:  # fmt: skip
            return run(engine, bundle, sound, options, drafter)

        compare_all(ledger, "random", f"{variant} {precision}: {case}", transcribe, drafters, others, seed + at)
        at += 1
        ledger.progress("random", n_tokens)


def sounds(folder: Path | None, seed: int) -> Iterator[Sound]:
    """Endless speech: a few utterances with pauses between, of the shards of `folder`, or pieces of the samples."""
    rng = np.random.default_rng([seed, 2])
    if folder is None:
        whole = [speech(path) for path in SAMPLES]
        pieces = [part for one in whole for part in np.array_split(one, 4)] + whole
    else:
        pieces = [utterance.sound() for _, utterances in load_shards(folder) for utterance in utterances]
    while True:
        parts = []
        for _ in range(int(rng.integers(2, 7))):
            parts += [pieces[rng.integers(len(pieces))], np.zeros(int(rng.integers(3000, 30000)), np.float32)]
        yield np.concatenate(parts)


def by_model(model: WhisperModel, sound: Sound, arguments: dict[str, Any]) -> Run:
    """The same through the class that programs use."""
    with recorded() as windows:
        segments, info = model.transcribe(sound, **arguments)
        found = list(segments)
    counted = info.speculation
    summed = Speculation(**{name: counted[name] for name in ("drafter", "proposed", "evaluated", "accepted")})
    return Run(segments=found, windows=windows, drafter_error=None, speculation=summed)


def compare_speech(ledger: Ledger, n_tokens: int, seed: int, threads: int, folder: Path, shards: Path | None) -> None:
    """The bundled model: each case in turn on the next sound, and every third sound by WhisperModel too."""
    bundle = Bundle.open(store.find("demo"))
    raw = Engine(bundle, threads=threads)
    drafters = Drafters(bundle, folder)
    trained = [
        drafters.map_of(token_sentences(list_lines(f"{name}.train"), bundle.tokenizer), min_count=2)
        for name in ("maintenance", "notes")
    ]
    model = WhisperModel("demo", cpu_threads=threads)
    arguments: list[dict[str, Any]] = [
        {"language": "en"}, {"language": "en", "word_timestamps": True, "vad_filter": True},
    ]  # fmt: skip
    for at, sound in enumerate(sounds(shards, seed)):
        if not ledger.wants("speech", n_tokens):
            break
        case = list(SPEECH_CASES)[(at + seed) % len(SPEECH_CASES)]
        engine, options = OnceEncoded(raw), SPEECH_CASES[case]

        def transcribe(drafter: Drafter | None, engine: Any = engine, sound: Sound = sound,
                       options: TranscribeOptions = options) -> Run:  # fmt: skip
            return run(engine, bundle, sound, options, drafter)

        unknown = drafters.map_of(random_sentences(bundle.manifest.tokens.eot, seed + at))
        compare_all(ledger, "speech", case, transcribe, drafters, lambda truths, u=unknown: (trained, u), seed + at)
        if (at + seed) % 3 == 0:
            asked = arguments[at // 3 % len(arguments)]
            plain = by_model(model, sound, asked)
            for name, drafter in drafters.made(trained, unknown):
                ledger.compare(
                    "speech", "WhisperModel", name, plain, by_model(model, sound, {**asked, "drafter": drafter})
                )
            ledger.compare(
                "speech", "WhisperModel", "ngram", plain, by_model(model, sound, {**asked, "drafter": "ngram"})
            )
        ledger.progress("speech", n_tokens)


def compare_model(ledger: Ledger, raw: Engine, n_tokens: int, seed: int, threads: int, shards: Path | None) -> None:
    """One model with each drafter that it can, in turns, until each has had `n_tokens` tokens or the time is over."""
    bundle = raw.bundle
    part = bundle.manifest.name
    target = TargetModel(bundle, threads=threads, weighs=False)
    names = [*(name for name in runnable(bundle, DrafterOptions()) if name != "none"), "auto"]
    if "draft" not in names and store.known_draft(part) is not None:
        names.append("draft")
    made = {name: make_drafter(name, target) for name in names}
    cases = LLM_CASES if bundle.manifest.kind == SPEECH else MODEL_CASES
    for at, sound in enumerate(sounds(shards, seed)):
        case = cases[at % len(cases)]
        engine, options = OnceEncoded(raw), SPEECH_CASES[case]
        plain = run(engine, bundle, sound, options, None)
        for name, drafter in made.items():
            ledger.compare(part, case, name, plain, run(engine, bundle, sound, options, drafter))
        ledger.progress(part, n_tokens * len(names))
        if not ledger.wants(part, n_tokens * len(names)):
            break
    for drafter in made.values():
        drafter.close()


def report(ledger: Ledger) -> dict[str, Any]:
    """Print both tables; the figures of the last line."""
    columns = ("runs", "tokens", "different", "dropped", "drafted", "evaluated", "accepted")
    for title, cells in (("drafter", ledger.drafters), ("case", ledger.cases)):
        print(f"{'part':8} {title:30}" + "".join(f"{name:>11}" for name in columns))
        for (part, name), cell in sorted(cells.items(), key=lambda item: item[0][0]):
            print(f"{part:8} {name:30}" + "".join(f"{getattr(cell, column):>11}" for column in columns))
        print()
    for line in ledger.differences[:20]:
        print(line[:600])
    parts = {part for part, _ in ledger.drafters}
    return {
        "failures": len(ledger.differences),
        **{name: ledger.sum(name) for name in ("tokens", "runs", "different", "dropped")},
        **{name: ledger.sum(name) for name in ("drafted", "evaluated", "accepted")},
        "tokens_by_part": {part: ledger.sum("tokens", part) for part in sorted(parts)},
    }


def main() -> int:
    lines = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(
        description="\n\n".join(lines[i] for i in (0, 2, 3, 4)), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", help="run this model alone")
    parser.add_argument(
        "--tokens", type=int, default=100_000, help="to compare on random weights, or with each drafter"
    )
    parser.add_argument("--speech-tokens", type=int, default=20_000, help="to compare on speech")
    parser.add_argument("--speech", type=Path, metavar="FOLDER", help="shards of spoken utterances")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--encoder-provider", choices=ENCODER_PROVIDERS, default=CPU)
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin nothing new after this")
    given = parser.parse_args()
    if given.model is None and given.encoder_provider != CPU:
        parser.error("--encoder-provider needs -m, a bundle that was exported with --encoder-plain")
    ledger, encoder_provider = Ledger(limit_s=given.limit_s), CPU
    with tempfile.TemporaryDirectory(prefix="specedge-lossless-") as folder:
        share = 0.5 if given.speech_tokens > 0 else 1.0
        if given.model is None:
            compare_random(ledger, given.tokens, given.seed, given.threads, Path(folder), share=share)
        else:
            bundle = Bundle.open(store.find(given.model))
            engine = open_engine(bundle, threads=given.threads, encoder_provider=given.encoder_provider)
            encoder_provider = engine.encoder_provider
            compare_model(ledger, engine, given.tokens, given.seed, given.threads, given.speech)
        if given.model is None and given.speech_tokens > 0:
            compare_speech(ledger, given.speech_tokens, given.seed, given.threads, Path(folder), given.speech)
    figures = {**report(ledger), "encoder_provider": encoder_provider}
    print_json("lossless", **figures)
    return 1 if ledger.differences else 0


if __name__ == "__main__":
    sys.exit(main())
