"""Opening checkpoints: what is read equals what transformers reads, and whatever is wrong has its one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from specedge.errors import CheckpointError, UsageError
from specedge.export.checkpoint import open_checkpoint
from support.checkpoints import make_checkpoint, weight
from support.edits import edit_config, read_tensors, write_tensors

FC1 = "model.encoder.layers.0.fc1.weight"


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("micro"), tokenizer=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_is_the_float32_of_what_was_stored(dtype: str, shards: int, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, dtype=dtype, shards=shards, seed=3, tokenizer=False)
    stored = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    assert (folder / "model.safetensors").exists() == (shards == 1)
    with open_checkpoint(folder) as checkpoint:
        names = dict(checkpoint.spec.shapes())
        assert FC1 in names
        for name, shape in names.items():
            value = checkpoint.tensor(name)
            assert value.dtype == np.float32 and value.flags.c_contiguous and value.flags.writeable
            np.testing.assert_array_equal(value, weight(name, shape, 3).astype(stored).astype(np.float32))


def test_a_tied_head_is_the_embedding_and_an_untied_one_is_its_own(micro: Path, tmp_path: Path) -> None:
    with open_checkpoint(micro) as checkpoint:
        assert not checkpoint.has("proj_out.weight") and checkpoint.spec.tied
    folder = make_checkpoint(tmp_path, tokenizer=False)
    values = read_tensors(folder / "model.safetensors")
    head = (values["model.decoder.embed_tokens.weight"] * 2).astype(np.float16)
    write_tensors(folder / "model.safetensors", values | {"proj_out.weight": head})
    with open_checkpoint(folder) as checkpoint:  # tied by the config: a stored copy does not count, as in transformers
        assert not checkpoint.has("proj_out.weight")
    edit_config(folder, tie_word_embeddings=False)
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.has("proj_out.weight")
        np.testing.assert_array_equal(checkpoint.tensor("proj_out.weight"), head.astype(np.float32))
    write_tensors(folder / "model.safetensors", values)
    with pytest.raises(CheckpointError, match=r"tensor proj_out\.weight is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize("prefix", ["whisper_model.", "-model."])
def test_other_prefixes_are_understood(prefix: str, micro: Path, tmp_path: Path) -> None:
    """Medusa checkpoints wrap the model; WhisperModel (no head) is saved without `model.`."""
    folder = make_checkpoint(tmp_path, tokenizer=False)
    values = read_tensors(folder / "model.safetensors")
    if prefix == "-model.":
        renamed = {name.removeprefix("model."): value for name, value in values.items()}
    else:
        renamed = {prefix + name: value for name, value in values.items()} | {"medusa_heads.0.bias": values[FC1][0]}
    write_tensors(folder / "model.safetensors", renamed)
    with open_checkpoint(folder) as checkpoint, open_checkpoint(micro) as plain:
        np.testing.assert_array_equal(checkpoint.tensor(FC1), plain.tensor(FC1))


def test_the_spec_is_what_the_files_say(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "my-model", n_mels=128, n_audio_ctx=75, tokenizer=False)
    spec = open_checkpoint(str(folder)).spec
    assert (spec.dims.n_mels, spec.dims.n_audio_ctx, spec.dims.n_vocab) == (128, 75, 1000)
    assert (spec.source.kind, spec.source.id, spec.source.revision) == ("folder", "my-model", None)
    assert spec.generation["max_initial_timestamp_index"] == 50 and spec.preprocessor["feature_size"] == 128
    for name in ("generation_config.json", "preprocessor_config.json"):
        (folder / name).unlink()
    bare = open_checkpoint(folder).spec  # suppress lists of old checkpoints are in config.json
    assert bare.generation["suppress_tokens"] == spec.generation["suppress_tokens"] and bare.preprocessor == {}


def test_transformers_loads_the_same_parameters(micro: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import torch as pytorch

    transformers.utils.logging.disable_progress_bar()
    model, info = transformers.WhisperForConditionalGeneration.from_pretrained(
        micro, dtype=pytorch.float32, output_loading_info=True
    )
    assert not any(info.values()), info
    with open_checkpoint(micro) as checkpoint:
        state = model.state_dict()
        assert set(state) == {name for name, _ in checkpoint.spec.shapes()} | {"proj_out.weight"}
        for name, value in state.items():
            stored = checkpoint.tensor("model.decoder.embed_tokens.weight" if name == "proj_out.weight" else name)
            np.testing.assert_array_equal(stored, value.numpy())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_named_when_read(value: float, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    values = read_tensors(folder / "model.safetensors")
    values[FC1][3, 5] = value
    write_tensors(folder / "model.safetensors", values)
    with open_checkpoint(folder) as checkpoint:
        checkpoint.tensor("model.encoder.layers.0.fc2.weight")
        with pytest.raises(CheckpointError, match=rf"tensor {FC1} holds NaN or infinity"):
            checkpoint.tensor(FC1)


def test_weights_that_are_no_floats_are_named(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    values = read_tensors(folder / "model.safetensors")
    write_tensors(folder / "model.safetensors", values | {FC1: values[FC1].astype(np.int8)})
    with pytest.raises(CheckpointError, match=rf"tensor {FC1} is stored as I8"):
        open_checkpoint(folder)


def test_shards_are_checked_against_their_index(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, shards=2, tokenizer=False)
    index = folder / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    second = "model-00002-of-00002.safetensors"
    index.write_text(json.dumps({"weight_map": good["weight_map"] | {FC1: second}}))
    with pytest.raises(CheckpointError, match=f"places tensor {FC1} in {second}, which does not hold it"):
        open_checkpoint(folder)
    for bad in ("../model.safetensors", "/etc/passwd", "a\\b", "", ".hidden", 3):
        index.write_text(json.dumps({"weight_map": good["weight_map"] | {FC1: bad}}))
        with pytest.raises(CheckpointError, match="expected the name of a file beside it"):
            open_checkpoint(folder)
    index.write_text(json.dumps(good))
    (folder / second).unlink()
    with pytest.raises(CheckpointError, match=f"{second}: there is no such file"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (None, r"looked for config\.json with model\.safetensors or pytorch_model\.bin"),
        ("adapter_config.json", "--adapter DIR` merges it into its base model"),
        ("encoder_model.onnx", "--from optimum"),
        ("specedge.json", "a specedge bundle already"),
        ("model.bin", "none of CTranslate2's"),
        ("tf_model.h5", "TensorFlow or Flax"),
    ],
)
@pytest.mark.parametrize("with_config", [False, True])
def test_a_folder_that_is_no_checkpoint_says_what_it_is(
    file: str | None, message: str, with_config: bool, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, tokenizer=False)
    for path in tmp_path.iterdir():
        if not (with_config and path.name == "config.json"):
            path.unlink()
    if file:
        (tmp_path / file).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def test_a_file_a_missing_path_and_a_revision_of_a_folder(micro: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is neither a PyTorch pickle, nor safetensors"):
        open_checkpoint(micro / "config.json")
    odd = ("", "x\0y", "x" * 5000, "~nobody-here/x")
    for missing in (str(tmp_path / "none"), "tiny.pt", "a/b/c", "no such thing", *odd):
        with pytest.raises(CheckpointError, match="^no checkpoint '.*there is no such folder or file"):
            open_checkpoint(missing)
    with pytest.raises(UsageError, match="a revision can be given for a hub id only"):
        open_checkpoint(micro, revision="main")
