"""openai-whisper's own checkpoints give the weights and the special tokens of the Hugging Face ones."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from specedge.errors import CheckpointError
from specedge.export import openai_pt
from specedge.export.checkpoint import open_checkpoint
from support.checkpoints import make_checkpoint
from support.edits import read_tensors


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def as_openai(micro: Path, n_vocab: int) -> dict[str, Any]:
    """A state dict under openai-whisper's names, renamed by a table of its own."""
    words = {"layers": "blocks", "self_attn": "attn", "encoder_attn": "cross_attn", "q_proj": "query", "fc1": "mlp.0"}
    words |= {"k_proj": "key", "v_proj": "value", "out_proj": "out", "fc2": "mlp.2", "embed_tokens": "token_embedding"}
    words |= {"self_attn_layer_norm": "attn_ln", "encoder_attn_layer_norm": "cross_attn_ln"}
    words |= {"final_layer_norm": "mlp_ln"}
    result = {}
    for name, value in read_tensors(micro / "model.safetensors").items():
        parts = name.split(".")[1:]
        if "embed_positions" in parts:
            result[f"{parts[0]}.positional_embedding"] = value
            continue
        if parts[1] == "layer_norm":
            parts[1] = "ln_post" if parts[0] == "encoder" else "ln"
        result[".".join(words.get(part, part) for part in parts)] = value
    return result


def test_openai_whispers_pt_gives_the_same_weights(tmp_path: Path, torch: Any) -> None:
    folder = make_checkpoint(tmp_path, n_vocab=51865, tokenizer=False)
    state = {name: torch.from_numpy(value) for name, value in as_openai(folder, 51865).items()}
    dims = {"n_mels": 80, "n_audio_ctx": 100, "n_audio_state": 64, "n_audio_head": 2, "n_audio_layer": 2}
    dims |= {"n_vocab": 51865, "n_text_ctx": 64, "n_text_state": 64, "n_text_head": 2, "n_text_layer": 2}
    torch.save({"dims": dims, "model_state_dict": state}, tmp_path / "x.pt")
    with open_checkpoint(tmp_path / "x.pt") as theirs, open_checkpoint(folder) as ours:
        assert theirs.spec.dims == ours.spec.dims and theirs.spec.n_text_ffn == 256
        assert (theirs.spec.source.kind, theirs.spec.source.id) == ("openai-pt", "x.pt")
        for name, _ in ours.spec.shapes():
            np.testing.assert_array_equal(theirs.tensor(name), ours.tensor(name))
        assert theirs.spec.generation["lang_to_id"] == ours.spec.generation["lang_to_id"]
    for content, message in (
        ({"state": 1}, "holds no tensors by name"),
        ({"a": torch.zeros(1)}, "holds no Whisper's tensors"),
        (state | {f"teacher.{name}": value for name, value in state.items()}, "holds several models"),
        ({"dims": dims | {"n_text_head": None}, "model_state_dict": state}, r"dims\.n_text_head is None"),
        ({"dims": dims | {"n_vocab": 1000}, "model_state_dict": state}, "n_vocab 1000 is none of openai-whisper's"),
        ({"dims": dims | {"n_text_head": 3}, "model_state_dict": state}, "3 does not divide d_model 64"),
    ):
        torch.save(content, tmp_path / "x.pt")
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("name", "before", "is_openai", "key"),
    [
        ("x.bin", "", True, "model_state_dict"),
        ("x.ckpt", "model.", True, "state_dict"),
        ("last.ckpt", "model.model.", False, "state_dict"),
        ("x.pth", "module._orig_mod.model.", False, None),
        ("x.safetensors", "_orig_mod.", True, None),
        ("x", "model.", False, None),
    ],
)
def test_a_single_file_is_told_by_its_content(
    name: str, before: str, is_openai: bool, key: str | None, tmp_path: Path, torch: Any
) -> None:
    """Whoever trained it, and without dims, whose heads are then 64 wide."""
    folder = make_checkpoint(tmp_path, n_vocab=51865, tokenizer=False)
    theirs = as_openai(folder, 51865)
    plain = {n.removeprefix("model."): value for n, value in read_tensors(folder / "model.safetensors").items()}
    state = {before + n: np.ascontiguousarray(value) for n, value in (theirs if is_openai else plain).items()}
    if name.endswith(".safetensors"):
        save_file(state, tmp_path / name)
    else:
        tensors = {n: torch.from_numpy(value) for n, value in state.items()}
        torch.save(tensors if key is None else {key: tensors, "epoch": 3}, tmp_path / name)
    with open_checkpoint(tmp_path / name) as opened, open_checkpoint(folder) as ours:
        assert opened.spec.dims == replace(ours.spec.dims, n_audio_head=1, n_text_head=1)
        for tensor, _ in ours.spec.shapes():
            np.testing.assert_array_equal(opened.tensor(tensor), ours.tensor(tensor))


def test_what_stands_before_every_name_of_a_folder_is_taken_off(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, n_vocab=51865, tokenizer=False)
    weights = folder / "model.safetensors"
    with open_checkpoint(folder) as ours:
        expected = {tensor: ours.tensor(tensor) for tensor, _ in ours.spec.shapes()}
    for before in ("_orig_mod.", "module.", "module._orig_mod."):
        save_file({before + name: value for name, value in expected.items()}, weights)
        for source in (folder, weights):
            with open_checkpoint(source) as opened:
                assert all((opened.tensor(name) == value).all() for name, value in expected.items())


@pytest.mark.parametrize("name", ["tiny.pt", "large-v3-turbo.pt"])
def test_a_published_name_over_another_file_is_refused_unread(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"no pickle")
    with pytest.raises(CheckpointError, match=f"is not the {name} that OpenAI publishes, it is damaged or") as caught:
        open_checkpoint(tmp_path / name)
    assert "\n" not in str(caught.value) and "give a model of your own another name" in str(caught.value)


def test_a_published_file_is_known_by_its_hash(tmp_path: Path, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_checkpoint(tmp_path, n_vocab=51865, tokenizer=False)
    state = {name: torch.from_numpy(value) for name, value in as_openai(folder, 51865).items()}
    dims = {"n_mels": 80, "n_audio_ctx": 100, "n_audio_state": 64, "n_audio_head": 2, "n_audio_layer": 2}
    dims |= {"n_vocab": 51865, "n_text_ctx": 64, "n_text_state": 64, "n_text_head": 2, "n_text_layer": 2}
    torch.save({"dims": dims, "model_state_dict": state}, tmp_path / "base.pt")
    sha256 = hashlib.sha256((tmp_path / "base.pt").read_bytes()).hexdigest()
    monkeypatch.setattr(openai_pt, "OPENAI_SHA256", {"base.pt": sha256, "tiny.pt": "0" * 64})
    with open_checkpoint(tmp_path / "base.pt") as opened:
        assert opened.spec.source.revision == sha256
    (tmp_path / "base.pt").rename(tmp_path / "tiny.pt")
    with pytest.raises(CheckpointError, match=r"is not the tiny\.pt that OpenAI publishes, it is base\.pt"):
        open_checkpoint(tmp_path / "tiny.pt")
    (tmp_path / "tiny.pt").rename(tmp_path / "mine.pt")
    with open_checkpoint(tmp_path / "mine.pt") as opened:
        assert opened.spec.source.revision is None
