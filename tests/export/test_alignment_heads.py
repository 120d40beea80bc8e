"""Alignment heads that are found on recordings: which heads score well, and their way into bundles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge import WhisperModel
from specedge.errors import AudioError
from specedge.export import alignment_heads
from specedge.export.alignment_heads import best_heads, score_on_path
from specedge.export.bundling import add_found_heads
from specedge.export.export import export_to
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from support.exported import bundle, checkpoint
from support.noise import noise
from support.paths import samples
from support.sound import wav_bytes
from support.tree import ROOT


def attention(rows: int, steps: int, starts: list[int] | None, width: int = 10) -> NDArray[np.float32]:
    """Scores of a head whose row i looks at `width` steps from starts[i] on, and nearly nowhere else."""
    scores = np.full((rows, steps), -5.0, np.float32)
    for row, start in enumerate(starts or []):
        scores[row, start : start + width] = 0
    return scores


def test_a_head_that_walks_along_scores_well_and_others_do_not() -> None:
    rows, steps = 6, 60
    walking = score_on_path(attention(rows, steps, [0, 10, 20, 30, 40, 50]))
    assert walking > 0.7
    assert abs(score_on_path(attention(rows, steps, [30] * rows))) < 0.05  # stares
    assert abs(score_on_path(attention(rows, steps, [50] * rows))) < 0.05  # stares at the end, where every path goes
    assert abs(score_on_path(attention(rows, steps, None))) < 0.05
    assert score_on_path(attention(rows, steps, [40, 10, 50, 0, 30, 20])) < walking / 2  # wanders
    late = score_on_path(attention(rows, steps, [0, 20, 30, 40, 45, 50]))
    assert walking / 2 < late < walking


def test_the_best_heads_in_rising_order() -> None:
    scores = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    assert best_heads(scores) == ((0, 1), (1, 0), (2, 1)), "none far below the best"
    assert best_heads(scores, 2) == ((0, 1), (1, 0))
    assert len(best_heads(np.ones((4, 6)))) == alignment_heads.MOST_HEADS


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "sound.wav"
    path.write_bytes(wav_bytes(noise(32_000, rms=0.1)))
    return path


def test_a_bundle_gets_the_graph_of_the_heads_that_were_found(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a random model says of noise has any length; here the first tokens of it count."""
    monkeypatch.setattr(alignment_heads, "LEAST_TOKENS", 1)
    folder = Path(shutil.copytree(bundle("int8", "odd lengths").path, tmp_path / "bundle"))
    before = Bundle.open(folder).manifest
    assert main(["export", str(folder), "--find-heads", str(sound)]) == 0
    after = Bundle.open(folder).manifest
    names = " ".join(f"{layer}.{head}" for layer, head in after.alignment_heads)
    assert f"times words now by the heads {names}" in capsys.readouterr().out
    changed = {name for name, entry in after.files.items() if entry != before.files.get(name)}
    assert changed <= {"align.onnx"} and not list(folder.glob(".*"))
    model = WhisperModel(folder, cpu_threads=1)
    scores = model.engine.align_scores(model.engine.encode(np.zeros((80, 150), np.float32)), [1, 2, 3])
    assert scores.shape[0] == len(after.alignment_heads) >= 1


def test_recordings_that_cannot_be_used_leave_everything_as_it_was(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(checkpoint())
    assert main(["export", source, "-o", str(tmp_path / "out"), "--find-heads", str(tmp_path / "none.wav")]) == 3
    assert "none.wav" in capsys.readouterr().err and not (tmp_path / "out").exists()
    folder = Path(shutil.copytree(bundle("int8", "odd lengths").path, tmp_path / "bundle"))
    monkeypatch.setattr(alignment_heads, "LEAST_TOKENS", 1000)
    with pytest.raises(AudioError, match=r"sound\.wav: the model hears no text of 1000 tokens or more"):
        add_found_heads(folder, [sound])
    assert Bundle.open(folder).digest == bundle("int8", "odd lengths").digest and not list(folder.glob(".*"))


@pytest.mark.slow
def test_word_times_of_the_demo_are_those_of_its_own_heads(tmp_path: Path) -> None:
    """The demo without its list, which is then found on its samples; word times on both, all within 0.05 s."""
    whole = ROOT / "models" / "checkpoints" / "demo"
    source = Path(shutil.copytree(whole, tmp_path / "demo"))
    path = source / "generation_config.json"
    generation = json.loads(path.read_text())
    own = {tuple(head) for head in generation.pop("alignment_heads")}
    path.write_text(json.dumps(generation))
    made = export_to(str(source), tmp_path / "found", short_windows=True, find_heads=samples())
    assert len(own & set(made.manifest.alignment_heads)) >= len(made.manifest.alignment_heads) / 2
    kept = WhisperModel(export_to(str(whole), tmp_path / "kept", short_windows=True).path)
    assert set(kept.bundle.manifest.alignment_heads) == own
    found = WhisperModel(made.path)
    errors = []
    for sample in samples():
        words = [
            [word for segment in model.transcribe(str(sample), word_timestamps=True)[0] for word in segment.words or ()]
            for model in (found, kept)
        ]
        assert [word.word for word in words[0]] == [word.word for word in words[1]]
        for one, other in zip(*words, strict=True):
            errors += [abs(one.start - other.start), abs(one.end - other.end)]
    assert len(errors) >= 30 and max(errors) <= 0.05, sorted(errors)[-5:]
