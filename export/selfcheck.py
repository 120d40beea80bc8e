"""The self-check of a new bundle: its graphs against plain NumPy on the same weights, and whether rows are exact.

It runs on made-up audio of about 2.5 s and a sentence behind the prompt that every window has, so it costs a few passes
of the model. It proves that the graphs compute what the weights say; accuracy on speech is measured elsewhere: on
made-up audio published base in 4 bits has the best token of float32 in 6 of 20 rows, and on speech in 17. Rows that are
not exact here are noted, not refused: they may be exact where the bundle will run, and the runtime asks there before it
drafts. The NumPy model follows openai-whisper's model.py layer by layer, float32, and reads one layer's weights at a
time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import ExactnessError
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import PLAIN_ENCODER_GRAPH, Dims, Manifest
from specedge.runtime.device import isa
from specedge.runtime.engine.doctor import golden_logits
from specedge.runtime.engine.engine import Engine, encoder_output
from specedge.runtime.engine.exactness import Invariance, RowResult, one_row_logits, probe_paths, probe_rows
from specedge.runtime.engine.made_up import probe_mel
from specedge.runtime.engine.session import RUNTIME_VERSION, Canceller, load_graph

from .layers import BASE_HEAD, LAYER_NORM_EPSILON, PRECISIONS, Precision, Weights, bias_of, is_low_rank

Array = NDArray[np.float32]
# Abramowitz and Stegun 7.1.26 in float64: |error| < 1.5e-7, below float32's resolution of the activations.
_ERF_P = 0.3275911
_ERF_A = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def encode(mel: Array, dims: Dims, weights: Weights) -> Array:
    """Encoder output, float32 `[n_frames / 2, n_audio_state]`, of a mel float32 `[n_mels, n_frames]`."""
    root = "model.encoder"
    x = gelu(_convolve(mel, weights, f"{root}.conv1", stride=1))
    x = gelu(_convolve(x, weights, f"{root}.conv2", stride=2)).T
    return encoder_layers(x + weights.tensor(f"{root}.embed_positions.weight")[: x.shape[0]], dims, weights)


def encoder_layers(x: Array, dims: Dims, weights: Weights, last_norm: str = "layer_norm") -> Array:
    """The positions `x` float32 `[n_ctx, n_audio_state]` behind the encoder's layers and the norm behind them."""
    root = "model.encoder"
    for i in range(dims.n_audio_layer):
        name = f"{root}.layers.{i}"
        y = _layer_norm(x, weights, f"{name}.self_attn_layer_norm")
        x = x + _attend(y, y, weights, f"{name}.self_attn", n_head=dims.n_audio_head, causal=False)
        x = x + _feed_forward(_layer_norm(x, weights, f"{name}.final_layer_norm"), weights, name)
    return _layer_norm(x, weights, f"{root}.{last_norm}")


def decode(
    ids: list[int], features: Array, dims: Dims, weights: Weights, scores: dict[int, Array] | None = None
) -> Array:
    """Logits, float32 `[len(ids), n_vocab]`, of the token rows `ids` over `features` from `encode`.

    With `scores`, each layer's cross-attention `[n_text_head, len(ids), n_ctx]` before the softmax is put there.
    """
    root = "model.decoder"
    x = weights.tensor(f"{root}.embed_tokens.weight")[ids]
    x = x + weights.tensor(f"{root}.embed_positions.weight")[: len(ids)]
    for i in range(dims.n_text_layer):
        x, seen = decoder_layer(x, features, weights, f"{root}.layers.{i}", dims.n_text_head)
        if scores is not None:
            scores[i] = seen
    x = residual_blocks(_layer_norm(x, weights, f"{root}.layer_norm"), weights, BASE_HEAD)
    return x @ weights.tensor("proj_out.weight" if weights.has("proj_out.weight") else f"{root}.embed_tokens.weight").T


def decoder_layer(x: Array, features: Array, weights: Weights, name: str, n_head: int) -> tuple[Array, Array]:
    """The rows `x` [n_rows, n_state] behind the layer `name`, and its cross-attention's scores before the softmax."""
    y = _layer_norm(x, weights, f"{name}.self_attn_layer_norm")
    x = x + _attend(y, y, weights, f"{name}.self_attn", n_head=n_head, causal=True)
    y = _layer_norm(x, weights, f"{name}.encoder_attn_layer_norm")
    seen = _scores(y, features, weights, f"{name}.encoder_attn", n_head)
    x = x + _mix(seen, features, weights, f"{name}.encoder_attn")
    return x + _feed_forward(_layer_norm(x, weights, f"{name}.final_layer_norm"), weights, name), seen


def residual_blocks(x: Array, weights: Weights, name: str) -> Array:
    """Medusa's blocks `name`.0, `name`.1, ...: none in a model without a base head."""
    n = 0
    while weights.has(f"{name}.{n}.linear.weight"):
        y = _linear(x, weights, f"{name}.{n}.linear")
        x = x + y / (1 + np.exp(-y))
        n += 1
    return x


def _linear(x: Array, weights: Weights, name: str) -> Array:
    if is_low_rank(weights, name):
        first, second = (weights.tensor(f"{name}.weight{i}") for i in (1, 2))
        inner: Array = x @ first
        return inner @ second + weights.tensor(f"{name}.bias")
    weight = weights.tensor(f"{name}.weight")
    return x @ weight.T + bias_of(weights, name, weight.shape[0])


def _convolve(x: Array, weights: Weights, name: str, *, stride: int) -> Array:
    """A width-3 convolution with padding 1 of `[n_in, n_frames]`."""
    weight = weights.tensor(f"{name}.weight")
    padded = np.pad(x, ((0, 0), (1, 1)))
    n_out_frames = (x.shape[1] - 1) // stride + 1
    taps = [padded[:, tap : tap + stride * (n_out_frames - 1) + 1 : stride] for tap in range(3)]
    y = sum(weight[:, :, tap] @ frames for tap, frames in enumerate(taps))
    return np.asarray(y + weights.tensor(f"{name}.bias")[:, None], np.float32)


def _attend(x: Array, source: Array, weights: Weights, name: str, *, n_head: int, causal: bool) -> Array:
    scores = _scores(x, source, weights, name, n_head)
    if causal:
        scores += np.triu(np.full((len(x), len(source)), -np.inf, np.float32), k=1)
    return _mix(scores, source, weights, name)


def _scores(x: Array, source: Array, weights: Weights, name: str, n_head: int) -> Array:
    q = _linear(x, weights, f"{name}.q_proj").reshape(len(x), n_head, -1).transpose(1, 0, 2)
    k = _linear(source, weights, f"{name}.k_proj").reshape(len(source), n_head, -1).transpose(1, 2, 0)
    scores: Array = q @ k / np.float32(math.sqrt(q.shape[2]))
    return scores


def _mix(scores: Array, source: Array, weights: Weights, name: str) -> Array:
    n_head, n_rows = scores.shape[:2]
    v = _linear(source, weights, f"{name}.v_proj").reshape(len(source), n_head, -1).transpose(1, 0, 2)
    mass = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attended = (mass / mass.sum(axis=-1, keepdims=True)) @ v
    return _linear(attended.transpose(1, 0, 2).reshape(n_rows, -1), weights, f"{name}.out_proj")


def _feed_forward(x: Array, weights: Weights, name: str) -> Array:
    return _linear(gelu(_linear(x, weights, f"{name}.fc1")), weights, f"{name}.fc2")


def _layer_norm(x: Array, weights: Weights, name: str) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(LAYER_NORM_EPSILON))
    y: Array = centred / scale * weights.tensor(f"{name}.weight") + weights.tensor(f"{name}.bias")
    return y


def gelu(x: Array) -> Array:
    """The exact GELU."""
    wide = x.astype(np.float64)
    z = np.abs(wide) / math.sqrt(2)
    t = 1 / (1 + _ERF_P * z)
    series = sum(a * t ** (power + 1) for power, a in enumerate(_ERF_A))
    erf = np.sign(wide) * (1 - series * np.exp(-z * z))
    y: Array = (wide * (1 + erf) / 2).astype(np.float32)
    return y


PROBE_THREADS = (1, 2)
# Without a prompt a Whisper is beside itself: 12 random ids were off by 1.2 of their size in 4 bits, these by 0.34.
TEST_TEXT = " And so, my fellow Americans, ask not what your country can do for you."


def check_ids(bundle: Bundle) -> list[int]:
    """A prompt and the ids of a sentence, as far as the text context goes."""
    special = bundle.manifest.whisper_tokens
    language = "en" if "en" in special.languages else next(iter(special.languages), None)
    ids = [*special.prompt(language, timestamps=False), *bundle.tokenizer.encode(TEST_TEXT)]
    return ids[: bundle.manifest.dims.n_text_ctx]


def check_bundle(bundle: Bundle, weights: Weights, precision: Precision) -> dict[str, Any]:
    """Numbers for the manifest's `selfcheck`.

    Raises ExactnessError when the graphs do not compute what the weights say.
    """
    canceller = Canceller()
    with canceller.on_sigint():
        return _check(bundle, weights, precision, canceller)


def _check(bundle: Bundle, weights: Weights, precision: Precision, canceller: Canceller) -> dict[str, Any]:
    dims = bundle.manifest.dims
    mel, ids = probe_mel(dims), check_ids(bundle)
    # One session at a time and the reference last, so that the largest models stay within the export's memory.
    engine = Engine(bundle, threads=PROBE_THREADS[0], cache=False, canceller=canceller, loads=())
    features = engine.encode(mel)
    engine.unload("encoder", "cross_kv")
    results: list[RowResult] = []
    tree_results: list[RowResult] = []
    references: dict[int, NDArray[np.float32]] = {}
    golden: list[list[float]] = []
    for threads in PROBE_THREADS:
        engine = Engine(bundle, threads=threads, cache=False, canceller=canceller, loads=("decoder",))
        if not references:
            references = one_row_logits(engine, features)
            golden = golden_logits(engine, features)
            logits = engine.forward(engine.start(features), ids).copy()
        results += probe_rows(engine, features, references)
        tree_results += probe_paths(engine, features, references, alone=True)
        engine.unload("decoder", "many")
    invariance = Invariance(results=tuple(results))
    engine = Engine(bundle, threads=PROBE_THREADS[0], cache=False, canceller=canceller, loads=("align",))
    scores = engine.align_scores(features, ids)
    engine.unload("align")
    numbers = _compare(features.hidden, logits, scores, mel, ids, bundle.manifest, weights)
    numbers |= _compare_plain(bundle, mel, weights, canceller)
    check_errors(numbers, precision)
    return {
        "onnxruntime": RUNTIME_VERSION,
        "isa": " ".join((isa().machine, *isa().features)),
        **{key: round(value, 9) for key, value in numbers.items()},
        "row_invariance": invariance.to_json(),
        "tree_invariance": Invariance(results=tuple(tree_results)).to_json(),
        "golden": golden,
    }


def _compare(
    hidden: Array, logits: Array, scores: Array, mel: Array, ids: list[int], manifest: Manifest, weights: Weights
) -> dict[str, float]:
    """Errors of the graphs' encoder output, logits of each row and scores of each alignment head."""
    by_layer: dict[int, Array] = {}
    expected_features = encode(mel, manifest.dims, weights)
    expected_logits = decode(ids, expected_features, manifest.dims, weights, by_layer)
    expected_scores = np.stack([by_layer[layer][head] for layer, head in manifest.alignment_heads])
    return {
        "features_relative_error": relative_error(hidden, expected_features),
        "features_max_error": float(np.abs(hidden - expected_features).max()),
        "logits_relative_error": relative_error(logits, expected_logits),
        "logits_max_error": float(np.abs(logits - expected_logits).max()),
        "scores_relative_error": relative_error(scores, expected_scores),
        "argmax_agreement": float((logits.argmax(-1) == expected_logits.argmax(-1)).mean()),
    }


def _compare_plain(bundle: Bundle, mel: Array, weights: Weights, canceller: Canceller) -> dict[str, float]:
    """The error of the encoder in plain operators, run in float32; nothing for a bundle without it."""
    if PLAIN_ENCODER_GRAPH not in bundle.manifest.graphs:
        return {}
    session = load_graph(bundle, PLAIN_ENCODER_GRAPH, canceller, folder=bundle.path, threads=PROBE_THREADS[0])
    (hidden,) = encoder_output(session, mel[None], bundle.manifest.dims.n_audio_state)
    return {"plain_features_relative_error": relative_error(hidden, encode(mel, bundle.manifest.dims, weights))}


def check_errors(numbers: dict[str, float], precision: Precision) -> None:
    """Raises ExactnessError where a part's relative error is above its bound."""
    # The plain encoder has weights of 8 bits at least.
    plain_bound = min(precision.max_features_error, PRECISIONS["int8"].max_features_error)
    for part, bound in (
        ("features", precision.max_features_error),
        ("plain_features", plain_bound),
        ("audio", precision.max_logits_error),
        ("logits", precision.max_logits_error),
        ("scores", precision.max_logits_error),
    ):
        error = numbers.get(f"{part}_relative_error", 0.0)
        if not error <= bound:  # NaN fails too
            raise ExactnessError(
                f"the {precision.name} graphs do not compute what the checkpoint's weights say: {part} are off by "
                f"{error:.3g} of their size, expected at most {bound:g}; nothing was written; try --precision fp32, "
                "and report the checkpoint if that fails too"
            )


def relative_error(measured: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Frobenius norm of the difference over that of `expected`."""
    return float(np.linalg.norm(measured - expected) / max(float(np.linalg.norm(expected)), 1e-20))
