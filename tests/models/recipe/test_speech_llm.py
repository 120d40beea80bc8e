"""The speech LLM's recipe: its windows, ids and loop, and a checkpoint that transformers reads as Voxtral's."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="the training extra is not installed")
pytest.importorskip("transformers", reason="the test extra is not installed")

from specedge.errors import UsageError  # noqa: E402
from specedge.export.training.corpus import RATE_HZ, Utterance, write_shard  # noqa: E402
from specedge.export.training.labels import IGNORE  # noqa: E402
from specedge.models.recipe import llm_tokens, speech_llm  # noqa: E402
from specedge.models.recipe.llm_network import AUDIO, export_llm, losses  # noqa: E402
from specedge.models.recipe.llm_tokens import N_SPECIAL, Tokens, learn  # noqa: E402
from specedge.models.recipe.llm_windows import Example, Heard, compose_training, hear  # noqa: E402
from specedge.models.recipe.speech_llm import (  # noqa: E402
    MODELS_FOLDER,
    LlmPlan,
    LlmTrainer,
    batch_of,
    tokens_a_call,
    transcribe_all,
)
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.longform.windows import AudioContext  # noqa: E402

TEXTS = ["Close the valve.", "Open the valve now.", "Check the pump of motor two."] * 20
ENCODER = MODELS_FOLDER / "checkpoints" / "demo"


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return learn([*TEXTS, *["lang:en"] * 100], 300)


def _examples(n: int = 12) -> list[Example]:
    rng = np.random.default_rng(2)
    return [
        Example(audio=rng.standard_normal((2 + at % 3, 1024)).astype(np.float16), text=TEXTS[at], source="a")
        for at in range(n)
    ]


def _trainer(tokens: Tokens) -> LlmTrainer:
    return LlmTrainer(LlmPlan(size="micro-llm", warm_up=2, learning_rate=1e-2), tokens, _examples())


def test_ids_are_those_that_tiktoken_gives(tokens: Tokens) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {base64.b64decode(row["token_bytes"]): row["rank"] for row in tokens.content["vocab"]}
    reference = tiktoken.Encoding(
        "demo", pat_str=tokens.content["config"]["pattern"], mergeable_ranks=ranks, special_tokens={}
    )
    for text in [*TEXTS[:3], " ".join(TEXTS[:3]), "lang:en", "Ünïcode 123\n\n  x", "it's"]:
        assert tokens.encode(text) == [N_SPECIAL + id_ for id_ in reference.encode(text)]
        assert tokens.decode(tokens.encode(text)) == text
    assert len(tokens.suffix) == 4


def test_a_window_has_its_text_behind_the_prompt(tokens: Tokens) -> None:
    ids, audio, targets = batch_of(tokens, _examples(2))
    assert (ids == AUDIO).sum(1).tolist() == [2, 3] and audio.shape == (5, 1024)
    asked = targets[1][targets[1] != IGNORE].tolist()
    assert tokens.decode(asked) == TEXTS[1] and asked[-1] == tokens.end
    first = int((targets[1] != IGNORE).nonzero()[0])
    assert ids[1, first] == tokens.suffix[-1] and ids[1, first + 1] == targets[1, first]


def test_heads_are_asked_for_later_tokens(tokens: Tokens) -> None:
    net = _trainer(tokens).net
    with torch.no_grad():
        hidden = torch.zeros(1, 6, net.size.d_model)
        targets = torch.tensor([[IGNORE, 41, 42, 43, 44, IGNORE]])
        whole = losses(net, hidden, targets)
        cut = losses(net, hidden[:, :2], targets[:, :2])
    assert len(whole) == 4 and all(whole)
    assert [bool(loss) for loss in cut] == [True, False, False, False]  # nothing lies that far ahead


def test_a_run_taken_up_again_ends_in_the_same_weights(tokens: Tokens, tmp_path: Path) -> None:
    straight = _trainer(tokens)
    for _ in range(4):
        straight.step()
    first = _trainer(tokens)
    first.step()
    first.step()
    first.save(tmp_path, ENCODER)
    second = _trainer(tokens)
    assert second.load(tmp_path)
    second.step()
    second.step()
    for one, other in ((straight.net, second.net), (straight.mean, second.mean)):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name


def test_transformers_reads_the_checkpoint_as_voxtral(tokens: Tokens, tmp_path: Path) -> None:
    from transformers import VoxtralForConditionalGeneration

    trainer = _trainer(tokens)
    trainer.step()
    export_llm(trainer.net, tokens, ENCODER, tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text())["languages"] == ["en"]
    model, info = VoxtralForConditionalGeneration.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["mismatched_keys"]
    assert set(info["unexpected_keys"]) == {f"latent_heads.{i}.weight" for i in range(3)}
    ids, audio, _ = batch_of(tokens, _examples(1))
    net = trainer.net.to(torch.float16).float()
    with torch.no_grad():
        core = getattr(model, "model", model)
        heard = core.multi_modal_projector(audio)
        rows = core.language_model.get_input_embeddings()(ids).masked_scatter((ids == AUDIO)[..., None], heard)
        theirs = core.language_model(inputs_embeds=rows)[0]
        ours = net.hidden(ids, audio)
    if theirs.shape != ours.shape:  # older versions give logits
        ours = ours @ net.table.T
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_calls_count_the_guesses_that_are_right() -> None:
    text = [5, 6, 7, 8, 9]
    assert tokens_a_call(text, [[0] * 5] * 3) == 5
    assert tokens_a_call(text, [[6, 0, 0, 0, 0], [7, 0, 0, 0, 0], [0] * 5]) == 3
    assert tokens_a_call(text, [[6, 7, 8, 9, 0], [0, 8, 0, 0, 0], [0] * 5]) == 3  # a wrong guess ends the call
    assert tokens_a_call(text, [[6, 7, 8, 9, 0], [7, 8, 9, 0, 0], [8, 9, 0, 0, 0]]) == 2


def test_texts_in_a_batch_are_those_of_windows_alone(tokens: Tokens) -> None:
    trainer = _trainer(tokens)
    for _ in range(3):
        trainer.step()
    together = transcribe_all(trainer.net, tokens, trainer.examples, most=8)
    alone = [transcribe_all(trainer.net, tokens, [example], most=8)[0] for example in trainer.examples]
    assert [text for text, _ in together] == [text for text, _ in alone]


def _utterances() -> Iterator[Utterance]:
    rng = np.random.default_rng(4)
    for at in range(8):
        samples = (rng.standard_normal(RATE_HZ // 2 + 800 * at) * 3000).astype(np.int16)
        yield Utterance(samples=samples, text=f"Word {at}.", voice="flite:slt", source="s", start=0, end=samples.size)


def test_some_windows_are_whole_and_the_rest_end_behind_their_speech() -> None:
    heard = [window for shard in range(8) for window in compose_training(f"{shard}", list(_utterances()), 10 * RATE_HZ)]
    assert 1 <= sum(window.whole for window in heard) < len(heard) / 2
    manifest = Bundle.open(MODELS_FOLDER / "bundled" / "demo").manifest

    def n_rows(whole: bool) -> int:
        def encode(mel: np.ndarray) -> SimpleNamespace:
            return SimpleNamespace(hidden=np.zeros((mel.shape[1] // 2, 256), np.float32))

        engine: Any = SimpleNamespace(dims=manifest.dims, encode=encode)
        window = Heard(samples=np.zeros(2 * RATE_HZ, np.float32), text="", blank=True, whole=whole)
        return len(hear(engine, AudioContext(None, manifest), window))

    assert n_rows(True) == manifest.dims.n_audio_ctx // 4 and n_rows(False) < n_rows(True) / 2


def test_windows_have_every_sentence_alone_and_several_together() -> None:
    windows = list(compose_training("shard", list(_utterances()), 10 * RATE_HZ))
    assert sorted(window.text for window in windows[:8]) == [f"Word {at}." for at in range(8)]
    assert len(windows) == 10 and all(len(window.samples) <= 10 * RATE_HZ for window in windows)
    again = list(compose_training("shard", list(_utterances()), 10 * RATE_HZ))
    assert all(np.array_equal(a.samples, b.samples) for a, b in zip(windows, again, strict=True))


@pytest.mark.slow
def test_one_command_trains_and_another_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train", "dev"):
        (tmp_path / "speech" / name).mkdir(parents=True)
    write_shard(tmp_path / "speech" / "train", "train-1-0000", list(_utterances()))
    write_shard(tmp_path / "speech" / "dev", "notes-dev", list(_utterances())[:3])
    monkeypatch.setattr(speech_llm, "training_texts", lambda: TEXTS)
    monkeypatch.setattr(llm_tokens, "N_TEXT", 300)
    out = str(tmp_path / "run")
    arguments = ["train", "--speech", str(tmp_path / "speech"), "--out", out, "--steps", "3", "--threads", "1"]
    made = CliRunner().invoke(speech_llm.main, arguments, catch_exceptions=False)
    assert made.exit_code == 0, made.output
    assert (tmp_path / "run" / "hf" / "model.safetensors").is_file()
    found = CliRunner().invoke(speech_llm.main, ["measure", out], catch_exceptions=False)
    report = json.loads(found.output)
    assert report["notes-dev"]["texts"] == report["notes-dev-whole"]["texts"] == 3


def test_a_run_without_features_is_refused(tmp_path: Path) -> None:
    found = CliRunner().invoke(speech_llm.main, ["measure", str(tmp_path)])
    assert isinstance(found.exception, UsageError) and "no features" in str(found.exception)
