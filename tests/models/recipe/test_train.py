"""The loop and the network: resuming changes nothing, unused tokens never win, the export is a Whisper checkpoint."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the training extra is not installed")
pytest.importorskip("transformers", reason="the test extra is not installed")

from specedge.errors import UsageError  # noqa: E402
from specedge.export.training.corpus import RATE_HZ, Utterance  # noqa: E402
from specedge.export.training.labels import IGNORE  # noqa: E402
from specedge.models.recipe import augment  # noqa: E402
from specedge.models.recipe.data import Mix, Pool, collate  # noqa: E402
from specedge.models.recipe.labels import LAYOUTS, same_tokens, tokenizer_of  # noqa: E402
from specedge.models.recipe.network import (  # noqa: E402
    MODELS,
    LogMel,
    Net,
    expand_rows,
    export,
    full_model,
    take_weights,
    token_loss,
)
from specedge.models.recipe.trainer import (  # noqa: E402
    Ahead,
    Plan,
    Trainer,
    demo_vocabulary,
    load_checkpoint,
    load_teacher,
)
from specedge.runtime.audio.mel import filterbank  # noqa: E402

MICRO = dataclasses.replace(MODELS["micro"], n_audio_ctx=100)


def _pool() -> Pool:
    rng = np.random.default_rng(3)
    items = []
    for at in range(20):
        n_samples = RATE_HZ // 2 + 400 * at
        samples = (rng.standard_normal(n_samples) * 3000).astype(np.int16)
        items.append(Utterance(samples=samples, text="Stop.", voice="v", source="s", start=320, end=n_samples - 320))
    pool = Pool()
    pool.add(items)
    return pool


def _trainer(out: Path, start: Path | None = None) -> Trainer:
    """With `start`, of the decoder of that checkpoint alone."""
    plan = Plan(size=MICRO, align_steps=2, ease_steps=2, warm_up=2, decoder_only=start is not None)
    trainer = Trainer(plan, _pool(), out, None if start is None else load_checkpoint(start, MICRO))
    small = {"n_short": 2, "n_full": 2, "n_prompted": 2}
    mixes = [Mix(strength=0.0, **small), Mix(short=0, packed=1, padded=1, silent=0.3, **small)]  # type: ignore[arg-type]
    trainer.mix = lambda: mixes[trainer.progress.step % 2]  # type: ignore[method-assign]
    return trainer


def _steps(trainer: Trainer, n: int) -> None:
    for _ in range(n):
        trainer.step()
        trainer.progress.fraction = trainer.progress.step / 8


@pytest.mark.slow
def test_a_run_taken_up_again_ends_in_the_same_weights(tmp_path: Path) -> None:
    straight = _trainer(tmp_path / "straight")
    _steps(straight, 6)
    first = _trainer(tmp_path / "broken")
    _steps(first, 3)
    first.save()
    second = _trainer(tmp_path / "broken")
    assert second.load()
    assert second.progress == first.progress
    _steps(second, 3)
    for name, value in straight.net.state_dict().items():
        assert torch.equal(value, second.net.state_dict()[name]), name


@pytest.mark.slow
def test_a_decoder_that_goes_on_alone_leaves_all_else_as_the_checkpoint_has_it(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    vocabulary = demo_vocabulary(MICRO)
    torch.manual_seed(1)
    export(Net(MICRO, vocabulary), vocabulary, tmp_path / "start")
    straight = _trainer(tmp_path / "straight", tmp_path / "start")
    _steps(straight, 4)
    straight.save()
    _steps(straight, 2)
    again = _trainer(tmp_path / "straight", tmp_path / "start")
    assert again.load()
    _steps(again, 2)
    for name, value in straight.net.state_dict().items():
        assert torch.equal(value, again.net.state_dict()[name]), name
    again.save()
    for file in ("model.safetensors", "spelling.safetensors"):
        before, after = (load_file(tmp_path / folder / file) for folder in ("start", "straight/hf"))
        moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
        assert all(name.startswith(("model.decoder.layers.", "model.decoder.layer_norm.")) for name in moved), moved
        assert bool(moved) == (file == "model.safetensors")


@pytest.mark.slow
def test_a_decoder_that_goes_on_alone_is_held_to_text_where_its_teacher_is_right(tmp_path: Path) -> None:
    """A teacher that is right costs something, one that is wrong or sure of a time nothing."""
    vocabulary = demo_vocabulary(MICRO)
    export(Net(MICRO, vocabulary), vocabulary, tmp_path / "start")
    trainer = _trainer(tmp_path / "run", tmp_path / "start")
    window = {"window_samples": 2 * RATE_HZ, "n_ctx": 448}
    batch = collate(1, 0, trainer.pool, Mix(n_short=2, timestamps=1.0), vocabulary, **window)  # type: ignore[arg-type]
    teacher, mel, said = trainer.teacher, trainer._inputs(batch, 0.0), torch.from_numpy(batch.targets)
    assert teacher is not None
    is_time = said >= vocabulary.first_stamp
    is_text = (said >= 0) & ~is_time
    losses = []
    for wanted in (said * is_text, said * is_time, torch.full_like(said, vocabulary.other)):
        sure = torch.nn.functional.one_hot(wanted, vocabulary.n_rows) * 30.0
        teacher.decode = lambda *_, sure=sure: sure  # type: ignore[method-assign, misc]
        losses.append(trainer._loss(batch, mel).item())
    right, of_times, wrong = losses
    assert of_times == pytest.approx(wrong, abs=1e-4) and right > wrong + 1


def test_a_checkpoint_without_the_head_that_spells_cannot_go_on_alone(tmp_path: Path) -> None:
    export(Net(MICRO, demo_vocabulary(MICRO)), demo_vocabulary(MICRO), tmp_path)
    (tmp_path / "spelling.safetensors").unlink()
    with pytest.raises(UsageError, match=r"no spelling.safetensors of this size"):
        load_checkpoint(tmp_path, MICRO)


def test_a_folder_of_another_model_is_not_taken_up(tmp_path: Path) -> None:
    _trainer(tmp_path).save()
    other = Trainer(Plan(size=dataclasses.replace(MICRO, name="demo")), _pool(), tmp_path)
    with pytest.raises(UsageError, match="holds micro, asked for demo"):
        other.load()
    alone = Trainer(Plan(size=MICRO, decoder_only=True), _pool(), tmp_path)
    with pytest.raises(UsageError, match="only one of it and this run is with --decoder-only"):
        alone.load()


def test_full_windows_are_hardly_short(tmp_path: Path) -> None:
    plan = Plan(size=MICRO, decoder_only=True, full_windows=True)
    trainer = Trainer(plan, _pool(), tmp_path)
    trainer.progress.aligned_at = trainer.progress.eased_at = 0
    mix = trainer.mix()
    assert mix.packed + mix.padded + mix.prompted > 5 * mix.short and mix.timestamps > 0.8


def test_unused_tokens_never_win_and_the_loss_is_the_full_vocabulary_s() -> None:
    torch.manual_seed(0)
    vocabulary = demo_vocabulary(MICRO)
    net = Net(MICRO, vocabulary).eval()
    full = full_model(net, vocabulary)
    mel = torch.randn(2, 128, 200)
    ids = torch.tensor([MICRO.tokens.prompt(timestamps=False)] * 2)
    rows = torch.from_numpy(vocabulary.row_of)[ids]
    with torch.no_grad():
        restricted = net.decode(rows, net.encode(mel), torch.zeros(2, dtype=torch.long)).log_softmax(-1)
        whole = full(input_features=mel, decoder_input_ids=ids).logits.log_softmax(-1)
    used = torch.from_numpy(vocabulary.rows)
    torch.testing.assert_close(whole[..., used], restricted[..., : vocabulary.other], atol=2e-4, rtol=1e-4)
    unused = whole[..., 12345]
    torch.testing.assert_close(
        unused + np.log(vocabulary.n_unused), restricted[..., vocabulary.other], atol=2e-4, rtol=1e-4
    )


def test_expansion_gives_each_id_its_row_or_the_common_one() -> None:
    vocabulary = demo_vocabulary(MICRO)
    rows = torch.arange(vocabulary.n_rows, dtype=torch.float32)[:, None].expand(-1, 3)
    table = expand_rows(rows, vocabulary)
    assert table.shape == (51866, 3)
    assert table[vocabulary.rows[7], 0] == 7
    assert (table == vocabulary.other).all(dim=1).sum() == vocabulary.n_unused


def test_the_export_is_a_checkpoint_that_transformers_reads(tmp_path: Path) -> None:
    from transformers import WhisperForConditionalGeneration

    vocabulary = demo_vocabulary(MICRO)
    net = Net(MICRO, vocabulary).eval()
    export(net, vocabulary, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    described = {"config.json", "generation_config.json", "preprocessor_config.json"}
    assert names == {*described, "model.safetensors", "spelling.safetensors"}
    model = WhisperForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32).eval()
    mel, ids = torch.randn(1, 128, 200), torch.tensor([MICRO.tokens.prompt(timestamps=True)])
    with torch.no_grad():
        expected = full_model(net, vocabulary)(input_features=mel, decoder_input_ids=ids).logits
        torch.testing.assert_close(
            model(input_features=mel, decoder_input_ids=ids).logits, expected, atol=0.02, rtol=0.02
        )
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["no_timestamps_token_id"] == 50364
    assert generation["lang_to_id"]["<|en|>"] == 50259


def test_log_mel_is_whisper_s() -> None:
    """Against transformers' feature extractor on a window with silence at its end."""
    from transformers import WhisperFeatureExtractor

    samples = np.zeros(RATE_HZ * 2, np.float32)
    samples[:RATE_HZ] = np.sin(np.arange(RATE_HZ) * 0.3) * np.linspace(0, 0.5, RATE_HZ)
    extractor = WhisperFeatureExtractor(feature_size=128, chunk_length=2)
    expected = extractor(samples, sampling_rate=RATE_HZ, return_tensors="np").input_features[0]
    got = LogMel(filterbank(128))(torch.from_numpy(samples[None]))[0].numpy()
    np.testing.assert_allclose(got, expected, atol=2e-4)


def test_the_learning_rate_warms_up_and_ends_low(tmp_path: Path) -> None:
    trainer = Trainer(Plan(size=MICRO, warm_up=10), _pool(), tmp_path)
    trainer.progress.step = 4
    assert trainer.rate() == pytest.approx(0.5 * 1.5e-3)
    trainer.progress.step, trainer.progress.fraction = 1000, 1.0
    assert trainer.rate() == pytest.approx(0.02 * 1.5e-3)


def test_a_draft_takes_its_teacher_s_encoder_and_leaves_it_alone(tmp_path: Path) -> None:
    size = MODELS["micro"]
    target = Trainer(Plan(size=size), _pool(), tmp_path / "target")
    target.save()
    draft_size = dataclasses.replace(size, name="draft", shares="micro")
    teacher = load_teacher(tmp_path / "target", draft_size)
    draft = Trainer(Plan(size=draft_size), _pool(), tmp_path / "draft", teacher)
    small = Mix(n_short=2)
    draft.mix = lambda: small  # type: ignore[method-assign]
    before = {name: value.clone() for name, value in draft.net.state_dict().items()}
    draft.step()
    changed = {name for name, value in draft.net.state_dict().items() if not torch.equal(value, before[name])}
    encoder = teacher.whisper.model.encoder.state_dict()
    for name, value in draft.net.whisper.model.encoder.state_dict().items():
        assert torch.equal(value, encoder[name]), name
    assert any("decoder" in name for name in changed)
    assert not any("encoder.conv" in name or "encoder.layers" in name for name in changed)


def test_a_teacher_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    Trainer(Plan(size=MODELS["micro"]), _pool(), tmp_path).save()
    with pytest.raises(UsageError, match="layout v3"):
        load_teacher(tmp_path, MODELS["demo-draft"])
    with pytest.raises(UsageError, match="not found"):
        load_teacher(tmp_path / "nowhere", MODELS["micro"])


@pytest.mark.parametrize("name", ["demo", "demo-draft", "demo-draft-same", "demo-draft-en"])
def test_the_family_has_whisper_s_shapes(name: str) -> None:
    config = MODELS[name].config()
    n_mels, n_vocab = {"demo-draft": (80, 51865), "demo-draft-en": (80, 51864)}.get(name, (128, 51866))
    assert (config.num_mel_bins, config.vocab_size) == (n_mels, n_vocab)
    assert (config.max_source_positions, config.max_target_positions) == (500, 448)
    assert config.d_model % config.encoder_attention_heads == 0


def test_a_timestamp_s_neighbours_are_nearly_right() -> None:
    vocabulary = demo_vocabulary(MICRO)
    net = Net(MICRO, vocabulary)
    at = vocabulary.first_stamp + 30
    losses = []
    for guess in (at, at + 2, at + 40):
        logits = torch.zeros(1, 1, vocabulary.n_rows)
        logits[0, 0, guess] = 8.0
        losses.append(float(token_loss(net, logits, torch.tensor([[at]]))))
    assert losses[0] < losses[1] < losses[2]
    assert float(token_loss(net, torch.zeros(1, 1, vocabulary.n_rows), torch.tensor([[3]]))) == pytest.approx(
        np.log(vocabulary.n_rows), abs=1e-4
    )


def test_timestamps_may_weigh_more() -> None:
    vocabulary = demo_vocabulary(MICRO)
    net, logits = Net(MICRO, vocabulary), torch.randn(1, 2, vocabulary.n_rows)
    stamp, text = (
        token_loss(net, logits[:, i : i + 1], torch.tensor([[at]])) for i, at in enumerate((net.first_stamp + 30, 3))
    )
    both = token_loss(net, logits, torch.tensor([[net.first_stamp + 30, 3]]), stamp_weight=4.0)
    torch.testing.assert_close(both, (4 * stamp + text) / 2)


def test_a_checkpoint_comes_back_as_the_net_it_was_exported_from(tmp_path: Path) -> None:
    vocabulary = demo_vocabulary(MICRO)
    torch.manual_seed(1)
    net = Net(MICRO, vocabulary)
    export(net, vocabulary, tmp_path)
    other = Net(MICRO, vocabulary)
    take_weights(other, vocabulary, tmp_path)
    for name, value in net.whisper.state_dict().items():
        torch.testing.assert_close(other.whisper.state_dict()[name], value, atol=1e-3, rtol=1e-3, msg=name)
    assert other.whisper.proj_out.weight is other.whisper.model.decoder.embed_tokens.weight


@pytest.mark.slow
def test_a_checkpoint_of_another_layout_gives_each_token_its_own_row(tmp_path: Path) -> None:
    v2, english = (dataclasses.replace(MICRO, layout=name) for name in ("v2", "en"))
    given = Net(v2, demo_vocabulary(v2))
    export(given, demo_vocabulary(v2), tmp_path)
    vocabulary = demo_vocabulary(english)
    net = Net(english, vocabulary)
    take_weights(net, vocabulary, tmp_path)

    def row(net: Net, id_: int) -> torch.Tensor:
        table = net.whisper.model.decoder.embed_tokens.weight
        return table[int(demo_vocabulary(net.size).row_of[id_])]

    pairs = [(tokenizer_of("en").encode(" Check")[0], tokenizer_of("v2").encode(" Check")[0])]
    mine, theirs = LAYOUTS["en"].special, LAYOUTS["v2"].special
    pairs += [(mine.eot, theirs.eot), (mine.sot, theirs.sot), (mine.timestamp_begin + 77, theirs.timestamp_begin + 77)]
    for id_, there in pairs:
        torch.testing.assert_close(row(net, id_), row(given, there), atol=1e-3, rtol=1e-3)
    known = same_tokens(LAYOUTS["en"], LAYOUTS["v2"])
    assert (known[vocabulary.rows] >= 0).mean() > 0.9 and known.max() < theirs.n_vocab


def test_a_checkpoint_of_another_size_is_refused(tmp_path: Path) -> None:
    vocabulary = demo_vocabulary(MICRO)
    export(Net(MICRO, vocabulary), vocabulary, tmp_path)
    size = dataclasses.replace(MICRO, n_encoder=2)
    with pytest.raises(UsageError, match="not those of a model of size 'micro'"):
        take_weights(Net(size, vocabulary), vocabulary, tmp_path)
    with pytest.raises(UsageError, match="model.safetensors: not found"):
        take_weights(Net(MICRO, vocabulary), vocabulary, tmp_path / "nowhere")


def test_new_heads_leave_a_checkpoint_s_encoder_alone_at_first(tmp_path: Path) -> None:
    vocabulary = demo_vocabulary(MICRO)
    export(Net(MICRO, vocabulary), vocabulary, tmp_path / "hf")
    trainer = Trainer(Plan(size=MICRO, settle_steps=1), _pool(), tmp_path / "run")
    trainer.begin_from(tmp_path / "hf")
    batch = collate(1, 0, trainer.pool, Mix(n_short=2), vocabulary, window_samples=2 * RATE_HZ, n_ctx=448)
    trainer.progress.aligned_at = None  # the loss of the characters alone
    pulls = []
    for step in range(2):
        trainer.progress.step = step
        trainer.optimizer.zero_grad()
        trainer._loss(batch, trainer._inputs(batch, 0.0)).backward()
        heads = trainer.net.ctc.weight.grad
        assert heads is not None
        encoder = trainer.net.whisper.model.encoder.conv1.weight.grad
        pulls.append(0.0 if encoder is None else float(encoder.abs().sum()))
    assert pulls[0] == 0.0 < pulls[1]


@pytest.mark.slow
def test_what_is_exported_is_the_running_mean(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    start = trainer.net.ctc.weight.detach().clone()
    _steps(trainer, 1)
    after_one = trainer.net.ctc.weight.detach().clone()
    torch.testing.assert_close(trainer.mean.ctc.weight, start + (after_one - start) * 0.9)
    _steps(trainer, 3)
    trainer.save()
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "hf" / "model.safetensors")["model.encoder.conv1.weight"]
    mean, now = (net.whisper.model.encoder.conv1.weight for net in (trainer.mean, trainer.net))
    assert torch.equal(saved, mean.to(torch.float16))
    assert not torch.equal(mean, now)
    assert not any(parameter.requires_grad for parameter in trainer.mean.parameters())


def test_the_mel_ends_in_zeros_where_the_content_ends() -> None:
    """openai-whisper's transcribe(): 0.0 behind the end, and the floor below the maximum of the whole file."""
    samples = torch.zeros(2, RATE_HZ)
    samples[:, : RATE_HZ // 2] = 0.1 * torch.randn(2, RATE_HZ // 2)
    mel = LogMel(filterbank(80))
    plain = mel(samples)
    ends = torch.tensor([50, 100])
    cut = mel(samples, ends=ends, louder=torch.tensor([0.0, 1.0]))
    assert torch.equal(cut[0, :, :50], plain[0, :, :50]) and not cut[0, :, 50:].any()
    assert float(cut[1].min() - plain[1].min()) == pytest.approx(0.25)
    assert torch.equal(cut[1].clamp(min=float(cut[1].min())), plain[1].clamp(min=float(cut[1].min())))


def test_the_masks_stay_within_the_content() -> None:
    mel = torch.randn(3, 128, 500)
    masked = mel.clone()
    augment.mask(masked, [100, 300, 500], torch.Generator().manual_seed(4))
    assert torch.equal(masked[0, :, 100:], mel[0, :, 100:]) and torch.equal(masked[1, :, 300:], mel[1, :, 300:])
    changed = (masked != mel).float().mean(dim=(1, 2))
    assert 0 < float(changed.max()) < 0.45


def test_hidden_rows_learn_to_say_later_tokens_when_asked_to() -> None:
    torch.manual_seed(0)
    ahead = Ahead(2, 8)
    table = torch.randn(5, 8)
    hidden = torch.randn(1, 4, 8, requires_grad=True)
    targets = torch.tensor([[IGNORE, 1, 2, 3]])
    ahead.loss(hidden, table, targets).backward()
    gradient = hidden.grad
    assert gradient is not None
    # Row 0 says nothing that counts, row 1 two tokens more, row 2 one, row 3 none.
    assert [bool(row.abs().sum()) for row in gradient[0]] == [False, True, True, False]
    assert Ahead(0, 8).loss(hidden, table, targets) == 0

    optimizer = torch.optim.Adam([hidden], lr=0.1)
    before = ahead.loss(hidden, table, targets).item()
    for _ in range(20):
        optimizer.zero_grad()
        ahead.loss(hidden, table, targets).backward()
        optimizer.step()
    assert ahead.loss(hidden, table, targets).item() < 0.5 * before


def test_a_run_that_guesses_ahead_goes_on_only_with_as_many_guesses(tmp_path: Path) -> None:
    first = Trainer(Plan(size=MICRO, n_ahead=2, align_steps=1, warm_up=2), _pool(), tmp_path)
    first.mix = lambda: Mix(strength=0.0, n_short=2)  # type: ignore[method-assign]
    _steps(first, 3)
    first.save()
    with pytest.raises(UsageError, match="guesses 2 tokens ahead, asked for 0"):
        Trainer(Plan(size=MICRO), _pool(), tmp_path).load()
    again = Trainer(Plan(size=MICRO, n_ahead=2), _pool(), tmp_path)
    assert again.load()
    for mine, theirs in zip(first.ahead.parameters(), again.ahead.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert not torch.equal(first.ahead.maps[0].weight, torch.eye(64))
