"""Draft models over small random bundles: opened as the command opens them, and run beside plain decoding."""

from __future__ import annotations

import functools
from typing import Any

from specedge.runtime.audio.audio import open_audio
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.drafter import TargetModel
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.draft.drafter import DraftModelDrafter
from specedge.runtime.drafters.draft.load import open_draft
from specedge.runtime.longform.transcribe import Transcription
from specedge.runtime.options import DrafterOptions, TranscribeOptions
from support import exported
from support.lossless import Run, difference, run
from support.noise import noise

FREE = CostTable((1, 64), (1.0, 1.0))
NO_TESTS: dict[str, Any] = {
    "compression_ratio_threshold": None,
    "log_prob_threshold": None,
    "no_speech_threshold": None,
    "temperature": (0.0,),
}
FALLBACK: dict[str, Any] = {**NO_TESTS, "compression_ratio_threshold": 0.01, "temperature": (0.0, 0.4, 1.0)}
CASES = {
    "timestamps": TranscribeOptions(**NO_TESTS, language="en"),
    "prompt, no timestamps": TranscribeOptions(
        **NO_TESTS, language="en", without_timestamps=True, initial_prompt=(72, 99, 101), carry_initial_prompt=True
    ),
    "fallback, samples": TranscribeOptions(**FALLBACK, language="en", best_of=2, seed=4),
}


def opened(target: Bundle, draft: Bundle, **options: Any) -> DraftModelDrafter:
    """A drafter for `target` that drafts four tokens at a time unless told otherwise."""
    where = {name: options.pop(name) for name in ("canceller", "weighs", "draws") if name in options}
    chosen = DrafterOptions("draft", **{"draft_model": draft.path, "lookahead": "4", **options})
    made = open_draft(TargetModel(target, threads=1, **where), chosen, FREE)
    assert isinstance(made, DraftModelDrafter)
    return made


@functools.cache
def plain(target: str, case: str) -> Run:
    """What is decided without drafts, on 1.4 windows of noise."""
    return transcribed(target, case, None)


def segments(target: str, case: str, drafter: Any) -> list[Any]:
    """The segments alone, for threads: what compares windows looks at one run at a time."""
    bundle, engine = exported.bundle("int8", target), exported.engine("int8", target, threads=1)
    with open_audio(sound_for(bundle)) as stream:
        return list(Transcription(engine, bundle, stream, CASES[case], drafter=drafter))


def sound_for(bundle: Bundle) -> Any:
    """1.4 windows of noise, f32[n_samples]."""
    return noise(int(1.4 * bundle.manifest.n_samples), rms=0.05, color="pink", seed=3)


def transcribed(target: str, case: str, drafter: Any) -> Run:
    """The same with `drafter`."""
    bundle, engine = exported.bundle("int8", target), exported.engine("int8", target, threads=1)
    return run(engine, bundle, sound_for(bundle), CASES[case], drafter)


def compared(target: str, case: str, drafter: DraftModelDrafter) -> Run:
    """A run with `drafter`, which differs in nothing from the plain one and kept the drafter to its end."""
    got = transcribed(target, case, drafter)
    assert got.drafter_error is None
    assert difference(plain(target, case), got) is None
    return got
