"""What a Whisper checkpoint says about itself: dimensions, configs, and the shape every weight must have.

Follows transformers' `config.json` of `model_type: whisper` (configuration_whisper.py) and openai-whisper's
`ModelDimensions`. Nothing is guessed from a model's name. It knows neither files of weights nor ONNX.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specedge.export.heads import HeadsSpec, head_shapes, heads_in_config
from specedge.runtime.bundles.bundle import Dims
from specedge.runtime.errors import CheckpointError

__all__ = ["Source", "Spec", "expected_shapes", "read_json"]

Shape = tuple[int, ...]

_MAX_DIM = 1 << 20  # far above any Whisper; bounds loops over a hostile config
_GELU = ("gelu",)
_RECIPE = {"sampling_rate": 16000, "n_fft": 400, "hop_length": 160}
# Where generation_config.json is silent (old checkpoints), transformers takes these from config.json.
_INHERITED = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_decoder_ids",
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a checkpoint came from, as the bundle's manifest will say it (never a path of this machine).

    kind: "folder", "hub", "openai-pt" or "optimum"; id: hub id or the last part of the path; revision: commit, sha256
    of a published .pt, or None.
    """

    kind: str
    id: str
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything about a checkpoint except its weights.

    `config`, `generation` and `preprocessor` are the JSON files as dicts (empty where a file is absent); `generation`
    inherits token ids and suppress lists from `config` where it is silent. `tied`: logits use the token embedding.
    `heads`: those that the checkpoint holds besides (whisper-medusa's layout).
    """

    dims: Dims
    n_audio_ffn: int
    n_text_ffn: int
    tied: bool
    config: dict[str, Any]
    generation: dict[str, Any]
    preprocessor: dict[str, Any]
    source: Source
    heads: HeadsSpec | None = None

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        *,
        generation: dict[str, Any] | None = None,
        preprocessor: dict[str, Any] | None = None,
        source: Source,
        where: str,
    ) -> Spec:
        """Validate a transformers config; `where` names it in errors. Raises CheckpointError."""
        _check_kind(config, where)
        width = _dim(config, "d_model", where)
        audio_head = _dim(config, "encoder_attention_heads", where)
        text_head = _dim(config, "decoder_attention_heads", where)
        for key, n_head in (("encoder_attention_heads", audio_head), ("decoder_attention_heads", text_head)):
            if width % n_head:
                raise CheckpointError(f"{where}: {key} {n_head} does not divide d_model {width}")
        dims = Dims(
            n_mels=_dim(config, "num_mel_bins", where),
            n_audio_ctx=_dim(config, "max_source_positions", where),
            n_audio_state=width,
            n_audio_head=audio_head,
            n_audio_layer=_dim(config, "encoder_layers", where),
            n_text_ctx=_dim(config, "max_target_positions", where),
            n_text_state=width,
            n_text_head=text_head,
            n_text_layer=_dim(config, "decoder_layers", where),
            n_vocab=_dim(config, "vocab_size", where),
        )
        inherited = {key: config[key] for key in _INHERITED if config.get(key) is not None}
        return cls(
            dims=dims,
            n_audio_ffn=_dim(config, "encoder_ffn_dim", where),
            n_text_ffn=_dim(config, "decoder_ffn_dim", where),
            tied=_flag(config, "tie_word_embeddings", True, where),
            config=config,
            generation=inherited | (generation or {}),
            preprocessor=_check_recipe(preprocessor or {}, where),
            source=source,
            heads=heads_in_config(config, width, where),
        )


def _check_kind(config: Mapping[str, Any], where: str) -> None:
    kind = config.get("model_type")
    if kind != "whisper":
        raise CheckpointError(f"{where}: model_type {kind!r} is no architecture specedge knows; expected 'whisper'")
    if "quantization_config" in config:
        method = config["quantization_config"]
        method = method.get("quant_method", "?") if isinstance(method, dict) else method
        raise CheckpointError(f"{where}: the weights are quantised ({method}); give the float checkpoint instead")
    if _flag(config, "scale_embedding", False, where):
        raise CheckpointError(f"{where}: scale_embedding true is not supported; expected false, as Whisper has it")
    activation = config.get("activation_function", "gelu")
    if activation not in _GELU:
        raise CheckpointError(f"{where}: activation_function {activation!r} is not supported; expected 'gelu'")


def _check_recipe(preprocessor: dict[str, Any], where: str) -> dict[str, Any]:
    for key, wanted in _RECIPE.items():
        if preprocessor.get(key, wanted) != wanted:
            raise CheckpointError(
                f"{where}: the preprocessor config has {key} {preprocessor[key]!r}; Whisper's log-mel needs {wanted}"
            )
    return preprocessor


def _dim(config: Mapping[str, Any], key: str, where: str) -> int:
    value = config.get(key)
    if value is None:
        raise CheckpointError(f"{where}: {key} is missing; a Whisper config names every dimension")
    if type(value) is not int or not 1 <= value <= _MAX_DIM:
        raise CheckpointError(f"{where}: {key} is {value!r}; expected a whole number from 1 to {_MAX_DIM}")
    return value


def _flag(config: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"{where}: {key} is {value!r}; expected true or false")
    return value


def expected_shapes(spec: Spec) -> Iterator[tuple[str, Shape]]:
    """Canonical (transformers) name and shape of every weight an export reads, in the order it reads them."""
    dims, width = spec.dims, spec.dims.n_audio_state
    yield "model.encoder.conv1.weight", (width, dims.n_mels, 3)
    yield "model.encoder.conv1.bias", (width,)
    yield "model.encoder.conv2.weight", (width, width, 3)
    yield "model.encoder.conv2.bias", (width,)
    yield "model.encoder.embed_positions.weight", (dims.n_audio_ctx, width)
    for i in range(dims.n_audio_layer):
        yield from _layer(f"model.encoder.layers.{i}", ("self_attn",), width, spec.n_audio_ffn)
    yield from _pair("model.encoder.layer_norm", (width,))
    yield "model.decoder.embed_tokens.weight", (dims.n_vocab, width)
    yield "model.decoder.embed_positions.weight", (dims.n_text_ctx, width)
    for i in range(dims.n_text_layer):
        yield from _layer(f"model.decoder.layers.{i}", ("self_attn", "encoder_attn"), width, spec.n_text_ffn)
    yield from _pair("model.decoder.layer_norm", (width,))
    if not spec.tied:
        yield "proj_out.weight", (dims.n_vocab, width)
    if spec.heads is not None:
        yield from head_shapes(spec.heads, width, spec.n_text_ffn, dims.n_vocab)


def _layer(at: str, attentions: tuple[str, ...], width: int, ffn: int) -> Iterator[tuple[str, Shape]]:
    for attention in attentions:
        yield from _pair(f"{at}.{attention}_layer_norm", (width,))
        yield from _pair(f"{at}.{attention}.q_proj", (width, width))
        yield f"{at}.{attention}.k_proj.weight", (width, width)  # Whisper's keys have no bias
        yield from _pair(f"{at}.{attention}.v_proj", (width, width))
        yield from _pair(f"{at}.{attention}.out_proj", (width, width))
    yield from _pair(f"{at}.final_layer_norm", (width,))
    yield from _pair(f"{at}.fc1", (ffn, width))
    yield from _pair(f"{at}.fc2", (width, ffn))


def _pair(at: str, weight: Shape) -> Iterator[tuple[str, Shape]]:
    yield f"{at}.weight", weight
    yield f"{at}.bias", weight[:1]


def read_json(path: Path, *, max_bytes: int = 16 << 20) -> dict[str, Any]:
    """A JSON object from a file of at most `max_bytes`. Raises CheckpointError naming the file."""
    try:
        if path.stat().st_size > max_bytes:
            raise CheckpointError(f"{path}: larger than {max_bytes >> 20} MB; expected a small JSON file")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
