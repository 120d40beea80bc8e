"""`rules="hf"` against transformers' generate on the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.runtime.audio import open_audio
from specedge.runtime.engine import Engine
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.transcribe import transcribe
from support.exported import load_transformers
from support.longform import LONG, MAINTENANCE, NOTES, joined, silence

DEMO = Path(__file__).resolve().parents[2] / "models" / "checkpoints" / "demo"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def extractor() -> Any:
    transformers: Any = pytest.importorskip("transformers")
    config = json.loads((DEMO / "preprocessor_config.json").read_text())
    return transformers.WhisperFeatureExtractor(
        feature_size=config["feature_size"], chunk_length=config["chunk_length"]
    )


def test_segments_are_those_of_generate(tmp_path: Path) -> None:
    model = load_transformers(DEMO)
    with open_checkpoint(DEMO) as source:
        bundle = write_bundle(source, tmp_path / "bundle", precision="fp32", name="compared", version="0")
    engine = Engine(bundle, threads=1, cache=False)
    eot = bundle.manifest.tokens.eot
    for audio in (MAINTENANCE, NOTES, joined(MAINTENANCE, silence(1), NOTES), LONG):
        samples = audio()
        is_long = len(samples) > bundle.manifest.n_frames * 160
        padding = {"truncation": False, "padding": "longest"} if is_long else {}
        features = extractor()(
            samples, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True, **padding
        )
        generated = model.generate(
            features.input_features,
            attention_mask=features.attention_mask,
            language="en",
            task="transcribe",
            return_timestamps=True,
            return_segments=True,
            num_beams=1,
            do_sample=False,
        )
        theirs = [
            (round(float(s["start"]), 2), round(float(s["end"]), 2), [t for t in s["tokens"].tolist() if t != eot])
            for s in generated["segments"][0]
        ]
        options = TranscribeOptions(
            language="en",
            rules="hf",
            temperature=(0.0,),
            condition_on_previous_text=False,
            no_speech_threshold=None,
        )
        with open_audio(np.asarray(samples)) as stream:
            ours = [(round(s.start, 2), round(s.end, 2), s.tokens) for s in transcribe(engine, bundle, stream, options)]
        assert ours == theirs
