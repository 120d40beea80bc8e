"""A draft that learns changes no text, whatever it learned and wherever that came from. Bundles are small, random."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.errors import UsageError
from specedge.runtime.cli.main import main
from specedge.runtime.decoding.drafter import TargetModel
from specedge.runtime.drafters.draft.drafter import DraftModelDrafter
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.engine import draft_model
from specedge.runtime.model import WhisperModel
from specedge.runtime.options import DrafterOptions
from specedge.runtime.papers import distill as course_module
from specedge.runtime.papers.adapter import AdapterOptions
from specedge.runtime.papers.distill import CourseOptions
from support.drafts import CASES, compared, opened
from support.exported import bundle, learnable
from support.noise import noise
from support.sound import wav_bytes

PAIRS = [("plain", "draft same"), ("plain", "draft"), ("v3", "draft"), ("plain", "draft en"), ("en", "draft")]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of nobody, time and haste enough to learn in a short test, and no course of an earlier one."""
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    hasty = CourseOptions(share=1e6, most_updates=8, reuse=8.0, adapter=AdapterOptions(average=0.95))
    monkeypatch.setattr(course_module, "CourseOptions", lambda: hasty)
    monkeypatch.setattr(draft_model, "_loaded", {})
    return tmp_path / "home"


def taught(target: str, draft: str, **options: Any) -> DraftModelDrafter:
    return opened(bundle("int8", target), learnable("int8", draft), learn=True, **options)


def course_of(drafter: DraftModelDrafter) -> Any:
    assert drafter.student is not None
    return drafter.student.course


def check_no_change(target: str, draft: str, lookahead: str, cases: Sequence[str]) -> None:
    drafter = taught(target, draft, lookahead=lookahead)
    for case in cases:
        counted = compared(target, case, drafter).speculation
        assert counted.learning is not None
    if lookahead == "4":
        assert course_of(drafter).counted.updates > 0 and not course_of(drafter).adapter.is_neutral
    drafter.close()


@pytest.mark.parametrize(("target", "draft", "case"), [("v3", "draft", 0), ("plain", "draft en", 1)])
def test_no_learning_changes_a_text(target: str, draft: str, case: int) -> None:
    check_no_change(target, draft, "4", [list(CASES)[case]] * 2)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "draft"), PAIRS)
@pytest.mark.parametrize("lookahead", ["4", "adaptive"])
def test_no_learning_changes_a_text_anywhere(target: str, draft: str, lookahead: str) -> None:
    check_no_change(target, draft, lookahead, [*CASES, *CASES])


def test_wild_factors_change_no_text(home: Path) -> None:
    drafter = taught("plain", "draft same")
    rng = np.random.default_rng(0)
    adapter = course_of(drafter).adapter
    for served in adapter.factors:
        served[...] = rng.standard_normal(served.shape)
    compared("plain", "timestamps", drafter)


@pytest.mark.slow
def test_it_learns_to_be_its_target() -> None:
    """The draft has the target's encoder and half its decoder: on the same noise again and again it comes nearer."""
    drafter = taught("plain", "draft same")
    rates = [compared("plain", "timestamps", drafter).speculation.acceptance_rate or 0.0 for _ in range(20)]
    assert np.mean(rates[-3:]) > rates[0] + 0.1, rates
    now, before = course_of(drafter).rates
    assert now > before


def test_drafters_of_one_target_share_what_they_learn() -> None:
    made = [taught("plain", "draft"), taught("plain", "draft"), taught("v3", "draft")]
    assert made[0]._model is made[1]._model is made[2]._model
    assert course_of(made[0]) is course_of(made[1]) is not course_of(made[2])


def test_what_is_thrown_away_or_drawn_teaches_nothing() -> None:
    drafter = taught("plain", "draft same")
    compared("plain", "fallback, samples", drafter)  # every greedy text fails its test
    assert len(course_of(drafter).book) == 0


def test_a_draft_that_cannot_learn_is_one_line() -> None:
    with pytest.raises(UsageError, match="cannot learn; make it so with `specedge export") as raised:
        chosen = DrafterOptions("draft", draft_model=bundle("int8", "draft").path, learn=True)
        make_drafter(chosen, TargetModel(bundle(), threads=1))
    assert "\n" not in str(raised.value)


def test_only_a_draft_model_learns() -> None:
    with pytest.raises(UsageError, match="the drafter ngram has no model that could learn; use draft"):
        make_drafter(DrafterOptions("ngram", learn=True), TargetModel(bundle(), threads=1))


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    path = tmp_path / "sound.wav"
    path.write_bytes(wav_bytes(noise(int(2.5 * 16000), rms=0.05, color="pink", seed=3)))
    return path


@pytest.mark.slow
def test_the_command_learns_and_says_so(wav: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = [str(wav), "-m", str(bundle().path), *"--threads 1 --temperature 0 -l en -q -f json".split()]
    loose = ["--log-prob-threshold", "None", "--no-speech-threshold", "None", "--compression-ratio-threshold", "None"]
    asked = ["transcribe", *shared, *loose, "--temperature-increment-on-fallback", "None"]
    drafted = [*asked, "--draft-model", str(learnable("int8", "draft same").path), "--lookahead", "3"]
    assert main(asked) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["speculation"]["learning"] is None
    for extra in ([], ["--learn"], ["--learn", "--stats"], ["--no-learn"]):
        assert main([*drafted, *extra]) == 0
        said = capsys.readouterr()
        got = json.loads(said.out)
        assert got["segments"] == plain["segments"] and got["text"] == plain["text"]
        learning = got["speculation"]["learning"]
        if "--learn" not in extra:
            assert learning is None
            continue
        assert set(learning) == {"updates", "seconds", "share", "rollbacks"}
        assert learning["updates"] > 0 and 0 < learning["share"] < 1 and learning["rollbacks"] == 0


def test_the_command_refuses_what_cannot_learn(wav: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["transcribe", str(wav), "-m", str(bundle().path), "--learn"]
    assert main(shared) == 2
    assert "the drafter draft needs a smaller model" in capsys.readouterr().err
    assert main([*shared, "--draft-model", str(bundle("int8", "draft").path)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "learn" in line]
    assert "cannot learn; make it so with `specedge export" in line


def test_a_program_may_have_a_draft_learn() -> None:
    model = WhisperModel(bundle().path, cpu_threads=1)
    sound = noise(int(2.5 * 16000), rms=0.05, color="pink", seed=3)
    loose: dict[str, Any] = {"language": "en", "temperature": 0.0, "log_prob_threshold": None}
    loose |= {"no_speech_threshold": None, "compression_ratio_threshold": None}
    plain = list(model.transcribe(sound, **loose)[0])
    draft = learnable("int8", "draft same").path
    for asked in ({"learn": True}, {}):
        segments, info = model.transcribe(sound, **loose, draft_model=draft, lookahead="3", **asked)
        assert list(segments) == plain
        assert (info.speculation["learning"] is not None) == bool(asked)
    with pytest.raises(UsageError, match="learn: got 'plant', expected True or False"):
        model.transcribe(sound, draft_model=draft, learn="plant")  # type: ignore[arg-type]
