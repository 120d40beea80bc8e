"""A random Qwen3-ASR: config, weights and tokenizer files, tiny and in either spelling."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint, open_heads
from specedge.export.qwen3_asr import MODULES, PUBLISHED, SpeechSpec
from specedge.export.spec import Source
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.speech import SpeechEngine
from specedge.runtime.text.tokenizer import PATTERNS, QWEN
from support.exported import made_folder
from support.vocab import merges_of, spell, toy_ranks

N_TEXT = 400
ADDED = "<|endoftext|> <|im_start|> <|im_end|> <|audio_start|> <|audio_end|> <|audio_pad|> <asr_text>".split()


IDS = {token: N_TEXT + i for i, token in enumerate(ADDED)}
ENDS = [IDS["<|endoftext|>"], IDS["<|im_end|>"]]
N_VOCAB = N_TEXT + 20
TEMPLATE = "<|im_start|>system\n{{ text }}<|im_end|>\n<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|>"
AUDIO: dict[str, Any] = {
    "model_type": "qwen3_asr_audio_encoder",
    "d_model": 64,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "encoder_layers": 2,
    "num_mel_bins": 80,
    "n_window": 50,
    "n_window_infer": 800,
    "downsample_hidden_size": 8,
    "output_dim": 48,
    "activation_function": "gelu",
    "scale_embedding": False,
    "max_source_positions": 1500,
}
TEXT: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": N_VOCAB,
    "hidden_size": 48,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


def qwen_config(*, published: bool = True) -> dict[str, Any]:
    """config.json of the tiny model."""
    top = {"architectures": ["Qwen3ASRForConditionalGeneration"], "model_type": "qwen3_asr"}
    sections = {"mrope_section": [8, 4, 4], "interleaved": True, "rope_type": "default", "type": "default"}
    if published:
        text = {**TEXT, "rope_theta": 1000000, "rope_scaling": sections}
        thinker = {"audio_token_id": IDS["<|audio_pad|>"], "audio_config": dict(AUDIO), "text_config": text}
        return {**top, "support_languages": ["Chinese", "English", "German", "Filipino"], "thinker_config": thinker}
    audio = {key: value for key, value in AUDIO.items() if key != "max_source_positions"}
    return {
        **top,
        "audio_token_id": IDS["<|audio_pad|>"],
        "audio_config": {**audio, "model_type": "qwen3_asr_encoder"},
        "text_config": {**TEXT, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}},
        "tie_word_embeddings": True,
    }


def qwen_weights(config: dict[str, Any], seed: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    """Random float32 weights under the names of the config's spelling, the same for both, one after another."""
    spec = SpeechSpec.from_qwen(config, source=Source(kind="folder", id="made-up"), where="config.json")
    names = PUBLISHED if "thinker_config" in config else MODULES
    rng = np.random.default_rng(seed)
    for name, shape in spec.shapes():
        value = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 16)
        is_gain = len(shape) == 1 and name.endswith("weight")
        scale = 3.0 if "embed_tokens" in name else 1.0
        canonical = max((prefix for prefix in names if name.startswith(prefix)), key=len)
        value *= scale
        value += is_gain
        yield names[canonical] + name.removeprefix(canonical), value.astype(np.float32)


def write_tokenizer(folder: Path, *, whole: bool = False) -> None:
    """vocab.json, merges.txt and tokenizer_config.json, or with `whole` tokenizer.json."""
    ranks = tuple(toy_ranks(N_TEXT))
    vocab = {spell(token): id_ for id_, token in enumerate(ranks)}
    merges = [" ".join(pair) for pair in merges_of(ranks)]
    added = [{"content": token, "id": id_, "special": token.startswith("<|")} for token, id_ in IDS.items()]
    if whole:
        split = {"type": "Split", "pattern": {"Regex": PATTERNS[QWEN]}, "behavior": "Isolated"}
        before = {"type": "Sequence", "pretokenizers": [split, {"type": "ByteLevel", "use_regex": False}]}
        model = {"type": "BPE", "vocab": vocab, "merges": merges}
        tokenizer = {"model": model, "pre_tokenizer": before, "added_tokens": added}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        return
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    decoder = {str(token.pop("id")): token for token in added}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))


def make_qwen(folder: Path, *, published: bool = True, seed: int = 0) -> Path:
    """Write the checkpoint into `folder` and give it back: published in two shards, else as transformers saves it."""
    from safetensors.numpy import save_file

    config = qwen_config(published=published)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ENDS}))
    write_tokenizer(folder, whole=not published)
    weights = dict(qwen_weights(config, seed))
    if not published:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    places = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(weights)}
    for file in set(places.values()):
        part = {name: value for name, value in weights.items() if places[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def qwen_checkpoint(*, published: bool = True) -> Path:
    """The checkpoint. Do not change it: others use it too."""
    return make_qwen(made_folder("qwen", f"checkpoint-{published}"), published=published)


def qwen_bundle(precision: str = "int8") -> Bundle:
    """The bundle of the published spelling, with two latent heads."""
    return _bundle(precision)


@functools.cache
def _bundle(precision: str) -> Bundle:
    return export_speech(qwen_checkpoint(), made_folder("qwen", f"bundle-{precision}") / "b", precision)


def export_speech(folder: Path, out: Path, precision: str = "int8") -> Bundle:
    """A bundle of a checkpoint, with two latent heads beside it."""
    from safetensors.numpy import save_file

    heads = folder / "heads.safetensors"
    with open_checkpoint(folder) as opened:
        d = opened.spec.dims.n_text_state
        rng = np.random.default_rng(1)
        maps = {f"latent_heads.{i}.weight": rng.standard_normal((d, d)).astype(np.float32) / 8 for i in range(2)}
        save_file(maps, heads)
        chosen = [open_heads(heads, opened.spec)]
        return write_bundle(opened, out, precision=precision, name="speech", version="0", heads=chosen)


def qwen_engine(precision: str = "int8") -> SpeechEngine:
    """The engine of `qwen_bundle`, which others use too."""
    return _engine(precision)


@functools.cache
def _engine(precision: str) -> SpeechEngine:
    return SpeechEngine(qwen_bundle(precision), threads=1)


def noise(seed: int, seconds: float = 2.0) -> np.ndarray:
    """Audio of noise that comes and goes, float32 [n_samples] at 16 kHz."""
    n = round(seconds * 16_000)
    swell = 0.5 + 0.5 * np.sin(np.arange(n) / (900 + 300 * seed))
    return (0.1 * swell * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)
