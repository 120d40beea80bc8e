"""`specedge train short-windows`: the networks, the cut, and the command from a checkpoint to a checkpoint."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the training extra is not installed")

from specedge.errors import UsageError  # noqa: E402
from specedge.export import selfcheck  # noqa: E402
from specedge.export.checkpoint import open_checkpoint  # noqa: E402
from specedge.export.training import short_windows  # noqa: E402
from specedge.export.training.corpus import Utterance, write_shard  # noqa: E402
from specedge.export.training.features import Course, Target  # noqa: E402
from specedge.export.training.nets import decoder_of, encoder_of  # noqa: E402
from specedge.export.training.short_windows import (  # noqa: E402
    HeardMel,
    ShortPlan,
    ShortWindowTrainer,
    WhisperNet,
    _cut,
    train_short_windows,
)
from specedge.runtime.audio.audio import open_audio  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.cli.main import main  # noqa: E402
from support.exported import bundle, checkpoint, noise_mel  # noqa: E402
from support.noise import SAMPLES  # noqa: E402
from support.sound import NOISE, wav_bytes  # noqa: E402

BENCH = Path(__file__).parents[2] / "bench"


def net() -> WhisperNet:
    with open_checkpoint(checkpoint()) as opened:
        return WhisperNet(encoder_of(opened), decoder_of(opened))


@pytest.mark.parametrize("n_frames", [200, 62])
def test_the_networks_are_the_checkpoints(n_frames: int) -> None:
    """On whole windows and on cut ones, against plain NumPy."""
    mel, ids = noise_mel(80, n_frames), [3, 1, 4, 1, 5]
    made = net()
    with open_checkpoint(checkpoint()) as weights, torch.no_grad():
        dims = weights.spec.dims
        features = selfcheck.encode(mel, dims, weights)
        states = made.states(torch.from_numpy(mel)[None], torch.tensor([ids]))
        assert states.shape == (dims.n_text_layer + 1, len(ids), dims.n_text_state)
        logits = made.decoder.logits(states[-1]).numpy()
        assert np.abs(made.encoder(torch.from_numpy(mel)[None])[0].numpy() - features).max() < 1e-3
        assert np.abs(logits - selfcheck.decode(ids, features, dims, weights)).max() < 1e-3


def test_a_cut_is_at_most_a_third_of_the_speech() -> None:
    rng = random.Random(1)
    for n_ctx, least, most in ((30, 20, 40), (300, 236, 364), (1, 1, 1)):
        found = {_cut(n_ctx, rng) for _ in range(2000)}
        assert (min(found), max(found)) == (least, most)


def test_steps_bring_cut_windows_nearer_to_whole_ones(tmp_path: Path) -> None:
    windows = [
        HeardMel(mel=noise_mel(80, 60, seed).T.astype(np.float16), ids=(3, 1, 4, seed % 7), source=seed)
        for seed in range(20)
    ]
    plan = ShortPlan(steps=8, every=4, learning_rate=1e-3, warm_up=1)
    trainer = ShortWindowTrainer(plan, net(), windows, tmp_path)
    trainer.run_or_go_on("train", lambda line: None)
    assert trainer.figures[-1] < trainer.figures[0]
    again = ShortWindowTrainer(plan, net(), windows, tmp_path)
    assert again.load() and again.step == 8
    assert torch.equal(again.best.encoder.conv1.weight, trainer.best.encoder.conv1.weight)


def test_the_teacher_hears_a_window_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the dearest part of a step; what does not fit is heard again, with the same outcome."""
    windows = [HeardMel(mel=noise_mel(80, 60, at).T.astype(np.float16), ids=(3, 1, 4), source=at) for at in range(20)]
    outcomes, n_heard = [], []
    for most_bytes in (1 << 20, 0):
        monkeypatch.setattr(short_windows, "_MOST_KEPT_BYTES", most_bytes)
        folder = tmp_path / str(most_bytes)
        folder.mkdir()
        trainer = ShortWindowTrainer(ShortPlan(steps=10, every=5, warm_up=1), net(), windows, folder)
        heard = list[int]()
        trainer._teacher.encoder.register_forward_hook(lambda *given, heard=heard: heard.append(1))
        trainer.run_or_go_on("train", lambda line: None)
        outcomes.append(trainer.figures)
        n_heard.append(len(heard))
    assert n_heard[0] <= len(windows) and n_heard[1] == 10 * 4 + 3 * 2
    assert outcomes[0] == outcomes[1]


def test_a_bundle_is_refused(tmp_path: Path) -> None:
    course = Course(
        source=str(bundle().path), audio=["a.wav"], work=tmp_path, hours=1, threads=1, language=None, notify=print
    )
    with pytest.raises(UsageError, match="into a checkpoint, and this is none"):
        train_short_windows(course, tmp_path / "out", ShortPlan())


@pytest.mark.slow
def test_the_command_makes_a_checkpoint_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Target, "is_sure", lambda self, result: True)  # though the weights are random
    audio, out = tmp_path / "a.wav", tmp_path / "out"
    audio.write_bytes(wav_bytes(np.resize(NOISE, 60 * 16000).astype(np.float32)))
    given = ["train", "short-windows", checkpoint(), audio, "-o", out, "--steps", 4, "--rate", 1e-4]
    arguments = [str(argument) for argument in [*given, "--language", "en", "--threads", 1]]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "4 steps; held-out loss " in said and "word errors on " in said and " --shortest-window 1\n" in said
    assert main(["export", str(out), "-o", str(tmp_path / "made"), "--short-windows", "--shortest-window", "1"]) == 0
    manifest = Bundle.open(tmp_path / "made").manifest
    assert manifest.short_windows and manifest.least_positions == 50
    capsys.readouterr()
    assert main(arguments) == 0
    assert "going on from step 4" in capsys.readouterr().err
    bench = [sys.executable, str(BENCH / "silent_suffix.py"), checkpoint(), f"{out}.work", "--windows", "2"]
    rows = json.loads(subprocess.run(bench, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    assert rows["windows"] == 2 and [row["window"] for row in rows["figures"]] == ["whole", "cut", "silent suffix"]
    assert rows["figures"][0]["features_error"] == 0 < rows["figures"][1]["features_error"]


@pytest.mark.slow
def test_the_bench_makes_a_model_and_mends_it(tmp_path: Path) -> None:
    """In a step of each, which changes nothing; a second run asks anew and makes nothing."""
    with open_audio(SAMPLES[0]) as stream:
        sound = np.asarray(stream.read(40_000) * 32767, np.int16)
    said = Utterance(
        samples=sound, text="Something that is on no list.", voice="v", source="s", start=0, end=len(sound)
    )
    for name, n in (("train", 66), ("dev", 4)):
        (tmp_path / name).mkdir()
        write_shard(tmp_path / name, f"a-{name}", [said] * n)
    counts = ("--recordings", "30", "--pairs", "2", "--taught", "1", "--steps", "1", "--rounds", "1")
    folders = ("--speech", str(tmp_path / "train"), "--dev", str(tmp_path / "dev"))
    bench = [sys.executable, str(BENCH / "short_windows.py"), str(tmp_path / "work"), *folders, *counts]
    found = json.loads(subprocess.run(bench, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    assert [(row["trained"], row["window"]) for row in found["figures"]] == [
        (name, window) for name in ("demo", "taught to loop", "short windows") for window in ("whole", "cut")
    ]
    assert found["pairs"] == 2 and found["encoder_ratio"] > 2
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*") if path.is_file()}
    again = json.loads(subprocess.run(bench, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    assert again["figures"] == found["figures"]
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*") if path.is_file()}
