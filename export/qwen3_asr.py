"""Checkpoints of Qwen3-ASR: what a config says, which weights there are, the vocabulary and the prompt.

Two spellings are read: the published one (thinker.*, with the config below thinker_config) and transformers' own. The
encoder is that of `chunk_encoder_graph`, the decoder a Qwen3 with a norm on each head of queries and keys.
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from specedge.errors import CheckpointError, ModelError
from specedge.runtime.bundle.dims import ChunkDims
from specedge.runtime.text.special import LANGUAGE_NAMES
from specedge.runtime.text.speech_tokens import SpeechTokens
from specedge.runtime.text.splitting import QWEN
from specedge.runtime.text.tokenizer import Encoder

from .chunk_encoder_graph import N_CONVOLUTIONS, halved, stem_features
from .heads import Shapes, layer_shapes, pair_shapes
from .llama_graph import PROJECTOR
from .spec import Source, check_gelu, check_not_quantised, dimension, flag, read_json
from .speech_layouts import SpeechSpec, latent_heads, number, part, rope_theta, text_dims

_WINDOW_FRAMES = 3000  # of a bundle's window; the model takes longer audio, but its caches would be as long
# Those of the published models, by Whisper's codes, unless config.json lists others under `support_languages`.
LANGUAGES = tuple("ar yue zh cs da nl en tl fi fr de el hi hu id it ja ko mk ms fa pl pt ro ru es sv th tr vi".split())
_OTHER_NAMES = {"tl": "Filipino"}
_END, _TURN_END = "<|endoftext|>", "<|im_end|>"
_TURN, _AUDIO, _AUDIO_END, _TEXT = "<|im_start|>", "<|audio_start|>", "<|audio_end|>", "<asr_text>"
_IN_TEMPLATE = (_TURN, _TURN_END, _AUDIO, _AUDIO_END)


@dataclass(frozen=True, kw_only=True)
class QwenSpec(SpeechSpec):
    """What the config of a Qwen3-ASR says. n_channels: of its encoder's convolutions."""

    dims: ChunkDims
    n_channels: int
    pattern: ClassVar[str] = QWEN
    norms_heads: ClassVar[bool] = True

    @classmethod
    def from_qwen(
        cls,
        config: dict[str, Any],
        *,
        generation: dict[str, Any] | None = None,
        stored: Iterable[str] = (),
        source: Source,
        where: str,
    ) -> QwenSpec:
        """Validate a config of either spelling; `where` names it in errors. Raises CheckpointError.

        stored: names of the checkpoint's tensors.
        """
        thinker = part(config, "thinker_config", where) if "thinker_config" in config else config
        for some in (config, thinker):
            check_not_quantised(some, where)
        if "classify_num" in thinker or "ForTokenClassification" in str(config.get("architectures")):
            raise CheckpointError(f"{where}: this is Qwen's aligner, which writes no text; give a Qwen3-ASR")
        audio, text = (part(thinker, name, where) for name in ("audio_config", "text_config"))
        of_text, names = f"{where}: text_config", list(stored)
        dims = _dims(audio, text, where)
        return cls(
            dims=dims,
            n_channels=dimension(audio, "downsample_hidden_size", f"{where}: audio_config"),
            n_audio_ffn=dimension(audio, "encoder_ffn_dim", f"{where}: audio_config"),
            n_text_ffn=dimension(text, "intermediate_size", of_text),
            tied=not any(name.endswith("lm_head.weight") for name in names) or _is_tied(config, thinker, text, where),
            rope_theta=rope_theta(text, of_text),
            epsilon=number(text, "rms_norm_eps", 1e-6, of_text),
            config=config,
            generation=generation or {},
            preprocessor={},
            source=source,
            heads=latent_heads(names),
        )

    def audio_shapes(self) -> Shapes:
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

    @property
    def languages(self) -> tuple[str, ...]:
        """See `SpeechSpec.languages`: codes of those that config.json lists and that have one."""
        listed = self.config.get("support_languages")
        if listed is None:
            return LANGUAGES
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise CheckpointError(f"config.json: support_languages is {listed!r}; expected a list of names")
        names = {name.casefold() for name in listed}
        return tuple(code for code in LANGUAGES if _name_of(code).casefold() in names)

    def vocabulary(self, folder: Path) -> tuple[list[bytes], SpeechTokens]:
        from .vocabulary import read_llm_vocabulary

        _check_template(folder)
        ranks, added = read_llm_vocabulary(folder, self.dims.n_vocab, end=_END, pattern=self.pattern)
        missing = [name for name in (_TURN, _TURN_END, _AUDIO, _AUDIO_END, _TEXT) if name not in added]
        if missing:
            raise CheckpointError(f"{folder}: the tokenizer has no token {missing[0]}; give the model's own files")
        encode = Encoder({token: id_ for id_, token in enumerate(ranks) if token}, self.pattern).encode
        system = [added[_TURN], *encode("system\n")]
        turn_end = [added[_TURN_END], *encode("\n")]
        try:
            return ranks, SpeechTokens(
                n_vocab=self.dims.n_vocab,
                eot=added[_END],
                other_ends=(added[_TURN_END],),
                before=(*system, *turn_end, added[_TURN], *encode("user\n"), added[_AUDIO]),
                context_at=len(system),
                behind=(added[_AUDIO_END], *turn_end, added[_TURN], *encode("assistant\n")),
                languages={code: _told(_name_of(code), encode, added) for code in self.languages},
                unknown=_told("None", encode, added),
            )
        except ModelError as error:
            raise CheckpointError(f"{folder}: {error}") from None


def _dims(audio: Mapping[str, Any], text: Mapping[str, Any], where: str) -> ChunkDims:
    of_audio, of_text = f"{where}: audio_config", f"{where}: text_config"
    check_gelu(audio, "activation_function", of_audio)
    width, n_head = dimension(audio, "d_model", of_audio), dimension(audio, "encoder_attention_heads", of_audio)
    n_chunk, n_window = 2 * dimension(audio, "n_window", of_audio), dimension(audio, "n_window_infer", of_audio)
    if width % n_head or width % 2:
        raise CheckpointError(f"{of_audio}: encoder_attention_heads {n_head} does not divide d_model {width}, or 2")
    if n_window % n_chunk or n_chunk > _WINDOW_FRAMES:
        raise CheckpointError(
            f"{of_audio}: n_window_infer is {n_window}; expected a multiple of twice n_window, {n_chunk}, which is "
            f"{_WINDOW_FRAMES} at most"
        )
    n_out, d = dimension(audio, "output_dim", of_audio), dimension(text, "hidden_size", of_text)
    if n_out != d:
        raise CheckpointError(f"{of_audio}: output_dim is {n_out}; the decoder's hidden_size is {d}")
    n_rows = _WINDOW_FRAMES // n_chunk * halved(n_chunk, N_CONVOLUTIONS)
    return ChunkDims(
        n_mels=dimension(audio, "num_mel_bins", of_audio),
        n_audio_ctx=n_rows,
        n_audio_state=width,
        n_audio_head=n_head,
        n_audio_layer=dimension(audio, "encoder_layers", of_audio),
        n_audio_rows=n_rows,
        n_chunk_frames=n_chunk,
        n_window_frames=n_window,
        **text_dims(text, of_text, n_rows),
    )


def _is_tied(config: Mapping[str, Any], thinker: Mapping[str, Any], text: Mapping[str, Any], where: str) -> bool:
    """Whether the vocabulary matrix is the embedding, by the outermost config that says it."""
    saying = next((some for some in (config, thinker, text) if "tie_word_embeddings" in some), text)
    return flag(saying, "tie_word_embeddings", True, where)


def _name_of(code: str) -> str:
    return _OTHER_NAMES.get(code, LANGUAGE_NAMES[code].capitalize())


def _told(language: str, encode: Callable[[str], list[int]], added: Mapping[str, int]) -> tuple[int, ...]:
    return (*encode(f"language {language}"), added[_TEXT])


def _check_template(folder: Path) -> None:
    """Raises CheckpointError for a chat template of another model; a folder may have none."""
    for name in ("chat_template.json", "tokenizer_config.json", "chat_template.jinja"):
        path = folder / name
        if not path.is_file():
            continue
        if path.suffix == ".json":
            template = read_json(path).get("chat_template", "")
        else:
            template = path.read_text(encoding="utf-8", errors="replace")
        told = template if isinstance(template, str) else json.dumps(template)
        missing = [token for token in _IN_TEMPLATE if told and token not in told]
        if missing:
            raise CheckpointError(f"{path}: the chat template has no {missing[0]}; it is none of Qwen3-ASR")
