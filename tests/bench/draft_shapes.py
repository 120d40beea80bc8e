"""How much faster a decoder of one true shape is with a draft of another, at a given rate of accepted tokens.

    python tests/bench/draft_shapes.py small --draft tiny --acceptance 0.6 --lookahead 5

Both models have random weights, in int8; what they say is nonsense, but a pass of that shape takes the time it takes.
The draft really runs, through the drafter `draft`, its own encoder included. Whether a drafted token is accepted is
decided by lot at the rate of --acceptance, for each token behind accepted ones, so the rate of a trained pair can be
replayed. Every window is decoded with and without drafts in turn, in one process. Columns: the decoder's
speed-up with drafting, without and with the time in which the draft hears the window; end to end, with the target's
encoder; and what the cost model says of the first (algorithms 3.2) with the prices measured here, at the rate that was
asked for and at the one that the lot gave: few windows have few lots, and only the second says whether the model holds.

It does not measure how often drafts of trained models are accepted, nor a busy machine: nothing else may run. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from specedge.export.export import export_to  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.decoding.accept import Candidate  # noqa: E402
from specedge.runtime.decoding.decode import DecodeOptions, Speculation, decode_window  # noqa: E402
from specedge.runtime.decoding.drafter import (  # noqa: E402
    Guard,
    TargetModel,  # noqa: E402
)
from specedge.runtime.decoding.rules import Logits, build_rules  # noqa: E402
from specedge.runtime.decoding.sampling import Draw  # noqa: E402
from specedge.runtime.device import CostTable  # noqa: E402
from specedge.runtime.drafters.draft.drafter import DraftModelDrafter  # noqa: E402
from specedge.runtime.drafters.registry import make_drafter  # noqa: E402
from specedge.runtime.engine.calibrate import measure  # noqa: E402
from specedge.runtime.engine.engine import Engine  # noqa: E402
from specedge.runtime.options import DrafterOptions  # noqa: E402
from support.checkpoints import SIZES, make_checkpoint  # noqa: E402
from support.exported import noise_mel  # noqa: E402

_OTHER = 90  # said where no draft is accepted


class ByLot:
    """Accepts a draft at a rate and says something else where it does not, until a text of `n_tokens` ends."""

    name, lossless = "by lot", False

    def __init__(self, rate: float, n_tokens: int, eot: int, seed: int) -> None:
        self._rate, self._left, self._eot = rate, n_tokens, eot
        self._rng = random.Random(seed)

    def choose(self, logits: Logits, candidates: Sequence[Candidate], draw: Draw) -> int:
        """See the class."""
        draw.own(logits)  # takes its time as it does in earnest
        self._left -= 1
        if self._left == 0:
            return self._eot
        drafted = [candidate.token for candidate in candidates]
        if drafted and self._rng.random() < self._rate:
            return drafted[0]
        return _OTHER + (_OTHER in drafted)


@dataclass(frozen=True)
class Round:
    """Seconds of all windows: plain decoding, decoding with drafts, of it hearing; and what was drafted."""

    plain_s: float
    drafted_s: float
    heard_s: float
    counted: Speculation


class Pair:
    """A target and its draft, with random weights of two true shapes."""

    def __init__(self, target: Path, draft: Path, *, threads: int, lookahead: int) -> None:
        self.bundle = Bundle.open(target)
        self.engine = Engine(self.bundle, threads=threads, cache=False)
        options = DrafterOptions("draft", draft_model=draft, lookahead=str(lookahead))
        made = make_drafter(options, TargetModel(self.bundle, threads=threads))
        if not isinstance(made, DraftModelDrafter) or made.model is None:
            sys.exit("the draft could not be loaded: is there memory for both?")
        self.drafter, self._heard_s = made, 0.0
        model, hear = made.model, made.model.hear

        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return hear(*arguments)
            finally:
                self._heard_s += time.perf_counter() - started

        model.hear = timed  # type: ignore[method-assign]
        manifest = self.bundle.manifest
        self._rules = build_rules(
            manifest.tokens, space_ids=[220], suppressed=[], timestamps=False, max_initial_timestamp_index=None,
            suppress_blank=False,
        )  # fmt: skip
        self._prompt = manifest.tokens.prompt("en" if manifest.tokens.is_multilingual else None, timestamps=False)

    def decode(self, features: Any, rate: float, n_tokens: int, seed: int, *, drafted: bool) -> tuple[float, Any]:
        """A window: its seconds behind the encoder, and its counters."""
        manifest = self.bundle.manifest
        options = DecodeOptions(
            rules=self._rules,
            n_text_ctx=manifest.dims.n_text_ctx,
            n_sample=manifest.dims.n_text_ctx,
            acceptance=ByLot(rate, n_tokens, manifest.tokens.eot, seed),
            mel=lambda n_mels: noise_mel(n_mels, manifest.n_frames, seed),
        )
        guard = Guard(self.drafter) if drafted else None
        started = time.perf_counter()
        result = decode_window(self.engine, features, self._prompt, options, guard)
        spent_s = time.perf_counter() - started
        if guard is not None:
            guard.end(result.tokens)
            if guard.error is not None:
                sys.exit(f"the drafter failed: {guard.error}")
        return spent_s, result.speculation

    def round(self, features: Sequence[Any], rate: float, n_tokens: int) -> Round:
        """All windows, each without drafts and with them."""
        plain_s = drafted_s = 0.0
        total = Speculation()
        self._heard_s = 0.0
        for seed, one in enumerate(features):
            plain_s += self.decode(one, rate, n_tokens, seed, drafted=False)[0]
            spent_s, counted = self.decode(one, rate, n_tokens, seed, drafted=True)
            drafted_s, total = drafted_s + spent_s, total.plus(counted)
        return Round(plain_s, drafted_s, self._heard_s, total)


def main() -> int:
    given = _arguments()
    with tempfile.TemporaryDirectory(prefix="specedge-shapes-") as folder:
        paths = []
        for part, size in (("target", given.target), ("draft", given.draft)):
            make_checkpoint(Path(folder) / part / "checkpoint", size=size)
            export_to(str(Path(folder) / part / "checkpoint"), Path(folder) / part / "bundle", name=size)
            paths.append(Path(folder) / part / "bundle")
        pair = Pair(*paths, threads=given.threads, lookahead=given.lookahead)
        profile = measure(pair.engine, rounds=given.rounds)
        costs = profile.costs()
        dims, n_frames = pair.bundle.manifest.dims, pair.bundle.manifest.n_frames
        features = [pair.engine.encode(noise_mel(dims.n_mels, n_frames, seed)) for seed in range(given.windows)]
        pair.round(features[:1], given.acceptance, given.tokens)
        rounds = [pair.round(features, given.acceptance, given.tokens) for _ in range(given.rounds)]
        draft = measure(pair.drafter.model.engine, rounds=given.rounds)  # type: ignore[union-attr]
        figures = _figures(given, rounds, costs, draft.pass_s[1] / profile.pass_s[1], profile.encode_s)
        pair.drafter.close()
    print(f"{given.target} with a draft of the shape of {given.draft}, {given.threads} threads")
    for name, value in figures.items():
        print(f"{name:28} {value}")
    shapes = {"target": given.target, "draft": given.draft, "threads": given.threads}
    print(json.dumps({"benchmark": "draft_shapes", **shapes, **figures}))
    return 0


def _figures(
    given: argparse.Namespace, rounds: Sequence[Round], costs: CostTable, draft_cost: float, encode_s: float
) -> dict[str, Any]:
    """Medians of the rounds."""
    encoded_s = encode_s * given.windows

    def ratio(of: Any) -> float:
        return round(statistics.median(of(one) for one in rounds), 3)

    counted = rounds[0].counted
    came = counted.accepted / max(counted.accepted + _refused(counted), 1)
    model = costs.speed(given.lookahead, came, draft_cost)
    decoder = ratio(lambda one: one.plain_s / (one.drafted_s - one.heard_s))
    return {
        "acceptance asked for": given.acceptance,
        "accepted of decided": round(came, 3),
        "tokens per pass": round(counted.tokens_per_pass or 1.0, 3),
        "decoder": decoder,
        "decoder, hearing included": ratio(lambda one: one.plain_s / one.drafted_s),
        "end to end": ratio(lambda one: (one.plain_s + encoded_s) / (one.drafted_s + encoded_s)),
        "cost model as asked for": round(costs.speed(given.lookahead, given.acceptance, draft_cost), 3),
        "cost model": round(model, 3),
        "decoder / cost model": round(decoder / model, 3),
        "draft token in passes": round(draft_cost, 3),
    }


def _refused(counted: Speculation) -> int:
    """Drafts behind accepted ones that were not: one for each pass with drafts but the wholly accepted."""
    return counted.evaluated_by_position[0] - counted.bonus if counted.evaluated_by_position else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=list(SIZES))
    parser.add_argument("--draft", choices=list(SIZES), default="tiny")
    parser.add_argument("--acceptance", type=float, default=0.6)
    parser.add_argument("--lookahead", type=int, default=5, help="tokens a draft")
    parser.add_argument("--tokens", type=int, default=60, help="of a window")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
