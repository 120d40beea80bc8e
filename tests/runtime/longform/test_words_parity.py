"""Words of a window equal openai-whisper's add_word_timestamps on the same weights, text, times and probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.engine import Engine
from specedge.runtime.longform.windows import Piece
from specedge.runtime.longform.words import time_words
from specedge.runtime.options import TranscribeOptions
from support import exported
from support.checkpoints import make_checkpoint
from support.openai_model import model_of, tokenizer_of

pytest.importorskip("whisper", reason="openai-whisper is not installed")

LARGEST_TIME_DIFFERENCE_S = 0.02 + 1e-6
LARGEST_PROBABILITY_DIFFERENCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Case:
    """One window: mel [n_mels, n_frames], its text in pieces, and what is said about it."""

    mel: NDArray[np.float32]
    n_content_frames: int
    pieces: tuple[Piece, ...]
    language: str | None
    task: str = "transcribe"
    last_speech_s: float = 0.0
    offset_frames: int = 0


def expected_of(model: Any, bundle: Bundle, case: Case) -> list[Piece]:
    import torch
    from whisper.timing import add_word_timestamps

    segments: list[dict[str, Any]] = [
        {"seek": case.offset_frames, "start": piece.start_s, "end": piece.end_s, "tokens": list(piece.tokens)}
        for piece in case.pieces
    ]
    with torch.no_grad():
        add_word_timestamps(
            segments=segments,
            model=model,
            tokenizer=tokenizer_of(bundle, case.language, case.task if case.language else None),
            mel=torch.from_numpy(case.mel),
            num_frames=case.n_content_frames,
            last_speech_timestamp=case.last_speech_s,
        )
    return [
        Piece(start_s=s["start"], end_s=s["end"], tokens=tuple(s["tokens"]), words=tuple(s["words"])) for s in segments
    ]


def measured_of(engine: Engine, case: Case) -> list[Piece]:
    return time_words(
        engine,
        engine.encode(case.mel),
        case.pieces,
        tokenizer=engine.bundle.tokenizer,
        options=TranscribeOptions(task=case.task),
        language=case.language,
        n_content_frames=case.n_content_frames,
        last_speech_s=case.last_speech_s,
        time_offset_s=case.offset_frames / 100,
    )


def check(engine: Engine, model: Any, case: Case) -> None:
    expected, found = expected_of(model, engine.bundle, case), measured_of(engine, case)
    assert [[w.word for w in piece.words] for piece in found] == [[w["word"] for w in p.words] for p in expected]  # type: ignore[index]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tokens
        times = [ours.start_s, ours.end_s, *(t for w in ours.words for t in (w.start, w.end))]
        their_times = [theirs.start_s, theirs.end_s, *(t for w in theirs.words for t in (w["start"], w["end"]))]  # type: ignore[index]
        assert times == pytest.approx(their_times, abs=LARGEST_TIME_DIFFERENCE_S)
        probabilities = [w["probability"] for w in theirs.words]  # type: ignore[index]
        assert [w.probability for w in ours.words] == pytest.approx(probabilities, abs=LARGEST_PROBABILITY_DIFFERENCE)


def random_case(engine: Engine, seed: int) -> Case:
    """A random text over noise, in up to three pieces with timestamps, somewhere in a long audio."""
    rng = np.random.default_rng(seed)
    dims, special = engine.dims, engine.bundle.manifest.tokens
    n_frames = engine.bundle.manifest.n_frames
    ids = rng.integers(0, special.eot, int(rng.integers(1, dims.n_text_ctx - 5)))
    ids = ids[[engine.bundle.tokenizer.ranks[i] != b"" for i in ids]]
    offset_frames = int(rng.integers(0, 500))
    bounds = np.sort(rng.integers(0, n_frames // 2 + 1, 4)).tolist()
    pieces = []
    for i, part in enumerate(np.array_split(ids, int(rng.integers(1, 4)))):
        stamps = [special.timestamp_begin + bounds[i], special.timestamp_begin + bounds[i + 1]]
        start_s, end_s = (offset_frames / 100 + bound * 0.02 for bound in (bounds[i], bounds[i + 1]))
        pieces.append(Piece(start_s=start_s, end_s=end_s, tokens=(stamps[0], *part.tolist(), stamps[1])))
    return Case(
        mel=exported.noise_mel(dims.n_mels, n_frames, seed),
        n_content_frames=int(rng.integers(20, n_frames + 1)),
        pieces=tuple(pieces),
        language=str(rng.choice(list(special.languages))) if special.languages else None,
        task=str(rng.choice(["transcribe", "translate"])) if special.languages else "transcribe",
        last_speech_s=offset_frames / 100 - float(rng.choice([0.0, 0.5, 5.0])),
        offset_frames=offset_frames,
    )


_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("v3", "en", "deep text")]


@pytest.mark.parametrize("variant", ["plain", *_SLOW, "odd lengths"])
def test_random_texts_over_random_models(variant: str) -> None:
    engine = exported.engine("fp32", variant)
    model = model_of(exported.checkpoint(variant))
    for seed in range(6):
        check(engine, model, random_case(engine, seed))


@pytest.mark.slow
def test_random_texts_over_a_model_of_published_shape(tmp_path: Path) -> None:
    """Windows of 30 s, six heads of 64, the whole multilingual vocabulary."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint", size="tiny")
    with open_checkpoint(checkpoint) as source:
        made = write_bundle(source, tmp_path / "bundle", precision="fp32", name="tiny", version="0.1.0")
    engine, model = Engine(made, threads=1), model_of(checkpoint)
    for seed in range(4):
        check(engine, model, random_case(engine, seed))
