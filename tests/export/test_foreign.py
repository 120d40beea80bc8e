"""Whisper models as other programs store them: read to the same weights, or refused with the command that helps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specedge
from specedge.errors import CheckpointError
from specedge.export.checkpoint import Checkpoint, open_checkpoint
from specedge.export.export import export_to
from specedge.models import catalogue
from support.checkpoints import make_checkpoint
from support.edits import edit_config, read_tensors, write_tensors
from support.foreign import DIMS, ROUNDED, factor_encoder, round_to_blocks, write_ggml

NOISE = (0.1 * np.random.default_rng(7).standard_normal(32_000)).astype(np.float32)


@pytest.fixture(scope="module")
def published_shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a published vocabulary, in float32."""
    folder = tmp_path_factory.mktemp("checkpoint")
    return make_checkpoint(folder, n_vocab=51865, dtype="float32", tokenizer=False)


def same(theirs: Checkpoint, ours: Checkpoint, **close: float) -> None:
    """The same names, dimensions and values, bit for bit unless told how close."""
    assert theirs.spec.dims == ours.spec.dims
    for name, _ in ours.spec.shapes():
        np.testing.assert_allclose(theirs.tensor(name), ours.tensor(name), rtol=0, atol=close.get("atol", 0))


def tokens(bundle: Path) -> list[list[int]]:
    segments, _ = specedge.WhisperModel(str(bundle), cpu_threads=1).transcribe(
        NOISE, language="en", max_new_tokens=12, temperature=0.0
    )
    return [segment.tokens for segment in segments]


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_ggml_gives_the_weights_of_the_checkpoint(kind: str, published_shape: Path, tmp_path: Path) -> None:
    worth = write_ggml(published_shape, tmp_path / "ggml-mine.bin", kind)
    with open_checkpoint(tmp_path / "ggml-mine.bin") as theirs, open_checkpoint(published_shape) as ours:
        assert theirs.spec.dims == ours.spec.dims and theirs.spec.source.kind == "ggml"
        assert "alignment_heads" not in theirs.spec.generation and not theirs.spec.warning
        for name, _ in ours.spec.shapes():
            np.testing.assert_array_equal(theirs.tensor(name), worth[name])


def test_a_ggml_file_of_a_published_name_has_its_heads(published_shape: Path, tmp_path: Path) -> None:
    write_ggml(published_shape, tmp_path / "ggml-base.bin", "f16")
    with open_checkpoint(tmp_path / "ggml-base.bin") as opened:
        assert opened.spec.generation["alignment_heads"] == catalogue.alignment_heads("base")


@pytest.mark.parametrize("kind", ROUNDED)
def test_ggml_of_fewer_bits_is_read_and_says_so(kind: str, published_shape: Path, tmp_path: Path) -> None:
    worth = write_ggml(published_shape, tmp_path / f"ggml-base-{kind}.bin", kind)
    with open_checkpoint(tmp_path / f"ggml-base-{kind}.bin") as theirs, open_checkpoint(published_shape) as ours:
        assert f"rounded to {kind[1]} bits ({kind})" in theirs.spec.warning
        assert "`specedge export openai/whisper-base`" in theirs.spec.warning
        for name, _ in theirs.spec.shapes():
            np.testing.assert_array_equal(theirs.tensor(name), worth[name])
        name = "model.decoder.layers.0.fc1.weight"
        off = np.abs(theirs.tensor(name) - ours.tensor(name)).max() / np.abs(ours.tensor(name)).max()
        assert off < 0.6 / 2 ** (int(kind[1]) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROUNDED)
def test_blocks_are_those_of_ggml(kind: str) -> None:
    gguf: Any = pytest.importorskip("gguf")
    value = np.random.default_rng(3).standard_normal((50, 32)).astype(np.float32)
    blocks, worth = round_to_blocks(value, kind)
    theirs = np.frombuffer(blocks, np.uint8).reshape(50, -1)
    np.testing.assert_array_equal(gguf.quants.dequantize(theirs, gguf.GGMLQuantizationType[kind.upper()]), worth)


def test_k_quants_are_refused(published_shape: Path, tmp_path: Path) -> None:
    path = tmp_path / "ggml-base-q5_k.bin"
    write_ggml(published_shape, path, "q5_0")
    whole, name = path.read_bytes(), b"decoder.token_embedding.weight"
    at = whole.index(name) - 3 * 4 - 2 * 4 + 8
    path.write_bytes(whole[:at] + (13).to_bytes(4, "little") + whole[at + 4 :])
    with pytest.raises(
        CheckpointError, match=r"is stored as q5_K; expected f16.*`specedge export openai/whisper-base`"
    ):
        open_checkpoint(path)


def checkpoint_of(values: dict[str, np.ndarray], source: Path, out: Path) -> Path:
    """The checkpoint `source` with these weights."""
    shutil.copytree(source, out)
    write_tensors(out / "model.safetensors", values)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q5_0"])
def test_ggml_gives_the_tokens_of_a_checkpoint_with_its_weights(
    kind: str, published_shape: Path, tmp_path: Path
) -> None:
    worth = write_ggml(published_shape, tmp_path / "ggml-mine.bin", kind)
    same_weights = checkpoint_of(worth, published_shape, tmp_path / "checkpoint")
    expected = tokens(export_to(str(same_weights), tmp_path / "ours").path)
    assert any(expected) and tokens(export_to(str(tmp_path / "ggml-mine.bin"), tmp_path / "theirs").path) == expected


def test_damaged_ggml_files_are_one_line(published_shape: Path, tmp_path: Path) -> None:
    path = tmp_path / "ggml-mine.bin"
    write_ggml(published_shape, path, "f16")
    whole = path.read_bytes()
    for cut in (4, 30, 60, 70_000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError, match="ends in the middle|is damaged|another vocabulary|dims"):
            open_checkpoint(path)
    at = whole.index(b" the") if b" the" in whole else 70_000
    path.write_bytes(whole[:at] + b"#" + whole[at + 1 :])
    with pytest.raises(CheckpointError, match="another vocabulary than openai-whisper's"):
        open_checkpoint(path)
    path.write_bytes(b"GGUF" + whole[4:])
    with pytest.raises(CheckpointError, match="is a GGUF file"):
        open_checkpoint(path)


def test_another_program_s_config_is_one_line(tmp_path: Path) -> None:
    """As mlx-whisper's, which has openai-whisper's dims."""
    (tmp_path / "config.json").write_text(json.dumps(DIMS | {"model_type": "whisper"}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="num_mel_bins is missing; export the checkpoint that this one was made"):
        open_checkpoint(tmp_path)


def convert(checkpoint: Path, out: Path, quantization: str) -> Path:
    converters: Any = pytest.importorskip("ctranslate2").converters
    converter = converters.TransformersConverter(
        str(checkpoint), copy_files=["tokenizer.json", "preprocessor_config.json"], load_as_float16=False
    )
    converter.convert(str(out), quantization=quantization)
    return out


@pytest.mark.slow
def test_ctranslate2_s_own_folders_give_the_weights_and_the_tokens(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "mine", dtype="float16")
    expected = tokens(export_to(str(checkpoint), tmp_path / "ours").path)
    assert any(expected)
    for quantization in ("float32", "float16"):
        folder = convert(checkpoint, tmp_path / quantization, quantization)
        with open_checkpoint(folder) as theirs, open_checkpoint(checkpoint) as ours:
            same(theirs, ours)
            assert theirs.vocabulary() == ours.vocabulary() and not theirs.spec.warning
            for key in ("alignment_heads", "suppress_tokens", "begin_suppress_tokens"):
                assert theirs.spec.generation[key] == ours.spec.generation[key]
        assert tokens(export_to(str(folder), tmp_path / f"{quantization}-bundle").path) == expected
    for quantization, off in (("int8", 0.02), ("int16", 0.003), ("bfloat16", 0.02)):
        folder = convert(checkpoint, tmp_path / f"faster-whisper-base-{quantization}", quantization)
        with open_checkpoint(folder) as theirs, open_checkpoint(checkpoint) as ours:
            for name in ("model.encoder.layers.1.fc2.weight", "model.decoder.layers.0.encoder_attn.v_proj.weight"):
                np.testing.assert_allclose(theirs.tensor(name), ours.tensor(name), rtol=0, atol=off)
            assert bool(theirs.spec.warning) is quantization.startswith("int")


@pytest.mark.slow
def test_a_conversion_names_the_checkpoint_behind_it(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "mine")
    folder = convert(checkpoint, tmp_path / "faster-whisper-small.en", "int8")
    with open_checkpoint(folder) as opened:
        assert "`specedge export openai/whisper-small.en`" in opened.spec.warning
    (folder / "README.md").write_text("ct2-transformers-converter --model someone/whisper-x --output_dir y\n")
    with open_checkpoint(folder) as opened:
        assert "`specedge export someone/whisper-x`" in opened.spec.warning
    whole = (folder / "model.bin").read_bytes()
    for cut in (40, 500, len(whole) - 10):
        (folder / "model.bin").write_bytes(whole[:cut])
        with pytest.raises(CheckpointError, match="is damaged"):
            open_checkpoint(folder)
    (folder / "model.bin").write_bytes(b"\x03" + whole[1:])
    with pytest.raises(CheckpointError, match="of CTranslate2's format 3"):
        open_checkpoint(folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of peft and transformers
def test_an_adapter_of_peft_is_merged_as_peft_merges_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peft: Any = pytest.importorskip("peft")
    transformers: Any = pytest.importorskip("transformers")
    import torch as pytorch

    transformers.utils.logging.disable_progress_bar()
    checkpoint = make_checkpoint(tmp_path / "base", dtype="float32")
    base = transformers.WhisperForConditionalGeneration.from_pretrained(checkpoint)
    config = peft.LoraConfig(
        r=4, lora_alpha=12, target_modules=["q_proj", "v_proj", "fc1"], alpha_pattern={"fc1": 3}, use_rslora=True
    )
    model = peft.get_peft_model(base, config)
    pytorch.manual_seed(0)
    for name, value in model.named_parameters():
        if "lora_" in name:
            pytorch.nn.init.normal_(value, std=0.05)
    model.save_pretrained(tmp_path / "lora")
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    for name in ("generation_config.json", "preprocessor_config.json", "tokenizer.json"):
        shutil.copyfile(checkpoint / name, tmp_path / "merged" / name)
    with open_checkpoint(checkpoint, adapter=tmp_path / "lora") as ours, open_checkpoint(tmp_path / "merged") as theirs:
        same(theirs, ours, atol=1e-6)
        assert ours.spec.source.id == "base+lora"
    merged = export_to(str(checkpoint), tmp_path / "ours", adapter=tmp_path / "lora", precision="fp32").path
    expected = tokens(export_to(str(tmp_path / "merged"), tmp_path / "theirs", precision="fp32").path)
    assert tokens(merged) == expected != tokens(export_to(str(checkpoint), tmp_path / "plain", precision="fp32").path)


def write_adapter(folder: Path, values: dict[str, np.ndarray], **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    said = {"peft_type": "LORA", "lora_alpha": 8, "r": 4, "base_model_name_or_path": "openai/whisper-tiny"}
    (folder / "adapter_config.json").write_text(json.dumps(said | config))
    write_tensors(folder / "adapter_model.safetensors", values)
    return folder


_CHANGES_BASE = ("pissa", "pissa_niter_16", "olora", "corda", "loftq")


def test_adapters_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", tokenizer=False)
    q_proj = "base_model.model.model.decoder.layers.0.self_attn.q_proj"
    a, b = np.zeros((4, 64), np.float32), np.zeros((64, 4), np.float32)
    good = {f"{q_proj}.lora_A.weight": a, f"{q_proj}.lora_B.weight": b}
    lora = write_adapter(tmp_path / "lora", good)
    with open_checkpoint(base, adapter=lora) as opened:
        assert opened.tensor("model.decoder.layers.0.self_attn.q_proj.weight").shape == (64, 64)
    with pytest.raises(CheckpointError, match=r"`specedge export openai/whisper-tiny --adapter DIR`"):
        open_checkpoint(lora)
    other = {name.replace("layers.0", "layers.7"): value for name, value in good.items()}
    proj_out = {name.replace(q_proj, "base_model.model.proj_out"): value for name, value in good.items()}
    conv1 = "base_model.model.model.encoder.conv1"
    conv = {f"{conv1}.lora_A.weight": np.zeros((4, 80, 3), np.float32)}
    conv |= {f"{conv1}.lora_B.weight": np.zeros((64, 4, 1), np.float32)}
    embedding = "base_model.model.model.decoder.embed_tokens.token_adapter.trainable_tokens_delta"
    tokens_delta = good | {embedding: np.zeros((1, 64), np.float32)}
    for values, config, message in (
        ({f"{q_proj}.lora_A.weight": a, f"{q_proj}.lora_B.weight": b[:60]}, {}, "has shape"),
        ({f"{q_proj}.lora_A.weight": a}, {}, "lora_B.weight is missing"),
        (other, {}, r"changes model\.decoder\.layers\.7.*which the base model base does not have"),
        (good, {"peft_type": "IA3"}, "has peft_type 'IA3', with which it cannot be merged"),
        (good, {"use_dora": True}, "has use_dora"),
        *[
            (good, {"init_lora_weights": kind}, f"has init_lora_weights '{kind}'.*merge_and_unload")
            for kind in _CHANGES_BASE
        ],
        (conv, {}, "changes model.encoder.conv1.weight, and only linear maps.*merge_and_unload"),
        (proj_out, {}, "changes proj_out.weight, which the base model base does not have.*merge_and_unload"),
        (tokens_delta, {"trainable_token_indices": [5]}, "trainable_tokens_delta.*merge_and_unload"),
        (good, {"lora_alpha": "x"}, "lora_alpha is 'x'"),
    ):
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(base, adapter=write_adapter(tmp_path / "lora", values, **config))
    edit_config(base, _name_or_path="openai/whisper-small")
    with pytest.raises(CheckpointError, match="was trained for openai/whisper-tiny, not for openai/whisper-small"):
        open_checkpoint(base, adapter=write_adapter(tmp_path / "lora", good))


def test_low_rank_encoders_keep_their_factors(tmp_path: Path) -> None:
    """The self-check of the export compares the graphs with NumPy, so a wrong graph does not get through."""
    ranks = [{"q_proj": 16, "fc1": 32}, {"k_proj": 16, "out_proj": 16, "fc2": 16}]
    folder = make_checkpoint(tmp_path / "lite")
    edit_config(folder, model_type="lite-whisper", low_rank_config=ranks)
    write_tensors(folder / "model.safetensors", factor_encoder(read_tensors(folder / "model.safetensors"), ranks))
    bundle = export_to(str(folder), tmp_path / "bundle", precision="fp32")
    assert bundle.manifest.selfcheck["features_relative_error"] < 1e-4
    plain = export_to(str(make_checkpoint(tmp_path / "plain")), tmp_path / "plain-bundle", precision="fp32")
    assert bundle.file("encoder.data").stat().st_size < plain.file("encoder.data").stat().st_size
    behind = export_to(str(folder), tmp_path / "int8", encoder_plain=True)
    assert behind.manifest.selfcheck["plain_features_relative_error"] < 0.04
    edit_config(folder, low_rank_config=ranks[:1])
    with pytest.raises(CheckpointError, match="a table for each encoder layer"):
        open_checkpoint(folder)
