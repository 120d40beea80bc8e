"""Features on disk and the training of a CTC head on them: resuming changes nothing, and it learns."""

from __future__ import annotations

import copy
import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the training extra is not installed")

from specedge.errors import Interrupted, OutOfMemoryError, ResourceError, UsageError  # noqa: E402
from specedge.export.ctc_graph import Float  # noqa: E402
from specedge.export.training.ctc import CtcPlan, CtcTrainer, byte_errors, spelt  # noqa: E402
from specedge.export.training.early_stopping import check_device, split  # noqa: E402
from specedge.export.training.features import (  # noqa: E402
    Target,
    Window,
    collect_features,
)
from specedge.runtime.interrupt import held_back  # noqa: E402
from support.courses import course  # noqa: E402
from support.ctc_heads import posteriors  # noqa: E402
from support.exported import bundle  # noqa: E402
from support.moved import check_moves  # noqa: E402
from support.sound import NOISE  # noqa: E402

PLAN = CtcPlan(steps=40, n_batch=8, every=20, warm_up=5, n_hidden=16, n_trunk=8, n_taps=3, learning_rate=0.02)
N_STATE = 12


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for one another at every tiny product would take minutes on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _toy(n: int = 60) -> list[Window]:
    """Windows whose letters a, b and c are three loud channels, one frame each, with silence between."""
    rng = np.random.default_rng(4)
    windows = []
    for source in range(n):
        letters = rng.integers(0, 3, rng.integers(2, 6))
        frames = 0.1 * rng.standard_normal((3 * len(letters) + 3, N_STATE))
        for at, letter in enumerate(letters):
            frames[3 * at + 1, letter] += 4
        text = bytes(b"abc"[letter] for letter in letters)
        windows.append(Window(features=frames.astype(np.float16), text=text, source=source, is_rough=False))
    return windows


def errors(trainer: CtcTrainer, windows: list[Window]) -> float:
    """Byte errors of held-out windows."""
    return byte_errors([(window, spelt(trainer.best, window)) for window in split(windows)[1]])


def test_a_toy_language_is_learned(tmp_path: Path) -> None:
    windows = _toy()
    trainer = CtcTrainer(dataclasses.replace(PLAN, steps=80), windows, tmp_path)
    untrained = CtcTrainer(PLAN, windows, tmp_path)
    untrained.judge()
    trainer.run("train", lambda line: None)
    assert trainer.lacks == "more --steps" and "still getting better" in trainer.ending
    assert trainer.best_loss < untrained.best_loss / 2
    assert errors(trainer, windows) < 0.6


@pytest.mark.parametrize("n_parts", [1, 4])
def test_the_weights_for_the_graph_are_the_net_s(tmp_path: Path, n_parts: int) -> None:
    trainer = CtcTrainer(PLAN, _toy(), tmp_path, n_parts=n_parts)
    trainer.advance()
    trainer.net.eval()
    features_ = _toy()[0].features.astype(np.float32)
    with torch.no_grad():
        log_probs, times = (values[0].numpy() for values in trainer.net(torch.from_numpy(features_)[None]))
    heard = posteriors(dataclasses.replace(trainer.net.weights(), blank_ceiling=1 - 1e-12), features_)
    told = [0, *range(trainer.net.said.start + 1, trainer.net.said.stop + 1)]
    np.testing.assert_allclose(heard.log_probs[:, told], log_probs[heard.frames], atol=1e-4)
    assert heard.times is not None
    np.testing.assert_allclose(heard.times, times, atol=1e-4)
    assert len(heard.frames) == n_parts * len(features_)


@pytest.mark.slow
def test_resuming_gives_the_same_state(tmp_path: Path) -> None:
    windows = _toy()
    whole = CtcTrainer(PLAN, windows, tmp_path / "a")
    (tmp_path / "a").mkdir()
    whole.run("train", lambda line: None)
    (tmp_path / "b").mkdir()
    cut = CtcTrainer(PLAN, windows, tmp_path / "b")
    for _ in range(20):
        cut.advance()
    cut.judge()
    cut.save()
    cut.advance()  # lost
    resumed = CtcTrainer(PLAN, windows, tmp_path / "b")
    assert resumed.load() and resumed.step == 20
    resumed.run("train", lambda line: None)
    assert resumed.best_loss == whole.best_loss and resumed.step == whole.step == PLAN.steps
    for name, value in whole.best.state_dict().items():
        assert torch.equal(value, resumed.best.state_dict()[name]), name


def test_a_state_of_another_plan_is_left_alone(tmp_path: Path) -> None:
    trainer = CtcTrainer(PLAN, _toy(), tmp_path)
    trainer.save()
    assert not CtcTrainer(dataclasses.replace(PLAN, n_hidden=8), _toy(), tmp_path).load()
    assert not CtcTrainer(PLAN, _toy(40), tmp_path).load()
    assert CtcTrainer(PLAN, _toy(), tmp_path).load()
    lines: list[str] = []
    CtcTrainer(dataclasses.replace(PLAN, steps=2, every=2), _toy(), tmp_path).run("train", lines.append)
    assert lines[0].endswith("ctc.pt: was saved with other options or other audio, so the training begins anew")


def test_it_stops_early_when_nothing_is_gained(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, steps=1000, every=2, patience=3, learning_rate=0.0, warm_up=2)
    trainer = CtcTrainer(plan, _toy(20), tmp_path)
    trainer.run("train", lambda line: None)
    assert trainer.step == 2 * 3 and trainer.best_step == 0
    assert trainer.ending == (
        "stopped at step 6 of 1000, because the held-out recordings gained nothing more; the weights of step 0 are kept"
    )
    assert trainer.lacks == "more audio and more voices"


@pytest.mark.slow
def test_little_audio_is_judged_often_and_not_given_up_in_the_warm_up(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, steps=1000, every=200, patience=2, learning_rate=0.0, warm_up=40)
    trainer = CtcTrainer(plan, _toy(60), tmp_path)
    assert trainer.every == 4 * 7, "four rounds of 54 windows, 8 a step"
    trainer.run("train", lambda line: None)
    assert trainer.step == 5 * 28, "the first judgement behind 3 * 40 steps"


@pytest.mark.parametrize("part", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = CtcTrainer(dataclasses.replace(PLAN, steps=20, every=10), _toy(), tmp_path)
    loss, before = trainer.loss, copy.deepcopy(trainer.net.state_dict())

    def broken(batch: Any) -> Any:
        found = loss(batch)
        if not trainer.net.training or trainer.step >= 3:
            return found
        return found * float("nan") if part == "loss" else found - found.detach() + (found - found.detach()).sqrt()

    monkeypatch.setattr(trainer, "loss", broken)
    for _ in range(3):
        trainer.advance()
    assert trainer.n_skipped == trainer.step == 3
    assert all(torch.equal(value, before[name]) for name, value in trainer.net.state_dict().items())
    lines: list[str] = []
    trainer.run("train", lines.append)
    assert "; 3 steps left out: loss or gradient not finite" in lines[0]
    assert lines[-1].endswith("; 3 steps left out: loss or gradient not finite") and np.isfinite(trainer.best_loss)
    again = CtcTrainer(dataclasses.replace(PLAN, steps=20, every=10), _toy(), tmp_path)
    assert again.load() and (again.n_skipped, again.best_step) == (3, trainer.best_step)


def test_texts_too_long_for_their_frames_teach_nothing(tmp_path: Path) -> None:
    trainer = CtcTrainer(PLAN, _toy(), tmp_path)
    assert float(trainer.loss([dataclasses.replace(_toy(1)[0], text=b"aa" * 100)]).detach()) == 0


def test_too_little_audio_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="5 windows to train on, expected at least 10"):
        CtcTrainer(PLAN, _toy(5), tmp_path)


def _audio(n: int) -> Iterator[Float]:
    return iter([NOISE[at * 100 : at * 100 + 16000] for at in range(n)])


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(bundle(), threads=1, language="en")


@pytest.fixture
def sure(target: Target, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The target, whose random weights are never sure of a text."""
    monkeypatch.setattr(target, "is_sure", lambda result: True)
    return target


def _collect(
    target: Target, folder: Path, *, n: int = 6, hours: float = 1.0, max_bytes: int = 1 << 30, encoder: str = "e"
) -> list[Window]:
    made = course(folder, _audio(n), target, hours=hours)
    return collect_features(made, bundle(), n_rough=1, max_bytes=max_bytes, seed=1, encoder=encoder)


def test_collecting_goes_on_where_it_stopped(sure: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _collect(sure, tmp_path / "whole", n=4)
    encode, calls = sure.encode, iter(range(6))

    def stopped(samples: Float, **how: Any) -> object:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return encode(samples, **how)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sure, "encode", stopped)
        _collect(sure, tmp_path / "cut", n=4)
    assert len(list((tmp_path / "cut").rglob("*.pt"))) == 3
    resumed = _collect(sure, tmp_path / "cut", n=4)
    assert len(resumed) == len(whole) == 8
    assert all(np.array_equal(a.features, b.features) for a, b in zip(whole, resumed, strict=True))


def test_the_hours_and_the_bytes_end_it(sure: Target, tmp_path: Path) -> None:
    assert len(_collect(sure, tmp_path / "a", n=20, hours=3 / 3600)) == 2 * 3
    assert len(_collect(sure, tmp_path / "b", n=20, max_bytes=1)) == 2


def test_what_other_options_make_is_kept_apart(sure: Target, tmp_path: Path) -> None:
    _collect(sure, tmp_path, n=1)
    (made,) = before = list(tmp_path.rglob("*.pt"))
    _collect(sure, tmp_path, n=1, encoder="other")
    assert len(list(tmp_path.rglob("*.pt"))) == 2 == len({*before, *tmp_path.rglob("*.pt")})
    with pytest.raises(ResourceError, match="cannot write"):
        _collect(sure, made / "work")


@pytest.mark.slow
def test_ctrl_c_ends_a_step_saves_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = _toy()
    whole = CtcTrainer(PLAN, windows, tmp_path / "whole")
    (tmp_path / "whole").mkdir()
    whole.run("train", lambda line: None)
    (tmp_path / "cut").mkdir()
    cut = CtcTrainer(PLAN, windows, tmp_path / "cut")
    loss = cut.loss

    def interrupted(batch: Any) -> Any:
        if cut.step == 6:
            signal.raise_signal(signal.SIGINT)
        return loss(batch)

    monkeypatch.setattr(cut, "loss", interrupted)
    with pytest.raises(Interrupted, match=f"at step 7 of {PLAN.steps}; the same command goes on from there"):
        cut.run("train", lambda line: None)
    lines: list[str] = []
    later = CtcTrainer(PLAN, windows, tmp_path / "cut")
    later.run("train", lines.append)
    assert lines[0].endswith("going on from step 7") and later.best_loss == whole.best_loss
    for name, value in whole.best.state_dict().items():
        assert torch.equal(value, later.best.state_dict()[name]), name
    rows, held = ([row.split(",") for row in made.curve.read_text().splitlines()] for made in (later, whole))
    assert rows[0] == ["step", "loss", "held_out_loss", "best_held_out_loss"] and len(rows) == len(lines) - 1
    assert [row[2] for row in rows] == [row[2] for row in held]
    assert f"of {PLAN.steps}: loss " in lines[1] and "held out " in lines[1] and "left at most" in lines[1]


def test_a_second_ctrl_c_acts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), held_back() as came:
        signal.raise_signal(signal.SIGINT)
        assert len(came) == 1
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_device_that_torch_has_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [check_device(name) for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda:0", "cuda:1"]
    for name in ("cuda:2", "tpu", ""):
        with pytest.raises(UsageError, match=f"--device {name}: torch has no such device here, expected cpu, cuda:0"):
            check_device(name)


def test_a_device_whose_memory_runs_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = CtcTrainer(PLAN, _toy(), tmp_path)

    def too_large(batch: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\n ...")

    monkeypatch.setattr(trainer, "loss", too_large)
    with pytest.raises(OutOfMemoryError, match="--device cpu: its memory ran out at step 0; the same command with"):
        trainer.run("train", lambda line: None)


def test_training_moves_to_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_moves(CtcTrainer(PLAN, _toy(), tmp_path), monkeypatch)
