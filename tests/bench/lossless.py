"""Every drafter beside plain decoding on a bundle and recordings: nothing may differ, to the last bit.

    python tests/bench/lossless.py -m MODEL SET... [--drafters NAMES] [--draft-model MODEL] [--token-map X.tmap]
    python tests/bench/lossless.py [--tokens 100000]        # without a model: small random ones, on noise
                                   [--adversaries] [--limit-s 600] [--seed 0] [--threads 1] [--encoder-provider NAME]

A SET is a .jsonl file, a folder or an audio file. A few recordings with pauses between them are one sound, which is
transcribed plainly and then with each drafter, by options in turn: with timestamps and without, behind a prompt, with
word times, and with a fallback to higher temperatures. Drafters live on from sound to sound, and always draft. Ids,
log-probabilities, silence, segments with their times, seeks and words are compared with ==, windows thrown away in
fallback included. It ends when every recording was in a sound, or each drafter had --tokens, and goes round again until
then where --tokens is given.

Random weights are made through the real export in every precision; there a token map that knows the text, one that does
not, a draft of the target's own weights, and every kind of a right, wrong or malformed draft (support/drafting.py) take
the place of a model's drafters; with --adversaries those drafts are compared on a model, too. It does not measure
speed, and a machine is only one machine: bits are promised for the same one and the same number of threads. The last
line is JSON; the exit code is 1 when something differs, or when a sound drafter was dropped.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import BenchError, Sound, made, print_json, print_table, recordings  # noqa: E402

from specedge import decode_audio  # noqa: E402
from specedge.maps.build import build  # noqa: E402
from specedge.maps.tmap_format import text_fingerprint  # noqa: E402
from specedge.models import store  # noqa: E402
from specedge.runtime.bench.recordings import Recording  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.bundle.manifest import SPEECH  # noqa: E402
from specedge.runtime.decoding.drafter import Drafter, TargetModel  # noqa: E402
from specedge.runtime.device import CostTable  # noqa: E402
from specedge.runtime.drafters.registry import make_drafter, runnable  # noqa: E402
from specedge.runtime.engine.speech import open_engine  # noqa: E402
from specedge.runtime.options import CPU, DrafterOptions, TranscribeOptions  # noqa: E402
from support import exported  # noqa: E402
from support.drafting import KINDS  # noqa: E402
from support.lossless import (  # noqa: E402
    BROKEN,
    OnceEncoded,
    Run,
    Truths,
    adversary,
    difference,
    random_sentences,
    run,
)  # fmt: skip
from support.noise import noise  # noqa: E402

FREE = CostTable((1, 64), (1.0, 1.0))  # where rows cost nothing, everything is drafted
COLUMNS = ("runs", "tokens", "different", "dropped", "drafted", "evaluated", "accepted")
NO_TEST: dict[str, Any] = {"log_prob_threshold": None, "no_speech_threshold": None}
FALLBACK: dict[str, Any] = {**NO_TEST, "compression_ratio_threshold": 0.01, "temperature": (0.0, 0.4, 1.0)}
CASES = {
    "timestamps": TranscribeOptions(),
    "no timestamps": TranscribeOptions(without_timestamps=True),
    "words": TranscribeOptions(word_timestamps=True),
    "prompt": TranscribeOptions(initial_prompt="Notes of the day.", carry_initial_prompt=True),
    "fallback": TranscribeOptions(**FALLBACK, best_of=2, seed=5),
}
LLM_CASES = ("timestamps", "fallback")  # a speech LLM may have no place for a prompt, and no word times
UNTESTED: dict[str, Any] = {**NO_TEST, "compression_ratio_threshold": None, "temperature": (0.0,)}
RANDOM_CASES = {
    "timestamps": TranscribeOptions(**UNTESTED),
    "no timestamps": TranscribeOptions(**UNTESTED, without_timestamps=True),
    "prompt": TranscribeOptions(**UNTESTED, initial_prompt=(5, 99, 12, 7), carry_initial_prompt=True),
    "fallback": TranscribeOptions(**FALLBACK, best_of=2, seed=4),
    "penalties": TranscribeOptions(**UNTESTED, repetition_penalty=1.3, no_repeat_ngram_size=3),
    "no suppression": TranscribeOptions(**UNTESTED, suppress_tokens=(), suppress_blank=False),
}


@dataclass
class Ledger:
    """Everything that was compared: sums by drafter, and differences in words."""

    limit_s: float
    rows: dict[str, dict[str, int]] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def compare(self, case: str, drafter: str, expected: Run, got: Run, *, may_drop: bool = False) -> None:
        """One run of a drafter beside the plain run."""
        found = difference(expected, got)
        dropped = got.drafter_error is not None and not may_drop
        if found or dropped:
            self.differences.append(f"{case}, {drafter}: {found or f'dropped: {got.drafter_error}'}"[:600])
            print(f"DIFFERENT {self.differences[-1]}", file=sys.stderr, flush=True)
        counted = got.speculation
        row = self.rows.setdefault(drafter, dict.fromkeys(COLUMNS, 0))
        values = (1, got.n_tokens, bool(found), dropped, counted.proposed, counted.evaluated, counted.accepted)
        for name, value in zip(COLUMNS, values, strict=True):
            row[name] += value

    def sum(self, name: str) -> int:
        return sum(row[name] for row in self.rows.values())

    def is_over(self, n_tokens: int | None) -> bool:
        """Whether the time is over, or each drafter had so many tokens."""
        fewest = min((row["tokens"] for row in self.rows.values()), default=0)
        return time.monotonic() - self.started > self.limit_s or (n_tokens is not None and fewest >= n_tokens)

    def tell(self) -> None:
        spent_s = time.monotonic() - self.started
        print(f"{self.sum('tokens')} tokens, {self.sum('different')} different, {spent_s:.0f} s", file=sys.stderr)


def joined(found: Sequence[Recording], seed: int, *, again: bool) -> Iterator[Sound]:
    """Sounds of up to four recordings with pauses between; all of them once, or again and again."""
    rng = np.random.default_rng([seed, 2])
    pieces = [decode_audio(one.file) for one in found]
    for turn in itertools.count():
        order = rng.permutation(len(pieces)) if turn else range(len(pieces))
        for first in range(0, len(order), 4):
            parts = []
            for at in order[first : first + 4]:
                parts += [pieces[at], np.zeros(int(rng.integers(3000, 30000)), np.float32)]
            yield np.concatenate(parts)
        if not again:
            return


def compare_model(ledger: Ledger, given: argparse.Namespace) -> str:
    """One model with each of its drafters. Returns what its encoder ran on."""
    bundle = Bundle.open(store.find(given.model))
    raw = open_engine(bundle, threads=given.threads, encoder_provider=given.encoder_provider)
    target = TargetModel(bundle, threads=given.threads, weighs=False)
    options = DrafterOptions(token_maps=given.token_map, draft_model=given.draft_model)
    usual = [*(name for name in runnable(bundle, options) if name != "none"), "auto"]
    names = given.drafters.split(",") if given.drafters else usual
    drafts = {"draft": f"draft={given.draft_model}"} if given.draft_model else {}
    drafters = {name: made(drafts.get(name, name), target, given.token_map) for name in names}
    cases = LLM_CASES if bundle.manifest.kind == SPEECH else tuple(CASES)
    found = [one for name in given.sets for one in recordings(name, given.limit)]
    for at, sound in enumerate(joined(found, given.seed, again=given.tokens is not None)):
        case = cases[at % len(cases)]
        transcribe = partial(run, OnceEncoded(raw), bundle, sound, CASES[case])
        plain = transcribe(None)
        for name, drafter in drafters.items():
            ledger.compare(case, name, plain, transcribe(drafter))
        if given.adversaries:
            compare_adversaries(ledger, case, plain, transcribe, bundle, given.seed + at)
        ledger.tell()
        if ledger.is_over(given.tokens):
            break
    for drafter in drafters.values():
        drafter.close()
    return raw.encoder_provider


def compare_random(ledger: Ledger, given: argparse.Namespace, folder: Path) -> None:
    """Bundles and cases in turn, a new sound of noise each time, until there are enough tokens."""
    bundles = itertools.cycle(
        [(precision, variant) for variant in exported.VARIANTS for precision in exported.PRECISIONS]
    )
    for at, (precision, variant) in enumerate(bundles):
        bundle = exported.bundle(precision, variant)
        engine = OnceEncoded(exported.engine(precision, variant, given.threads))
        case = list(RANDOM_CASES)[(at + at // 7) % len(RANDOM_CASES)]
        n_samples = bundle.manifest.n_frames * 160
        loud = (("white", 0.02), ("pink", 0.04))
        parts = [noise(n_samples, rms=rms, color=color, seed=given.seed + at) for color, rms in loud]
        sound = np.concatenate(parts)

        def transcribe(drafter: Drafter | None, engine: Any = engine, bundle: Bundle = bundle, sound: Sound = sound,
                       case: str = case) -> Run:  # fmt: skip
            return run(engine, bundle, sound, RANDOM_CASES[case], drafter)

        compare_kinds(
            ledger, f"{variant} {precision}: {case}", transcribe, bundle, folder, given.seed + at, given.threads
        )
        ledger.tell()
        if ledger.is_over(given.tokens):
            return


def compare_adversaries(
    ledger: Ledger, case: str, plain: Run, transcribe: Callable[[Drafter | None], Run], bundle: Bundle, seed: int
) -> Truths:
    """One sound with right, wrong and malformed drafts. Returns what plain decoding wrote, as they know it."""
    truths = Truths()
    ledger.compare(case, "empty", plain, transcribe(truths.recorder()))
    for kind in KINDS:
        if kind != "empty":
            got = transcribe(adversary(kind, truths, bundle, seed))
            ledger.compare(case, kind, plain, got, may_drop=kind in BROKEN)
    return truths


def compare_kinds(
    ledger: Ledger, case: str, transcribe: Callable[[Drafter | None], Run], bundle: Bundle, folder: Path, seed: int,
    threads: int,
) -> None:  # fmt: skip
    """One sound: plainly, then with right, wrong and malformed drafts, and with drafters that need no training."""
    plain = transcribe(None)
    truths = compare_adversaries(ledger, case, plain, transcribe, bundle, seed)
    eot, ranks = bundle.manifest.tokens.eot, bundle.tokenizer.ranks
    maps = {
        "tokenmap, knows": truths.sentences(eot, lambda token: ranks[token].endswith((b".", b"?", b"!"))),
        "tokenmap, knows not": random_sentences(eot, seed),
    }
    target = TargetModel(bundle, threads=threads, costs=FREE, weighs=False)
    options = {"ngram": DrafterOptions("ngram"), "draft": DrafterOptions("draft", draft_model=bundle.path)}
    for name, sentences in maps.items():
        path = folder / f"{len(list(folder.iterdir()))}.tmap"
        build(sentences, path, n_text=eot, fingerprint=text_fingerprint(ranks, eot))
        options[name] = DrafterOptions("tokenmap", token_maps=[path])
    for name, asked in options.items():
        drafter = make_drafter(asked, target)
        ledger.compare(case, name, plain, transcribe(drafter))
        drafter.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET")
    parser.add_argument("-m", "--model", help="a bundle or an installed model  [default: small random ones]")
    parser.add_argument("--drafters", help="with commas  [default: all that the bundle can, and auto]")
    parser.add_argument("--adversaries", action="store_true", help="a model's right, wrong and malformed drafts, too")
    parser.add_argument("--draft-model", metavar="MODEL")
    parser.add_argument("--token-map", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--tokens", type=int, help="go on until each drafter had so many")
    parser.add_argument("--limit", type=int, metavar="N", help="recordings of a set")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin nothing new after this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--encoder-provider", default=CPU, metavar="NAME")
    given = parser.parse_args()
    if (given.model is None) != (not given.sets):
        parser.error("give a model and recordings, or neither")
    ledger, encoder_provider = Ledger(given.limit_s), CPU
    with tempfile.TemporaryDirectory(prefix="specedge-lossless-") as folder:
        try:
            if given.model is None:
                compare_random(ledger, given, Path(folder))
            else:
                encoder_provider = compare_model(ledger, given)
        except BenchError as error:
            raise SystemExit(f"lossless: {error}") from None
    print_table([["drafter", *COLUMNS], *([name, *row.values()] for name, row in ledger.rows.items())])
    sums = {name: ledger.sum(name) for name in COLUMNS}
    print(f"\n{sums['tokens']} tokens, {sums['different']} runs differ, {sums['dropped']} dropped")
    print_json("lossless", **sums, failures=len(ledger.differences), encoder_provider=encoder_provider)
    return 1 if ledger.differences else 0


if __name__ == "__main__":
    sys.exit(main())
