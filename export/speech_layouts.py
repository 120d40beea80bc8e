"""Checkpoints of speech LLMs: what a config says, where the weights lie, and the prompt, a table of names per layout.

voxtral  transformers' VoxtralForConditionalGeneration (mistralai/Voxtral-Mini-3B-2507): Whisper's encoder, four of
         whose positions become a row, a projector of two layers, a llama decoder with a vocabulary matrix of its own,
         and a Tekken vocabulary (tekken.json), whose control tokens lie in front of the text
qwen3_asr  see `qwen3_asr`, which has the rest of it

Canonical names are Whisper's for the encoder, projector.linear_{1,2}, and those of `llama_graph`. Control tokens that
lie in front of the text are put behind it, the end of texts first, so that text has the lowest ids as in any bundle:
rows of the vocabulary matrices move with them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from specedge.errors import CheckpointError, CheckpointNotFoundError, ModelError
from specedge.runtime.bundle.dims import SpeechDims
from specedge.runtime.text.speech_tokens import SpeechTokens
from specedge.runtime.text.splitting import TEKKEN as TEKKEN_PATTERN
from specedge.runtime.text.tokenizer import merge

from .decoder_graph import PROJECTION, VOCABULARY
from .heads import HeadsSpec, Shapes, head_shapes
from .llama_graph import PROJECTOR, ROOT
from .spec import (
    F32,
    Source,
    Spec,
    Stored,
    check_gelu,
    check_not_quantised,
    dimension,
    encoder_shapes,
    flag,
    read_json,
)

_LATENT_HEADS = "latent_heads."  # trained with the model, in its own file
TEXT_ROOM = 512  # positions for prompt and text behind a window's audio
TEKKEN = "tekken.json"
# Those of the published model, unless generation_config.json lists others under `languages`.
_VOXTRAL_LANGUAGES = ("en", "es", "fr", "pt", "hi", "de", "nl", "it")
# Of Tekken's control tokens, where its file does not list them.
_TEKKEN_CONTROL = {"<s>": 1, "</s>": 2, "[INST]": 3, "[/INST]": 4, "[BEGIN_AUDIO]": 25, "[TRANSCRIBE]": 34}


def _prefixes(encoder: str, projector: str, decoder: str, head: str) -> dict[str, str]:
    canonical = ("model.encoder.", f"{PROJECTOR}.", f"{ROOT}.", "proj_out.")
    return dict(zip(canonical, (f"{part}." for part in (encoder, projector, decoder, head)), strict=True))


_MODULES = _prefixes("model.audio_tower", "model.multi_modal_projector", "model.language_model", "lm_head")
_QWEN = {
    "model.encoder.": "thinker.audio_tower.",
    f"{PROJECTOR}.linear_1.": "thinker.audio_tower.proj1.",
    f"{PROJECTOR}.linear_2.": "thinker.audio_tower.proj2.",
    f"{ROOT}.": "thinker.model.",
    "proj_out.": "thinker.lm_head.",
}
# Prefixes of canonical names, and of stored ones: as published, and as transformers names its modules.
NAMES: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "voxtral": (
        _prefixes("audio_tower", "multi_modal_projector", "language_model.model", "language_model.lm_head"),
        _MODULES,
    ),
    "qwen3_asr": (_QWEN, _MODULES),
}


@dataclass(frozen=True, kw_only=True)
class SpeechSpec(Spec):
    """What a speech LLM's config says, here Voxtral's. rope_theta: the base of its rotations; epsilon: of its norms;
    n_control: control tokens in front of the text; pattern: what text is split by, of splitting.PATTERNS; norms_heads:
    whether each head of queries and keys is normed."""

    dims: SpeechDims
    rope_theta: float
    epsilon: float
    n_control: int = 0
    pattern: ClassVar[str] = TEKKEN_PATTERN
    norms_heads: ClassVar[bool] = False

    @classmethod
    def from_voxtral(
        cls,
        config: dict[str, Any],
        *,
        generation: dict[str, Any] | None = None,
        n_control: int,
        stored: Iterable[str] = (),
        source: Source,
        where: str,
    ) -> SpeechSpec:
        """Validate a config of transformers' Voxtral; `where` names it in errors. Raises CheckpointError.

        n_control: see `count_control`; stored: names of the checkpoint's tensors.
        """
        check_not_quantised(config, where)
        audio, text = (part(config, name, where) for name in ("audio_config", "text_config"))
        of_audio, of_text = f"{where}: audio_config", f"{where}: text_config"
        check_gelu(audio, "activation_function", of_audio)
        check_gelu(config, "projector_hidden_act", where)
        width, ffn = dimension(audio, "hidden_size", of_audio), dimension(audio, "intermediate_size", of_audio)
        n_audio_head = dimension(audio, "num_attention_heads", of_audio)
        n_ctx = dimension(audio, "max_source_positions", of_audio)
        n_stacked = ffn // width
        if ffn % width or n_ctx % n_stacked or width % n_audio_head:
            raise CheckpointError(
                f"{of_audio}: intermediate_size {ffn} must be a multiple of hidden_size {width} that divides "
                f"max_source_positions {n_ctx}, and {n_audio_head} heads must divide hidden_size"
            )
        return cls(
            dims=SpeechDims(
                n_mels=dimension(audio, "num_mel_bins", of_audio),
                n_audio_ctx=n_ctx,
                n_audio_state=width,
                n_audio_head=n_audio_head,
                n_audio_layer=dimension(audio, "num_hidden_layers", of_audio),
                n_audio_rows=n_ctx // n_stacked,
                **text_dims(text, of_text, n_ctx // n_stacked),
            ),
            n_audio_ffn=ffn,
            n_text_ffn=dimension(text, "intermediate_size", of_text),
            tied=flag(text, "tie_word_embeddings", False, of_text),
            rope_theta=rope_theta(text, of_text),
            epsilon=number(text, "rms_norm_eps", 1e-5, of_text),
            n_control=n_control,
            config=config,
            generation=generation or {},
            preprocessor={},
            source=source,
            heads=latent_heads(stored),
        )

    def shapes(self) -> Shapes:
        dims, d, n_ffn = self.dims, self.dims.n_text_state, self.n_text_ffn
        found = [*self.audio_shapes(), (VOCABULARY, (dims.n_vocab, d))]
        n_q, n_kv = dims.n_text_head * dims.head_dim, dims.n_kv_head * dims.head_dim
        in_layer = {
            **{f"{norm}_layernorm": (d,) for norm in ("input", "post_attention")},
            **{f"self_attn.{part}_proj": (n, d) for part, n in (("q", n_q), ("k", n_kv), ("v", n_kv))},
            "self_attn.o_proj": (d, n_q),
            **{f"self_attn.{part}_norm": (dims.head_dim,) for part in ("qk" if self.norms_heads else "")},
            **{f"mlp.{part}_proj": (n_ffn, d) for part in ("gate", "up")},
            "mlp.down_proj": (d, n_ffn),
        }
        for i in range(dims.n_text_layer):
            found += [(f"{ROOT}.layers.{i}.{name}.weight", shape) for name, shape in in_layer.items()]
        found.append((f"{ROOT}.norm.weight", (d,)))
        if not self.tied:
            found.append((PROJECTION, (dims.n_vocab, d)))
        return found if self.heads is None else [*found, *head_shapes(self.heads, d, n_ffn, dims.n_vocab)]

    def audio_shapes(self) -> Shapes:
        """Those of the encoder and the projector."""
        dims, d = self.dims, self.dims.n_text_state
        stacked = (f"{PROJECTOR}.linear_1.weight", (d, dims.n_stacked * dims.n_audio_state))
        return [*encoder_shapes(dims, self.n_audio_ffn), stacked, (f"{PROJECTOR}.linear_2.weight", (d, d))]

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that the model can be told. Raises CheckpointError where the config lists none."""
        listed = self.generation.get("languages", _VOXTRAL_LANGUAGES)
        if not isinstance(listed, (list, tuple)) or not all(isinstance(code, str) for code in listed):
            raise CheckpointError(f"generation_config.json: languages is {listed!r}; expected a list of codes")
        return tuple(listed)

    def named(self, stored: Mapping[str, Stored]) -> dict[str, Stored]:
        """By canonical names, the rows of the vocabulary matrices in the bundle's order; {} where no table has them."""
        for table in NAMES[str(self.config["model_type"])]:
            found = {
                canonical + name.removeprefix(prefix): tensor
                for name, tensor in stored.items()
                for canonical, prefix in table.items()
                if name.startswith(prefix)
            }
            if VOCABULARY in found:
                for name in found.keys() & {VOCABULARY, PROJECTION} if self.n_control else ():
                    read = partial(_control_behind, found[name], self.n_control, _TEKKEN_CONTROL["</s>"])
                    found[name] = replace(found[name], read=read)
                return found | {name: stored[name] for name in stored if name.startswith(_LATENT_HEADS)}
        return {}

    def vocabulary(self, folder: Path) -> tuple[list[bytes], SpeechTokens]:
        """Byte strings of the text tokens by id, and the prompts, by the files in `folder`. Raises CheckpointError."""
        n_vocab, n_control, path = self.dims.n_vocab, self.n_control, folder / TEKKEN
        ranks, control = read_tekken(path, n_vocab)
        end = control["</s>"]
        if end != _TEKKEN_CONTROL["</s>"]:
            raise CheckpointError(f"{path}: </s> has rank {end}, expected 2")
        place = {id_: n_vocab - n_control + 1 + id_ - (id_ > end) for id_ in range(n_control)}
        known = {token: id_ for id_, token in enumerate(ranks) if token}
        missing = sum(bytes([byte]) not in known for byte in range(256))
        if missing:
            raise CheckpointError(f"{path}: {missing} of the 256 bytes have no token")
        # Tekken's pattern cuts "lang:en" before the colon.
        told = {code: (*merge(b"lang", known), *merge(f":{code}".encode(), known)) for code in self.languages}
        try:
            return ranks, SpeechTokens(
                n_vocab=n_vocab,
                eot=n_vocab - n_control,
                before=tuple(place[control[name]] for name in ("<s>", "[INST]", "[BEGIN_AUDIO]")),
                behind=(place[control["[/INST]"]],),
                begin=(place[control["[TRANSCRIBE]"]],),
                languages=told,
            )
        except ModelError as error:
            raise CheckpointError(f"{path}: {error}") from None


def latent_heads(stored: Iterable[str]) -> HeadsSpec | None:
    """The latent heads among the tensors `stored`, if there are any."""
    n_heads = sum(name.startswith(_LATENT_HEADS) and name.endswith(".weight") for name in stored)
    return HeadsSpec(kind="mtp-latent", n_heads=n_heads) if n_heads else None


def count_control(folder: Path) -> int:
    """How many control tokens lie in front of the text of the checkpoint in `folder`. Raises CheckpointError."""
    return _tekken_sizes(folder / TEKKEN)[1]


def read_tekken(path: Path, n_vocab: int) -> tuple[list[bytes], dict[str, int]]:
    """Text tokens by rank, padded with empty ones to the model's `n_vocab`, and control tokens by name with their ids.

    Raises CheckpointError for a file that is none, or has more tokens than the model.
    """
    (size, n_control), data = _tekken_sizes(path), read_json(path)
    if not n_control < size <= n_vocab:
        raise CheckpointError(f"{path}: {size} tokens, {n_control} of them control; the model has {n_vocab} tokens")
    entries, ranks = data.get("vocab"), list[bytes]()
    for rank, entry in enumerate((entries if isinstance(entries, list) else [])[: size - n_control]):
        try:
            found, token = entry["rank"], base64.b64decode(entry["token_bytes"], validate=True)
        except (KeyError, TypeError, ValueError):
            found, token = None, b""
        if found != rank:
            raise CheckpointError(f"{path}: token {rank} has rank {found!r}, expected {rank} and token_bytes in base64")
        ranks.append(token)
    if len(ranks) != size - n_control:
        raise CheckpointError(f"{path}: holds {len(ranks)} tokens, and says {size - n_control}")
    listed = data.get("special_tokens")
    named = {
        entry["token_str"]: entry["rank"]
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, dict) and entry.get("token_str") in _TEKKEN_CONTROL
    }
    control = {**_TEKKEN_CONTROL, **named}
    for name, id_ in control.items():
        if type(id_) is not int or not 0 <= id_ < n_control:
            raise CheckpointError(f"{path}: the control token {name} has rank {id_!r}, expected 0 to {n_control - 1}")
    return [*ranks, *([b""] * (n_vocab - size))], control


def _tekken_sizes(path: Path) -> tuple[int, int]:
    """How many tokens the file has, and how many of them are control tokens."""
    if not path.is_file():
        raise CheckpointNotFoundError(f"{path}: there is no such file; a Voxtral needs its vocabulary beside it")
    where, settings = str(path), part(read_json(path), "config", str(path))
    return dimension(settings, "default_vocab_size", where), dimension(settings, "default_num_special_tokens", where)


def _control_behind(stored: Stored, n_control: int, end: int) -> F32:
    """The matrix with its first `n_control` rows moved behind the others in place, row `end` first of them."""
    matrix = stored.tensor()
    order = [end, *(id_ for id_ in range(n_control) if id_ != end)]
    control = matrix[order]
    for start in range(0, len(matrix) - n_control, n_control):
        stop = min(start + n_control, len(matrix) - n_control)
        matrix[start:stop] = matrix[start + n_control : stop + n_control]
    matrix[len(matrix) - n_control :] = control
    return matrix


def part(config: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """The config `name` within another. Raises CheckpointError where there is none."""
    value = config.get(name)
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: {name} is missing; a speech LLM's config has one")
    return value


def text_dims(text: Mapping[str, Any], where: str, n_audio_rows: int) -> dict[str, int]:
    """The decoder's dimensions by name, with room for so many rows of audio. Raises CheckpointError."""
    n_head, d = dimension(text, "num_attention_heads", where), dimension(text, "hidden_size", where)
    n_kv_head = dimension(text, "num_key_value_heads", where)
    if "head_dim" not in text and d % n_head:
        raise CheckpointError(f"{where}: num_attention_heads {n_head} does not divide hidden_size {d}")
    head_dim = dimension(text, "head_dim", where) if text.get("head_dim") is not None else d // n_head
    if n_head % n_kv_head:
        raise CheckpointError(f"{where}: num_key_value_heads {n_kv_head} does not divide num_attention_heads {n_head}")
    if head_dim % 16:
        raise CheckpointError(f"{where}: head_dim is {head_dim}; expected a multiple of 16, for rotations by halves")
    n_positions = dimension(text, "max_position_embeddings", where)
    if n_positions < n_audio_rows + TEXT_ROOM // 2:
        raise CheckpointError(
            f"{where}: max_position_embeddings is {n_positions}; a window has {n_audio_rows} rows, and its text needs "
            f"{TEXT_ROOM // 2}"
        )
    if text.get("sliding_window") is not None and text.get("use_sliding_window", True):
        raise CheckpointError(f"{where}: sliding_window is not supported; expected null")
    if text.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{where}: hidden_act {text['hidden_act']!r} is not supported; expected 'silu'")
    return {
        "n_text_ctx": min(n_positions, n_audio_rows + TEXT_ROOM),
        "n_text_state": d,
        "n_text_head": n_head,
        "n_text_kv_head": n_kv_head,
        "head_size": head_dim,
        "n_text_layer": dimension(text, "num_hidden_layers", where),
        "n_vocab": dimension(text, "vocab_size", where),
    }


def rope_theta(text: Mapping[str, Any], where: str) -> float:
    """The base of the rotations; transformers keeps it by itself, or since version 5 among rope_parameters.

    Sections of multimodal rotations (mrope_section) all have the same position here. Raises CheckpointError.
    """
    scaling = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else scaling
    if kind != "default":
        raise CheckpointError(f"{where}: rope scaling {kind!r} is not supported; expected none, or 'default'")
    return number({**text, **scaling}, "rope_theta", 10_000.0, where)


def number(config: Mapping[str, Any], key: str, default: float, where: str) -> float:
    """A number above 0 of a config. Raises CheckpointError."""
    value = config.get(key, default)
    if type(value) not in (int, float) or not np.isfinite(value) or value <= 0:
        raise CheckpointError(f"{where}: {key} is {value!r}; expected a number above 0")
    return float(value)
