"""What a config says is checked before any weight is looked at, and every shape follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specedge.errors import CheckpointError
from specedge.export.checkpoint import open_checkpoint
from support.checkpoints import make_checkpoint
from support.edits import edit_config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "wav2vec2"}, "model_type 'wav2vec2' cannot be exported; expected"),
        ({"model_type": ...}, "model_type None"),
        ({"scale_embedding": True}, "scale_embedding true is not supported"),
        ({"activation_function": "relu"}, "activation_function 'relu'"),
        ({"d_model": ...}, "d_model is missing"),
        ({"encoder_layers": "two"}, "encoder_layers is 'two'"),
        ({"encoder_layers": True}, "encoder_layers is True"),
        ({"decoder_layers": 0}, "decoder_layers is 0"),
        ({"decoder_layers": 10**9}, "decoder_layers is 1000000000"),
        ({"decoder_attention_heads": 3}, "decoder_attention_heads 3 does not divide d_model 64"),
        ({"vocab_size": 1001}, r"embed_tokens\.weight has shape \[1000, 64\]; the config asks for \[1001, 64\]"),
        ({"encoder_layers": 3}, r"tensor model\.encoder\.layers\.2\..* is missing"),
        ({"decoder_ffn_dim": 128}, r"tensor model\.decoder\.layers\.0\.fc1\.weight has shape \[256, 64\]"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantised \(awq\)"),
    ],
)
def test_a_config_that_does_not_fit_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(folder)
    assert caught.value.exit_code == 4 and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "[" * 100_000, "\xff\xfe"])
def test_a_config_that_is_no_json_object_is_named(text: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    (folder / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(folder)


def test_another_mel_recipe_is_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    (folder / "preprocessor_config.json").write_text('{"hop_length": 320}')
    with pytest.raises(CheckpointError, match="hop_length 320; Whisper's log-mel needs 160"):
        open_checkpoint(folder)
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text('{"feature_extractor": {"sampling_rate": 8000}}')
    with pytest.raises(CheckpointError, match="sampling_rate 8000; Whisper's log-mel needs 16000"):
        open_checkpoint(folder)
