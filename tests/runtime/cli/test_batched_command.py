"""`specedge transcribe --batch-size` on the bundled model: the pieces of `BatchedInferencePipeline`, of any number."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

import specedge
from specedge.runtime.cli import main
from support.paths import DEMO
from support.tree import ROOT

SAMPLES = ROOT / "tests" / "assets" / "samples"


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About a quarter of a minute: both samples, three times, with a second of near silence between."""
    quiet = 1e-4 * np.random.default_rng(0).standard_normal(16_000)
    parts = [part for name in ("maintenance", "notes") for part in (soundfile.read(SAMPLES / f"{name}.wav")[0], quiet)]
    path = tmp_path_factory.mktemp("audio") / "both.wav"
    soundfile.write(path, np.concatenate(parts * 3), 16_000, subtype="PCM_16")
    return path


@pytest.mark.slow
def test_it_writes_what_the_pipeline_says(audio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = []
    for n in (1, 3):
        assert main.main(["transcribe", str(audio), "-f", "json", "-q", "--batch-size", str(n), "-t", "1"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        written.append(json.loads(out))
    assert written[0]["segments"] == written[1]["segments"]
    model = specedge.WhisperModel(str(DEMO), cpu_threads=1)
    segments, info = specedge.BatchedInferencePipeline(model).transcribe(str(audio), without_timestamps=False)
    expected = [(segment.id - 1, segment.text, segment.tokens) for segment in segments]
    assert [(one["id"], one["text"], one["tokens"]) for one in written[0]["segments"]] == expected
    assert len(expected) >= 4 and written[0]["language"] == info.language
    assert written[0]["duration"] == pytest.approx(info.duration, abs=0.01)
