"""What the experiments with draft models share: utterances decoded by a model with a drafter, and what was counted.

Every setting gets a drafter of its own and the same utterances, English, at temperature 0. Texts
are compared with plain decoding's. Speed-ups are composed: passes by their rows at the prices of the table, draft
tokens at the share of the weights that a draft pass reads; nothing is timed, and drafters go by such prices too, not by
the clock. It does not know what is compared.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.map_texts import Bench
from bench.noise_sweep import spoken
from bench.rounds import BenchError
from numpy.typing import NDArray

from specedge.models import store
from specedge.runtime.audio.mel import log_mel
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import decoder_weights
from specedge.runtime.decoding.decode import DecodeOptions, Speculation, WindowResult, decode_window
from specedge.runtime.decoding.drafter import Drafter, Guard, TargetModel
from specedge.runtime.decoding.rules import build_rules
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.draft.drafter import DraftModelDrafter
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.engine.engine import Engine
from specedge.runtime.options import DrafterOptions

__all__ = ["DraftRuns", "Heard", "figures", "passes_cost"]

Sound = NDArray[np.float32]


@dataclass
class Heard:
    """A window: its sound, its features, and what plain decoding says."""

    sound: Sound
    features: Any
    plain: tuple[int, ...]


class DraftRuns:
    """One target and one draft. Raises BenchError when a text is not plain decoding's, or a drafter fails."""

    def __init__(self, bench: Bench, draft: str | Path | None, threads: int, *, timestamps: bool = False) -> None:
        self.bench, self.threads = bench, threads
        manifest, tokenizer = bench.bundle.manifest, bench.bundle.tokenizer
        self.engine = Engine(bench.bundle, threads=threads)
        self.prompt = tuple(tokenizer.special.prompt("en", timestamps=timestamps))
        self._n_frames = manifest.n_frames
        self._n_mels = manifest.dims.n_mels
        self.rules = build_rules(
            tokenizer.special,
            space_ids=tokenizer.encode(" "),
            suppressed=manifest.suppress_tokens,
            timestamps=timestamps,
            max_initial_timestamp_index=None,
        )
        self._take(draft)

    def _take(self, draft: str | Path | None) -> None:
        self._draft = draft
        self.draft = Bundle.open(store.find(draft) if draft is not None else self.bench.bundle.path / "draft")
        self.draft_cost = decoder_weights(self.draft.manifest.dims) / decoder_weights(self.bench.bundle.manifest.dims)

    def with_draft(self, draft: str | Path) -> DraftRuns:
        """The same target with another draft."""
        other = copy.copy(self)
        other._take(draft)
        return other

    def hear(self, folder: Path | None, domain: str, n: int) -> tuple[list[Heard], str]:
        """Utterances of a domain, and where they are from."""
        sounds, source = spoken(folder, domain, n)
        heard = []
        for sound, _ in sounds:
            features = self.engine.encode(log_mel(sound, self._n_mels, self._n_frames))
            heard.append(Heard(sound, features, self._decode(sound, features, None).tokens))
        return heard, source

    def drafter(self, **options: Any) -> DraftModelDrafter:
        """A new drafter."""
        draws = options.pop("draws", False)
        target = TargetModel(self.bench.bundle, threads=self.threads, costs=self.bench.costs, weighs=False, draws=draws)
        made = make_drafter(DrafterOptions("draft", draft_model=self._draft, **options), target)
        if not isinstance(made, DraftModelDrafter):
            raise BenchError("the draft could not be loaded")
        return made

    def run(
        self,
        drafter: Drafter,
        heard: Sequence[Heard],
        after: Callable[[int, Speculation], None] | None = None,
        *,
        encodes: bool = False,
    ) -> Speculation:
        """Decode all with one drafter; `after` gets each window's counts.

        encodes: each window is encoded anew, so that the encoder's time passes between windows as in a transcription.
        """
        guard = Guard(drafter)
        total = Speculation()
        for i, window in enumerate(heard):
            features = window.features
            if encodes:
                features = self.engine.encode(self.mel(window.sound)(self._n_mels))
            result = self._decode(window.sound, features, guard)
            guard.end(result.tokens)
            if guard.error is not None:
                raise BenchError(f"the drafter failed: {guard.error}")
            if result.tokens != window.plain:
                raise BenchError(f"utterance {i + 1}: the text changed")
            total = total.plus(result.speculation)
            if after is not None:
                after(i, result.speculation)
        return total

    def speed_up(self, counted: Speculation) -> float:
        """Of the decoder, composed."""
        cost = passes_cost(counted, self.bench.costs) + self.draft_cost * counted.proposed
        return counted.tokens / cost if cost else 1.0

    def mel(self, sound: Sound) -> Callable[[int], NDArray[np.float32]]:
        """Gives a window's log-mel with so many bands."""
        return lambda n_mels: log_mel(sound, n_mels, self._n_frames)

    def _decode(self, sound: Sound, features: Any, guard: Guard | None) -> WindowResult:
        n_text_ctx = self.bench.bundle.manifest.dims.n_text_ctx
        options = DecodeOptions(rules=self.rules, n_text_ctx=n_text_ctx, mel=self.mel(sound))
        return decode_window(self.engine, features, self.prompt, options, guard)


def figures(runs: DraftRuns, counted: Speculation) -> dict[str, float]:
    """For the JSON, rounded."""
    return {
        "speed_up": round(runs.speed_up(counted), 4),
        "tokens_per_pass": round(counted.tokens_per_pass or 1.0, 4),
        "acceptance": round(counted.acceptance_rate or 0.0, 4),
        "proposed": counted.proposed,
        "tokens": counted.tokens,
        "passes": counted.passes,
    }


def passes_cost(counted: Speculation, costs: CostTable) -> float:
    """Of all passes behind the prompt's, by how many rows they had; drafts are chains."""
    at_least = [counted.passes, *counted.evaluated_by_position, 0]
    cost = 0.0
    for n_drafts, (here, longer) in enumerate(itertools.pairwise(at_least)):
        n_rows = 1 + n_drafts
        cost += (here - longer) * costs.cost(1 if n_rows <= 2 else n_rows + n_rows % 2)
    return cost
