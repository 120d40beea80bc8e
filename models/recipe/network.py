"""The models of the recipe: Whisper's modules from transformers, with a restricted vocabulary and a CTC head beside.

`expand_rows` turns a trained restricted vocabulary into Whisper's full one, and `export` writes the Hugging Face layout
that transformers, the converters of faster-whisper and whisper.cpp, and `specedge export` read.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

from specedge.errors import UsageError
from specedge.export.training.labels import IGNORE

from .labels import ALPHABET, LAYOUTS, Layout, Vocabulary, layout_of, same_tokens, write_spelling

__all__ = ["LogMel", "MODELS", "Net", "Size", "expand_rows", "export", "take_weights"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes of one model, and its language. `shares` names the model whose encoder it uses, frozen (distil style)."""

    name: str
    layout: str
    d_model: int
    n_encoder: int
    n_decoder: int
    n_heads: int
    n_audio_ctx: int = 500
    n_text_ctx: int = 448
    shares: str | None = None
    language: str = "en"

    @property
    def window_s(self) -> float:
        """Length of the window in seconds: two mel frames of 10 ms to an encoder position."""
        return self.n_audio_ctx * 0.02

    @property
    def tokens(self) -> Layout:
        """The token layout."""
        return replace(LAYOUTS[self.layout], language=self.language)

    def config(self, n_rows: int | None = None) -> WhisperConfig:
        """The transformers configuration, of the full vocabulary or of `n_rows` rows while training."""
        layout = self.tokens
        end, start = (0, 0) if n_rows else (layout.special.eot, layout.special.sot)
        return WhisperConfig(
            vocab_size=n_rows or layout.special.n_vocab,
            num_mel_bins=layout.n_mels,
            d_model=self.d_model,
            encoder_layers=self.n_encoder,
            decoder_layers=self.n_decoder,
            encoder_attention_heads=self.n_heads,
            decoder_attention_heads=self.n_heads,
            encoder_ffn_dim=4 * self.d_model,
            decoder_ffn_dim=4 * self.d_model,
            max_source_positions=self.n_audio_ctx,
            max_target_positions=self.n_text_ctx,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            use_cache=True,
            pad_token_id=end,
            bos_token_id=end,
            eos_token_id=end,
            decoder_start_token_id=start,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )


MODELS = {
    size.name: size
    for size in (
        Size(name="demo", layout="v3", d_model=256, n_encoder=6, n_decoder=6, n_heads=4),
        Size(name="demo-de", layout="v3", d_model=256, n_encoder=6, n_decoder=6, n_heads=4, language="de"),
        Size(name="demo-draft", layout="v2", d_model=256, n_encoder=4, n_decoder=1, n_heads=4),
        Size(name="demo-draft-same", layout="v3", d_model=256, n_encoder=6, n_decoder=1, n_heads=4, shares="demo"),
        Size(name="demo-draft-en", layout="en", d_model=256, n_encoder=4, n_decoder=1, n_heads=4),
        Size(name="micro", layout="v3", d_model=64, n_encoder=1, n_decoder=1, n_heads=1),
    )
}


class LogMel(nn.Module):
    """Whisper's log-mel of float32 [B, n_samples] -> [B, n_mels, n_samples // 160] (openai-whisper audio.py)."""

    def __init__(self, filters: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        super().__init__()
        self.register_buffer("filters", torch.tensor(filters), persistent=False)
        self.register_buffer("window", torch.hann_window(400), persistent=False)

    def forward(
        self, samples: Tensor, which: Tensor | None = None, *, louder: Tensor | None = None, ends: Tensor | None = None
    ) -> Tensor:
        """`which` int64 [B] picks a filter set of [n_sets, n_mels, 201] for each sample; else `filters` is one set.

        `louder` float32 [B]: by how much the maximum of the whole file lies above this window's, in log10 of power.
        `ends` int64 [B]: frames from here on are 0.0, as openai-whisper's transcribe() fills a window up.
        """
        window, filters = self.get_buffer("window"), self.get_buffer("filters")
        power = torch.stft(samples, 400, 160, window=window, return_complex=True)[..., :-1].abs() ** 2
        mel = torch.matmul(filters if which is None else filters[which], power)
        log = mel.clamp(min=1e-10).log10()
        top = log.amax(dim=(1, 2), keepdim=True)
        log = torch.maximum(log, top - 8.0 if louder is None else top + louder[:, None, None] - 8.0)
        log = (log + 4.0) / 4.0
        if ends is not None:
            log = log * (torch.arange(log.shape[2]) < ends[:, None])[:, None]
        return log


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_options: Any
) -> tuple[Tensor, Tensor]:
    """Attention of already scaled queries [B, n_heads, L, d_head]: its output [B, L, n_heads, d_head] and its weights.

    In bfloat16 on a CPU, plain products and a softmax train three to four times faster than the fused attention; left
    to autocast the softmax would be computed in float32, over copies of the largest arrays there are.
    """
    scores = query @ key.transpose(2, 3)
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    with torch.autocast(scores.device.type, enabled=False):
        weights = torch.softmax(scores, -1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


_ATTENTION = "specedge-training"
AttentionInterface.register(_ATTENTION, _attend)


class Net(nn.Module):
    """A Whisper model with `n_rows` output rows, and two heads on its encoder that only training uses.

    `ctc` spells the characters; `clock` tells the frame's position, without which the decoder cannot say when.
    """

    def __init__(self, size: Size, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.size = size
        config = size.config(vocabulary.n_rows)
        config._attn_implementation = _ATTENTION
        self.whisper = WhisperForConditionalGeneration(config)
        self.ctc = nn.Linear(size.d_model, len(ALPHABET))
        self.clock = nn.Linear(size.d_model, size.d_model)
        waves = _sinusoids(size.n_audio_ctx, size.d_model)
        self.register_buffer("waves", waves - waves.mean(0), persistent=False)
        decoder = self.whisper.model.decoder
        decoder.embed_tokens.padding_idx = None
        nn.init.normal_(decoder.embed_tokens.weight, std=0.02)
        decoder.embed_positions.weight.data.copy_(0.3 * _sinusoids(size.n_text_ctx, size.d_model))
        self.first_stamp = vocabulary.first_stamp
        self.n_stamps = vocabulary.n_stamps
        decoder.embed_tokens.weight.data[self.first_stamp :][: self.n_stamps] = self.stamp_rows(0.02)
        bias = torch.zeros(vocabulary.n_rows)
        bias[vocabulary.other] = math.log(vocabulary.n_unused)
        self.register_buffer("other_bias", bias, persistent=False)

    def stamp_rows(self, rms: float) -> Tensor:
        """First values of the timestamp rows [n_stamps, d]: the encoder's own position waves, centred, of this rms.

        Random rows would have to be learned one by one, each from the few windows that have just this time.
        """
        waves = _sinusoids(self.n_stamps, self.size.d_model)
        waves = waves - waves.mean(0)
        return waves * (rms / waves.square().mean().sqrt())

    def encode(self, mel: Tensor) -> Tensor:
        """Mel [B, n_mels, n_frames] -> [B, n_frames // 2, d], for any even n_frames up to the window's."""
        encoder = self.whisper.model.encoder
        hidden = F.gelu(encoder.conv1(mel))
        hidden = F.gelu(encoder.conv2(hidden)).transpose(1, 2)
        hidden = hidden + encoder.embed_positions.weight[: hidden.shape[1]]
        hidden = F.dropout(hidden, encoder.dropout, self.training)
        for layer in encoder.layers:
            out = layer(hidden, None)
            hidden = out[0] if isinstance(out, tuple) else out
        return encoder.layer_norm(hidden)

    def hidden(self, rows: Tensor, features: Tensor, position: Tensor) -> Tensor:
        """Rows int64 [B, L] from decoder position [B] on -> the decoder's last hidden rows [B, L, d]."""
        decoder = self.whisper.model.decoder
        length = rows.shape[1]
        places = position[:, None] + torch.arange(length)
        hidden = decoder.embed_tokens(rows) + decoder.embed_positions.weight[places]
        hidden = F.dropout(hidden, decoder.dropout, self.training)
        mask = torch.full((length, length), -torch.inf, dtype=hidden.dtype).triu(1)[None, None]
        for layer in decoder.layers:
            out = layer(hidden, mask, features, None, None, use_cache=False)
            hidden = out[0] if isinstance(out, tuple) else out
        last: Tensor = decoder.layer_norm(hidden)
        return last

    def logits(self, hidden: Tensor) -> Tensor:
        """Last hidden rows [B, L, d] -> logits of the full-vocabulary softmax [B, L, n_rows]."""
        return hidden @ self.whisper.model.decoder.embed_tokens.weight.T + self.get_buffer("other_bias")

    def decode(self, rows: Tensor, features: Tensor, position: Tensor) -> Tensor:
        """`logits` of `hidden`."""
        return self.logits(self.hidden(rows, features, position))


def _sinusoids(length: int, channels: int) -> Tensor:
    scale = torch.exp(-math.log(10000) / (channels // 2 - 1) * torch.arange(channels // 2))
    angle = torch.arange(length)[:, None] * scale[None]
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def ctc_loss(logits: Tensor, characters: list[list[int]], n_frames: Tensor) -> Tensor:
    """Mean character CTC loss of `logits` float32 [B, T, n_characters] over the first `n_frames` [B]; per character."""
    texts = [torch.tensor(text, dtype=torch.long) for text in characters]
    return F.ctc_loss(
        F.log_softmax(logits, -1).transpose(0, 1),
        torch.cat(texts),
        n_frames,
        torch.tensor([len(text) for text in texts]),
        zero_infinity=True,
    )


def clock_loss(net: Net, features: Tensor) -> Tensor:
    """How badly the encoder's output [B, T, d] tells each frame's place: 1 when not at all, 0 when exactly."""
    wanted = net.get_buffer("waves")[: features.shape[1]]
    return (net.clock(features).float() - wanted).square().mean() / net.get_buffer("waves").square().mean()


def token_loss(net: Net, logits: Tensor, targets: Tensor, reach: int = 10, stamp_weight: float = 1.0) -> Tensor:
    """Cross-entropy over the positions whose target is not IGNORE.

    A timestamp's neighbours within `reach` steps are right too, by a bell curve of four steps (0.08 s): times are
    not exact to the step, and so a row learns from its neighbours' windows. A timestamp weighs as much as
    `stamp_weight` tokens of text.
    """
    logits, targets = logits.float().flatten(0, 1), targets.flatten()
    first, last = net.first_stamp, net.first_stamp + net.n_stamps - 1
    is_stamp = (targets >= first) & (targets <= last)
    text = F.cross_entropy(logits, targets.masked_fill(is_stamp, IGNORE), ignore_index=IGNORE, reduction="sum")
    offsets = torch.arange(-reach, reach + 1)
    weights = torch.softmax(-(offsets.float() ** 2) / 32, 0)
    near = (targets[is_stamp][:, None] + offsets).clamp(first, last)
    stamps = -(logits[is_stamp].log_softmax(-1).gather(1, near) * weights).sum()
    return (text + stamp_weight * stamps) / (targets != IGNORE).sum()


def expand_rows(rows: Tensor, vocabulary: Vocabulary) -> Tensor:
    """[n_rows, d] -> [n_vocab, d]: every id's own row, or `other`'s for the unused ones."""
    return rows[torch.from_numpy(vocabulary.row_of)]


def take_weights(net: Net, vocabulary: Vocabulary, folder: Path) -> None:
    """Fill `net.whisper` from a checkpoint of the same size in Hugging Face layout; its two training heads stay.

    The checkpoint may have another token layout with as many mels: rows go by what tokens mean, and a token that it
    does not have gets the row that stands for unused ones, the mean of theirs. Raises UsageError for another size or
    no checkpoint.
    """
    from safetensors.torch import load_file

    path = folder / "model.safetensors"
    if not path.is_file():
        raise UsageError(f"{path}: not found; --from names a checkpoint folder in Hugging Face layout")
    state = {name: value.float() for name, value in load_file(path).items()}
    table = state.pop("model.decoder.embed_tokens.weight", torch.zeros(0))
    mine = net.whisper.state_dict()
    state.pop("proj_out.weight", None)
    shapes = {
        name: value.shape for name, value in mine.items() if "embed_tokens" not in name and "proj_out" not in name
    }
    if {name: value.shape for name, value in state.items()} != shapes:
        raise UsageError(f"{path}: the weights are not those of a model of size {net.size.name!r}")
    ids = torch.from_numpy(same_tokens(vocabulary.layout, layout_of(len(table), path)))
    unused = ids[torch.from_numpy(vocabulary.row_of == vocabulary.other)]
    other = table[unused[unused >= 0]].mean(0, keepdim=True)
    wanted = ids[torch.from_numpy(vocabulary.rows)]
    rows = torch.cat([torch.where((wanted >= 0)[:, None], table[wanted.clamp(min=0)], other), other])
    net.whisper.load_state_dict(
        state | {"model.decoder.embed_tokens.weight": rows, "proj_out.weight": rows}, strict=True
    )


def full_model(net: Net, vocabulary: Vocabulary) -> WhisperForConditionalGeneration:
    """A transformers model with the whole vocabulary and the weights of `net`."""
    model = WhisperForConditionalGeneration(net.size.config())
    state = {name: value.detach().clone() for name, value in net.whisper.state_dict().items()}
    table = expand_rows(state["model.decoder.embed_tokens.weight"], vocabulary)
    state["model.decoder.embed_tokens.weight"] = table
    state["proj_out.weight"] = table
    model.load_state_dict(state)
    return model.eval()


def generation_config(size: Size) -> dict[str, Any]:
    """Whisper's generation settings for this model.

    The first timestamp may lie anywhere in the window (Whisper's own models: within the first second), because
    the model is trained so. Alignment heads: all heads of the upper half of the decoder, as openai-whisper assumes.
    """
    layout = size.tokens
    upper = range(size.n_decoder // 2, size.n_decoder)
    config: dict[str, Any] = {
        "alignment_heads": [[layer, head] for layer in upper for head in range(size.n_heads)],
        "begin_suppress_tokens": [220, layout.special.eot],
        "bos_token_id": layout.special.eot,
        "decoder_start_token_id": layout.special.sot,
        "eos_token_id": layout.special.eot,
        "is_multilingual": layout.special.is_multilingual,
        "max_initial_timestamp_index": size.n_audio_ctx,
        "max_length": size.n_text_ctx,
        "no_timestamps_token_id": layout.special.no_timestamps,
        "pad_token_id": layout.special.eot,
        "prev_sot_token_id": layout.special.sot_prev,
        "return_timestamps": False,
        "suppress_tokens": layout.suppress(),
    }
    if layout.special.is_multilingual:
        config["lang_to_id"] = {f"<|{code}|>": id_ for code, id_ in layout.special.languages.items()}
        config["task_to_id"] = {"transcribe": layout.special.transcribe, "translate": layout.special.translate}
    return config


def export(net: Net, vocabulary: Vocabulary, folder: Path) -> None:
    """Write model.safetensors (float16) and the three json files that describe the model into `folder`.

    Files are replaced one by one by renaming, the weights last, so a reader never meets half a file.
    """
    from safetensors.torch import save_file

    size = net.size
    folder.mkdir(parents=True, exist_ok=True)
    config = size.config().to_dict()
    config["architectures"] = ["WhisperForConditionalGeneration"]
    config["torch_dtype"] = "float16"
    config["dtype"] = "float16"
    window = round(size.window_s)
    preprocessor = {
        "chunk_length": window,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": size.tokens.n_mels,
        "hop_length": 160,
        "n_fft": 400,
        "n_samples": window * 16000,
        "nb_max_frames": window * 100,
        "padding_side": "right",
        "padding_value": 0.0,
        "processor_class": "WhisperProcessor",
        "return_attention_mask": False,
        "sampling_rate": 16000,
    }
    generation = GenerationConfig(**generation_config(size)).to_dict() | generation_config(size)
    for name, value in (("config", config), ("generation_config", generation), ("preprocessor_config", preprocessor)):
        text = json.dumps(value, indent=1, sort_keys=True) + "\n"
        (folder / f"{name}.tmp").write_text(text, encoding="utf-8")
        os.replace(folder / f"{name}.tmp", folder / f"{name}.json")
    state = full_model(net, vocabulary).state_dict()
    state.pop("proj_out.weight")
    tensors = {name: value.to(torch.float16).contiguous() for name, value in state.items()}
    save_file(tensors, folder / "model.tmp", metadata={"format": "pt"})
    write_spelling(net.ctc, folder)
    os.replace(folder / "model.tmp", folder / "model.safetensors")
