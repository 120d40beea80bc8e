"""The measures of the recipe, on a tiny model with random weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the training extra is not installed")
pytest.importorskip("transformers", reason="the test extra is not installed")

from specedge.errors import UsageError  # noqa: E402
from specedge.export.training.corpus import RATE_HZ, Utterance, write_shard  # noqa: E402
from specedge.models import store  # noqa: E402
from specedge.models.recipe.evaluate import (  # noqa: E402
    Model,
    agreement,
    evaluate,
    long_form,
    opened,
    quiet_windows,
    read_dev,
)
from specedge.models.recipe.network import MODELS, Net, export  # noqa: E402
from specedge.models.recipe.trainer import demo_vocabulary  # noqa: E402

MICRO = dataclasses.replace(MODELS["micro"], n_audio_ctx=100)


def _utterance(text: str, n_samples: int = RATE_HZ) -> Utterance:
    samples = np.full(n_samples, 9000, np.int16)
    return Utterance(samples=samples, text=text, voice="v", source="s", start=320, end=n_samples - 320)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("micro")
    torch.manual_seed(1)
    vocabulary = demo_vocabulary(MICRO)
    export(Net(MICRO, vocabulary), vocabulary, folder)
    with opened(folder) as found:
        yield found


def test_a_checkpoint_is_measured_through_the_runtime(model: Model) -> None:
    item = _utterance("Stop.")
    figures = agreement(model, model, [item])
    assert figures["tokens"] > 0 and 0.0 <= figures["agreement"] <= 1.0
    assert len(model.next_tokens(item.sound(), [1, 2])) == 3
    text, start_s, end_s = model.window(item.sound(), timestamps=True)
    assert isinstance(text, str) and 0.0 <= start_s <= end_s


def test_the_long_recording_says_where_its_sentences_are() -> None:
    items = [_utterance(f"Sentence {i}.") for i in range(12)]
    samples, truth = long_form(items, seed=1)
    assert len(truth) == 10 and len({text for text, _, _ in truth}) == 10
    for (_, start_s, end_s), following in zip(truth, [*truth[1:], None], strict=True):
        middle = samples[int(start_s * RATE_HZ) : int(end_s * RATE_HZ)]
        assert float(middle.mean()) == pytest.approx(9000 / 32768, abs=0.01)
        assert following is None or following[1] - end_s > 0.29


def test_quiet_windows_are_audio() -> None:
    windows = quiet_windows()
    assert not windows[0][1].any()
    assert all(np.isfinite(samples).all() and np.abs(samples).max() <= 1 for _, samples in windows)


def test_only_dev_shards_are_read(tmp_path: Path) -> None:
    for folder, name in (("train", "train-1-0000"), ("dev", "notes-dev"), ("digits-dev-1", "digits-dev-1-000")):
        (tmp_path / folder).mkdir()
        write_shard(tmp_path / folder, name, [_utterance("Stop.")])
    assert set(read_dev(tmp_path)) == {"notes-dev", "digits-dev"}
    with pytest.raises(UsageError, match="no dev shards"):
        read_dev(tmp_path / "train")


def test_a_speech_llm_is_measured_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specedge.models.recipe.evaluate.quiet_windows", lambda: quiet_windows()[:2])
    (tmp_path / "dev").mkdir()
    for name in ("notes-dev", "digits-dev"):
        write_shard(tmp_path / "dev", name, [_utterance("Stop.")])
    report = evaluate(store.bundled() / "demo-llm", tmp_path, limit=1, n_recordings=0, audio_context="full")
    assert report["notes-dev"]["texts"] == 1 and not any("timestamps" in name for name in report)
