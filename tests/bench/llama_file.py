"""The decoder of a Qwen3-ASR checkpoint as a file of llama.cpp: 8-bit blocks (Q8_0), with its vocabulary.

It needs the package gguf. It measures nothing; `speech_llm_shape.py --llama` takes the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

from specedge.export.checkpoint import open_checkpoint

_ROOT = "model.decoder."
_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _names(n_layers: int) -> Iterator[tuple[str, str]]:
    """Canonical names, and llama.cpp's."""
    yield f"{_ROOT}embed_tokens.weight", "token_embd.weight"
    yield f"{_ROOT}norm.weight", "output_norm.weight"
    for i in range(n_layers):
        for ours, theirs in _OF_LAYER.items():
            yield f"{_ROOT}layers.{i}.{ours}.weight", f"blk.{i}.{theirs}.weight"


def _write_vocabulary(writer: gguf.GGUFWriter, checkpoint: Path, n_vocab: int) -> None:
    """The tokens of the files in `checkpoint`, with made-up names where there are none."""
    ids = json.loads((checkpoint / "vocab.json").read_text(encoding="utf-8"))
    config = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
    added = {entry["content"]: int(id_) for id_, entry in config["added_tokens_decoder"].items()}
    names = {id_: name for name, id_ in (*ids.items(), *added.items())}
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([names.get(id_, f"[unused {id_}]") for id_ in range(n_vocab)])
    writer.add_token_types(
        [kinds.NORMAL if id_ < len(ids) else kinds.CONTROL if id_ in names else kinds.UNUSED for id_ in range(n_vocab)]
    )
    merges = (checkpoint / "merges.txt").read_text(encoding="utf-8").splitlines()
    writer.add_token_merges(merges[1:])
    writer.add_eos_token_id(added["<|endoftext|>"])


def write_gguf(checkpoint: Path, file: Path) -> None:
    """Write the decoder of `checkpoint` to `file`."""
    text = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["thinker_config"]["text_config"]
    writer = gguf.GGUFWriter(file, "qwen3", use_temp_file=True)
    writer.add_context_length(2048)
    writer.add_embedding_length(text["hidden_size"])
    writer.add_block_count(text["num_hidden_layers"])
    writer.add_feed_forward_length(text["intermediate_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_key_length(text["head_dim"])
    writer.add_value_length(text["head_dim"])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    writer.add_rope_freq_base(text["rope_theta"])
    writer.add_vocab_size(text["vocab_size"])
    _write_vocabulary(writer, checkpoint, text["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    with open_checkpoint(checkpoint) as opened:
        for ours, theirs in _names(text["num_hidden_layers"]):
            value = np.ascontiguousarray(opened.tensor(ours), np.float32)
            if value.ndim == 1:
                writer.add_tensor(theirs, value)
            else:
                kind = gguf.GGMLQuantizationType.Q8_0
                writer.add_tensor(theirs, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
