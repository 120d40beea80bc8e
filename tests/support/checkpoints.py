"""Random-weight Whisper checkpoints in Hugging Face layout, by NumPy alone.

Speed and exactness depend on shapes and on the statistics of the weights, not on what they were trained for. The scales
here are those of real transformers: LayerNorm gains spread by exp(0.3 n) with a few loud channels, matrices of gain
1/sqrt(fan-in), a final LayerNorm that gives logits a standard deviation of 3 to 4. A tensor's values depend on the seed
and its name only, so sharding and order do not change them; large shapes are written tensor by tensor.
It does not know what specedge does with the result.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# fmt: off
LANGUAGES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi "
    "ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd "
    "gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
).split()

# generation_config.json of the published multilingual and English-only checkpoints, without their special tokens.
SUPPRESSED = (
    1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93, 359, 503, 522, 542, 873,
    893, 902, 918, 922, 931, 1350, 1853, 1982, 2460, 2627, 3246, 3253, 3268, 3536, 3846, 3961, 4183, 4667, 6585, 6647,
    7273, 9061, 9383, 10428, 10929, 11938, 12033, 12331, 12562, 13793, 14157, 14635, 15265, 15618, 16553, 16604,
    18362, 18956, 20075, 21675, 22520, 26130, 26161, 26435, 28279, 29464, 31650, 32302, 32470, 36865, 42863, 47425,
    49870, 50254)
SUPPRESSED_EN = (
    1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93, 357, 366, 438, 532, 685,
    705, 796, 930, 1058, 1220, 1267, 1279, 1303, 1343, 1377, 1391, 1635, 1782, 1875, 2162, 2361, 2488, 3467, 4008,
    4211, 4600, 4808, 5299, 5855, 6329, 7203, 9609, 9959, 10563, 10786, 11420, 11709, 11907, 13163, 13697, 13700,
    14808, 15306, 16410, 16791, 17992, 19203, 19510, 20724, 22305, 22935, 27007, 30109, 30420, 33409, 34949, 40283,
    40493, 40549, 47282, 49146)
# fmt: on


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Dimensions of one checkpoint, with openai-whisper's names."""

    n_state: int
    n_head: int
    n_audio_layer: int
    n_text_layer: int
    n_mels: int = 80
    n_vocab: int = 51865
    n_audio_ctx: int = 1500
    n_text_ctx: int = 448


SIZES = {
    "micro": Shape(n_state=64, n_head=2, n_audio_layer=2, n_text_layer=2, n_vocab=1000, n_audio_ctx=100, n_text_ctx=64),
    "tiny": Shape(n_state=384, n_head=6, n_audio_layer=4, n_text_layer=4),
    "base": Shape(n_state=512, n_head=8, n_audio_layer=6, n_text_layer=6),
    "small": Shape(n_state=768, n_head=12, n_audio_layer=12, n_text_layer=12),
    "medium": Shape(n_state=1024, n_head=16, n_audio_layer=24, n_text_layer=24),
    "large-v2": Shape(n_state=1280, n_head=20, n_audio_layer=32, n_text_layer=32),
    "large-v3": Shape(n_state=1280, n_head=20, n_audio_layer=32, n_text_layer=32, n_mels=128, n_vocab=51866),
    "turbo": Shape(n_state=1280, n_head=20, n_audio_layer=32, n_text_layer=4, n_mels=128, n_vocab=51866),
    "distil-small.en": Shape(n_state=768, n_head=12, n_audio_layer=12, n_text_layer=4, n_vocab=51864),
    "distil-large-v2": Shape(n_state=1280, n_head=20, n_audio_layer=32, n_text_layer=2),
    "distil-large-v3": Shape(n_state=1280, n_head=20, n_audio_layer=32, n_text_layer=2, n_mels=128, n_vocab=51866),
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Special-token ids: text, eot, sot, languages, six more, timestamps, in Whisper's order."""

    n_vocab: int
    n_text: int
    languages: tuple[str, ...]
    n_timestamps: int
    en: bool

    @classmethod
    def of(cls, n_vocab: int, n_audio_ctx: int, en: bool) -> Layout:
        if n_vocab >= 51864:
            n_languages, n_timestamps = (99 if en else n_vocab - 51766), 1501
        else:
            n_languages, n_timestamps = 4 + (n_vocab == 1001), n_audio_ctx + 1  # one more, as v3 has
        n_text = n_vocab - n_timestamps - n_languages - 8
        if n_text < 256 or n_languages > len(LANGUAGES):
            raise ValueError(f"n_vocab {n_vocab} leaves {n_text} text tokens and {n_languages} languages")
        names = tuple(LANGUAGES[:n_languages])
        return cls(n_vocab=n_vocab, n_text=n_text, languages=names, n_timestamps=n_timestamps, en=en)

    @property
    def specials(self) -> dict[str, int]:
        """Token text -> id of every special token before the timestamps."""
        v3 = len(self.languages) > 99
        names = ["endoftext", "startoftranscript", *self.languages, "translate", "transcribe"]
        names += ["startoflm", "startofprev", "nospeech" if v3 else "nocaptions", "notimestamps"]
        return {f"<|{name}|>": self.n_text + i for i, name in enumerate(names)}

    @property
    def timestamps(self) -> dict[str, int]:
        begin = self.n_vocab - self.n_timestamps
        return {f"<|{i * 0.02:.2f}|>": begin + i for i in range(self.n_timestamps)}

    @property
    def suppressed(self) -> list[int]:
        text = [i for i in (SUPPRESSED_EN if self.en else SUPPRESSED) if i < self.n_text]
        names = ("startoftranscript", "translate", "transcribe", "startoflm", "startofprev")
        ids = [self.specials[f"<|{name}|>"] for name in names]
        return [*text, *ids, self.n_vocab - self.n_timestamps - 2]


# ------------------------------------------------------------------------------------------------------- weights
def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of every stored tensor, in transformers' order (proj_out is tied, hence absent)."""
    d, ffn = shape.n_state, 4 * shape.n_state
    yield "model.encoder.conv1.weight", (d, shape.n_mels, 3)
    yield "model.encoder.conv1.bias", (d,)
    yield "model.encoder.conv2.weight", (d, d, 3)
    yield "model.encoder.conv2.bias", (d,)
    yield "model.encoder.embed_positions.weight", (shape.n_audio_ctx, d)
    for i in range(shape.n_audio_layer):
        yield from _layer(f"model.encoder.layers.{i}", ("self_attn",), d, ffn)
    yield from _norm("model.encoder.layer_norm", d)
    yield "model.decoder.embed_tokens.weight", (shape.n_vocab, d)
    yield "model.decoder.embed_positions.weight", (shape.n_text_ctx, d)
    for i in range(shape.n_text_layer):
        yield from _layer(f"model.decoder.layers.{i}", ("self_attn", "encoder_attn"), d, ffn)
    yield from _norm("model.decoder.layer_norm", d)


def _layer(at: str, attentions: tuple[str, ...], d: int, ffn: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for attention in attentions:
        yield f"{at}.{attention}.k_proj.weight", (d, d)
        for name in ("v_proj", "q_proj", "out_proj"):
            yield f"{at}.{attention}.{name}.weight", (d, d)
            yield f"{at}.{attention}.{name}.bias", (d,)
        yield from _norm(f"{at}.{attention}_layer_norm", d)
    yield f"{at}.fc1.weight", (ffn, d)
    yield f"{at}.fc1.bias", (ffn,)
    yield f"{at}.fc2.weight", (d, ffn)
    yield f"{at}.fc2.bias", (d,)
    yield from _norm(f"{at}.final_layer_norm", d)


def _norm(at: str, d: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{at}.weight", (d,)
    yield f"{at}.bias", (d,)


def sinusoids(n_ctx: int, d: int) -> np.ndarray:
    """The encoder's fixed positions, openai-whisper model.py: sinusoids. float32 [n_ctx, d]."""
    rates = np.exp(-np.log(10000.0) / (d // 2 - 1) * np.arange(d // 2))
    angles = np.arange(n_ctx)[:, None] * rates[None, :]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def weight(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """float32 values of one tensor; depends on its name, its shape and the seed only."""
    if name == "model.encoder.embed_positions.weight":
        return sinusoids(*shape)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    normal = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("bias"):
        return normal * np.float32(0.05)
    if name.endswith("layer_norm.weight"):
        gain = np.exp(np.float32(0.3) * normal)
        gain[rng.choice(shape[0], max(2, shape[0] // 128), replace=False)] *= 6.0
        return gain * np.float32(3.0) if name == "model.decoder.layer_norm.weight" else gain
    gains = {"embed_positions": 0.3, "out_proj": 0.5, "fc2": 0.7}
    gain = gains.get(name.split(".")[-2], 1.0)
    normal *= np.float32(gain / np.sqrt(np.prod(shape[1:])))
    return normal


def _numpy_dtype(dtype: str) -> tuple[str, np.dtype[Any]]:
    if dtype == "bfloat16":
        import ml_dtypes

        return "BF16", np.dtype(ml_dtypes.bfloat16)
    return {"float16": "F16", "float32": "F32", "float64": "F64"}[dtype], np.dtype(dtype)


def _write_safetensors(path: Path, entries: list[tuple[str, tuple[int, ...]]], dtype: str, seed: int) -> int:
    code, kind = _numpy_dtype(dtype)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in entries:
        start, end = end, end + int(np.prod(shape)) * kind.itemsize
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in entries:
            file.write(weight(name, shape, seed).astype(kind).tobytes())
    return end


def write_weights(folder: Path, shape: Shape, *, seed: int, dtype: str, shards: int) -> None:
    """model.safetensors, or model-0000i-of-0000n.safetensors with the index that transformers writes."""
    entries = list(tensors(shape))
    if shards == 1:
        _write_safetensors(folder / "model.safetensors", entries, dtype, seed)
        return
    share = sum(int(np.prod(s)) for _, s in entries) / shards
    groups: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(shards)]
    seen = 0
    for name, size in entries:
        groups[min(shards - 1, int(seen / share))].append((name, size))
        seen += int(np.prod(size))
    places, total = {}, 0
    for i, group in enumerate(groups):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        total += _write_safetensors(folder / file, group, dtype, seed)
        places.update(dict.fromkeys((name for name, _ in group), file))
    _dump(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})


# ------------------------------------------------------------------------------------------------------- configs
def config(shape: Shape, layout: Layout, dtype: str) -> dict[str, Any]:
    """config.json with the keys of the published checkpoints."""
    eot, sot = layout.n_text, layout.n_text + 1
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": shape.n_vocab,
        "num_mel_bins": shape.n_mels,
        "d_model": shape.n_state,
        "encoder_layers": shape.n_audio_layer,
        "decoder_layers": shape.n_text_layer,
        "num_hidden_layers": shape.n_audio_layer,
        "encoder_attention_heads": shape.n_head,
        "decoder_attention_heads": shape.n_head,
        "encoder_ffn_dim": 4 * shape.n_state,
        "decoder_ffn_dim": 4 * shape.n_state,
        "max_source_positions": shape.n_audio_ctx,
        "max_target_positions": shape.n_text_ctx,
        "max_length": shape.n_text_ctx,
        "activation_function": "gelu",
        "scale_embedding": False,
        "is_encoder_decoder": True,
        "use_cache": True,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "init_std": 0.02,
        "bos_token_id": eot,
        "eos_token_id": eot,
        "pad_token_id": eot,
        "decoder_start_token_id": sot,
        "begin_suppress_tokens": [220, eot],
        "suppress_tokens": layout.suppressed,
        "torch_dtype": dtype,
        "transformers_version": "4.31.0",
    }


def generation_config(shape: Shape, layout: Layout) -> dict[str, Any]:
    """generation_config.json with the keys of the published checkpoints."""
    ids, last = layout.specials, shape.n_text_layer - 1
    eot, sot = layout.n_text, layout.n_text + 1
    result: dict[str, Any] = {
        "_from_model_config": False,
        "alignment_heads": [[last, head] for head in range(min(6, shape.n_head))],
        "begin_suppress_tokens": [220, eot],
        "bos_token_id": eot,
        "eos_token_id": eot,
        "pad_token_id": eot,
        "decoder_start_token_id": sot,
        "is_multilingual": not layout.en,
        "max_initial_timestamp_index": 50,
        "max_length": shape.n_text_ctx,
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "return_timestamps": False,
        "suppress_tokens": layout.suppressed,
        "transformers_version": "4.31.0",
    }
    if not layout.en:
        result["lang_to_id"] = {f"<|{code}|>": ids[f"<|{code}|>"] for code in layout.languages}
        result["task_to_id"] = {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")}
    return result


def preprocessor_config(shape: Shape) -> dict[str, Any]:
    n_samples = shape.n_audio_ctx * 320
    return {
        "chunk_length": n_samples // 16000 if n_samples % 16000 == 0 else n_samples / 16000,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": shape.n_mels,
        "hop_length": 160,
        "n_fft": 400,
        "n_samples": n_samples,
        "nb_max_frames": n_samples // 160,
        "padding_side": "right",
        "padding_value": 0.0,
        "processor_class": "WhisperProcessor",
        "return_attention_mask": False,
        "sampling_rate": 16000,
    }


def _dump(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def make_checkpoint(
    folder: str | Path,
    *,
    size: str = "micro",
    n_mels: int | None = None,
    n_vocab: int | None = None,
    n_audio_ctx: int | None = None,
    n_text_ctx: int | None = None,
    seed: int = 0,
    dtype: str = "float16",
    shards: int = 1,
    en: bool = False,
    tokenizer: bool = True,
) -> Path:
    """Write a random checkpoint into `folder` (made if absent) and give the folder back.

    Dimensions left None are those of `size` (see SIZES; `micro` takes a small fraction of a second). `en` gives the
    English-only special-token layout (n_vocab 51864 unless the size is small). `tokenizer=False` leaves the tokenizer
    files out.
    """
    base = SIZES[size]
    en = en or size.endswith(".en")
    if n_vocab is None:
        n_vocab = 51864 if en and base.n_vocab >= 51864 else base.n_vocab
    shape = Shape(
        n_state=base.n_state,
        n_head=base.n_head,
        n_audio_layer=base.n_audio_layer,
        n_text_layer=base.n_text_layer,
        n_mels=n_mels or base.n_mels,
        n_vocab=n_vocab,
        n_audio_ctx=n_audio_ctx or base.n_audio_ctx,
        n_text_ctx=n_text_ctx or base.n_text_ctx,
    )
    layout = Layout.of(shape.n_vocab, shape.n_audio_ctx, en)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _dump(folder / "config.json", config(shape, layout, dtype))
    _dump(folder / "generation_config.json", generation_config(shape, layout))
    _dump(folder / "preprocessor_config.json", preprocessor_config(shape))
    if tokenizer:
        from support.vocab import write_hf_tokenizer  # which needs specedge; the weights do not

        write_hf_tokenizer(folder, layout)
    write_weights(folder, shape, seed=seed, dtype=dtype, shards=shards)
    return folder
