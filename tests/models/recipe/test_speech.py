"""Digit strings from recordings, disguised speakers, and where speech is written."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

soxr = pytest.importorskip("soxr", reason="the training extra is not installed")

from specedge.errors import UsageError  # noqa: E402
from specedge.export.training.corpus import RATE_HZ, Utterance, load_shards  # noqa: E402
from specedge.models.recipe import speech  # noqa: E402
from specedge.models.recipe.speech import (  # noqa: E402
    Voice,
    digit_text,
    disguise,
    join_digits,
    read_recordings,
    roughen,
    trim,
)


def _takes(level: float) -> dict[int, list[np.ndarray]]:  # type: ignore[type-arg]
    return {digit: [np.full(1000 + 10 * digit, level, np.float32)] for digit in range(10)}


def test_digits_are_joined_in_order_with_pauses() -> None:
    joined = join_digits(random.Random(1), [_takes(0.3)], [4, 2])
    loud = np.flatnonzero(joined > 0.4)
    runs = np.split(loud, np.flatnonzero(np.diff(loud) > 1) + 1)
    assert [run.size for run in runs] == [1040, 1020]
    assert digit_text([4, 2]) == "Four two."


def test_a_string_of_several_speakers_has_takes_of_each() -> None:
    signs = {np.sign(join_digits(random.Random(s), [_takes(0.3), _takes(-0.3)], [1, 2, 3])).min() for s in range(20)}
    assert signs == {-1.0, 0.0}


def test_the_noise_of_a_rough_take_ends_with_the_take() -> None:
    tone = (np.sin(np.arange(6000) * 0.3) * 0.5).astype(np.float32)
    takes = [{digit: [tone] for digit in range(10)}]
    made = [join_digits(random.Random(seed), takes, [1, 2], rough=True) for seed in range(20)]
    assert len({samples.size for samples in made}) > 10
    assert all((samples[3000 : samples.size - 3000] == 0).sum() > 200 for samples in made)  # the pause is silence
    kept = [roughen(random.Random(seed), tone) for seed in range(20)]
    assert any(not np.isin(take, tone).all() for take in kept)
    assert min(take.size for take in kept) >= 6000 - 2 * (6000 // 8)


def test_a_disguise_is_another_length_of_the_same_sound() -> None:
    tone = np.sin(np.arange(RATE_HZ) * 0.1).astype(np.float32)
    sizes = {disguise(random.Random(seed), tone).size for seed in range(20)}
    assert len(sizes) > 8
    assert min(sizes) > 0.5 * RATE_HZ and max(sizes) < 2 * RATE_HZ


def test_the_held_out_speaker_is_in_no_training_string(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal(4000).astype(np.float32) * 0.1
    takes = {digit: [noise] for digit in range(10)}
    monkeypatch.setattr(speech, "read_recordings", lambda folder: {"ann": takes, "bob": takes, "theo": takes})
    speech._digit_shards(tmp_path, tmp_path, 1, 30, "theo")
    (_, trained), (_, measured) = (next(load_shards(tmp_path / f"digits-{kind}-1")) for kind in ("train", "dev"))
    assert {item.voice for item in trained} == {"recorded:ann", "recorded:bob", "recorded:several"}
    assert {item.voice for item in measured} == {"recorded:theo"}
    with pytest.raises(UsageError, match="'eve'"):
        speech._digit_shards(tmp_path, tmp_path, 1, 30, "eve")


def test_a_folder_without_recordings_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="DIGIT_SPEAKER_TAKE"):
        read_recordings(tmp_path)


def test_each_command_writes_where_training_and_measuring_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: dict[str, list[str]] = {}
    monkeypatch.setattr(speech, "_programs", lambda: None)
    monkeypatch.setattr(
        speech, "_run", lambda folder, jobs, n: folders.setdefault(folder.name, [job.name for job in jobs])
    )
    for command in (["train", str(tmp_path), "--count", "400"], ["dev", str(tmp_path)]):
        speech.main(command, standalone_mode=False)
    assert folders["train"] == ["train-1-0000"]
    assert folders["dev"] == ["maintenance-dev", "maintenance-seen", "notes-dev", "notes-seen"]


def test_each_kind_of_voice_is_spoken_by_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []

    class Done:
        stdout = b""

    def run(command: list[str], **options: object) -> Done:
        called.append(command)
        return Done()

    monkeypatch.setattr(speech.subprocess, "run", run)
    for name in ("espeak:en-gb+m1", "flite:slt", "festival:ked"):
        assert speech.speak('Say "stop".', Voice(name=name), tmp_path).size == 0
    assert [command[0] for command in called] == ["espeak-ng", "flite", "festival"]
    script = (tmp_path / "utterance.scm").read_text(encoding="utf-8")
    assert '"Say  stop ."' in script and "(voice_ked_diphone)" in script


def test_an_utterance_is_scaled_to_its_samples() -> None:
    item = Utterance(samples=np.array([16384], np.int16), text="x", voice="v", source="s", start=0, end=1)
    assert item.sound().tolist() == [0.5]


def test_trimming_finds_the_audible_part_to_the_sample() -> None:
    clean = np.zeros(4000, np.float32)
    clean[1000:2500] = 0.2
    samples, start, end = trim(clean, margin=300)
    assert (samples.size, start, end) == (1500 + 600, 300, 1800)
    assert samples[start] == samples[end - 1] == round(32767 / 2)
    assert samples[start - 1] == samples[end] == 0
    assert trim(np.zeros(100, np.float32))[0].size == 0
