"""openai-whisper's own model and tokenizer for a checkpoint folder or a bundle: the peers of word times and long form.

openai-whisper only knows its own vocabularies; `tokenizer_of` gives its tokenizer class over any bundle's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.text.tokenizer import Tokenizer
from support.edits import read_tensors

_NAMES = (
    ("model.", ""),
    (".layers.", ".blocks."),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("self_attn_layer_norm", "attn_ln"),
    ("encoder_attn", "cross_attn"),
    ("self_attn", "attn"),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
    ("final_layer_norm", "mlp_ln"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("embed_tokens", "token_embedding"),
    ("embed_positions.weight", "positional_embedding"),
)
PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def openai_name(name: str) -> str:
    """openai-whisper's name of a tensor of transformers' checkpoint."""
    for theirs, ours in _NAMES:
        name = name.replace(theirs, ours)
    return name


def model_of(checkpoint: Path) -> Any:
    """whisper.model.Whisper, float32, on one thread, of a checkpoint folder with one safetensors file and tied weights.

    Alignment heads are those of its generation config.
    """
    import torch
    from whisper.model import ModelDimensions, Whisper

    torch.set_num_threads(1)
    config = json.loads((checkpoint / "config.json").read_text())
    generation = json.loads((checkpoint / "generation_config.json").read_text())
    dims = ModelDimensions(
        n_mels=config["num_mel_bins"],
        n_audio_ctx=config["max_source_positions"],
        n_audio_state=config["d_model"],
        n_audio_head=config["encoder_attention_heads"],
        n_audio_layer=config["encoder_layers"],
        n_vocab=config["vocab_size"],
        n_text_ctx=config["max_target_positions"],
        n_text_state=config["d_model"],
        n_text_head=config["decoder_attention_heads"],
        n_text_layer=config["decoder_layers"],
    )
    model = Whisper(dims)
    tensors = read_tensors(checkpoint / "model.safetensors")
    state = {openai_name(name): torch.from_numpy(value).float() for name, value in tensors.items()}
    missing = set(model.state_dict()) - set(state)
    assert not {name for name in missing if not re.search(r"key\.bias$|mask", name)}, missing
    model.load_state_dict(state, strict=False)
    heads = torch.zeros(dims.n_text_layer, dims.n_text_head, dtype=torch.bool)
    for layer, head in generation["alignment_heads"]:
        heads[layer, head] = True
    model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    return model.eval()


def tokenizer_of(bundle: Bundle, language: str | None, task: str | None = "transcribe") -> Any:
    """whisper.tokenizer.Tokenizer over the vocabulary of a bundle; None, None for an English-only one."""
    return tokenizer_over(bundle.tokenizer, language, task)


def tokenizer_over(tokenizer: Tokenizer, language: str | None, task: str | None) -> Any:
    """whisper.tokenizer.Tokenizer with the ids of ours."""
    import tiktoken
    from whisper.tokenizer import Tokenizer as OpenaiTokenizer

    special = tokenizer.special
    names = {
        "endoftext": special.eot,
        "startoftranscript": special.sot,
        **special.languages,
        "translate": special.translate,
        "transcribe": special.transcribe,
        "startoflm": special.sot_lm,
        "startofprev": special.sot_prev,
        "nospeech": special.no_speech,
        "notimestamps": special.no_timestamps,
    }
    ids = {f"<|{name}|>": id_ for name, id_ in names.items() if id_ is not None}
    ids |= {f"<|{i * 0.02:.2f}|>": special.timestamp_begin + i for i in range(special.n_timestamps)}
    ranks = {token: id_ for id_, token in enumerate(tokenizer.ranks[: special.eot]) if token}
    encoding = tiktoken.Encoding("bundle", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=ids)
    n_languages = max(len(special.languages), 1)
    return OpenaiTokenizer(encoding=encoding, num_languages=n_languages, language=language, task=task)
