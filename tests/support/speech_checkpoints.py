"""A random, tiny speech LLM in Voxtral's layout: config, weights and a Tekken vocabulary of a few hundred tokens."""

from __future__ import annotations

import base64
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint, open_heads
from specedge.export.spec import Source
from specedge.export.speech_layouts import NAMES, SpeechSpec
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.speech import SpeechEngine
from support.exported import made_folder

N_CONTROL = 40
WORDS = ("th", "the", "in", "er", "an", " t", " a", " the", "lang", ":e", ":en", "on", "re", " w", "ing")


def voxtral_config(**text: Any) -> dict[str, Any]:
    """config.json of the tiny model; `text`: other values of its text_config."""
    return {
        "architectures": ["VoxtralForConditionalGeneration"],
        "model_type": "voxtral",
        "audio_token_id": 24,
        "projector_hidden_act": "gelu",
        "audio_config": {
            "model_type": "voxtral_encoder",
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_mel_bins": 80,
            "max_source_positions": 100,
            "vocab_size": 1000,
        },
        "text_config": {
            "model_type": "llama",
            "vocab_size": N_CONTROL + 256 + len(WORDS) + 9,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            **text,
        },
    }


def voxtral_weights(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights under the published names."""
    source = Source(kind="folder", id="made-up")
    spec = SpeechSpec.from_voxtral(config, n_control=N_CONTROL, source=source, where="config.json")
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for name, shape in spec.shapes():
        for canonical, stored in NAMES["voxtral"][0].items():
            if name.startswith(canonical):
                value = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 16)
                is_gain = len(shape) == 1 and name.endswith("weight")
                scale = 3.0 if "lm_head" in stored else 1.0
                found[stored + name.removeprefix(canonical)] = (scale * value + is_gain).astype(np.float32)
    return found


def tekken() -> dict[str, Any]:
    """tekken.json: all bytes, then a few words."""
    texts = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS]
    return {
        "config": {
            "pattern": ".",
            "num_vocab_tokens": len(texts),
            "default_vocab_size": N_CONTROL + len(texts),
            "default_num_special_tokens": N_CONTROL,
            "version": "v7",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(text).decode(), "token_str": None}
            for rank, text in enumerate(texts)
        ],
    }


def make_voxtral(folder: Path, *, seed: int = 0, **text: Any) -> Path:
    """Write the checkpoint into `folder` and give it back."""
    from safetensors.numpy import save_file

    config = voxtral_config(**text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tekken.json").write_text(json.dumps(tekken()))
    save_file(voxtral_weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@functools.cache
def checkpoint() -> Path:
    """The checkpoint. Do not change it: others use it too."""
    return make_voxtral(made_folder("speech", "checkpoint"))


def speech_bundle(precision: str = "int8") -> Bundle:
    """The bundle of `checkpoint`, with two latent heads."""
    return _bundle(precision)


@functools.cache
def _bundle(precision: str) -> Bundle:
    return export_speech(checkpoint(), made_folder("speech", f"bundle-{precision}") / "b", precision)


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


@functools.cache
def speech_engine(precision: str = "int8") -> SpeechEngine:
    return SpeechEngine(speech_bundle(precision), threads=1)


def noise(seed: int, seconds: float = 2.0) -> np.ndarray:
    """Audio of noise that comes and goes, float32 [n_samples] at 16 kHz."""
    n = round(seconds * 16_000)
    swell = 0.5 + 0.5 * np.sin(np.arange(n) / (900 + 300 * seed))
    return (0.1 * swell * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)
