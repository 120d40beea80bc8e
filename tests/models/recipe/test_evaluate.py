"""The measures of the recipe, on a tiny model with random weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the training extra is not installed")
pytest.importorskip("transformers", reason="the training extra is not installed")
pytest.importorskip("librosa", reason="the training extra is not installed")

from specedge.errors import UsageError  # noqa: E402
from specedge.export.training.corpus import RATE_HZ, Utterance, write_shard  # noqa: E402
from specedge.models.recipe.evaluate import agreement, long_form, quiet_windows, read_dev  # noqa: E402
from specedge.models.recipe.greedy import Checkpoint  # noqa: E402
from specedge.models.recipe.network import MODELS, Net, export  # noqa: E402
from specedge.models.recipe.trainer import demo_vocabulary  # noqa: E402

MICRO = dataclasses.replace(MODELS["micro"], n_audio_ctx=100)


def _utterance(text: str, n_samples: int = RATE_HZ) -> Utterance:
    samples = np.full(n_samples, 9000, np.int16)
    return Utterance(samples=samples, text=text, voice="v", source="s", start=320, end=n_samples - 320)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("micro")
    torch.manual_seed(1)
    vocabulary = demo_vocabulary(MICRO)
    export(Net(MICRO, vocabulary), vocabulary, folder)
    return Checkpoint(folder)


def test_a_cache_changes_no_token(checkpoint: Checkpoint) -> None:
    """Batched decoding with a cache against the logits of the whole prefix, window by window."""
    rng = np.random.default_rng(0)
    windows = [(rng.standard_normal(n) * 0.1).astype(np.float32) for n in (8000, 32000)]
    results = checkpoint.decode(windows, timestamps=False, limit=6)
    for window, result in zip(windows, results, strict=True):
        ids = checkpoint.layout.prompt(timestamps=False)
        features = checkpoint.encode([window])
        for wanted in result.ids:
            row = checkpoint.logits(features, torch.tensor([ids]))[0, -1].numpy()
            if len(ids) == len(checkpoint.layout.prompt(timestamps=False)):
                row[[220, checkpoint.layout.special.eot]] = -np.inf
            row[checkpoint.suppress] = -np.inf
            assert row[wanted] == pytest.approx(row.max(), abs=1e-4)
            ids.append(wanted)


def test_a_long_recording_always_comes_to_an_end(checkpoint: Checkpoint) -> None:
    samples = (np.random.default_rng(0).standard_normal(5 * RATE_HZ) * 0.1).astype(np.float32)
    spans = checkpoint.transcribe_long(samples)
    assert all(0 <= span.start_s and span.text for span in spans)


def test_a_recording_is_filled_up_with_zeros_of_the_mel_and_has_one_maximum(checkpoint: Checkpoint) -> None:
    """As openai-whisper's transcribe(): what the runtime's long form gives the encoder."""
    seen: list[torch.Tensor] = []
    encoder = checkpoint.model.model.encoder
    hook = encoder.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        samples = (np.random.default_rng(0).standard_normal(3 * RATE_HZ) * 0.001).astype(np.float32)
        samples[: RATE_HZ // 2] *= 300  # loud only at the beginning
        checkpoint.encode([samples[:RATE_HZ]])
        checkpoint.transcribe_long(samples)
    finally:
        hook.remove()
    one, *many = (mel[0] for mel in seen)
    assert one[:, :100].abs().min() > 0 and not one[:, 100:].any()
    floor = float(many[0].min())
    assert float(many[-1][many[-1] != 0].min()) >= floor - 1e-6
    assert floor == pytest.approx(float(many[0].max()) - 2.0, abs=1e-5)
    assert all(mel.shape == (128, 200) for mel in many) and not many[-1][:, -1].any()


def test_a_model_agrees_with_itself(checkpoint: Checkpoint) -> None:
    figures = agreement(checkpoint, checkpoint, [_utterance("Stop.")])
    assert figures["tokens"] > 0
    assert 0.0 <= figures["agreement"] <= 1.0


def test_a_folder_without_weights_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model.safetensors"):
        Checkpoint(tmp_path)


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
