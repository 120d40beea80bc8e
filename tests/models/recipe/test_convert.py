"""A draft out of a checkpoint: its tokens by meaning, its mels by a linear map, its encoder taught by the old one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the training extra is not installed")
pytest.importorskip("transformers", reason="the test extra is not installed")

from specedge.errors import UsageError  # noqa: E402
from specedge.export.training.corpus import RATE_HZ, Utterance  # noqa: E402
from specedge.models.recipe import convert as convert_module  # noqa: E402
from specedge.models.recipe.convert import (  # noqa: E402
    Hearing,
    convert,
    mel_bridge,
    read_source,
    rows_by_meaning,
)
from specedge.models.recipe.data import Mix, Pool  # noqa: E402
from specedge.models.recipe.labels import tokenizer_of  # noqa: E402
from specedge.models.recipe.network import MODELS, Net, export  # noqa: E402
from specedge.models.recipe.trainer import demo_vocabulary  # noqa: E402

SOURCE = dataclasses.replace(MODELS["micro"], n_audio_ctx=100, n_encoder=2)
DRAFT = dataclasses.replace(SOURCE, name="draft", layout="v2", n_encoder=1)


@pytest.fixture(scope="module")
def source() -> Net:
    torch.manual_seed(5)
    return Net(SOURCE, demo_vocabulary(SOURCE)).eval().requires_grad_(False)


def _pool() -> Pool:
    rng = np.random.default_rng(3)
    pool = Pool()
    for at in range(12):
        n_samples = RATE_HZ // 2 + 400 * at
        sound = (rng.standard_normal(n_samples) * 3000).astype(np.int16)
        pool.add([Utterance(samples=sound, text="Stop.", voice="v", source="s", start=320, end=n_samples - 320)])
    return pool


def test_tokens_keep_their_rows_by_meaning_and_others_get_the_mean_of_their_pieces(source: Net) -> None:
    size = dataclasses.replace(DRAFT, layout="en")
    mine, theirs = demo_vocabulary(size), demo_vocabulary(SOURCE)
    table = source.whisper.model.decoder.embed_tokens.weight
    rows = rows_by_meaning(mine, theirs, table)
    assert rows.shape == (mine.n_rows, SOURCE.d_model)
    assert torch.equal(rows[mine.other], table[theirs.other])
    encode = {name: tokenizer_of(name).encode for name in ("en", "v3")}
    (pump,), (there,) = encode["en"](" pump"), encode["v3"](" pump")
    assert torch.equal(rows[mine.row_of[pump]], table[theirs.row_of[there]])
    begins = [v.row_of[v.layout.special.timestamp_begin + 7] for v in (mine, theirs)]
    assert torch.equal(rows[begins[0]], table[begins[1]])
    (schedule,) = encode["en"](" Schedule")
    pieces = theirs.restrict(encode["v3"](" Schedule"))
    assert len(pieces) > 1
    assert torch.allclose(rows[mine.row_of[schedule]], table[pieces].mean(0))


def test_the_folded_convolution_gives_of_the_new_mels_what_the_old_one_gives_of_the_bridged(
    source: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_module, "_N_BRIDGE", 12)
    size = dataclasses.replace(DRAFT, n_encoder=SOURCE.n_encoder)
    bridge = mel_bridge(_pool(), 80, 128)
    assert bridge.shape == (81, 128)
    net = convert(source, size, bridge).eval()
    mel = torch.randn(1, 80, 40)
    bridged = (mel.transpose(1, 2) @ bridge[:-1] + bridge[-1]).transpose(1, 2)
    ours, theirs = (n.whisper.model.encoder.conv1(x) for n, x in ((net, mel), (source, bridged)))
    assert torch.allclose(ours[..., 1:-1], theirs[..., 1:-1], atol=1e-4)
    layers = zip(net.whisper.model.encoder.layers, source.whisper.model.encoder.layers, strict=True)
    assert all(torch.equal(a.fc1.weight, b.fc1.weight) for a, b in layers)


@pytest.mark.slow
def test_an_encoder_learns_to_hear_and_goes_on_where_it_was_cut_off(
    source: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_module, "_MIX", Mix(n_short=2))
    monkeypatch.setattr(convert_module, "_N_BRIDGE", 12)
    pool = _pool()
    bridge = mel_bridge(pool, 80, 128)

    def hearing(name: str) -> Hearing:
        torch.manual_seed(9)
        return Hearing(convert(source, DRAFT, bridge), source, pool, tmp_path / name, steps=6, rate=3e-3, seed=1)

    straight = hearing("straight")
    straight._learn()
    before = straight.error
    straight.run()
    assert straight.error < before
    broken = hearing("broken")
    for _ in range(3):
        broken._learn()
    broken.save()
    again = hearing("broken")
    assert again.load()
    again.run()
    for name, value in straight.net.state_dict().items():
        assert torch.equal(value, again.net.state_dict()[name]), name
    written = read_source(tmp_path / "broken" / "hf")
    assert written.size == dataclasses.replace(DRAFT, name="hf")
    half = again.mean.state_dict()["layer_norm.weight"].half().float()
    assert torch.equal(written.whisper.model.encoder.layer_norm.weight, half)


def test_a_draft_of_another_width_or_of_more_layers_is_refused(source: Net, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="another width or window than draft"):
        convert(source, dataclasses.replace(DRAFT, d_model=128), None)
    with pytest.raises(UsageError, match="fewer layers than draft"):
        convert(source, dataclasses.replace(DRAFT, n_encoder=3), None)
    export(source, demo_vocabulary(SOURCE), tmp_path)
    (tmp_path / "config.json").write_text('{"d_model": 64}', encoding="utf-8")
    with pytest.raises(UsageError, match="no checkpoint of this recipe"):
        read_source(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 7, "d_model": 64}', encoding="utf-8")
    with pytest.raises(UsageError, match=r"a vocabulary of 7 ids, expected one of Whisper's"):
        read_source(tmp_path)
