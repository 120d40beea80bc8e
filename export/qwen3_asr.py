"""Checkpoints of Qwen3-ASR: what a config says, where the weights lie, the vocabulary and the prompt.

Two spellings are read: the published one (thinker.*, with the config below thinker_config) and transformers' own. The
encoder is that of `chunk_encoder_graph`, the decoder a Qwen3 with a norm on each head of queries and keys
(`llama_graph`). Canonical names are Whisper's for the encoder, projector.linear_{1,2}, and those of `llama_graph`.
The vocabulary is vocab.json or tokenizer.json. A window is asked for like this, CONTEXT being what the user says of the
audio:

    <|im_start|>system
    CONTEXT<|im_end|>
    <|im_start|>user
    <|audio_start|>AUDIO<|audio_end|><|im_end|>
    <|im_start|>assistant
    language English<asr_text>TEXT<|im_end|>

Told no language, the model writes `language English<asr_text>` itself, or None for the language where nobody speaks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from specedge.errors import CheckpointError, ModelError
from specedge.runtime.bundle.dims import SpeechDims
from specedge.runtime.text.special import LANGUAGE_NAMES
from specedge.runtime.text.speech_tokens import SpeechTokens
from specedge.runtime.text.tokenizer import QWEN, Encoder

from .chunk_encoder_graph import N_CONVOLUTIONS, halved, stem_features
from .decoder_graph import PROJECTION, VOCABULARY
from .heads import Shapes, layer_shapes, pair_shapes
from .llama_graph import PROJECTOR, ROOT
from .spec import Source, Spec, Stored, check_gelu, check_not_quantised, dimension, flag, read_json, read_text

_WINDOW_FRAMES = 3000  # of a bundle's window; the model takes longer audio, but its caches would be as long
_TEXT_ROOM = 512  # positions for prompt and text behind a window's audio
# Those of the published models, by Whisper's codes, unless config.json lists others under `support_languages`.
LANGUAGES = tuple("ar yue zh cs da nl en tl fi fr de el hi hu id it ja ko mk ms fa pl pt ro ru es sv th tr vi".split())
_OTHER_NAMES = {"tl": "Filipino"}
_END, _TURN_END = "<|endoftext|>", "<|im_end|>"
_TURN, _AUDIO, _AUDIO_END, _TEXT = "<|im_start|>", "<|audio_start|>", "<|audio_end|>", "<asr_text>"
_IN_TEMPLATE = (_TURN, _TURN_END, _AUDIO, _AUDIO_END)
# Prefixes of canonical names, and of stored ones: as published, and as transformers names its modules.
PUBLISHED = {
    "model.encoder.": "thinker.audio_tower.",
    f"{PROJECTOR}.linear_1.": "thinker.audio_tower.proj1.",
    f"{PROJECTOR}.linear_2.": "thinker.audio_tower.proj2.",
    f"{ROOT}.": "thinker.model.",
    "proj_out.": "thinker.lm_head.",
}
MODULES = {
    "model.encoder.": "model.audio_tower.",
    f"{PROJECTOR}.": "model.multi_modal_projector.",
    f"{ROOT}.": "model.language_model.",
    "proj_out.": "lm_head.",
}


@dataclass(frozen=True, kw_only=True)
class SpeechSpec(Spec):
    """What the config of a Qwen3-ASR says.

    n_channels: of its encoder's convolutions; rope_theta: the base of its rotations; epsilon: of its norms.
    """

    dims: SpeechDims
    n_channels: int
    rope_theta: float
    epsilon: float
    pattern: ClassVar[str] = QWEN

    @classmethod
    def from_qwen(
        cls,
        config: dict[str, Any],
        *,
        generation: dict[str, Any] | None = None,
        stored: Iterable[str] = (),
        source: Source,
        where: str,
    ) -> SpeechSpec:
        """Validate a config of either spelling; `where` names it in errors. Raises CheckpointError.

        stored: names of the checkpoint's tensors.
        """
        thinker = _part(config, "thinker_config", where) if "thinker_config" in config else config
        for some in (config, thinker):
            check_not_quantised(some, where)
        if "classify_num" in thinker or "ForTokenClassification" in str(config.get("architectures")):
            raise CheckpointError(f"{where}: this is Qwen's aligner, which writes no text; give a Qwen3-ASR")
        audio, text = (_part(thinker, name, where) for name in ("audio_config", "text_config"))
        of_audio, of_text = f"{where}: audio_config", f"{where}: text_config"
        says_tied = next((some for some in (config, thinker) if "tie_word_embeddings" in some), text)
        has_head = any(name.endswith("lm_head.weight") for name in stored)
        return cls(
            dims=_dims(audio, text, where),
            n_channels=dimension(audio, "downsample_hidden_size", of_audio),
            n_audio_ffn=dimension(audio, "encoder_ffn_dim", of_audio),
            n_text_ffn=dimension(text, "intermediate_size", of_text),
            tied=not has_head or flag(says_tied, "tie_word_embeddings", True, where),
            rope_theta=_rope_theta(text, of_text),
            epsilon=_number(text, "rms_norm_eps", 1e-6, of_text),
            config=config,
            generation=generation or {},
            preprocessor={},
            source=source,
        )

    def shapes(self) -> Shapes:
        dims, d, n_ffn = self.dims, self.dims.n_text_state, self.n_text_ffn
        n_q, n_kv = dims.n_text_head * dims.head_dim, dims.n_kv_head * dims.head_dim
        in_layer = {
            **{f"{norm}_layernorm": (d,) for norm in ("input", "post_attention")},
            **{f"self_attn.{part}_proj": (n, d) for part, n in (("q", n_q), ("k", n_kv), ("v", n_kv))},
            "self_attn.o_proj": (d, n_q),
            **{f"self_attn.{part}_norm": (dims.head_dim,) for part in "qk"},
            **{f"mlp.{part}_proj": (n_ffn, d) for part in ("gate", "up")},
            "mlp.down_proj": (d, n_ffn),
        }
        found = [*self._audio_shapes(), (VOCABULARY, (dims.n_vocab, d))]
        for i in range(dims.n_text_layer):
            found += [(f"{ROOT}.layers.{i}.{name}.weight", shape) for name, shape in in_layer.items()]
        found.append((f"{ROOT}.norm.weight", (d,)))
        return found if self.tied else [*found, (PROJECTION, (dims.n_vocab, d))]

    def _audio_shapes(self) -> Shapes:
        """Those of the encoder and the projector."""
        dims, root, n_in = self.dims, "model.encoder", 1
        width = dims.n_audio_state
        found: Shapes = []
        for i in range(1, N_CONVOLUTIONS + 1):
            found += pair_shapes(f"{root}.conv2d{i}", (self.n_channels, n_in, 3, 3))
            n_in = self.n_channels
        found.append((f"{root}.conv_out.weight", (width, stem_features(dims.n_mels, self.n_channels))))
        for i in range(dims.n_audio_layer):
            found += layer_shapes(f"{root}.layers.{i}", ("self_attn",), width, self.n_audio_ffn)
            found.append((f"{root}.layers.{i}.self_attn.k_proj.bias", (width,)))
        found += pair_shapes(f"{root}.ln_post", (width,))
        for i, n_out in ((1, width), (2, dims.n_text_state)):
            found += pair_shapes(f"{PROJECTOR}.linear_{i}", (n_out, width))
        return found

    def named(self, stored: Mapping[str, Stored]) -> dict[str, Stored]:
        """The tensors by canonical names."""
        table = PUBLISHED if "thinker_config" in self.config else MODULES
        return {
            canonical + name.removeprefix(prefix): tensor
            for name, tensor in stored.items()
            for canonical, prefix in table.items()
            if name.startswith(prefix)
        }

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that config.json lists and that have one. Raises CheckpointError for another list."""
        listed = self.config.get("support_languages")
        if listed is None:
            return LANGUAGES
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise CheckpointError(f"config.json: support_languages is {listed!r}; expected a list of names")
        names = {name.casefold() for name in listed}
        return tuple(code for code in LANGUAGES if _name_of(code).casefold() in names)

    def vocabulary(self, folder: Path) -> tuple[list[bytes], SpeechTokens]:
        """Byte strings of the text tokens by id, and the prompts, by the files in `folder`. Raises CheckpointError."""
        from .vocabulary import read_llm_vocabulary

        _check_template(folder)
        ranks, added = read_llm_vocabulary(folder, self.dims.n_vocab, end=_END, pattern=self.pattern)
        missing = [name for name in (*_IN_TEMPLATE, _TEXT) if name not in added]
        if missing:
            raise CheckpointError(f"{folder}: the tokenizer has no token {missing[0]}; give the model's own files")
        encode = Encoder({token: id_ for id_, token in enumerate(ranks) if token}, self.pattern).encode
        system = [added[_TURN], *encode("system\n")]
        turn_end = [added[_TURN_END], *encode("\n")]

        def told(language: str) -> tuple[int, ...]:
            return (*encode(f"language {language}"), added[_TEXT])

        try:
            return ranks, SpeechTokens(
                n_vocab=self.dims.n_vocab,
                eot=added[_END],
                other_ends=(added[_TURN_END],),
                before=(*system, *turn_end, added[_TURN], *encode("user\n"), added[_AUDIO]),
                context_at=len(system),
                behind=(added[_AUDIO_END], *turn_end, added[_TURN], *encode("assistant\n")),
                languages={code: told(_name_of(code)) for code in self.languages},
                unknown=told("None"),
            )
        except ModelError as error:
            raise CheckpointError(f"{folder}: {error}") from None


def _dims(audio: Mapping[str, Any], text: Mapping[str, Any], where: str) -> SpeechDims:
    of_audio, of_text = f"{where}: audio_config", f"{where}: text_config"
    check_gelu(audio, "activation_function", of_audio)
    width, n_audio_head = dimension(audio, "d_model", of_audio), dimension(audio, "encoder_attention_heads", of_audio)
    n_chunk, n_window = 2 * dimension(audio, "n_window", of_audio), dimension(audio, "n_window_infer", of_audio)
    d, head_dim = dimension(text, "hidden_size", of_text), dimension(text, "head_dim", of_text)
    n_head, n_kv_head = (dimension(text, f"num_{key}_heads", of_text) for key in ("attention", "key_value"))
    for name, value, divisor in (
        (f"{of_audio}: d_model", width, math.lcm(n_audio_head, 2)),
        (f"{of_audio}: n_window_infer", n_window, n_chunk),
        (f"{of_text}: num_attention_heads", n_head, n_kv_head),
        (f"{of_text}: head_dim", head_dim, 16),  # for rotations by halves
    ):
        if value % divisor:
            raise CheckpointError(f"{name} is {value}; expected a multiple of {divisor}")
    n_rows = _WINDOW_FRAMES // n_chunk * halved(n_chunk, N_CONVOLUTIONS)
    n_positions = dimension(text, "max_position_embeddings", of_text)
    if not 0 < n_rows <= n_positions - _TEXT_ROOM:
        raise CheckpointError(
            f"{of_text}: max_position_embeddings is {n_positions}; a window has {n_rows} rows, its text {_TEXT_ROOM}"
        )
    has_window = text.get("sliding_window") is not None and text.get("use_sliding_window", True)
    if has_window or text.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{of_text}: expected hidden_act 'silu' and no sliding_window")
    return SpeechDims(
        n_mels=dimension(audio, "num_mel_bins", of_audio),
        n_audio_ctx=n_rows,
        n_audio_state=width,
        n_audio_head=n_audio_head,
        n_audio_layer=dimension(audio, "encoder_layers", of_audio),
        n_chunk_frames=n_chunk,
        n_window_frames=n_window,
        n_text_ctx=n_rows + _TEXT_ROOM,
        n_text_state=d,
        n_text_head=n_head,
        n_text_kv_head=n_kv_head,
        head_size=head_dim,
        n_text_layer=dimension(text, "num_hidden_layers", of_text),
        n_vocab=dimension(text, "vocab_size", of_text),
    )


def _part(config: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    value = config.get(name)
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: {name} is missing; a speech LLM's config has one")
    return value


def _rope_theta(text: Mapping[str, Any], where: str) -> float:
    """The base of the rotations; transformers keeps it by itself, or since version 5 among rope_parameters.

    Sections of multimodal rotations (mrope_section) all have the same position here.
    """
    scaling = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else scaling
    if kind != "default":
        raise CheckpointError(f"{where}: rope scaling {kind!r} is not supported; expected none, or 'default'")
    return _number({**text, **scaling}, "rope_theta", 10_000.0, where)


def _number(config: Mapping[str, Any], key: str, default: float, where: str) -> float:
    value = config.get(key, default)
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
        raise CheckpointError(f"{where}: {key} is {value!r}; expected a number above 0")
    return float(value)


def _name_of(code: str) -> str:
    return _OTHER_NAMES.get(code, LANGUAGE_NAMES[code].capitalize())


def _check_template(folder: Path) -> None:
    """Raises CheckpointError for a chat template of another model; a folder may have none."""
    for name in ("chat_template.json", "tokenizer_config.json", "chat_template.jinja"):
        path = folder / name
        if not path.is_file():
            continue
        template = read_json(path).get("chat_template", "") if path.suffix == ".json" else read_text(path)
        told = template if isinstance(template, str) else json.dumps(template)
        missing = [token for token in _IN_TEMPLATE if told and token not in told]
        if missing:
            raise CheckpointError(f"{path}: the chat template has no {missing[0]}; it is none of Qwen3-ASR")
