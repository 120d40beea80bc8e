"""The self-check of a speech LLM's bundle: as `selfcheck`, with a llama decoder in plain NumPy as the reference.

The reference follows transformers' modeling_llama.py (rotations by halves, grouped keys and values) and, for encoders
that work on chunks, its modeling_qwen3_asr.py; float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.dims import ChunkDims, SpeechDims
from specedge.runtime.device import isa
from specedge.runtime.engine.doctor import golden_logits
from specedge.runtime.engine.exactness import Invariance, RowResult, one_row_logits, probe_rows
from specedge.runtime.engine.made_up import probe_ids, probe_mel
from specedge.runtime.engine.many import Features
from specedge.runtime.engine.session import RUNTIME_VERSION, Canceller
from specedge.runtime.engine.speech import SpeechEngine

from .chunk_encoder_graph import N_CONVOLUTIONS, halved, sinusoids
from .layered_decoder import LayeredDecoder
from .layers import Precision, Weights, bias_of, parts_of, rows_of
from .llama_graph import PROJECTOR, ROOT, rotations
from .selfcheck import PROBE_THREADS, check_errors, encode, encoder_layers, gelu, relative_error
from .speech_layouts import SpeechSpec

Array = NDArray[np.float32]
N_COMPARED_ROWS = 12
N_BEFORE_AUDIO = 3  # tokens of the compared prompt


def encode_chunks(mel: Array, dims: ChunkDims, weights: Weights) -> Array:
    """Encoder output float32 `[n_ctx, n_audio_state]` of a mel float32 `[n_mels, n_frames]`."""
    firsts = range(0, mel.shape[1], dims.n_window_frames)
    return np.concatenate([_encode_window(mel[:, n : n + dims.n_window_frames], dims, weights) for n in firsts])


def _encode_window(mel: Array, dims: ChunkDims, weights: Weights) -> Array:
    filled = np.pad(mel, ((0, 0), (0, -mel.shape[1] % dims.n_chunk_frames)))
    rows = []
    for chunk in np.split(filled, filled.shape[1] // dims.n_chunk_frames, axis=1):
        x = chunk[None]
        for i in range(1, N_CONVOLUTIONS + 1):
            x = gelu(_convolve(x, weights, f"model.encoder.conv2d{i}"))
        flat = x.transpose(2, 0, 1).reshape(x.shape[2], -1)
        rows.append(_linear(flat, weights, "model.encoder.conv_out") + sinusoids(len(flat), dims.n_audio_state))
    heard = np.concatenate(rows)[: dims.positions(mel.shape[1])]
    return encoder_layers(heard, dims, weights, "ln_post")


def _convolve(x: Array, weights: Weights, name: str) -> Array:
    """A convolution of 3 x 3 with stride 2, padded with zeros, of `[n_in, n_bands, n_frames]`."""
    weight, bias = weights.tensor(f"{name}.weight"), weights.tensor(f"{name}.bias")
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    shape = halved(x.shape[1]), halved(x.shape[2])
    y = np.zeros((len(weight), math.prod(shape)), np.float32)
    for band, frame in np.ndindex(3, 3):
        seen = padded[:, band : band + 2 * shape[0] - 1 : 2, frame : frame + 2 * shape[1] - 1 : 2]
        y += weight[:, :, band, frame] @ seen.reshape(len(seen), -1)
    return (y + bias[:, None]).reshape(-1, *shape)


def project(hidden: Array, dims: SpeechDims, weights: Weights) -> Array:
    """Rows of audio float32 `[n_rows, n_text_state]` of encoder output float32 `[n_ctx, n_audio_state]`."""
    x = hidden.reshape(len(hidden) // dims.n_stacked, -1)
    return _linear(gelu(_linear(x, weights, f"{PROJECTOR}.linear_1")), weights, f"{PROJECTOR}.linear_2")


def decode(rows: Array, spec: SpeechSpec, weights: Weights) -> Array:
    """Logits float32 `[n_rows, n_vocab]` of rows of audio and of token embeddings, float32 `[n_rows, n_text_state]`."""
    x, dims = rows, spec.dims
    for i in range(dims.n_text_layer):
        name = f"{ROOT}.layers.{i}"
        y = _norm(x, weights, f"{name}.input_layernorm", spec.epsilon)
        x = x + _attend(y, spec, weights, f"{name}.self_attn")
        y = _norm(x, weights, f"{name}.post_attention_layernorm", spec.epsilon)
        gate = _linear(y, weights, f"{name}.mlp.gate_proj")
        up = _linear(y, weights, f"{name}.mlp.up_proj")
        x = x + _linear(gate / (1 + np.exp(-gate)) * up, weights, f"{name}.mlp.down_proj")
    x = _norm(x, weights, f"{ROOT}.norm", spec.epsilon)
    name = "proj_out.weight" if weights.has("proj_out.weight") else f"{ROOT}.embed_tokens.weight"
    return np.concatenate([x @ part.T for part in parts_of(weights, name)], axis=1)


def _attend(x: Array, spec: SpeechSpec, weights: Weights, name: str) -> Array:
    n, dims = len(x), spec.dims
    heads = [_linear(x, weights, f"{name}.{part}_proj").reshape(n, -1, dims.head_dim) for part in "qkv"]
    for i, part in enumerate("qk"):
        if weights.has(f"{name}.{part}_norm.weight"):
            heads[i] = _norm(heads[i], weights, f"{name}.{part}_norm", spec.epsilon)
    cos, sin = rotations(n, dims.head_dim, spec.rope_theta)
    q, k = (_rotate(head, cos, sin).transpose(1, 0, 2) for head in heads[:2])
    v = heads[2].transpose(1, 0, 2)
    n_group = dims.n_text_head // dims.n_kv_head
    k, v = np.repeat(k, n_group, axis=0), np.repeat(v, n_group, axis=0)
    scores = q @ k.transpose(0, 2, 1) / np.float32(math.sqrt(dims.head_dim))
    scores += np.triu(np.full((n, n), -np.inf, np.float32), k=1)
    mass = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attended = (mass / mass.sum(axis=-1, keepdims=True)) @ v
    return _linear(attended.transpose(1, 0, 2).reshape(n, -1), weights, f"{name}.o_proj")


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rows `[n, n_head, head_dim]`, turned by their positions."""
    first, second = np.split(x, 2, axis=-1)
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([first * c - second * s, second * c + first * s], axis=-1)


def _norm(x: Array, weights: Weights, name: str, epsilon: float) -> Array:
    scale = np.sqrt((x**2).mean(axis=-1, keepdims=True) + np.float32(epsilon))
    y: Array = x / scale * weights.tensor(f"{name}.weight")
    return y


def _linear(x: Array, weights: Weights, name: str) -> Array:
    weight = weights.tensor(f"{name}.weight")
    y: Array = x @ weight.T + bias_of(weights, name, weight.shape[0])
    return y


def check_speech(bundle: Bundle, weights: Weights, spec: SpeechSpec, precision: Precision) -> dict[str, Any]:
    """Numbers for the manifest's `selfcheck`. Raises as `selfcheck.check_bundle`."""
    canceller = Canceller()
    with canceller.on_sigint():
        return _check(bundle, weights, spec, precision, canceller)


class _Found(NamedTuple):
    """Of a decoder: its one-row logits, those of a few rows for the manifest, those of a text with audio in its prompt,
    float32 [n_rows, n_vocab], and whether its rows are exact."""

    references: dict[int, Array]
    golden: list[list[float]]
    logits: Array
    results: tuple[RowResult, ...]


def _ask(decoder: LayeredDecoder, features: Features, ids: Sequence[int], references: Mapping[int, Array]) -> _Found:
    """Ask `decoder` for all passes of the check. references: of another number of threads, if there are any yet."""
    n_vocab = decoder.dims.n_vocab
    own = one_row_logits(decoder, features)
    prompt = [*ids[:N_BEFORE_AUDIO], *range(n_vocab, n_vocab + features.n_audio), *ids[N_BEFORE_AUDIO:]]
    n_compared = len(ids) - N_BEFORE_AUDIO
    return _Found(
        references=own,
        golden=golden_logits(decoder, features),
        logits=decoder.forward(decoder.start(features), prompt, range(len(prompt) - n_compared, len(prompt))),
        results=probe_rows(decoder, features, references or own),
    )


def _check(
    bundle: Bundle, weights: Weights, spec: SpeechSpec, precision: Precision, canceller: Canceller
) -> dict[str, Any]:
    dims = spec.dims
    mel, ids = probe_mel(dims), probe_ids(dims, N_COMPARED_ROWS)
    # One session at a time and the reference last, so that the largest models stay within the export's memory.
    engine = SpeechEngine(bundle, threads=PROBE_THREADS[0], cache=False, canceller=canceller, loads=())
    features = engine.encode(mel)
    engine.unload("encoder", "projector")
    results: list[RowResult] = []
    references: dict[int, Array] = {}
    for threads in PROBE_THREADS:
        decoder = LayeredDecoder(bundle, dims, canceller, threads=threads)
        _ask(decoder, features, ids, references)
        decoder.run()
        found = _ask(decoder, features, ids, references)
        references = references or found.references
        if threads == PROBE_THREADS[0]:
            logits, golden = found.logits, found.golden
        results += found.results
    padded = np.pad(mel, ((0, 0), (0, -mel.shape[1] % dims.frames_per_row)))
    hidden = encode_chunks(mel, dims, weights) if isinstance(dims, ChunkDims) else encode(padded, dims, weights)
    rows = project(hidden, dims, weights)
    table = rows_of(weights, f"{ROOT}.embed_tokens.weight", ids)
    prompt = np.concatenate([table[:N_BEFORE_AUDIO], rows, table[N_BEFORE_AUDIO:]])
    wanted = decode(prompt, spec, weights)[-len(logits) :]
    numbers = {
        "features_relative_error": relative_error(features.hidden, hidden),
        "audio_relative_error": relative_error(features.cross["audio"][0], rows),
        "logits_relative_error": relative_error(logits, wanted),
        "logits_max_error": float(np.abs(logits - wanted).max()),
        "argmax_agreement": float((logits.argmax(-1) == wanted.argmax(-1)).mean()),
    }
    check_errors(numbers, precision)
    return {
        "onnxruntime": RUNTIME_VERSION,
        "isa": " ".join((isa().machine, *isa().features)),
        **{key: round(value, 9) for key, value in numbers.items()},
        "row_invariance": Invariance(results=tuple(results)).to_json(),
        "golden": golden,
    }
