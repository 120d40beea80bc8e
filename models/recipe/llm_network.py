"""The demo speech LLM: projector, llama decoder and latent heads over a frozen encoder, named as Voxtral names them.

Four encoder positions become one audio row; the rows stand among the token rows where the prompt has [AUDIO]. Head i
maps the decoder's last hidden row of a token to that of the token i + 2 places on, and shares the vocabulary (Raj et
al., Faster Speech-LLaMA, section III, fig. 2b); all learn together with the decoder.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, LlamaConfig, LlamaModel

from specedge.errors import UsageError
from specedge.export.training.labels import IGNORE

from .llm_tokens import LANGUAGE, SPECIAL, TOKENIZER_NAME, Tokens

__all__ = ["HEAD_WEIGHTS", "SIZES", "LlmNet", "LlmSize", "export_llm", "losses"]

HEAD_WEIGHTS = (1.0, 0.3, 0.3, 0.3)  # of the losses: the model's own, then each head's
AUDIO = SPECIAL["[AUDIO]"]


@dataclass(frozen=True, kw_only=True)
class LlmSize:
    """Sizes of the decoder; `n_audio` are the values of an audio row."""

    name: str
    d_model: int = 256
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 64
    n_ffn: int = 768
    n_ctx: int = 512
    n_audio: int = 1024
    rope_theta: float = 10_000.0

    def config(self, n_vocab: int) -> LlamaConfig:
        """The configuration of the decoder."""
        return LlamaConfig(
            vocab_size=n_vocab,
            hidden_size=self.d_model,
            intermediate_size=self.n_ffn,
            num_hidden_layers=self.n_layers,
            num_attention_heads=self.n_heads,
            num_key_value_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.n_ctx,
            rms_norm_eps=1e-5,
            rope_theta=self.rope_theta,
            tie_word_embeddings=True,
            bos_token_id=SPECIAL["<s>"],
            eos_token_id=SPECIAL["</s>"],
            pad_token_id=None,
            use_cache=False,
        )


SIZES = {
    size.name: size
    for size in (
        LlmSize(name="demo-llm"),
        LlmSize(name="micro-llm", d_model=32, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=16, n_ffn=64),
    )
}


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Tensor | None, *, scaling: float, **_options: Any
) -> tuple[Tensor, None]:
    """Causal attention with shared keys; windows are padded at their ends alone, so no other mask is needed.

    Plain products and a softmax train faster on a CPU than the fused attention (`network`).
    """
    groups, length = module.num_key_value_groups, query.shape[2]
    batch, n_heads, _, width = query.shape
    grouped = (query * scaling).reshape(batch, n_heads // groups, groups * length, width)
    scores = (grouped @ key.transpose(2, 3)).view(batch, n_heads, length, length)
    later = torch.full((length, length), -torch.inf, dtype=scores.dtype).triu(1)
    with torch.autocast("cpu", enabled=False):
        weights = torch.softmax(scores + later, -1)
    out = weights.view(batch, n_heads // groups, groups * length, length) @ value
    return out.view(batch, n_heads, length, width).transpose(1, 2).contiguous(), None


_ATTENTION = "specedge-llm-training"
AttentionInterface.register(_ATTENTION, _attend)


class LlmNet(nn.Module):
    """All that is trained. Its state has Voxtral's names but for the encoder's, and `latent_heads.i.weight`."""

    def __init__(self, size: LlmSize, n_vocab: int) -> None:
        super().__init__()
        self.size = size
        d = size.d_model
        config = size.config(n_vocab)
        config._attn_implementation = _ATTENTION
        self.language_model = nn.ModuleDict({"model": LlamaModel(config)})
        self.multi_modal_projector = nn.ModuleDict(
            {"linear_1": nn.Linear(size.n_audio, d, bias=False), "linear_2": nn.Linear(d, d, bias=False)}
        )
        self.latent_heads = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in HEAD_WEIGHTS[1:])
        for head in self.latent_heads:
            nn.init.eye_(head.weight)

    @property
    def table(self) -> Tensor:
        """The embedding, which is the vocabulary's matrix too: [n_vocab, d]."""
        weight: Tensor = self.language_model["model"].embed_tokens.weight
        return weight

    def hidden(self, ids: Tensor, audio: Tensor) -> Tensor:
        """Ids int64 [B, L] with AUDIO for each of the `audio` rows [n_rows, n_audio] -> last hidden rows [B, L, d]."""
        projector = self.multi_modal_projector
        heard = projector["linear_2"](F.gelu(projector["linear_1"](audio)))
        rows = F.embedding(ids, self.table)
        rows = rows.masked_scatter((ids == AUDIO)[..., None], heard.to(rows.dtype))
        found: Tensor = self.language_model["model"](inputs_embeds=rows, use_cache=False).last_hidden_state
        return found

    def guesses(self, hidden: Tensor) -> list[Tensor]:
        """Hidden rows [n, d] -> logits [n, n_vocab] of the next token and of each head's."""
        return [hidden @ self.table.T, *(head(hidden) @ self.table.T for head in self.latent_heads)]


def losses(net: LlmNet, hidden: Tensor, targets: Tensor) -> list[Tensor]:
    """Mean cross-entropy of the next token and of each head's; targets int64 [B, L], IGNORE where nothing is asked.

    A head of which nothing is asked, as in a batch of empty texts, has 0.
    """
    asked = targets != IGNORE
    found = []
    for ahead, logits in enumerate(net.guesses(hidden[asked])):
        wanted = F.pad(targets, (0, ahead), value=IGNORE)[:, ahead:][asked]
        total = F.cross_entropy(logits.float(), wanted, ignore_index=IGNORE, reduction="sum")
        found.append(total / (wanted != IGNORE).sum().clamp(min=1))
    return found


def _config(net: LlmNet, tokens: Tokens, encoder: dict[str, Any]) -> dict[str, Any]:
    text = net.size.config(tokens.n_vocab)
    kept = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"]
    kept += ["head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act"]
    return {
        "architectures": ["VoxtralForConditionalGeneration"],
        "model_type": "voxtral",
        "audio_token_id": AUDIO,
        "projector_hidden_act": "gelu",
        "tie_word_embeddings": False,
        "dtype": "float16",
        "audio_config": {
            "model_type": "voxtral_encoder",
            "hidden_size": encoder["d_model"],
            "intermediate_size": encoder["encoder_ffn_dim"],
            "num_hidden_layers": encoder["encoder_layers"],
            "num_attention_heads": encoder["encoder_attention_heads"],
            "num_mel_bins": encoder["num_mel_bins"],
            "max_source_positions": encoder["max_source_positions"],
            "activation_function": encoder["activation_function"],
            "scale_embedding": encoder["scale_embedding"],
            "vocab_size": encoder["vocab_size"],
        },
        "text_config": {
            "model_type": "llama",
            "rope_theta": 10000.0,
            "bos_token_id": SPECIAL["<s>"],
            "eos_token_id": SPECIAL["</s>"],
            "tie_word_embeddings": False,
            **{name: getattr(text, name) for name in kept},
        },
    }


def export_llm(net: LlmNet, tokens: Tokens, encoder: Path, folder: Path) -> None:
    """Write a checkpoint in Voxtral's layout into `folder`, float16, with the encoder of the Whisper checkpoint
    `encoder`. Raises UsageError where that is none.

    Files are replaced one by one by renaming, the weights last, so a reader never meets half a file.
    """
    from safetensors.torch import load_file, save_file

    path = encoder / "model.safetensors"
    if not path.is_file():
        raise UsageError(f"{path}: not found; --encoder names a Whisper checkpoint in Hugging Face layout")
    whisper = json.loads((encoder / "config.json").read_text(encoding="utf-8"))
    if whisper["encoder_ffn_dim"] != net.size.n_audio:
        raise UsageError(
            f"{encoder}: encoder_ffn_dim is {whisper['encoder_ffn_dim']}, which must be the values of an audio row, "
            f"{net.size.n_audio}"
        )
    tensors = {
        name.replace("model.encoder.", "audio_tower."): value
        for name, value in load_file(path).items()
        if name.startswith("model.encoder.")
    }
    tensors |= net.state_dict()
    tensors["language_model.lm_head.weight"] = net.table.clone()  # tied here, but Voxtral's has a tensor of its own
    folder.mkdir(parents=True, exist_ok=True)
    generation = {
        "bos_token_id": SPECIAL["<s>"],
        "eos_token_id": SPECIAL["</s>"],
        "languages": [LANGUAGE],
        "max_length": net.size.n_ctx,
    }
    files = {
        "config.json": _config(net, tokens, whisper),
        "generation_config.json": generation,
        "preprocessor_config.json": json.loads((encoder / "preprocessor_config.json").read_text(encoding="utf-8")),
        TOKENIZER_NAME: tokens.content,
    }
    for name, value in files.items():
        (folder / f"{name}.tmp").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        os.replace(folder / f"{name}.tmp", folder / name)
    half = {name: value.detach().to(torch.float16).contiguous() for name, value in tensors.items()}
    save_file(half, folder / "model.tmp", metadata={"format": "pt"})
    os.replace(folder / "model.tmp", folder / "model.safetensors")
